#include "scheduler/ask/taken.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace muster {

std::string OutcomeOf(const Future& future, size_t index) {
  const Turn& stop = future.turns()[index];
  constexpr int64_t kAtOnceNs = kMinute;
  for (size_t i = index + 1; i < future.turns().size(); ++i) {
    const Turn& turn = future.turns()[i];
    if (turn.kind != Turn::kPlaced || turn.task != stop.task || turn.at_ns > stop.at_ns + kAtOnceNs) continue;
    std::string text = "goes on";
    if (turn.cluster != stop.cluster) absl::StrAppend(&text, " in ", turn.cluster);
    if (turn.workers != stop.before) absl::StrAppend(&text, " with ", turn.workers, turn.workers == 1 ? " worker" : " workers");
    return text;
  }
  if (stop.workers > 0) return absl::StrCat("goes on with ", stop.workers, stop.workers == 1 ? " worker" : " workers");
  return stop.cause == pb::CANCEL || stop.cause == pb::TIME_LIMIT ? "ends" : "waits, from its checkpoint";
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
