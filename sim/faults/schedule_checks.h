// Schedules, checked from the rows that were committed and from the specs alone: each time of one
// starts one job, once, whatever dies meanwhile; none starts before its time, nor, unless the spec
// allows it, beside the job of the time before. Nothing here uses the engine's code.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "muster/v1/record.pb.h"
#include "sim/faults/counters.h"

namespace muster::sim::faults {

namespace pb = ::muster::v1;

// Of schedules "*/N * * * *", by UTC, with N one of 1, 2 and 3.
class ScheduleChecks {
 public:
  // `jobs` by uid, as committed: the caller's, who keeps them.
  ScheduleChecks(const std::map<std::string, pb::JobRecord>* jobs, Counters* counters,
                 std::function<void(const std::string&)> violate)
      : jobs_(*jobs), counters_(*counters), violate_(std::move(violate)) {}

  // Of each commit its jobs, each before the caller's map has it; then Committed.
  void OnJob(const pb::JobRecord* before, const pb::JobRecord& after);
  void Committed();
  // The map holds what a backup has: nothing since counts.
  void OnRestored();

 private:
  void OnNew(const pb::JobRecord& job);
  void CheckFollows(const pb::JobRecord& job);
  void CheckCame(const pb::JobRecord& job);
  const pb::JobRecord* Numbered(uint64_t number) const;
  void Violate(const pb::JobRecord& job, const std::string& what);

  const std::map<std::string, pb::JobRecord>& jobs_;
  Counters& counters_;
  const std::function<void(const std::string&)> violate_;
  std::map<std::string, int64_t> times_;      // by uid: that it waits for, or waited for last
  std::map<uint64_t, std::string> followed_;  // uid by the number of the job of the time before
  std::vector<std::string> new_, came_;       // uids: there since this commit; due by it
};

}  // namespace muster::sim::faults
