#include "scheduler/state/validate_together.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

bool GoesOn(const TaskRow& task) {
  const AttemptRow* current = task.current();
  return current != nullptr && current->state != pb::TASK_STOPPING && !current->released();
}

}  // namespace

absl::Status CheckPlacedTogether(const State& before, const State& after,
                                 const pb::AttemptPlaced& e) {
  const JobRow& job = *after.FindJobByUid(e.key().job_uid());
  const JobRow& was = *before.FindJob(job.number);
  const pb::TaskSpec& spec = job.task_spec(TaskIndex(*job.spec, e.key().task()));
  const int32_t cluster = after.FindCluster(e.cluster());
  bool beside = false;  // what goes on running
  std::string waits;
  for (const std::string& name : spec.with()) {
    const int32_t t = TaskIndex(*job.spec, name);
    if (t < 0) continue;
    const TaskRow& other = job.tasks[t];
    const AttemptRow* current = other.current();
    // What ends for good binds nobody.
    const bool ends =
        other.finished() || NotNeeded(job, t) ||
        (current != nullptr && (current->cause == pb::TIME_LIMIT || current->released()));
    if (!ends && current != nullptr && current->cluster != cluster)
      return absl::FailedPreconditionError(absl::StrCat("places a task in another cluster than ",
                                                        name, ", which it starts together with"));
    if (!ends && !GoesOn(other)) waits = name;
    beside = beside || (GoesOn(was.tasks[t]) && GoesOn(other) &&
                        was.tasks[t].next_attempt == other.next_attempt);
  }
  if (waits.empty() || beside) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("places a task without ", waits, ", which it starts together with"));
}

absl::Status CheckStoppedTogether(const State& after, const pb::AttemptStopping& e) {
  if (e.cause() != pb::PREEMPTION || e.next_workers() != 0) return absl::OkStatus();
  const JobRow& job = *after.FindJobByUid(e.key().job_uid());
  for (const std::string& name : job.task_spec(TaskIndex(*job.spec, e.key().task())).with()) {
    const int32_t t = TaskIndex(*job.spec, name);
    if (t >= 0 && GoesOn(job.tasks[t]))
      return absl::FailedPreconditionError(
          absl::StrCat("preempts a task and not ", name, ", which starts with it"));
  }
  return absl::OkStatus();
}

}  // namespace muster
