#include "scheduler/engine/offender.h"

#include <string>

namespace muster {
namespace {

// Uid of the job that an event of a plan is about; empty: of none.
std::string JobOf(const pb::Event& event) {
  switch (event.body_case()) {
    case pb::Event::kAttemptPlaced:
      return event.attempt_placed().key().job_uid();
    case pb::Event::kAttemptStopping:
      return event.attempt_stopping().key().job_uid();
    case pb::Event::kAttemptLost:
      return event.attempt_lost().key().job_uid();
    case pb::Event::kClusterOpened:
      return event.cluster_opened().job_uid();
    case pb::Event::kTaskFailed:
      return event.task_failed().job_uid();
    case pb::Event::kReservation:
      return event.reservation().key().job_uid();
    default:
      return "";
  }
}

}  // namespace

bool DropOffender(const State& state, const PlanFault& fault, Plan* plan) {
  const std::string uid = fault.event >= 0 ? JobOf(plan->events[fault.event]) : "";
  const JobRow* job = fault.event >= 0 ? state.FindJobByUid(uid) : state.FindJob(fault.job);
  const size_t before = plan->events.size();
  if (fault.event >= 0) {
    std::erase_if(plan->events, [&](const pb::Event& event) {
      return JobOf(event) == uid || event.attempt_stopping().claimant().job_uid() == uid;
    });
  }
  if (job == nullptr) return plan->events.size() < before && !uid.empty();
  for (size_t t = 0; t < job->tasks.size(); ++t) {
    const TaskRow& task = job->tasks[t];
    if (task.finished() || task.current() != nullptr) continue;
    Verdict verdict;
    verdict.task = {job->number, static_cast<int32_t>(t)};
    verdict.code =
        task.state == pb::TASK_BLOCKED ? BlockedCode(*job, static_cast<int32_t>(t)) : pb::V_REFUSED;
    plan->verdicts.Set(verdict);
  }
  return true;
}

}  // namespace muster
