// An independent, slower, simpler check of what a plan may never do (docs/contracts.md, S0 to S4).
// It shares no code with Decide.
#pragma once

#include "absl/status/status.h"
#include "scheduler/state/plan.h"
#include "scheduler/state/state.h"

namespace muster {

// What a refusal is about, as far as that is one thing.
struct PlanFault {
  int event = -1;    // index in plan.events of the event that breaks a rule; -1: no event does
  uint64_t job = 0;  // else the job that waits without a verdict; 0: none
};

// FAILED_PRECONDITION names the first event that breaks a rule, by its index in plan.events, and
// the rule; *fault (optional) says which. Checked, on a copy that the plan's events are applied to
// one by one:
//  - only events a plan may hold, and each has an effect (it names a running attempt, a waiting
//  task, ...);
//  - a placement is whole: workers and ranks contiguous, as many devices as wanted, between min and
//  max, in one cluster that
//    the job may use, one flavour of its list, devices that exist, are healthy and free, no device
//    twice; CPUs, memory, disk of each host suffice; hosts are up, heard from, not drained, and
//    nothing is placed beside what nobody knows; the queue and the cluster are not held or drained;
//    all of the gang is in one domain of the topology level that its task requires, and so is each
//    block of its ranks;
//  - no queue on the path exceeds a limit by it;
//  - attempt numbers are the task's next; tasks that it comes after have succeeded; its backoff is
//  over;
//  - stops name running attempts and, as claimant, a waiting task; Lost only what may be lost, with
//  the task's next placement
//    or the end of a cancelled or failed one;
//  - every task that waits afterwards has a verdict.
absl::Status Validate(const State& state, const Plan& plan, PlanFault* fault = nullptr);

}  // namespace muster
