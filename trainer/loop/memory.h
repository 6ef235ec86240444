// How much memory training takes: the process's resident set on a CPU, what the allocator gave out
// on a GPU.
#pragma once

#include <cstdint>
#include <string>

#include <ATen/ATen.h>

namespace muster::trainer {

struct MemoryUse {
  int64_t now_bytes = 0, peak_bytes = 0;
};
MemoryUse ReadMemoryUse(at::Device device);
// All of a GPU's memory; 0: CUDA doesn't say.
int64_t DeviceMemory(at::Device device);

// What this host, and the control groups that this process is in, could give to new work without
// swapping; 0 if the host doesn't say. `root`: the folder with proc and sys, which is / but in
// tests.
int64_t AvailableHostBytes(const std::string& root = "");
// What the control group `path` and those above it leave of their limits; `root` is where version 2
// of them, or version 1's memory controller, is mounted. The largest number if none has a limit.
int64_t ControlGroupRoom(const std::string& root, std::string path);

// What the processes of this one's control groups may have together: their smallest limit, else all
// that the host has, whoever uses it. 0: the host doesn't say.
int64_t HostMemoryLimit(const std::string& root = "");
// The smallest limit of the control group `path` and those above it, as ControlGroupRoom.
int64_t ControlGroupLimit(const std::string& root, std::string path);

}  // namespace muster::trainer
