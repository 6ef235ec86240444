// What hosts have free, on a scratch copy that placements are tried on, and the placement of a gang in it (SCHEDULING.md §3).
//
// Inside of scheduler/decide.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "scheduler/decide/model.h"
#include "scheduler/state/state.h"

namespace muster {

using PlannedPart = HostSlice;
using PlannedGang = std::vector<PlannedPart>;

// What one host has free.
struct HostFree {
  bool usable = false;
  std::vector<int64_t> device_milli;
  int64_t cpus_milli = 0, memory_bytes = 0, disk_bytes = 0;
};

class FreeMap {
 public:
  // What is free now on hosts that may get work: up, heard from, not drained.
  explicit FreeMap(const State& state);

  // Gives back what the attempt holds on usable hosts, or takes it again.
  void Release(const JobRow& job, int32_t task, const AttemptRow& attempt);
  void Take(const pb::TaskSpec& spec, const PlannedGang& gang);
  void GiveBack(const pb::TaskSpec& spec, const PlannedGang& gang);
  // Nothing that the other map doesn't have either.
  void LimitTo(const FreeMap& other, const PlannedGang& gang);

  // No more on the host than this.
  void LimitHost(HostId id, const HostFree& limit);
  // Nothing is placed on the host.
  void Close(HostId id);
  HostFree Peek(HostId id) const { return hosts_[id]; }
  // Exactly these devices, and CPUs, memory and disk beside them, are free on hosts that may get work.
  bool Fits(const pb::TaskSpec& spec, const PlannedGang& gang) const;

  // Everything changed since the mark is as it was then.
  size_t Mark() const { return undo_.size(); }
  void UndoTo(size_t mark);

  // The tightest place for `workers` of the task on the cell's hosts: one host, else the smallest rack, else block, that holds
  // them, else the cluster; not wider than the task's topology allows. Equal places in State's order of hosts.
  std::optional<PlannedGang> Place(const pb::TaskSpec& spec, int32_t workers, const Cell& cell) const;

  // Devices (CPUs for work without GPUs) free on the cell's hosts, in thousandths.
  int64_t FreeMilli(const Cell& cell, bool gpus) const;

 private:
  int32_t WorkersThatFit(const pb::TaskSpec& spec, HostId id) const;
  PlannedPart Part(const pb::TaskSpec& spec, HostId id, int32_t workers) const;
  void Change(const pb::TaskSpec& spec, const PlannedPart& part, int64_t sign);
  HostFree& Write(HostId id);

  const State& state_;
  std::vector<HostFree> hosts_;        // by HostId
  std::vector<std::pair<HostId, HostFree>> undo_;  // what changed hosts were before, oldest first
};

}  // namespace muster
