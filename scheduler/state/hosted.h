// Jobs that run on the devices of another one, its holder (`on`): docs/dev.md, decision 142.
//
// Such a job is no unit of S, holds nothing of its own and is charged to no queue. What its holder
// has on a host is shared out among those that run there by their own demands; the holder itself
// goes on beside them.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/state/state.h"

namespace muster {

// The number that `on` names; 0: none.
uint64_t HolderNumber(const pb::JobSpec& spec);

// The holder's attempt on which the job may be placed now; nullptr: it doesn't run.
const AttemptRow* HolderRuns(const State& state, const JobRow& job);
// The attempt's holder runs as it did when this one was placed.
bool HolderGoesOn(const State& state, const JobRow& job, const AttemptRow& attempt);

// What the attempt has on the host is its holder's: that one, or what was lost of it, has its
// devices there still. If the attempt outlives that, the devices aren't free before it has gone.
bool IsOnHolder(const State& state, const HostRow& host, const JobRow& job,
                const AttemptRow& attempt);

// What one host's part of a holder has left beside those that run there.
struct HolderRoom {
  std::vector<int64_t> device_milli;  // by the host's device; 0: not the holder's, or not sound
  int64_t cpus_milli = 0, memory_bytes = 0, disk_bytes = 0;

  // Takes a worker with these devices and shares of them (empty: whole ones).
  void Take(const Demand& demand, const std::vector<int32_t>& devices,
            const std::vector<int64_t>& shares);
};
HolderRoom RoomOf(const State& state, uint64_t holder, const AttemptRow& attempt,
                  const PartRow& part);

}  // namespace muster
