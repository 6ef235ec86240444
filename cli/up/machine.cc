#include "cli/up/machine.h"

#include <sched.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <cstdint>

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

// An inventory file must name cpus and memory: this machine's, as the agent would find them. Disk
// is left to the agent.
std::string HostYaml(int slots) {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cpus = sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
  struct sysinfo memory {};
  int64_t bytes = sysinfo(&memory) == 0 ? static_cast<int64_t>(memory.totalram) * memory.mem_unit
                                        : int64_t{1} << 30;
  return absl::StrCat(
      "# Made by muster up --slots. Declared: these slots stand in for GPUs.\n{flavour: cpu-slot, "
      "gpus: ",
      slots, ", cpus: ", cpus, ", memory: ", bytes, "B}\n");
}

std::string ClustersYaml(const std::string& data_dir) {
  return absl::StrCat("# Made by muster up, anew at every start.\nstorages:\n  local: {path: ",
                      Quoted(data_dir + "/storage"), ", clusters: [", kUpCluster,
                      "]}\nclusters:\n  - {name: ", kUpCluster,
                      ", job_storage: local, open: true}\n");
}

// Without quota: the one queue may use all there is.
std::string QueuesYaml() {
  return absl::StrCat(
      "# Made by muster up; read into an empty store only. Later: muster queue apply\nqueues:\n  - "
      "name: ",
      kUpQueue, "\n    submit: [\"*\"]\n");
}

}  // namespace muster
