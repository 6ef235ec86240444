#include "agent/reconcile/gpu_record.h"

#include <algorithm>

namespace muster::agent {
namespace {

void HalveSlots(GpuRecord* record) {
  std::vector<GpuRecord::Slot> halved((record->slots.size() + 1) / 2);
  for (size_t i = 0; i < record->slots.size(); ++i) {
    halved[i / 2].busy_ns += record->slots[i].busy_ns;
    halved[i / 2].watched_ns += record->slots[i].watched_ns;
  }
  record->slots = std::move(halved);
  record->slot_ns *= 2;
}

}  // namespace

void AddLooks(const std::vector<GpuLook>& looks, int64_t ran_ns, int64_t span_ns,
              GpuRecord* record) {
  if (looks.empty() || ran_ns <= 0 || record->slot_ns <= 0) return;
  while ((ran_ns - 1) / record->slot_ns >= static_cast<int64_t>(kGpuSlots)) HalveSlots(record);
  const size_t index = static_cast<size_t>((ran_ns - 1) / record->slot_ns);
  if (record->slots.size() <= index) record->slots.resize(index + 1);
  for (const GpuLook& look : looks) {
    const int64_t busy_permille = std::clamp<int64_t>(look.busy_permille, 0, 1000);
    record->slots[index].busy_ns += span_ns / 1000 * busy_permille;
    record->slots[index].watched_ns += span_ns;
    if (look.memory_used_bytes <= record->memory_peak_bytes && record->memory_bytes != 0) continue;
    record->memory_peak_bytes = look.memory_used_bytes;
    record->memory_bytes = look.memory_bytes;
  }
}

v1::GpuUsage UsageOf(const GpuRecord& record) {
  v1::GpuUsage usage;
  usage.set_slot_ns(record.slot_ns);
  usage.set_memory_peak_bytes(record.memory_peak_bytes);
  usage.set_memory_bytes(record.memory_bytes);
  int64_t busy_ns = 0, watched_ns = 0;
  for (const GpuRecord::Slot& slot : record.slots) {
    busy_ns += slot.busy_ns;
    watched_ns += slot.watched_ns;
    const __int128 busy_permille =
        slot.watched_ns > 0 ? __int128{slot.busy_ns} * 1000 / slot.watched_ns : -1;
    usage.add_busy_permille(static_cast<int32_t>(std::min<__int128>(busy_permille, 1000)));
  }
  usage.set_busy_ns(busy_ns);
  usage.set_watched_ns(watched_ns);
  return usage;
}

}  // namespace muster::agent
