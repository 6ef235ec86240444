// Short words for what rows say.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/fnv.h"
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

// A key is its owner's: another one's job may have the same.
inline std::string KeyOfUser(const std::string& user, const std::string& key) {
  return absl::StrCat(user, "/", key);
}

// What an attempt's processes use of CPU time on a host: a number of their own.
inline int64_t CpuUsOf(const std::string& host, const pb::AttemptKey& key) {
  const std::string name =
      absl::StrCat(host, " ", key.job_uid(), " ", key.task(), " ", key.attempt());
  return 1 + static_cast<int64_t>(Fnv1a(name) % 1'000'000);
}

template <typename F>
void ForEachAttempt(const pb::JobRecord& job, F f) {
  for (int t = 0; t < job.tasks_size(); ++t) {
    for (const pb::AttemptRecord& attempt : job.tasks(t).attempts()) f(KeyOf(job, t, attempt));
  }
}

}  // namespace muster::sim::faults
