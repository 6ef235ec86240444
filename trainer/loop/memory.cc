#include "trainer/loop/memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>

namespace muster::trainer {

MemoryUse ReadMemoryUse(at::Device device) {
  MemoryUse use;
  if (device.is_cuda()) {
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device.index());
    const auto& bytes =
        stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    return {bytes.current, bytes.peak};
  }
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    int64_t* to = line.starts_with("VmRSS:")   ? &use.now_bytes
                  : line.starts_with("VmHWM:") ? &use.peak_bytes
                                               : nullptr;
    if (to != nullptr) *to = std::stoll(line.substr(line.find(':') + 1)) * 1024;
  }
  return use;
}

int64_t DeviceMemory(at::Device device) {
  cudaDeviceProp properties{};
  return cudaGetDeviceProperties(&properties, device.index()) == cudaSuccess
             ? static_cast<int64_t>(properties.totalGlobalMem)
             : 0;
}

namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// The number in a file of a control group, or `none`.
int64_t NumberIn(const std::string& path, int64_t none) {
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number ? number : none;
}

// The value of `key` in lines "KEY NUMBER".
int64_t NumberOf(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string name;
  for (int64_t number = 0; file >> name >> number;) {
    if (name == key) return number;
  }
  return 0;
}

// What a control group says of its memory, in files that versions 2 and 1 name differently.
struct GroupFiles {
  const char *limit, *used, *inactive;  // inactive: a line of memory.stat
};
constexpr GroupFiles kVersions[] = {
    {"memory.max", "memory.current", "inactive_file"},
    {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"}};
// Version 1 says by its largest number of pages that there is no limit.
constexpr int64_t kHuge = int64_t{1} << 60;

// The least of `of(folder, files, limit)` over the control group `path` and those above it that
// have a limit.
template <class Of>
int64_t LeastOfGroups(const std::string& root, std::string path, const Of& of) {
  int64_t least = kNoLimit;
  while (true) {
    const std::string folder = root + path + (path.ends_with('/') ? "" : "/");
    for (const GroupFiles& files : kVersions) {
      const int64_t limit = NumberIn(folder + files.limit, kNoLimit);
      if (limit < kHuge) least = std::min(least, of(folder, files, limit));
    }
    if (path.empty() || path == "/") return least;
    path.resize(path.rfind('/'));
  }
}

struct GroupPlace {
  std::string mounted, path;  // where its hierarchy is, and the group in it
};
// Of a line of /proc/self/cgroup, if that hierarchy may count memory: "0::/PATH" is version 2,
// "4:memory:/PATH" version 1.
std::optional<GroupPlace> MemoryGroup(const std::string& line) {
  const size_t first = line.find(':'),
               second = first == std::string::npos ? first : line.find(":/", first + 1);
  if (second == std::string::npos) return std::nullopt;
  const std::string controllers = line.substr(first + 1, second - first - 1);
  const std::string path = line.substr(second + 1);
  if (controllers.empty()) return GroupPlace{"/sys/fs/cgroup", path};
  if (("," + controllers + ",").find(",memory,") == std::string::npos) return std::nullopt;
  return GroupPlace{"/sys/fs/cgroup/" + controllers, path};
}

// The host's figure, or what `of` says of this process's control groups if that is less; 0: the
// host doesn't say.
int64_t HostFigure(const std::string& root, std::string_view key,
                   int64_t (*of)(const std::string&, std::string)) {
  std::ifstream all(root + "/proc/meminfo");
  for (std::string line; std::getline(all, line);) {
    if (!line.starts_with(key)) continue;
    int64_t least = std::stoll(line.substr(key.size())) * 1024;
    std::ifstream groups(root + "/proc/self/cgroup");
    for (std::string group; std::getline(groups, group);) {
      if (const auto place = MemoryGroup(group))
        least = std::min(least, of(root + place->mounted, place->path));
    }
    return std::max<int64_t>(1, least);  // of a full group: 0 is that nobody knows
  }
  return 0;
}

}  // namespace

int64_t ControlGroupRoom(const std::string& root, std::string path) {
  return LeastOfGroups(
      root, std::move(path), [](const std::string& folder, const GroupFiles& files, int64_t limit) {
        // What was read from files and not lately used goes first.
        const int64_t used =
            NumberIn(folder + files.used, 0) - NumberOf(folder + "memory.stat", files.inactive);
        return std::max<int64_t>(0, limit - used);
      });
}

int64_t ControlGroupLimit(const std::string& root, std::string path) {
  return LeastOfGroups(root, std::move(path),
                       [](const std::string&, const GroupFiles&, int64_t limit) { return limit; });
}

int64_t AvailableHostBytes(const std::string& root) {
  return HostFigure(root, "MemAvailable:", ControlGroupRoom);
}

int64_t HostMemoryLimit(const std::string& root) {
  return HostFigure(root, "MemTotal:", ControlGroupLimit);
}

}  // namespace muster::trainer
