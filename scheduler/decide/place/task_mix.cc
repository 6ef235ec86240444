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

}  // namespace

void TaskMix::Rebuild(const State& state) {
  while (!groups_.empty()) RemoveGroup(groups_.begin()->first);
  jobs_.clear();
  for (const uint64_t job : state.AllJobs()) Refresh(state, job);
}

void TaskMix::Refresh(const State& state, uint64_t job) {
  const JobRow* row = state.FindJob(job);
  // What runs on another job's devices is placed by nobody else's score.
  const std::shared_ptr<const pb::JobSpec> spec =
      row == nullptr || row->holder != 0 ? nullptr : row->spec;
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
    if (PowerOfTwo(before) != PowerOfTwo(it->second) && !group->changed) {
      group->changed = true;
      news_.push_back(group);
    }
    if (it->second == 0) group->counts.erase(it);
    if (group->counts.empty()) RemoveGroup(where);
  }
}

TaskMix::Group* TaskMix::AddGroup(const Where& where) {
  Group* const group = &groups_[where];
  for (size_t p = 0; p < pools_.size(); ++p) {
    if (MayCome(where, pools_[p].cluster, pools_[p].flavour))
      group->pools.push_back(static_cast<int32_t>(p));
  }
  return group;
}

void TaskMix::RemoveGroup(const Where& where) {
  const auto group = groups_.find(where);
  CountAnew(&group->second, {});
  news_.erase(std::remove(news_.begin(), news_.end(), &group->second), news_.end());
  groups_.erase(group);
}

int32_t TaskMix::PoolOf(const std::string& cluster, const std::string& flavour) const {
  const auto [known, added] =
      pool_of_.try_emplace({cluster, flavour}, static_cast<int32_t>(pools_.size()));
  if (!added) return known->second;
  Pool& pool = pools_.emplace_back();
  pool.cluster = cluster;
  pool.flavour = flavour;
  pool.changed = true;
  for (auto& [where, group] : groups_) {
    if (!MayCome(where, cluster, flavour)) continue;
    group.pools.push_back(known->second);
    for (const TypicalSlice& task : group.typical) pool.counts[task.wish] += task.count;
  }
  return known->second;
}

// What of the group's tasks is typical is `typical` from now on, in its pools' sums, too.
void TaskMix::CountAnew(Group* group, std::vector<TypicalSlice> typical) const {
  absl::btree_map<SliceWish, int64_t> more;
  for (const TypicalSlice& task : group->typical) more[task.wish] -= task.count;
  for (const TypicalSlice& task : typical) more[task.wish] += task.count;
  for (const auto& [wish, count] : more) {
    if (count == 0) continue;
    for (const int32_t p : group->pools) {
      Pool& pool = pools_[static_cast<size_t>(p)];
      pool.changed = true;
      const auto sum = pool.counts.try_emplace(wish, 0).first;
      sum->second += count;
      MUSTER_CHECK(sum->second >= 0);
      if (sum->second == 0) pool.counts.erase(sum);
    }
  }
  group->typical = std::move(typical);
}

void TaskMix::Settle() const {
  for (Group* group : news_) {
    group->changed = false;
    std::vector<TypicalSlice> typical;
    for (const auto& [wish, count] : group->counts) typical.push_back({wish, PowerOfTwo(count)});
    KeepMost(&typical);
    CountAnew(group, std::move(typical));
  }
  news_.clear();
}

uint64_t TaskMix::Version(int32_t number) const {
  Settle();
  Pool& pool = pools_[static_cast<size_t>(number)];
  if (!pool.changed) return pool.version;
  pool.changed = false;
  std::vector<TypicalSlice> typical;
  for (const auto& [wish, count] : pool.counts) typical.push_back({wish, count});
  KeepMost(&typical);
  const auto sum = [&] {
    return std::accumulate(typical.begin(), typical.end(), int64_t{0},
                           [](int64_t all, const TypicalSlice& task) { return all + task.count; });
  };
  while (sum() >= 1 << 20) {
    for (TypicalSlice& task : typical) task.count = std::max<int64_t>(1, task.count / 2);
  }
  if (typical == pool.typical) return pool.version;
  pool.typical = std::move(typical);
  return ++pool.version;
}

const std::vector<TypicalSlice>& TaskMix::Typical(int32_t pool) const {
  Version(pool);
  return pools_[static_cast<size_t>(pool)].typical;
}

}  // namespace muster
