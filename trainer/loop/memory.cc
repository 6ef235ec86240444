#include "trainer/loop/memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
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

// The least of `of(folder, limit)` over the control group `path` and those above it that have a
// limit.
template <class Of>
int64_t LeastOfGroups(const std::string& root, std::string path, const Of& of) {
  int64_t least = kNoLimit;
  while (true) {
    const std::string folder = root + path + (path.ends_with('/') ? "" : "/");
    const int64_t limit = NumberIn(folder + "memory.max", kNoLimit);
    if (limit != kNoLimit) least = std::min(least, of(folder, limit));
    if (path.empty() || path == "/") return least;
    path.resize(path.rfind('/'));
  }
}

// The host's figure, or what `of` says of this process's control group if that is less; 0: the
// host doesn't say.
int64_t HostFigure(std::string_view key, int64_t (*of)(const std::string&, std::string)) {
  std::ifstream all("/proc/meminfo");
  for (std::string line; std::getline(all, line);) {
    if (!line.starts_with(key)) continue;
    const int64_t of_host = std::stoll(line.substr(key.size())) * 1024;
    std::ifstream groups("/proc/self/cgroup");
    for (std::string group; std::getline(groups, group);) {
      if (group.starts_with("0::")) return std::min(of_host, of("/sys/fs/cgroup", group.substr(3)));
    }
    return of_host;
  }
  return 0;
}

}  // namespace

int64_t ControlGroupRoom(const std::string& root, std::string path) {
  return LeastOfGroups(root, std::move(path), [](const std::string& folder, int64_t limit) {
    // What was read from files and not lately used goes first.
    const int64_t used =
        NumberIn(folder + "memory.current", 0) - NumberOf(folder + "memory.stat", "inactive_file");
    return std::max<int64_t>(0, limit - used);
  });
}

int64_t ControlGroupLimit(const std::string& root, std::string path) {
  return LeastOfGroups(root, std::move(path),
                       [](const std::string&, int64_t limit) { return limit; });
}

int64_t AvailableHostBytes() { return HostFigure("MemAvailable:", ControlGroupRoom); }

int64_t HostMemoryLimit() { return HostFigure("MemTotal:", ControlGroupLimit); }

}  // namespace muster::trainer
