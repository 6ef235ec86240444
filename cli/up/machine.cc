#include "cli/up/machine.h"

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

// A path inside a YAML double-quoted scalar.
std::string Quoted(const std::string& path) {
  std::string out = "\"";
  for (char c : path) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

}  // namespace

std::string HostYaml(int slots) {
  return absl::StrCat("# Made by muster up --slots. Declared: these slots stand in for GPUs.\n{flavour: cpu-slot, gpus: ", slots, "}\n");
}

std::string ClustersYaml(const std::string& data_dir) {
  return absl::StrCat("# Made by muster up, anew at every start.\nstorages:\n  local: {path: ", Quoted(data_dir + "/storage"), ", clusters: [", kUpCluster,
                      "]}\nclusters:\n  - {name: ", kUpCluster, ", job_storage: local, open: true}\n");
}

// Without quota: the one queue may use all there is.
std::string QueuesYaml() {
  return absl::StrCat("# Made by muster up; read into an empty store only. Later: muster queue apply\nqueues:\n  - name: ", kUpQueue, "\n    submit: [\"*\"]\n");
}

}  // namespace muster
