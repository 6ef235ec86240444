#include "scheduler/ask/forecast.h"

namespace muster {

Forecast MakeForecast(const State& state, int64_t now_ns, const SchedulingOptions& scheduling, const FutureOptions& options) {
  Forecast forecast;
  size_t waiting = 0;
  for (const uint64_t number : state.active_jobs()) {
    for (const TaskRow& task : state.FindJob(number)->tasks) waiting += task.waiting() || task.state == pb::TASK_BLOCKED;
  }
  Future future(state, now_ns, scheduling, options);
  forecast.now_ns = forecast.until_ns = future.now_ns();
  size_t seen = 0;
  bool more = waiting > 0;
  while (more && forecast.starts.size() < waiting) {
    more = future.Step();
    for (; seen < future.turns().size(); ++seen) {
      const Turn& turn = future.turns()[seen];
      if (turn.kind != Turn::kPlaced || forecast.starts.contains(turn.task)) continue;
      const JobRow* job = state.FindJob(turn.task.job);
      if (job == nullptr) continue;
      const TaskRow& task = job->tasks[turn.task.task];
      if (!task.waiting() && task.state != pb::TASK_BLOCKED) continue;      // it ran, and comes back
      forecast.starts[turn.task] = {turn.at_ns, turn.workers, turn.cluster, turn.flavour, PlaceText(state, turn.hosts)};
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
    if (task->state() != pb::TASK_WAITING || code == pb::V_BACKOFF || code == pb::V_HELD || code == pb::V_STARTING_NOW) continue;
    const auto start = forecast.starts.find(TaskRef{number, t});
    if (start == forecast.starts.end() || start->second.start_ns <= now_ns) continue;
    task->mutable_verdict()->set_expected_start_ns(start->second.start_ns);
    task->mutable_verdict()->set_forecast(true);
  }
}

}  // namespace muster
