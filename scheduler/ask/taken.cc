#include "scheduler/ask/taken.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/units.h"

namespace muster {

namespace {

// What becomes of a task that is stopped, as far as the stop says it: it goes on with so many
// workers (0: as soon as it gets a place) after it had `before`.
std::string Outcome(int32_t workers, int32_t before, bool starts_over, bool gpus) {
  if (workers == before)
    return absl::StrCat(gpus ? "goes on with other devices" : "goes on on another host",
                        starts_over ? " from its start: it has no checkpoint" : "");
  if (workers == 0)
    return starts_over ? "waits, and starts over: it has no checkpoint"
                       : "waits, from its checkpoint";
  return absl::StrCat("goes on with ", workers, workers == 1 ? " worker" : " workers",
                      starts_over ? " from its start: it has no checkpoint" : "");
}

const pb::Resources& WantsOf(const Future& future, const Foreseen& foreseen) {
  return future.state().FindJob(foreseen.task.job)->task_spec(foreseen.task.task).resources();
}

// That the stop of work without devices frees; 0 of work with.
int64_t CoresMilli(const Future& future, const Foreseen& stop) {
  const pb::Resources& wants = WantsOf(future, stop);
  if (wants.gpus_milli() > 0 || stop.workers >= stop.before) return 0;
  return (stop.before - stop.workers) * (wants.cpus_milli() == 0 ? 1000 : wants.cpus_milli());
}

std::string WhatBecomesOf(const Future& future, size_t index) {
  const Foreseen& stop = future.foreseen()[index];
  const bool gpus = WantsOf(future, stop).gpus_milli() > 0;
  if (stop.cause == pb::CANCEL || stop.cause == pb::TIME_LIMIT || stop.cause == pb::NOT_NEEDED)
    return "ends";
  constexpr int64_t kAtOnceNs = kMinute;
  if (stop.workers == stop.before)
    return Outcome(stop.workers, stop.before, stop.starts_over, gpus);  // it moves aside
  const std::string from = stop.starts_over ? "from its start: it has no checkpoint" : "";
  for (size_t i = index + 1; i < future.foreseen().size(); ++i) {
    const Foreseen& other = future.foreseen()[i];
    if (other.kind != Foreseen::kPlaced || other.task != stop.task) continue;
    const bool at_once = other.at_ns <= stop.at_ns + kAtOnceNs;
    std::string text =
        at_once
            ? "goes on"
            : absl::StrCat("waits ", FormatDuration((other.at_ns - stop.at_ns) / kMinute * kMinute),
                           ", then goes on");
    if (other.cluster != stop.cluster) absl::StrAppend(&text, " in ", other.cluster);
    if (other.workers != stop.before)
      absl::StrAppend(&text, " with ", other.workers, other.workers == 1 ? " worker" : " workers");
    return absl::StrCat(text, !from.empty() ? absl::StrCat(" ", from)
                              : at_once     ? ""
                                            : " from its checkpoint");
  }
  return Outcome(stop.workers, stop.before, stop.starts_over, gpus);
}

}  // namespace

std::string OutcomeOf(const Future& future, size_t index) {
  const int64_t cores_milli = CoresMilli(future, future.foreseen()[index]);
  const std::string cores = cores_milli == 0
                                ? ""
                                : absl::StrCat(" (", FormatMilli(cores_milli),
                                               cores_milli == 1000 ? " core)" : " cores)");
  return absl::StrCat(WhatBecomesOf(future, index), cores);
}

namespace {

using Taken = pb::PreviewResponse::Taken;

// Of what is kStopping.
Taken TakenAt(const Future& future, size_t index) {
  const Foreseen& stop = future.foreseen()[index];
  const JobRow& from = *future.state().FindJob(stop.task.job);
  Taken entry;
  entry.set_job(from.number);
  entry.set_queue(from.spec->queue());
  entry.set_gpus_milli((stop.before - stop.workers) * WantsOf(future, stop).gpus_milli());
  entry.set_outcome(OutcomeOf(future, index));
  entry.set_lost_gpu_ms(stop.lost_gpu_ms);
  return entry;
}

struct Loss {
  Taken taken;
  int32_t workers = 0;
};

// What has been stopped or shrunk so far, whoever for.
std::map<TaskRef, Loss> TakenSoFar(const Future& future) {
  std::map<TaskRef, Loss> taken;
  for (size_t i = 0; i < future.foreseen().size(); ++i) {
    const Foreseen& stop = future.foreseen()[i];
    if (stop.kind == Foreseen::kStopping && stop.workers <= stop.before)
      taken[stop.task] = {TakenAt(future, i), stop.before - stop.workers};  // above: it grows
  }
  return taken;
}

}  // namespace

std::vector<Taken> TakenFor(const Future& future, uint64_t job) {
  std::vector<Taken> taken;
  for (size_t i = 0; i < future.foreseen().size(); ++i) {
    const Foreseen& stop = future.foreseen()[i];
    if (stop.kind == Foreseen::kStopping && stop.claimant == job)
      taken.push_back(TakenAt(future, i));
  }
  return taken;
}

std::vector<Taken> Evictions(const State& state, const pb::QueueTree& resolved, int64_t now_ns,
                             const SchedulingOptions& options) {
  Future as_it_is(state, now_ns, options, {}), changed(state, now_ns, options, {});
  pb::Event event;
  *event.mutable_queues_applied()->mutable_tree() = resolved;
  event.mutable_queues_applied()->set_version(state.queue_version() + 1);
  changed.At(now_ns, event);
  Future::StepBoth(&as_it_is, &changed);
  const std::map<TaskRef, Loss> anyway = TakenSoFar(as_it_is);
  std::vector<Taken> evicted;
  for (const auto& [task, loss] : TakenSoFar(changed)) {
    const auto same = anyway.find(task);
    if (same == anyway.end() || same->second.workers < loss.workers) evicted.push_back(loss.taken);
  }
  return evicted;
}

}  // namespace muster
