#include "scheduler/decide/model.h"

#include <algorithm>
#include <memory>

#include "common/base/units.h"

namespace muster {
namespace {

const JobRow& NoJob() {
  static const JobRow* const job = [] {
    JobRow* row = new JobRow();
    row->spec = std::make_shared<const pb::JobSpec>();
    return row;
  }();
  return *job;
}
const TaskRow& NoTask() {
  static const TaskRow* const task = new TaskRow();
  return *task;
}

}  // namespace

Base::Base() : job(&NoJob()), row(&NoTask()), spec(&pb::TaskSpec::default_instance()) {}

int32_t Model::FlavourIndex(const std::string& flavour) const {
  const auto it = std::lower_bound(flavours.begin(), flavours.end(), flavour);
  return it == flavours.end() || *it != flavour ? -1 : static_cast<int32_t>(it - flavours.begin());
}

int32_t Model::CellOf(int32_t cluster, int32_t flavour) const {
  const auto it = std::lower_bound(cells.begin(), cells.end(), std::make_pair(cluster, flavour), [](const Cell& cell, const auto& wanted) {
    return std::make_pair(cell.cluster, cell.flavour) < wanted;
  });
  return it == cells.end() || it->cluster != cluster || it->flavour != flavour ? -1 : static_cast<int32_t>(it - cells.begin());
}

bool MayBeLostAlone(const State& state, const pb::TaskSpec& spec, const AttemptRow& attempt) {
  bool unreachable = false, member_failed = false;
  for (const PartRow& part : attempt.parts) {
    if (!part.over() && state.host(part.host).state == pb::HOST_UNREACHABLE) unreachable = true;
    const bool exit_0 = !part.exits.empty() && std::all_of(part.exits.begin(), part.exits.end(), [](const pb::WorkerExit& e) {
      return e.exit_code() == 0 && e.signal() == 0;
    });
    if (part.phase == pb::GONE && !exit_0) member_failed = true;
  }
  if (!unreachable || UnreachableRule(spec, attempt) != pb::REPLACE) return false;
  return attempt.parts.size() == 1 || !spec.trainer_json().empty() || member_failed;
}

int64_t LookNs(const State& state, const JobRow& job, int32_t task, const AttemptRow& attempt) {
  const TaskRow& row = job.tasks[task];
  const pb::TaskSpec& spec = job.task_spec(task);
  if (job.cancel_requested || FirstFailure(attempt).has_value()) return 0;
  for (const TaskRow& other : job.tasks) {
    if (other.state == pb::TASK_FAILED) return 0;
  }
  bool unreachable = false;
  for (const PartRow& part : attempt.parts) {
    if (part.phase == pb::GONE && !part.lost && (part.stop_sent || part.exits.empty())) return 0;
    if (part.over()) continue;
    const HostRow& host = state.host(part.host);
    if (part.state_id != host.state_id || host.drained || state.clusters()[host.cluster].drained) return 0;
    unreachable = unreachable || host.state == pb::HOST_UNREACHABLE;
  }
  if (attempt.start_ns == 0) return kUnbounded;
  int64_t look_ns = kUnbounded;
  if (spec.time_limit_ns() > 0) look_ns = attempt.start_ns + std::max<int64_t>(0, spec.time_limit_ns() - row.ran_ns);
  if (spec.hang_timeout_ns() > 0 && !unreachable && row.progress.attempt() == attempt.number) {
    look_ns = std::min(look_ns, std::max(row.progress.at_ns(), attempt.last_checkpoint_ns) + spec.hang_timeout_ns());
  }
  return look_ns;
}

int64_t ExpectedEnd(const Base& base, int64_t now_ns) {
  const AttemptRow* attempt = base.current;
  if (attempt == nullptr) return 0;
  const pb::Progress& progress = base.row->progress;
  if (progress.attempt() == attempt->number && attempt->start_ns != 0) {
    if (progress.expected_end_ns() > now_ns) return progress.expected_end_ns();
    const int64_t steps = progress.step() - std::max<int64_t>(0, attempt->resumed_step);
    const int64_t left = progress.total_steps() - progress.step();
    if (steps > 0 && left >= 0 && progress.total_steps() > 0) {
      const __int128 rest = static_cast<__int128>(std::max<int64_t>(0, now_ns - attempt->start_ns)) * left / steps;
      if (rest < 10 * 365 * static_cast<__int128>(kDay)) return now_ns + static_cast<int64_t>(rest);
    }
  }
  const int64_t start_ns = attempt->start_ns != 0 ? attempt->start_ns : now_ns;
  const auto after = [&](int64_t run_ns) { return run_ns == 0 ? 0 : start_ns + run_ns - base.row->ran_ns; };
  const int64_t limit_ns = after(base.spec->time_limit_ns());
  const int64_t history_ns = after(base.row->expected_run_ns);
  if (history_ns > now_ns) return limit_ns == 0 ? history_ns : std::min(history_ns, std::max(limit_ns, now_ns));
  return limit_ns == 0 ? 0 : std::max(now_ns, limit_ns);
}

}  // namespace muster
