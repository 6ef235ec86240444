// How much memory training takes: the process's resident set on a CPU, what the allocator gave out
// on a GPU.
#pragma once

#include <cstdint>

#include <ATen/ATen.h>

namespace muster::trainer {

struct MemoryUse {
  int64_t now_bytes = 0, peak_bytes = 0;
};
MemoryUse ReadMemoryUse(at::Device device);

// What this host could give to new work without swapping; 0 if it doesn't say.
int64_t AvailableHostBytes();

}  // namespace muster::trainer
