// What would happen if: the future with some changes beside the future without, and what differs.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/spec/spec.h"
#include "muster/v1/job_service.pb.h"
#include "scheduler/ask/check_after.h"
#include "scheduler/ask/future.h"
#include "scheduler/state/state.h"

namespace muster {

// The changes of a request, resolved against a State; problems are those of jobs[i]…, queues…,
// drain[i], resume[i].
struct Changes {
  std::vector<pb::JobSpec> jobs;
  std::vector<pb::Event> events;   // queues and drains
  std::vector<std::string> lines;  // of the queue tree, one a queue that changes
  std::vector<FieldProblem> problems;
};
// The jobs are `owner`'s. `named`: what the caller sees of a job's name.
Changes ResolveChanges(const State& state, const pb::SimulateRequest& request,
                       const SpecDefaults& defaults, const std::string& owner,
                       const FindNamed& named = FindNamedJob);

// Both futures share the time; names of jobs are given for `sees` alone. Thread-safe on snapshots.
pb::SimulateResponse Simulate(const State& state, const Changes& changes, const std::string& owner,
                              int64_t delay_ns, int64_t now_ns, const SchedulingOptions& scheduling,
                              const FutureOptions& options, const Spent& spent,
                              const std::function<bool(const JobRow&)>& sees);

}  // namespace muster
