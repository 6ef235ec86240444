#include "scheduler/decide/testing/fuzz_multiples.h"

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

// The task that the key names has multiple_of, and `workers` are none.
std::string CheckCount(const State& state, const pb::AttemptKey& key, int32_t workers,
                       const char* what) {
  const JobRow* job = state.FindJobByUid(key.job_uid());
  if (job == nullptr) return "";
  for (const pb::TaskSpec& task : job->spec->tasks()) {
    const int32_t multiple = task.workers().multiple_of();
    if (task.name() == key.task() && multiple > 1 && workers % multiple != 0)
      return absl::StrCat("job ", job->number, what, workers, " workers, no multiple of ",
                          multiple);
  }
  return "";
}

const pb::Workers& WorkersOf(const State& state, const pb::AttemptKey& key) {
  const JobRow* job = state.FindJobByUid(key.job_uid());
  return job->task_spec(TaskIndex(*job->spec, key.task())).workers();
}

std::string CheckEvent(const State& state, const pb::Event& event, Multiples* seen) {
  if (event.has_attempt_placed()) {
    const pb::AttemptPlaced& e = event.attempt_placed();
    const pb::Workers& asked = WorkersOf(state, e.key());
    seen->starts += asked.multiple_of() > 1 && e.workers() > asked.min();
    return CheckCount(state, e.key(), e.workers(), " starts with ");
  }
  if (event.has_reservation()) {
    const pb::ReservationChanged& e = event.reservation();
    return CheckCount(state, e.key(), e.workers(), " has devices kept for ");
  }
  if (!event.has_attempt_stopping()) return "";
  const pb::AttemptStopping& e = event.attempt_stopping();
  if (WorkersOf(state, e.key()).multiple_of() > 1) {
    seen->growths += e.cause() == pb::RESIZE;
    seen->shrinks += e.cause() == pb::PREEMPTION && e.next_workers() > 0;
  }
  return CheckCount(state, e.key(), e.next_workers(), " is to go on with ");
}

}  // namespace

int64_t DrawMultiples(Dice* dice, pb::JobSpec* spec) {
  int64_t drawn = 0;
  for (pb::TaskSpec& task : *spec->mutable_tasks()) {
    pb::Workers* workers = task.mutable_workers();
    if (workers->max() <= workers->min() || !dice->Percent(70)) continue;
    const int32_t multiple = 2 + dice->Of(3);
    workers->set_multiple_of(multiple);
    workers->set_min(multiple * (1 + dice->Of(2)));
    workers->set_max(workers->min() + multiple * (1 + dice->Of(3)));
    ++drawn;
  }
  return drawn;
}

std::string CheckMultiples(const State& state, const Plan& plan, Multiples* seen) {
  for (const pb::Event& event : plan.events) {
    std::string broken = CheckEvent(state, event, seen);
    if (!broken.empty()) return broken;
  }
  for (const uint64_t number : state.active_jobs()) {
    const JobRow& job = *state.FindJob(number);
    for (size_t t = 0; t < job.tasks.size(); ++t) {
      const int32_t multiple = job.task_spec(static_cast<int32_t>(t)).workers().multiple_of();
      if (multiple <= 1) continue;
      const TaskRow& task = job.tasks[t];
      const AttemptRow* current = task.current();
      if (task.wanted_workers % multiple != 0 ||
          (current != nullptr &&
           (current->workers % multiple != 0 || current->next_workers % multiple != 0)))
        return absl::StrCat("job ", number, " has, or wants, no multiple of ", multiple,
                            " workers");
    }
  }
  return "";
}

}  // namespace muster
