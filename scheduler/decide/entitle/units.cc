// What an Entitlement keeps between runs: the quotas, the leaves' units in order, and the branches.
#include <algorithm>
#include <tuple>
#include <utility>

#include "common/base/check.h"
#include "scheduler/decide/entitle/entitle.h"

namespace muster {
namespace {

// Leaf order: priority, band, submission, id.
bool Before(const Model& model, int32_t a, int32_t b) {
  const Gang &x = model.gangs[a], &y = model.gangs[b];
  if (x.priority != y.priority) return x.priority > y.priority;
  return std::tie(x.band, x.submit_ns, a) < std::tie(y.band, y.submit_ns, b);
}

// The pool that it is bound to; -1 also if that isn't one of its list.
int32_t BoundIn(const Gang& gang) {
  const int32_t bound = gang.unit_bound_pool();
  return std::find(gang.pools.begin(), gang.pools.end(), bound) != gang.pools.end() ? bound : -1;
}

}  // namespace

QuotaTree ReadQuotas(const State& state, const Model& model) {
  const QueueIndex& queues = state.queues();
  QuotaTree tree(queues.nodes.size());
  for (size_t n = 0; n < tree.size(); ++n) {
    tree[n].parent = queues.nodes[n].parent;
    tree[n].children = queues.nodes[n].children;
    tree[n].flavours.resize(model.flavours.size());
    for (size_t f = 0; f < model.flavours.size(); ++f) {
      const auto it = queues.nodes[n].spec.quota().find(model.flavours[f]);
      if (it == queues.nodes[n].spec.quota().end()) continue;
      const pb::Quota& row = it->second;
      FlavourQuota& quota = tree[n].flavours[f];
      quota.listed = true;
      quota.guarantee_milli = row.guarantee_milli();
      if (row.has_limit_milli()) quota.limit_milli = row.limit_milli();
      if (row.has_weight()) quota.weight = std::clamp<int64_t>(row.weight(), 0, 1 << 20);
      if (row.guarantee_per_cluster().empty()) continue;
      if (tree[n].pools.empty()) tree[n].pools.assign(model.pools.size(), kUnbounded);
      for (size_t c = 0; c < model.pools.size(); ++c) {
        if (model.pools[c].flavour != static_cast<int32_t>(f)) continue;
        const auto pool =
            row.guarantee_per_cluster().find(state.clusters()[model.pools[c].cluster].name);
        tree[n].pools[c] = pool == row.guarantee_per_cluster().end() ? 0 : pool->second;
      }
    }
  }
  return tree;
}

int32_t Entitlement::EndOf(const Leaf& leaf) {
  return static_cast<int32_t>(leaf.units.size() + leaf.growing.size());
}

void Entitlement::Reset(QuotaTree quotas, const Model& model) {
  quotas_ = std::move(quotas);
  flavours_ = static_cast<int32_t>(model.flavours.size());
  pools_ = static_cast<int32_t>(model.pools.size());
  quota_.clear();
  for (const QuotaNode& node : quotas_)
    quota_.insert(quota_.end(), node.flavours.begin(), node.flavours.end());
  leaves_.assign(quotas_.size(), {});
  branches_.clear();
  branches_of_.assign(quotas_.size(), {});
  winners_.clear();
  pool_at_.assign(quotas_.size(), -1);
  pool_guarantee_.clear();
  for (size_t n = 0; n < quotas_.size(); ++n) {
    if (quotas_[n].pools.empty()) continue;
    pool_at_[n] = static_cast<int32_t>(pool_guarantee_.size());
    pool_guarantee_.insert(pool_guarantee_.end(), quotas_[n].pools.begin(), quotas_[n].pools.end());
  }
  cpu_pool_.clear();
  for (const Pool& pool : model.pools)
    cpu_pool_.push_back(model.CpusBeside(static_cast<int32_t>(&pool - model.pools.data())));
  defers_ = std::any_of(cpu_pool_.begin(), cpu_pool_.end(), [](int32_t pool) { return pool >= 0; });
  max_demand_below_.clear();
  max_pool_demand_below_.clear();
  dirty_.clear();
  changed_.clear();
  late_keys_.clear();
  unit_at_.clear();
  with_prefixes_ = false;
  nests_ = Nests(model);
  promised_.assign(quotas_.size(), {});
  AddBranch(0, -1, 0, false);
  for (size_t b = 0; b < model.gangs.size(); ++b) {
    if (model.gangs[b].counts())
      leaves_[model.gangs[b].leaf].members.push_back(static_cast<int32_t>(b));
  }
  for (Leaf& leaf : leaves_) {
    std::sort(leaf.members.begin(), leaf.members.end(),
              [&](int32_t a, int32_t b) { return Before(model, a, b); });
  }
}

void Entitlement::Remove(const Model& model, int32_t gang) {
  const Gang& row = model.gangs[gang];
  if (!row.counts()) return;
  Leaf& leaf = leaves_[row.leaf];
  const auto at = std::lower_bound(leaf.members.begin(), leaf.members.end(), gang,
                                   [&](int32_t a, int32_t b) { return Before(model, a, b); });
  MUSTER_CHECK(at != leaf.members.end() && *at == gang);
  leaf.members.erase(at);
  leaf.stale = true;
}

void Entitlement::Add(const Model& model, int32_t gang) {
  const Gang& row = model.gangs[gang];
  if (!row.counts()) return;
  Leaf& leaf = leaves_[row.leaf];
  leaf.members.insert(std::lower_bound(leaf.members.begin(), leaf.members.end(), gang,
                                       [&](int32_t a, int32_t b) { return Before(model, a, b); }),
                      gang);
  leaf.stale = true;
}

void Entitlement::Rebind(const Model& model, int32_t gang) {
  const Gang& row = model.gangs[gang];
  if (!row.counts() || leaves_[row.leaf].stale) return;
  Unit& unit = leaves_[row.leaf].units[unit_at_[gang]];
  unit.bound = BoundIn(row);
  // Of the guaranteed prefix a binding only changes the charge of a unit that is in it.
  const bool stays = !unit.prefix.taken || unit.bound == unit.prefix.charge ||
                     (unit.bound < 0 && !unit.prefix.charged_as_bound);
  leaves_[row.leaf].stale = !stays;
}

void Entitlement::Renumber(const std::vector<int32_t>& to) {
  // What is brought up to date only when it is asked for (a stale leaf's units, the line of the
  // promised) may still name gangs that have gone: -1 from here on.
  const auto renumber = [&](int32_t* gang) { *gang = *gang < 0 ? -1 : to[*gang]; };
  for (Leaf& leaf : leaves_) {
    for (int32_t& gang : leaf.members) renumber(&gang);
    for (Unit& unit : leaf.units) renumber(&unit.gang);
    for (Acceptance& accepted : leaf.prefix) {
      renumber(&accepted.gang);
      renumber(&accepted.line_key.gang);
    }
  }
  for (Promised& promised : promised_) {
    for (Promised::Entry& one : promised.entries) renumber(&one.line_key.gang);
  }
  for (LineKey& key : late_keys_) renumber(&key.gang);
  for (size_t b = 0; b < unit_at_.size(); ++b) {
    if (to[b] >= 0) unit_at_[to[b]] = unit_at_[b];
  }
}

void Entitlement::Read(const Model& model, Leaf* leaf) {
  leaf->stale = false;
  leaf->fresh = true;
  leaf->merged = false;
  leaf->units.clear();
  leaf->pools.clear();
  leaf->growing.clear();
  leaf->least_milli = kUnbounded;
  leaf->counts_cpus = leaf->wants_cpus = false;
  for (const int32_t b : leaf->members) {
    const Gang& gang = model.gangs[b];
    const int32_t index = static_cast<int32_t>(leaf->units.size());
    Unit& unit = leaf->units.emplace_back();
    unit.gang = b;
    unit_at_[b] = index;
    unit.published = {gang.entitled, gang.guaranteed, gang.charged_as_bound, gang.charge,
                      gang.growth / gang.step_workers};
    unit.demand_milli = gang.unit_milli();
    unit.growth_milli = gang.worker_milli * gang.step_workers;
    unit.cpus_milli = gang.unit_cpus_milli();
    unit.growth_cpus_milli = gang.worker_cpus_milli * gang.step_workers;
    unit.host_cpus_milli = gang.unit_host_cpus_milli();
    unit.growth_host_cpus_milli = gang.host_cpus_milli * gang.step_workers;
    leaf->wants_cpus = leaf->wants_cpus ||
                       std::any_of(gang.pools.begin(), gang.pools.end(),
                                   [&](int32_t c) { return model.pools[c].flavour == model.cpu; });
    leaf->counts_cpus = leaf->counts_cpus || unit.cpus_milli > 0;
    unit.submit_ns = gang.submit_ns;
    unit.extra = (gang.max_workers - gang.min_workers) / gang.step_workers;
    unit.bound = BoundIn(gang);
    unit.pools_at = static_cast<int32_t>(leaf->pools.size());
    unit.pools = static_cast<int32_t>(gang.pools.size());
    leaf->pools.insert(leaf->pools.end(), gang.pools.begin(), gang.pools.end());
    for (size_t i = 0; i < gang.pools.size(); ++i) {
      if (!gang.opened[i]) continue;
      leaf->pools.push_back(gang.pools[i]);
      ++unit.opened;
    }
    if (gang.binds_others)
      leaf->pools.resize(static_cast<size_t>(unit.pools_at) +
                         2 * gang.pools.size());  // more may open in the run
    if (unit.extra > 0) {
      unit.growth_at = static_cast<int32_t>(leaf->growing.size());
      leaf->growing.push_back(index);
    }
    // Tasks of a job stand side by side: they have its priority, band and time of submission.
    if (gang.binds_others) {
      const bool same = index > 0 && leaf->units[index - 1].group >= 0 &&
                        model.gangs[leaf->units[index - 1].gang].ref.job == gang.ref.job;
      unit.group = same ? leaf->units[index - 1].group : index;
    }
    leaf->least_milli = std::min(leaf->least_milli, unit.demand_milli);
    if (unit.extra > 0) leaf->least_milli = std::min(leaf->least_milli, unit.growth_milli);
  }
}

int32_t Entitlement::AddBranch(int32_t node, int32_t parent, int32_t index, bool guaranteed) {
  const int32_t id = static_cast<int32_t>(branches_.size());
  Branch& branch = branches_.emplace_back();
  branch.node = node;
  branch.parent = parent;
  branch.index = index;
  branch.depth = parent < 0 ? 0 : branches_[parent].depth + 1;
  branch.guaranteed = guaranteed;
  branch.leaf = node != 0 && quotas_[node].children.empty();
  branch.within = parent < 0 || (guaranteed && branches_[parent].within);
  branch.promised = guaranteed || (parent >= 0 && branches_[parent].promised);
  if (branch.leaf && branch.within && with_prefixes_) branch.position = EndOf(leaves_[node]);
  if (!branch.leaf) {
    branch.max_demand_at = static_cast<int32_t>(max_demand_below_.size());
    max_demand_below_.resize(max_demand_below_.size() + static_cast<size_t>(flavours_), 0);
    if (guaranteed && pool_at_[node] >= 0) {
      branch.max_pool_demand_at = static_cast<int32_t>(max_pool_demand_below_.size());
      max_pool_demand_below_.resize(max_pool_demand_below_.size() + static_cast<size_t>(pools_), 0);
    }
  }
  branches_of_[node].push_back(id);
  keys_.resize(branches_.size());
  if (dirty_.size() <= static_cast<size_t>(branch.depth))
    dirty_.resize(static_cast<size_t>(branch.depth) + 1);
  return id;
}

}  // namespace muster
