// What hosts have free, on a scratch copy that placements are tried on, and the placement of a gang in it (SCHEDULING.md §3).
//
// Inside of scheduler/decide.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "scheduler/decide/model.h"
#include "scheduler/state/state.h"

namespace muster {

// The part of a planned gang on one host; devices in worker order.
struct PlannedPart {
  HostId host = kNoHost;
  int32_t workers = 0;
  std::vector<int32_t> devices;
  std::vector<int64_t> device_milli;   // empty: whole devices
};
using PlannedGang = std::vector<PlannedPart>;

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

  // The tightest place for `workers` of the task on the cell's hosts: one host, else the smallest rack, else block, that holds
  // them, else the cluster; not wider than the task's topology allows. Equal places in State's order of hosts.
  std::optional<PlannedGang> Place(const pb::TaskSpec& spec, int32_t workers, const Cell& cell) const;

  // Devices (CPUs for work without GPUs) free on the cell's hosts, in thousandths.
  int64_t FreeMilli(const Cell& cell, bool gpus) const;

 private:
  struct HostFree {
    bool usable = false;
    std::vector<int64_t> device_milli;
    int64_t cpus_milli = 0, memory_bytes = 0, disk_bytes = 0;
  };

  int32_t WorkersThatFit(const pb::TaskSpec& spec, HostId id) const;
  PlannedPart Part(const pb::TaskSpec& spec, HostId id, int32_t workers) const;
  void Change(const pb::TaskSpec& spec, const PlannedPart& part, int64_t sign);

  const State& state_;
  std::vector<HostFree> hosts_;        // by HostId
};

}  // namespace muster
