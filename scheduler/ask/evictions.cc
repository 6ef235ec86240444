#include "scheduler/ask/evictions.h"

#include <algorithm>
#include <map>

#include "common/base/units.h"
#include "scheduler/ask/future.h"
#include "scheduler/ask/taken.h"
#include "scheduler/decide/decide.h"

namespace muster {
namespace {

using Taken = pb::PreviewResponse::Taken;

// By job and task.
std::map<std::pair<uint64_t, std::string>, Taken> TakenNow(State state, int64_t now_ns, const SchedulingOptions& options) {
  pb::Event step;
  step.mutable_step()->set_now_ns(std::max(now_ns, state.now_ns()));
  step.mutable_step()->set_epoch(state.epoch());
  Apply(&state, step);
  std::map<std::pair<uint64_t, std::string>, Taken> taken;
  for (const pb::Event& event : Decide(state, state.now_ns(), options).events) {
    if (!event.has_attempt_stopping()) continue;
    const pb::AttemptStopping& stopping = event.attempt_stopping();
    const std::optional<Taken> one = TakenBy(state, stopping);
    if (one.has_value() && one->gpus_milli() >= 0) taken[{one->job(), stopping.key().task()}] = *one;   // below 0: it grows
  }
  return taken;
}

}  // namespace

std::optional<Taken> TakenBy(const State& state, const pb::AttemptStopping& stopping) {
  const JobRow* job = nullptr;
  int32_t task = 0;
  const AttemptRow* attempt = state.FindAttempt(stopping.key(), &job, &task);
  if (attempt == nullptr) return std::nullopt;
  const int64_t a_worker_milli = job->task_spec(task).resources().gpus_milli();
  const int32_t left = stopping.next_workers();
  Taken taken;
  taken.set_job(job->number);
  taken.set_queue(job->spec->queue());
  taken.set_gpus_milli((attempt->workers - left) * a_worker_milli);
  taken.set_outcome(left == attempt->workers ? "goes on with other devices"
                                             : Outcome(left, attempt->start_ns != 0 && StartsOver(job->tasks[task], job->task_spec(task))));
  const int64_t since_ns = std::max(attempt->last_checkpoint_ns, attempt->start_ns);
  if (since_ns > 0) taken.set_lost_gpu_ms((state.now_ns() - since_ns) / kMillisecond * attempt->workers * a_worker_milli / 1000);
  return taken;
}

std::vector<Taken> Evictions(const State& state, const pb::QueueTree& resolved, int64_t now_ns, const SchedulingOptions& options) {
  State changed = state;
  pb::Event event;
  *event.mutable_queues_applied()->mutable_tree() = resolved;
  event.mutable_queues_applied()->set_version(state.queue_version() + 1);
  Apply(&changed, event);
  const auto anyway = TakenNow(state, now_ns, options);
  std::vector<Taken> evicted;
  for (const auto& [key, taken] : TakenNow(std::move(changed), now_ns, options)) {
    const auto same = anyway.find(key);
    if (same == anyway.end() || same->second.gpus_milli() < taken.gpus_milli()) evicted.push_back(taken);
  }
  return evicted;
}

}  // namespace muster
