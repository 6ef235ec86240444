#include "scheduler/ask/forecast.h"

namespace muster {

Forecast MakeForecast(const State& state, int64_t now_ns, const SchedulingOptions& scheduling,
                      const FutureOptions& options) {
  Forecast forecast;
  for (const uint64_t number : state.active_jobs()) {
    if (state.FindJob(number)->not_before_ns != 0) continue;  // its time is known, and may be far
    const std::vector<TaskRow>& tasks = state.FindJob(number)->tasks;
    for (size_t t = 0; t < tasks.size(); ++t) {
      if (tasks[t].waiting() || tasks[t].state == pb::TASK_BLOCKED)
        forecast.later.insert(forecast.later.end(), {number, static_cast<int32_t>(t)});
    }
  }
  Future future(state, now_ns, scheduling, options);
  forecast.now_ns = forecast.until_ns = future.now_ns();
  size_t seen = 0;
  bool more = !forecast.later.empty();
  while (more && !forecast.later.empty()) {
    more = future.Step();
    for (; seen < future.foreseen().size(); ++seen) {
      const Foreseen& start = future.foreseen()[seen];
      if (start.kind != Foreseen::kPlaced || forecast.later.erase(start.task) == 0)
        continue;  // else it ran, and comes back
      forecast.starts[start.task] = {start.at_ns, start.workers, start.cluster, start.flavour,
                                     PlaceText(state, start.hosts)};
    }
  }
  forecast.complete = !future.cut();
  forecast.until_ns = future.cut() ? future.now_ns() : forecast.now_ns + options.horizon_ns;
  return forecast;
}

void AddForecast(const Forecast& forecast, uint64_t number, int64_t now_ns, pb::Job* job) {
  for (int t = 0; t < job->tasks_size(); ++t) {
    pb::Task* task = job->mutable_tasks(t);
    const pb::VerdictCode code = task->verdict().code();
    if (task->state() != pb::TASK_WAITING || code == pb::V_BACKOFF || code == pb::V_HELD ||
        code == pb::V_STARTING_NOW)
      continue;
    const auto start = forecast.starts.find(TaskRef{number, t});
    if (start == forecast.starts.end()) {
      if (!forecast.later.contains(TaskRef{number, t}) ||
          task->verdict().expected_start_ns() > forecast.until_ns)
        continue;
      task->mutable_verdict()->clear_expected_start_ns();
      continue;
    }
    if (start->second.start_ns <= now_ns) continue;
    task->mutable_verdict()->set_expected_start_ns(start->second.start_ns);
    task->mutable_verdict()->set_forecast(true);
  }
}

}  // namespace muster
