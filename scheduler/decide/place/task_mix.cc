#include "scheduler/decide/place/task_mix.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "common/base/check.h"
#include "scheduler/decide/model/model.h"

namespace muster {
namespace {

int64_t PowerOfTwo(int64_t count) {  // the largest up to it
  return count <= 0 ? 0 : static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(count)));
}

// Keeps those that count most: by number, and by the devices that each needs.
void KeepMost(std::vector<TypicalSlice>* tasks) {
  std::stable_sort(tasks->begin(), tasks->end(), [](const TypicalSlice& a, const TypicalSlice& b) {
    return a.count != b.count ? a.count > b.count
                              : a.wish.workers * a.wish.worker.gpus_milli >
                                    b.wish.workers * b.wish.worker.gpus_milli;
  });
  if (tasks->size() > TaskMix::kMostTasks) tasks->resize(TaskMix::kMostTasks);
}

bool Names(const std::vector<std::string>& list, const std::string& name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

// What needs no device shares the CPUs of hosts that have some.
bool MayCome(const std::pair<std::vector<std::string>, std::vector<std::string>>& where,
             const std::string& cluster, const std::string& flavour) {
  return (where.first.empty() || Names(where.first, cluster)) &&
         (where.second.empty() || Names(where.second, flavour));
}

template <typename Item>
void Drop(std::vector<Item*>* list, const Item* item) {
  list->erase(std::remove(list->begin(), list->end(), item), list->end());
}

}  // namespace

void TaskMix::Rebuild(const State& state) {
  groups_.clear();
  pools_.clear();
  news_.clear();
  jobs_.clear();
  changed_ = true;
  for (const uint64_t job : state.AllJobs()) Refresh(state, job);
}

void TaskMix::Refresh(const State& state, uint64_t job) {
  const JobRow* row = state.FindJob(job);
  const std::shared_ptr<const pb::JobSpec> spec = row == nullptr ? nullptr : row->spec;
  const auto known = jobs_.find(job);
  if (known != jobs_.end()) {
    if (known->second == spec) return;
    Count(*known->second, -1);
    jobs_.erase(known);
  }
  if (spec == nullptr) return;
  Count(*spec, 1);
  jobs_.emplace(job, spec);
}

void TaskMix::Count(const pb::JobSpec& spec, int64_t by) {
  for (const pb::TaskSpec& task : spec.tasks()) {
    Where where;
    where.first.assign(spec.clusters().begin(), spec.clusters().end());
    where.second.assign(task.resources().gpu_types().begin(), task.resources().gpu_types().end());
    Demand worker = WantsOf(task);
    worker.disk_bytes = 0;
    const SliceWish wish{worker, std::max(1, task.workers().min())};
    const auto known = groups_.find(where);
    Group* const group = known != groups_.end() ? &known->second : AddGroup(where);
    const auto it = group->counts.try_emplace(wish, 0).first;
    const int64_t before = it->second;
    it->second += by;
    MUSTER_CHECK(it->second >= 0);
    if (PowerOfTwo(before) != PowerOfTwo(it->second)) NoteChange(group);
    if (it->second == 0) group->counts.erase(it);
    if (group->counts.empty()) RemoveGroup(where);
  }
}

TaskMix::Group* TaskMix::AddGroup(const Where& where) {
  Group* const group = &groups_[where];
  for (auto& [name, pool] : pools_) {
    if (!MayCome(where, name.first, name.second)) continue;
    pool.groups.push_back(group);
    group->pools.push_back(&pool);
  }
  return group;
}

void TaskMix::RemoveGroup(const Where& where) {
  const auto group = groups_.find(where);
  for (Pool* pool : group->second.pools) {
    Drop(&pool->groups, &group->second);
    pool->changed = true;
  }
  Drop(&news_, &group->second);
  groups_.erase(group);
}

void TaskMix::NoteChange(Group* group) const {
  changed_ = true;
  if (!group->changed) news_.push_back(group);
  group->changed = true;
}

TaskMix::Pool* TaskMix::PoolOf(const std::string& cluster, const std::string& flavour) const {
  const auto [pool, added] = pools_.try_emplace({cluster, flavour});
  if (!added) return &pool->second;
  for (auto& [where, group] : groups_) {
    if (!MayCome(where, cluster, flavour)) continue;
    pool->second.groups.push_back(&group);
    group.pools.push_back(&pool->second);
  }
  return &pool->second;
}

uint64_t TaskMix::Version() const {
  if (!changed_) return version_;
  changed_ = false;
  ++version_;
  for (Group* group : news_) {
    group->changed = false;
    group->typical.clear();
    for (const auto& [wish, count] : group->counts)
      group->typical.push_back({wish, PowerOfTwo(count)});
    KeepMost(&group->typical);
    for (Pool* pool : group->pools) pool->changed = true;
  }
  news_.clear();
  return version_;
}

std::vector<TypicalSlice> TaskMix::Typical(const std::string& cluster,
                                           const std::string& flavour) const {
  Version();
  Pool* const pool = PoolOf(cluster, flavour);
  if (!pool->changed) return pool->typical;
  pool->changed = false;
  absl::btree_map<SliceWish, int64_t> counts;
  for (const Group* group : pool->groups) {
    for (const TypicalSlice& task : group->typical) counts[task.wish] += task.count;
  }
  std::vector<TypicalSlice> typical;
  for (const auto& [wish, count] : counts) typical.push_back({wish, count});
  KeepMost(&typical);
  const auto sum = [&] {
    return std::accumulate(typical.begin(), typical.end(), int64_t{0},
                           [](int64_t all, const TypicalSlice& task) { return all + task.count; });
  };
  while (sum() >= 1 << 20) {
    for (TypicalSlice& task : typical) task.count = std::max<int64_t>(1, task.count / 2);
  }
  pool->typical = typical;
  return typical;
}

}  // namespace muster
