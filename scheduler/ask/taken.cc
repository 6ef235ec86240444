#include "scheduler/ask/taken.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/units.h"

namespace muster {

std::string Outcome(int32_t workers, bool starts_over) {
  if (workers == 0) return starts_over ? "waits, and starts over: it has no checkpoint" : "waits, from its checkpoint";
  return absl::StrCat("goes on with ", workers, workers == 1 ? " worker" : " workers", starts_over ? " from its start: it has no checkpoint" : "");
}

std::string OutcomeOf(const Future& future, size_t index) {
  const Turn& stop = future.turns()[index];
  if (stop.cause == pb::CANCEL || stop.cause == pb::TIME_LIMIT) return "ends";
  constexpr int64_t kAtOnceNs = kMinute;
  const std::string from = stop.starts_over ? "from its start: it has no checkpoint" : "";
  for (size_t i = index + 1; i < future.turns().size(); ++i) {
    const Turn& turn = future.turns()[i];
    if (turn.kind != Turn::kPlaced || turn.task != stop.task) continue;
    const bool at_once = turn.at_ns <= stop.at_ns + kAtOnceNs;
    std::string text = at_once ? "goes on" : absl::StrCat("waits ", FormatDuration((turn.at_ns - stop.at_ns) / kMinute * kMinute), ", then goes on");
    if (turn.cluster != stop.cluster) absl::StrAppend(&text, " in ", turn.cluster);
    if (turn.workers != stop.before) absl::StrAppend(&text, " with ", turn.workers, turn.workers == 1 ? " worker" : " workers");
    return absl::StrCat(text, !from.empty() ? absl::StrCat(" ", from) : at_once ? "" : " from its checkpoint");
  }
  return Outcome(stop.workers, stop.starts_over);
}

std::vector<pb::PreviewResponse::Taken> TakenFor(const Future& future, uint64_t job) {
  std::vector<pb::PreviewResponse::Taken> taken;
  for (size_t i = 0; i < future.turns().size(); ++i) {
    const Turn& turn = future.turns()[i];
    if (turn.kind != Turn::kStopping || turn.claimant != job) continue;
    const JobRow* from = future.state().FindJob(turn.task.job);
    if (from == nullptr) continue;
    pb::PreviewResponse::Taken& entry = taken.emplace_back();
    entry.set_job(from->number);
    entry.set_queue(from->spec->queue());
    entry.set_gpus_milli((turn.before - turn.workers) * from->task_spec(turn.task.task).resources().gpus_milli());
    entry.set_outcome(OutcomeOf(future, i));
    entry.set_lost_gpu_ms(turn.lost_gpu_ms);
  }
  return taken;
}

}  // namespace muster
