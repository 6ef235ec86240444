// What an attempt's GPUs did on this host, from looks at them every few seconds. Values; pure.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/units.h"
#include "muster/v1/job.pb.h"

namespace muster::agent {

namespace v1 = ::muster::v1;

// A look at one device.
struct GpuLook {
  int32_t device = 0;  // index in the inventory
  int32_t busy_permille = 0;
  int64_t memory_used_bytes = 0;
  int64_t memory_bytes = 0;
};

struct GpuRecord {
  struct Slot {
    int64_t busy_ns = 0;
    int64_t watched_ns = 0;  // of all devices together; 0: nobody watched then
    bool operator==(const Slot&) const = default;
  };
  int64_t slot_ns = kMinute;      // twice as long each time that there are too many
  std::vector<Slot> slots;        // from the attempt's start on
  int64_t memory_peak_bytes = 0;  // of the device with the most
  int64_t memory_bytes = 0;       // that it has
  bool operator==(const GpuRecord&) const = default;
};

inline constexpr size_t kGpuSlots = 64;

// `looks` are at the attempt's devices, `ran_ns` after its start; each stands for the `span_ns`
// before it.
void AddLooks(const std::vector<GpuLook>& looks, int64_t ran_ns, int64_t span_ns,
              GpuRecord* record);

v1::GpuUsage UsageOf(const GpuRecord& record);

}  // namespace muster::agent
