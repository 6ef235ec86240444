// What hosts still run of which a restored store knows nothing (contract 19, decision 184). Their
// host gets nothing new meanwhile (HostRow::taken_out), nor does their job.
#pragma once

#include <algorithm>
#include <vector>

#include "scheduler/state/state.h"

namespace muster {

// Attempts of before a restore have lower numbers than those of after it (contract 19). 0: the
// store was never restored.
inline int32_t FirstAttemptSince(uint64_t adopted_epoch) {
  return static_cast<int32_t>(std::clamp<int64_t>(
      static_cast<int64_t>(adopted_epoch / 1000) - kAttemptsSinceS, 0, int64_t{1} << 30));
}

// One of the job's may run there, of the time that the restored store lost: nothing of the job
// starts anywhere before it is gone, or its host is known to be off. Whatever else a host says it
// runs keeps the host alone.
inline bool HasStrayOf(const State& state, const HostRow& host, const JobRow& job) {
  const int32_t first = FirstAttemptSince(state.adopted_epoch());
  if (first == 0 || !TakesJobsOf(state.clusters()[host.cluster].spec, job.owner)) return false;
  return std::any_of(host.lost.begin(), host.lost.end(), [&](const LostRow& lost) {
    if (!lost.stray() || lost.key.job_uid() != job.uid || lost.key.attempt() >= first) return false;
    const int32_t task = TaskIndex(*job.spec, lost.key.task());
    return task < 0 || !KnownOff(host, job.task_spec(task));
  });
}

// None where the store was never restored: then no host is looked at.
inline std::vector<HostId> HostsWithStrays(const State& state) {
  std::vector<HostId> hosts;
  if (state.adopted_epoch() == 0) return hosts;
  for (const HostId id : state.hosts()) {
    if (state.host(id).has_strays()) hosts.push_back(id);
  }
  return hosts;
}

}  // namespace muster
