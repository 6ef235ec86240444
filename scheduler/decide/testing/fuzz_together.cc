#include "scheduler/decide/testing/fuzz_together.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/spec/together.h"
#include "scheduler/decide/place/free_map.h"

namespace muster {
namespace {

// A group's tasks by index, as the first of them names the others.
std::vector<int32_t> GroupOfTask(const JobRow& job, int32_t first) {
  std::vector<int32_t> group = {first};
  for (const std::string& name : job.task_spec(first).with())
    group.push_back(TaskIndex(*job.spec, name));
  return group;
}

bool GoesOn(const TaskRow& task) {
  const AttemptRow* current = task.current();
  return current != nullptr && current->state != pb::TASK_STOPPING;
}

std::string CheckGroup(const State& before, const JobRow& job, const std::vector<int32_t>& group,
                       const std::set<std::string>& placed, const std::set<std::string>& evicted) {
  const JobRow* was = before.FindJob(job.number);
  const std::string name = absl::StrCat("job ", job.number, ": ");
  bool any_started = false, all_started = true, any_placed = false, any_evicted = false;
  bool went_on = false, all_run = true, all_stop = true;
  std::set<int32_t> clusters;
  for (const int32_t t : group) {
    const TaskRow& task = job.tasks[t];
    const std::string& task_name = job.task_spec(t).name();
    any_started = any_started || task.next_attempt > 1;
    all_started = all_started && task.next_attempt > 1;
    any_placed = any_placed || placed.contains(absl::StrCat(job.uid, "/", task_name));
    any_evicted = any_evicted || evicted.contains(absl::StrCat(job.uid, "/", task_name));
    went_on = went_on || (was != nullptr && GoesOn(was->tasks[t]));
    const auto& until = job.task_spec(t).until();
    const bool unneeded =
        !until.empty() && std::all_of(until.begin(), until.end(), [&](const std::string& other) {
          return job.tasks[TaskIndex(*job.spec, other)].state == pb::TASK_SUCCEEDED;
        });
    const bool ends = task.finished() || unneeded ||
                      (task.current() != nullptr && task.current()->cause == pb::TIME_LIMIT);
    all_run = all_run && (ends || GoesOn(task));
    all_stop = all_stop && !GoesOn(task);
    if (const AttemptRow* current = task.current(); current != nullptr && !ends)
      clusters.insert(current->cluster);
    if (unneeded && !job.finished() && (GoesOn(task) || task.waiting()))
      return absl::StrCat(name, task_name, " goes on, and nobody needs it");
  }
  if (any_started && !all_started) return name + "some of a group have started, others never";
  if (any_placed && !went_on && !all_run) return name + "some of a group start, others wait";
  if (any_evicted && !all_stop) return name + "some of a group are stopped for a claim";
  if (clusters.size() > 1) return name + "a group runs in several clusters";
  return "";
}

bool FitsInEveryOrder(const State& state, const Model& m, std::vector<const Gang*> group,
                      int32_t pool) {
  std::sort(group.begin(), group.end());
  do {
    FreeMap map(state);
    for (const Gang* gang : group) {
      const int32_t cpus = m.CpusBeside(pool);
      const int32_t there = gang->gpus || cpus < 0 ? pool : cpus;
      const auto slices =
          map.Place(*gang->spec, gang->min_workers, m.pools[there], {}, gang->needs);
      if (!slices.has_value()) return false;
      map.Take(*gang->spec, *slices);
    }
  } while (std::next_permutation(group.begin(), group.end()));
  return true;
}

}  // namespace

void PutTogether(Dice* dice, pb::JobSpec* spec) {
  const int more = (spec->tasks_size() == 1 ? 1 : 0) + dice->Of(3);
  for (int i = 0; i < more; ++i) {
    pb::TaskSpec task = spec->tasks(0);
    task.set_name(absl::StrCat("t", spec->tasks_size()));
    task.clear_after();
    if (dice->Percent(40)) {
      task.clear_trainer_json();
      task.mutable_resources()->Clear();
      task.mutable_resources()->set_cpus_milli(1000 * (1 + dice->Of(4)));
      task.mutable_workers()->set_min(1);
    } else if (task.resources().gpus_milli() >= 1000) {
      task.mutable_resources()->set_gpus_milli(1000 * (1 << dice->Of(2)));
      task.mutable_workers()->set_min(1 + dice->Of(2));
    }
    task.mutable_workers()->set_max(std::max(task.workers().min(), task.workers().max()));
    *spec->add_tasks() = std::move(task);
  }
  const int group = 2 + dice->Of(spec->tasks_size() - 1);
  std::vector<pb::TaskSpec*> tasks;
  for (int t = 0; t < group; ++t) {
    pb::TaskSpec* task = spec->mutable_tasks(t);
    task->clear_after();
    task->mutable_workers()->set_max(task->workers().min());
    if (task->resources().gpus_milli() > 0) {
      for (const pb::TaskSpec* other : tasks) {
        if (other->resources().gpus_milli() > 0)
          *task->mutable_resources()->mutable_gpu_types() = other->resources().gpu_types();
      }
    }
    if (t > 0) task->add_with(spec->tasks(dice->Of(t)).name());
    if (t > 0 && dice->Percent(40)) task->add_until("t0");
    tasks.push_back(task);
  }
  JoinTasks(spec);
}

std::string CheckTogether(const State& before, const State& after, const Plan& plan) {
  std::set<std::string> placed, evicted;
  for (const pb::Event& event : plan.events) {
    if (event.has_attempt_placed()) {
      const pb::AttemptKey& key = event.attempt_placed().key();
      placed.insert(absl::StrCat(key.job_uid(), "/", key.task()));
    }
    const pb::AttemptStopping& stop = event.attempt_stopping();
    if (event.has_attempt_stopping() && stop.cause() == pb::PREEMPTION && stop.next_workers() == 0)
      evicted.insert(absl::StrCat(stop.key().job_uid(), "/", stop.key().task()));
  }
  for (const uint64_t number : after.active_jobs()) {
    const JobRow& job = *after.FindJob(number);
    for (int32_t t = 0; t < job.spec->tasks_size(); ++t) {
      if (job.task_spec(t).with().empty()) continue;
      std::string broken = CheckGroup(before, job, GroupOfTask(job, t), placed, evicted);
      if (!broken.empty()) return broken;
    }
  }
  return "";
}

const Gang& LeaderIn(const Model& m, const Gang& gang) {
  return m.gangs[m.LeaderOf(static_cast<int32_t>(&gang - m.gangs.data()))];
}

std::string CheckGroupSettled(const State& state, const Model& m, const Gang& gang,
                              const std::vector<int>& waits) {
  if (gang.follows()) return "";
  std::vector<const Gang*> group;
  for (const Gang& other : m.gangs) {
    if (other.job != gang.job || other.leader != gang.leader) continue;
    if (!other.wants_place() || other.row->backoff_until_ns > state.now_ns() ||
        other.row->evicted_round == state.round() || other.row->reservation != nullptr)
      return "";
    group.push_back(&other);
  }
  for (int32_t n = gang.leaf; n >= 0; n = state.queues().nodes[n].parent) {
    for (const auto& [flavour, quota] : state.queues().nodes[n].spec.quota()) {
      if (quota.has_limit_milli()) return "";
    }
  }
  for (const int32_t pool : gang.pools) {
    if (gang.entitled ? pool != gang.charge || waits[m.pools[pool].cluster] != 1
                      : std::any_of(waits.begin(), waits.end(), [](int n) { return n > 0; }))
      continue;
    if (FitsInEveryOrder(state, m, group, pool))
      return absl::StrCat("job ", gang.ref.job, " starts together, has room and waits");
  }
  return "";
}

}  // namespace muster
