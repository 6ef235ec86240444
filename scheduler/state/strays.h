// What hosts still run of which a restored store knows nothing (contract 19, decision 184). Their
// host gets nothing new meanwhile (HostRow::taken_out), nor does their job.
#pragma once

#include <algorithm>
#include <vector>

#include "scheduler/state/state.h"

namespace muster {

inline bool HasStrays(const HostRow& host) {
  return std::any_of(host.lost.begin(), host.lost.end(),
                     [](const LostRow& lost) { return lost.stray(); });
}

// One of the job's may run there: nothing of the job starts anywhere before it is gone, or its host
// is known to be off.
inline bool HasStrayOf(const HostRow& host, const JobRow& job) {
  return std::any_of(host.lost.begin(), host.lost.end(), [&](const LostRow& lost) {
    if (!lost.stray() || lost.key.job_uid() != job.uid) return false;
    const int32_t task = TaskIndex(*job.spec, lost.key.task());
    return task < 0 || !KnownOff(host, job.task_spec(task));
  });
}

// None where the store was never restored: then no host is looked at.
inline std::vector<HostId> HostsWithStrays(const State& state) {
  std::vector<HostId> hosts;
  if (state.adopted_epoch() == 0) return hosts;
  for (const HostId id : state.hosts()) {
    if (HasStrays(state.host(id))) hosts.push_back(id);
  }
  return hosts;
}

}  // namespace muster
