// What a Gang says, read from its rows.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/spec/members.h"
#include "common/spec/workers.h"
#include "scheduler/decide/model/model_upkeep.h"
#include "scheduler/decide/model/next_stop.h"
#include "scheduler/decide/model/together.h"

namespace muster {
namespace {

// More than priorities differ by: independent workers above the least number stand behind all other
// gangs of their leaf, as growth workers do.
constexpr int32_t kBehindAll = 1'000;

std::vector<int32_t> BlocksOf(const pb::Topology& topology) {
  std::vector<int32_t> blocks;
  for (const pb::RankBlock& block : topology.blocks())
    blocks.insert(blocks.end(), {block.gpus(), block.preferred(), block.required()});
  return blocks;
}

}  // namespace

bool ModelUpkeep::Ends(const JobRow& job) {
  return job.cancel_requested ||
         std::any_of(job.tasks.begin(), job.tasks.end(),
                     [](const TaskRow& t) { return t.state == pb::TASK_FAILED; });
}

Gang ModelUpkeep::ReadGang(const State& state, const JobRow& job, int32_t task,
                           const std::vector<int32_t>& clusters, int32_t leaf) {
  Gang gang;
  gang.ref = {job.number, task};
  const TaskRow& row = job.tasks[task];
  const AttemptRow* current = row.current();
  const bool ends = Ends(job);
  if (current != nullptr && current->released()) return gang;  // it waits for its export only
  gang.backoff_until_ns = row.waiting() ? row.backoff_until_ns : 0;
  gang.blocked = row.state == pb::TASK_BLOCKED;
  if (row.finished() || gang.blocked) return gang;
  gang.hosted = job.holder != 0;
  if (gang.hosted) leaf = -1;
  gang.astray = IsAstray(state, job);
  gang.held =
      row.waiting() &&
      (gang.astray || (!gang.hosted && (ends || leaf < 0 || !state.queues().leaf(leaf) ||
                                        (state.queues().nodes[leaf].held && !row.comes_back()))));
  if (gang.held) return gang;
  if (current == nullptr && !row.waiting()) return gang;
  gang.unit = true;
  gang.job = &job;
  gang.row = &row;
  gang.spec = &job.task_spec(task);
  gang.current = current;
  gang.waiting = row.waiting();
  gang.stopping = current != nullptr && current->state == pb::TASK_STOPPING;
  if (gang.running()) gang.wake_ns = NextStopOf(state, job, task, *current, /*now_ns=*/0).at_ns;
  gang.leaf = leaf;
  gang.min_workers = std::max(1, gang.spec->workers().min());
  gang.max_workers = std::max(gang.min_workers, gang.spec->workers().max());
  gang.step_workers = StepOf(gang.spec->workers());
  gang.priority = job.spec->priority();
  if (job.array != 0 && StandsBehind(*job.spec, job.member)) gang.priority -= kBehindAll;
  gang.band = job.band;
  gang.submit_ns = job.submit_ns;
  gang.ran_ns = row.ran_ns;
  gang.waiting_since_ns = row.waiting_since_ns;
  gang.binds_others = job.cluster.empty() && job.tasks.size() > 1;
  const pb::Resources& wants = gang.spec->resources();
  gang.gpus = wants.gpus_milli() > 0;
  gang.wants = WantsOf(*gang.spec);
  gang.needs = NeedsOf(*job.spec, *gang.spec);
  gang.shape = shapes_
                   .try_emplace({gang.min_workers, wants.gpus_milli(), wants.cpus_milli(),
                                 wants.memory_bytes(), wants.disk_bytes(), gang.needs,
                                 gang.spec->topology().preferred(),
                                 gang.spec->topology().required(), BlocksOf(gang.spec->topology())},
                                static_cast<int32_t>(shapes_.size()))
                   .first->second;
  gang.worker_milli = std::max<int64_t>(
      1, wants.gpus_milli() > 0 ? wants.gpus_milli()
                                : WorkerDemand(*gang.spec, pb::Inventory()).cpus_milli);
  gang.evicted_round = row.evicted_round;
  gang.reserved = row.reservation != nullptr;
  if (row.opened_attempt == row.next_attempt) gang.spill_ns = row.opened_ns;
  ReadRun(state, current, &gang);
  const auto pool_of = [&](const AttemptRow& attempt) {
    return model_.PoolOf(
        attempt.cluster,
        model_.FlavourIndex(attempt.flavour.empty() ? kCpuFlavour : attempt.flavour));
  };
  // Until spill finds free devices for it elsewhere.
  const bool fronted = row.opened_attempt == row.next_attempt && !row.fronted.empty();
  if (current == nullptr && row.comes_back() && !fronted && !gang.hosted)
    gang.left_pool = pool_of(row.attempts.back());
  if (current != nullptr) gang.may_be_lost = MayBeLost(state, job, *gang.spec, *current);
  if (current != nullptr && !gang.hosted) gang.bound_pool = pool_of(*current);
  gang.ends = ends || NotNeeded(job, task) ||
              (current != nullptr && current->state == pb::TASK_STOPPING &&
               (current->cause == pb::CANCEL || current->cause == pb::TIME_LIMIT));
  if (gang.ends || leaf < 0) return gang;  // holds devices, but claims none
  ReadPools(state, clusters, &gang);
  for (const int32_t pool : gang.pools) {
    if (!gang.gpus || shares_[pool].host < 0) continue;
    const pb::Inventory& inventory = state.host(shares_[pool].host).inventory;
    gang.host_cpus_milli =
        std::max(gang.host_cpus_milli, WorkerDemand(*gang.spec, inventory).cpus_milli);
  }
  if (counts_cpus_[leaf]) gang.worker_cpus_milli = gang.host_cpus_milli;
  return gang;
}

// Where it may run, in order of preference, and which of that is open to it: its clusters as far as
// the first that could ever hold it, and those that spill opened.
void ModelUpkeep::ReadPools(const State& state, const std::vector<int32_t>& clusters,
                            Gang* gang) const {
  std::vector<int32_t> flavours;
  if (!gang->gpus) {
    flavours.push_back(model_.cpu);
  } else {
    for (const std::string& type : gang->spec->resources().gpu_types()) {
      if (const int32_t flavour = model_.FlavourIndex(type); flavour >= 0)
        flavours.push_back(flavour);
    }
  }
  bool first = true;  // the first cluster that could ever hold it is open
  for (const int32_t cluster : clusters) {
    const std::string& name = state.clusters()[cluster].name;
    const std::vector<std::string>& opened = gang->row->opened;
    const bool spilled = std::find(opened.begin(), opened.end(), name) != opened.end();
    bool could = false;
    for (const int32_t flavour : flavours) {
      const int32_t pool = model_.PoolOf(cluster, flavour);
      if (pool < 0) continue;
      const bool holds = model_.pools[pool].known_milli >= gang->min_workers * gang->worker_milli;
      could = could || holds;
      gang->pools.push_back(pool);
      gang->opened.push_back(spilled || (first && holds));
    }
    first = first && !could;
  }
  if (!gang->row->fronted.empty()) {  // spill found free devices there
    const auto in_front = [&](int32_t pool) {
      const std::string& name = state.clusters()[model_.pools[pool].cluster].name;
      return name == gang->row->fronted.back();
    };
    decltype(gang->pools) pools;
    decltype(gang->opened) opened;
    for (const bool front : {true, false}) {
      for (size_t i = 0; i < gang->pools.size(); ++i) {
        if (in_front(gang->pools[i]) != front) continue;
        pools.push_back(gang->pools[i]);
        opened.push_back(gang->opened[i]);
      }
    }
    gang->pools = std::move(pools);
    gang->opened = std::move(opened);
  }
  gang->all_opened = std::find(gang->opened.begin(), gang->opened.end(), 0) == gang->opened.end();
}

void ModelUpkeep::ReadTogether(const State& state, const JobRow& job, size_t first,
                               const std::vector<int32_t>& clusters, int32_t leaf) {
  std::vector<Gang> gangs;
  for (size_t t = 0; t < job.tasks.size(); ++t)
    gangs.push_back(ReadGang(state, job, static_cast<int32_t>(t), clusters, leaf));
  JoinTogether(job, model_, leaf >= 0 && counts_cpus_[leaf], &gangs);
  for (size_t t = 0; t < gangs.size(); ++t) {
    // Where a group fits tells nothing of what else has its figures.
    if (gangs[t].leader >= 0) gangs[t].shape = ShapeOfTogether(gangs[t].ref);
    Replace(first + t, std::move(gangs[t]));
  }
}

int32_t ModelUpkeep::ShapeOfTogether(const TaskRef& ref) {
  const auto number = static_cast<int64_t>(ref.job);
  return shapes_
      .try_emplace({-1, number, ref.task, 0, 0, 0, 0, 0, {}}, static_cast<int32_t>(shapes_.size()))
      .first->second;
}

// Who starts together has its leader's part of S.
void ModelUpkeep::FollowLeaders() {
  for (const int32_t b : model_.followers) {
    Gang& gang = model_.gangs[b];
    const Gang& leader = model_.gangs[model_.LeaderOf(b)];
    gang.entitled = leader.entitled;
    gang.guaranteed = leader.guaranteed;
    gang.charged_as_bound = leader.charged_as_bound;
    gang.charge = leader.charge < 0 ? -1 : PoolBeside(model_, gang, leader.charge);
    ListTakeable(b);
  }
}

}  // namespace muster
