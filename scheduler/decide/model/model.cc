#include "scheduler/decide/model/model.h"

#include <algorithm>
#include <memory>

#include "common/base/units.h"
#include "scheduler/decide/model/expected_end.h"

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

Gang::Gang() : job(&NoJob()), row(&NoTask()), spec(&pb::TaskSpec::default_instance()) {}

int32_t Model::FlavourIndex(const std::string& flavour) const {
  const auto it = std::lower_bound(flavours.begin(), flavours.end(), flavour);
  return it == flavours.end() || *it != flavour ? -1 : static_cast<int32_t>(it - flavours.begin());
}

int32_t Model::PoolOf(int32_t cluster, int32_t flavour) const {
  const auto it = std::lower_bound(pools.begin(), pools.end(), std::make_pair(cluster, flavour),
                                   [](const Pool& pool, const auto& wanted) {
                                     return std::make_pair(pool.cluster, pool.flavour) < wanted;
                                   });
  return it == pools.end() || it->cluster != cluster || it->flavour != flavour
             ? -1
             : static_cast<int32_t>(it - pools.begin());
}

Demand WantsOf(const pb::TaskSpec& spec) {
  const pb::Resources& wants = spec.resources();
  return {wants.gpus_milli(), wants.cpus_milli(), wants.memory_bytes(), wants.disk_bytes()};
}

bool MayBeLostAlone(const State& state, const pb::TaskSpec& spec, const AttemptRow& attempt) {
  bool unreachable = false, member_failed = false, known_off = true;
  for (const PartRow& part : attempt.parts) {
    const HostRow& host = state.host(part.host);
    if (!part.over() && host.state == pb::HOST_UNREACHABLE) {
      unreachable = true;
      known_off = known_off && KnownOff(host, spec);
    }
    const bool exit_0 =
        !part.exits.empty() && part.cause != pb::HOST_LOST &&
        std::all_of(part.exits.begin(), part.exits.end(),
                    [](const pb::WorkerExit& e) { return e.exit_code() == 0 && e.signal() == 0; });
    if (part.phase == pb::GONE && !exit_0) member_failed = true;
  }
  if (unreachable && known_off) return true;
  if (!unreachable || UnreachableRule(spec, attempt) != pb::REPLACE) return false;
  return attempt.parts.size() == 1 || !spec.trainer_json().empty() || member_failed;
}

void ReadRun(const State& state, const AttemptRow* attempt, Gang* gang) {
  const TaskRow& row = *gang->row;
  const auto left = [&](int64_t run_ns) { return run_ns == 0 ? kUnbounded : run_ns - row.ran_ns; };
  gang->limit_left_ns = left(gang->spec->time_limit_ns());
  gang->history_left_ns = left(row.expected_run_ns);
  if (attempt == nullptr) return;
  gang->workers = attempt->workers;
  gang->place_ns = attempt->place_ns;
  gang->start_ns = attempt->start_ns;
  gang->last_checkpoint_ns = attempt->last_checkpoint_ns;
  gang->place_round = attempt->place_round;
  gang->resize_ns = std::max(row.last_resize_ns, attempt->start_ns);
  gang->hosts_up = true;
  gang->may_resize = attempt->state == pb::TASK_RUNNING;
  for (const PartRow& part : attempt->parts) {
    const HostRow& host = state.host(part.host);
    gang->may_resize = gang->may_resize && part.phase == pb::STARTED && host.usable();
    if (part.over()) continue;
    gang->hosts_up = gang->hosts_up && host.state == pb::HOST_UP;
    gang->unreachable = gang->unreachable || host.state == pb::HOST_UNREACHABLE;
  }
  const pb::Progress& progress = row.progress;
  if (progress.attempt() != attempt->number) return;
  gang->knows_steps = progress.total_steps() > 0;
  if (attempt->start_ns == 0) return;
  gang->told_end_ns = progress.expected_end_ns();
  const int64_t steps = progress.step() - std::max<int64_t>(0, attempt->resumed_step);
  const int64_t steps_left = progress.total_steps() - progress.step();
  if (steps <= 0 || steps_left < 0 || progress.total_steps() <= 0) return;
  gang->steps = steps;
  gang->steps_left = steps_left;
}

int64_t ExpectedEnd(const Gang& gang, int64_t now_ns) {
  if (gang.current == nullptr) return 0;
  if (gang.told_end_ns > now_ns) return gang.told_end_ns;
  if (gang.steps > 0) {
    const __int128 rest = static_cast<__int128>(std::max<int64_t>(0, now_ns - gang.start_ns)) *
                          gang.steps_left / gang.steps;
    if (rest < 10 * 365 * static_cast<__int128>(kDay)) return now_ns + static_cast<int64_t>(rest);
  }
  const int64_t start_ns = gang.start_ns != 0 ? gang.start_ns : now_ns;
  const auto after = [&](int64_t left_ns) {
    return left_ns == kUnbounded ? 0 : start_ns + left_ns;
  };
  const int64_t limit_ns = after(gang.limit_left_ns);
  const int64_t history_ns = after(gang.history_left_ns);
  if (history_ns > now_ns)
    return limit_ns == 0 ? history_ns : std::min(history_ns, std::max(limit_ns, now_ns));
  return limit_ns == 0 ? 0 : std::max(now_ns, limit_ns);
}

int64_t ExpectedEndOf(const State& state, const TaskRef& task) {
  Gang gang;
  gang.ref = task;
  gang.job = state.FindJob(task.job);
  gang.row = &gang.job->tasks[task.task];
  gang.spec = &gang.job->task_spec(task.task);
  gang.current = gang.row->current();
  if (gang.current == nullptr || gang.current->state == pb::TASK_STOPPING) return 0;
  ReadRun(state, gang.current, &gang);
  return ExpectedEnd(gang, state.now_ns());
}

}  // namespace muster
