// Short words for what rows say.
#pragma once

#include "muster/v1/agent.pb.h"
#include "muster/v1/record.pb.h"

namespace muster::sim::faults {

namespace pb = ::muster::v1;

inline bool Over(const pb::HostPart& part) { return part.lost() || part.phase() == pb::GONE; }

inline pb::AttemptKey KeyOf(const pb::JobRecord& job, int t, const pb::AttemptRecord& attempt) {
  pb::AttemptKey key;
  key.set_job_uid(job.uid());
  key.set_task(job.spec().tasks(t).name());
  key.set_attempt(attempt.number());
  return key;
}

template <typename F>
void ForEachAttempt(const pb::JobRecord& job, F f) {
  for (int t = 0; t < job.tasks_size(); ++t) {
    for (const pb::AttemptRecord& attempt : job.tasks(t).attempts()) f(KeyOf(job, t, attempt));
  }
}

}  // namespace muster::sim::faults
