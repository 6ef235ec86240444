#include "cli/up/machine.h"

#include <dirent.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/files.h"

namespace muster {
namespace {

// /dev/nvidia0, /dev/nvidia1, …
int CountGpus() {
  DIR* directory = opendir("/dev");
  if (directory == nullptr) return 0;
  int count = 0;
  while (const struct dirent* entry = readdir(directory)) {
    std::string name = entry->d_name;
    count += name.rfind("nvidia", 0) == 0 && name.size() > 6 && std::all_of(name.begin() + 6, name.end(), [](unsigned char c) { return std::isdigit(c); });
  }
  closedir(directory);
  return count;
}

int64_t MemoryBytes() {
  int64_t bytes = int64_t{1} << 30;
  if (absl::StatusOr<std::string> info = ReadFile("/proc/meminfo"); info.ok()) {
    size_t at = info->find("MemTotal:");
    if (at != std::string::npos) bytes = std::max<int64_t>(1, std::strtoll(info->c_str() + at + 9, nullptr, 10)) * 1024;
  }
  if (absl::StatusOr<std::string> limit = ReadFile("/sys/fs/cgroup/memory.max"); limit.ok()) {  // inside a container
    int64_t most = 0;
    if (absl::SimpleAtoi(*limit, &most) && most > 0) bytes = std::min(bytes, most);
  }
  return bytes;
}

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

Machine ProbeMachine(const std::string& data_dir, int slots) {
  Machine machine;
  machine.cpus = std::max(1u, std::thread::hardware_concurrency());
  machine.memory_bytes = MemoryBytes();
  struct statvfs disk;
  if (statvfs(data_dir.c_str(), &disk) == 0) machine.disk_bytes = static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
  machine.gpus = slots > 0 ? 0 : CountGpus();
  if (machine.gpus == 0) machine.slots = slots > 0 ? slots : std::clamp(machine.cpus, 2, 64);
  return machine;
}

std::string HostYaml(const Machine& machine) {
  return absl::StrCat("# Made by muster up. Declared: these slots stand in for GPUs.\n", "{flavour: cpu-slot, gpus: ", machine.slots, ", cpus: ", machine.cpus,
                      ", memory: ", machine.memory_bytes >> 20, "MiB, disk: ", machine.disk_bytes >> 20, "MiB}\n");
}

std::string ClustersYaml(const std::string& data_dir) {
  return absl::StrCat("# Made by muster up, anew at every start.\nstorages:\n  local: {path: ", Quoted(data_dir + "/storage"), ", clusters: [", kUpCluster,
                      "]}\nclusters:\n  - {name: ", kUpCluster, ", job_storage: local, open: true}\n");
}

std::string QueuesYaml(const Machine& machine) {
  std::string quota = machine.slots > 0 ? "\n    quota: {cpu-slot: {weight: 1}}" : "";
  return absl::StrCat("# Made by muster up; read into an empty store only. Later: muster queue apply\nqueues:\n  - name: ", kUpQueue, quota, "\n    submit: [\"*\"]\n");
}

}  // namespace muster
