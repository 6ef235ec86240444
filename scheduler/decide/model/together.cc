#include "scheduler/decide/model/together.h"

#include <algorithm>

#include "common/spec/together.h"

namespace muster {
namespace {

// What one of the group adds to what its leader stands for.
void Add(const Gang& gang, const Gang& leader, bool counts_cpus, Gang::Together* sum) {
  const int64_t milli = gang.worker_milli * gang.min_workers;
  if (gang.gpus == leader.gpus) {
    sum->milli += milli;
    sum->cpus_milli += gang.worker_cpus_milli * gang.min_workers;
    sum->host_cpus_milli += gang.host_cpus_milli * gang.min_workers;
  } else {
    sum->cpus_milli += counts_cpus ? milli : 0;
    sum->host_cpus_milli += milli;
  }
}

// Where the group runs: the leader's pool where one like it does, else one in that cluster.
int32_t BoundPool(const Model& model, const std::vector<Gang>& gangs, const std::vector<int>& group,
                  const Gang& leader) {
  int32_t cluster = -1;
  for (const int t : group) {
    if (gangs[t].current == nullptr || gangs[t].bound_pool < 0) continue;
    if (gangs[t].gpus == leader.gpus) return gangs[t].bound_pool;
    cluster = model.pools[gangs[t].bound_pool].cluster;
  }
  const auto there = std::find_if(leader.pools.begin(), leader.pools.end(), [&](int32_t pool) {
    return model.pools[pool].cluster == cluster;
  });
  return there == leader.pools.end() ? -1 : *there;
}

void Join(const Model& model, bool counts_cpus, const std::vector<int>& group,
          std::vector<Gang>* gangs) {
  const auto first = std::find_if(group.begin(), group.end(),
                                  [&](int t) { return (*gangs)[static_cast<size_t>(t)].gpus; });
  const int leads = first == group.end() ? group.front() : *first;
  Gang& leader = (*gangs)[static_cast<size_t>(leads)];
  Gang::Together sum;
  for (const int t : group) Add((*gangs)[t], leader, counts_cpus, &sum);
  sum.bound_pool = BoundPool(model, *gangs, group, leader);
  for (const int t : group) {
    Gang& gang = (*gangs)[t];
    gang.leader = leads;
    gang.max_workers = gang.min_workers;
    gang.together = sum;
    // Its whole list is open: what keeps groups in few clusters is only their queue's guarantee.
    std::fill(gang.opened.begin(), gang.opened.end(), 1);
    gang.all_opened = true;
  }
}

}  // namespace

void JoinTogether(const JobRow& job, const Model& model, bool counts_cpus,
                  std::vector<Gang>* gangs) {
  const int tasks = job.spec->tasks_size();
  for (int t = 0; t < tasks; ++t) {
    if (job.spec->tasks(t).with().empty()) continue;
    std::vector<int> group = TogetherWith(*job.spec, t);
    if (group.front() != t) continue;
    std::erase_if(group, [&](int other) {
      const Gang& gang = (*gangs)[other];
      return !gang.unit || gang.ends;
    });
    // Where one can be nowhere, none can.
    const bool nowhere = std::any_of(group.begin(), group.end(),
                                     [&](int other) { return (*gangs)[other].pools.empty(); });
    for (const int other : group) {
      if (!nowhere) break;
      (*gangs)[other].pools.clear();
      (*gangs)[other].opened.clear();
    }
    if (group.size() > 1) Join(model, counts_cpus, group, gangs);
  }
}

std::vector<int32_t> GroupOf(const Model& model, int32_t b) {
  const Gang& gang = model.gangs[b];
  if (gang.leader < 0) return {b};
  std::vector<int32_t> group;
  const int32_t first = b - gang.ref.task;
  for (int32_t t = 0; t < gang.job->spec->tasks_size(); ++t) {
    const Gang& other = model.gangs[first + t];
    if (other.leader == gang.leader) group.push_back(first + t);
  }
  return group;
}

int32_t PoolBeside(const Model& model, const Gang& gang, int32_t pool) {
  const bool cpus = model.pools[pool].flavour == model.cpu;
  return gang.gpus || cpus ? pool : model.CpusBeside(pool);
}

}  // namespace muster
