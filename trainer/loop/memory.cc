#include "trainer/loop/memory.h"

#include <unistd.h>

#include <fstream>
#include <string>
#include <string_view>

#include <c10/cuda/CUDACachingAllocator.h>

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

int64_t AvailableHostBytes() {
  constexpr std::string_view kKey = "MemAvailable:";
  std::ifstream all("/proc/meminfo");
  for (std::string line; std::getline(all, line);) {
    if (line.starts_with(kKey)) return std::stoll(line.substr(kKey.size())) * 1024;
  }
  return 0;
}

}  // namespace muster::trainer
