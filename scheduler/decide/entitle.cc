#include "scheduler/decide/entitle.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "common/base/check.h"

namespace muster {
namespace {

// Leaf order: priority, submission, id.
bool Before(const Model& model, int32_t a, int32_t b) {
  const Gang &x = model.gangs[a], &y = model.gangs[b];
  if (x.priority != y.priority) return x.priority > y.priority;
  return std::make_tuple(x.submit_ns, a) < std::make_tuple(y.submit_ns, b);
}

// The pool where it runs; -1 also if that isn't one of its list.
int32_t BoundIn(const Gang& gang) {
  return std::find(gang.pools.begin(), gang.pools.end(), gang.bound_pool) != gang.pools.end()
             ? gang.bound_pool
             : -1;
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

// ---- what is kept ----

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
  need_.clear();
  pool_need_.clear();
  dirty_.clear();
  changed_.clear();
  turns_.clear();
  unit_at_.clear();
  ahead_ = false;
  nests_ = Nests(model);
  promised_.assign(quotas_.size(), {});
  AddBranch(0, -1, 0, false);
  for (size_t b = 0; b < model.gangs.size(); ++b) {
    if (model.gangs[b].leaf >= 0 && !model.gangs[b].pools.empty())
      leaves_[model.gangs[b].leaf].members.push_back(static_cast<int32_t>(b));
  }
  for (Leaf& leaf : leaves_) {
    std::sort(leaf.members.begin(), leaf.members.end(),
              [&](int32_t a, int32_t b) { return Before(model, a, b); });
  }
}

void Entitlement::Remove(const Model& model, int32_t gang) {
  const Gang& row = model.gangs[gang];
  if (row.leaf < 0 || row.pools.empty()) return;
  Leaf& leaf = leaves_[row.leaf];
  const auto at = std::lower_bound(leaf.members.begin(), leaf.members.end(), gang,
                                   [&](int32_t a, int32_t b) { return Before(model, a, b); });
  MUSTER_CHECK(at != leaf.members.end() && *at == gang);
  leaf.members.erase(at);
  leaf.stale = true;
}

void Entitlement::Add(const Model& model, int32_t gang) {
  const Gang& row = model.gangs[gang];
  if (row.leaf < 0 || row.pools.empty()) return;
  Leaf& leaf = leaves_[row.leaf];
  leaf.members.insert(std::lower_bound(leaf.members.begin(), leaf.members.end(), gang,
                                       [&](int32_t a, int32_t b) { return Before(model, a, b); }),
                      gang);
  leaf.stale = true;
}

void Entitlement::Rebind(const Model& model, int32_t gang) {
  const Gang& row = model.gangs[gang];
  if (row.leaf < 0 || row.pools.empty() || leaves_[row.leaf].stale) return;
  Unit& unit = leaves_[row.leaf].units[unit_at_[gang]];
  unit.bound = BoundIn(row);
  // Of the guaranteed part a binding only changes the charge of a unit that is in it.
  const bool stays = !unit.alone.taken || unit.bound == unit.alone.charge ||
                     (unit.bound < 0 && !unit.alone.charged_as_bound);
  leaves_[row.leaf].stale = !stays;
}

void Entitlement::Renumber(const std::vector<int32_t>& to) {
  for (Leaf& leaf : leaves_) {
    for (int32_t& gang : leaf.members) gang = to[gang];
    for (Unit& unit : leaf.units) unit.gang = to[unit.gang];
    for (Step& step : leaf.alone) {
      step.gang = to[step.gang];
      step.most.gang = to[step.most.gang];
    }
  }
  for (Promised& promised : promised_) {
    for (Promised::One& one : promised.steps) one.most.gang = to[one.most.gang];
  }
  for (Turn& turn : turns_) turn.gang = to[turn.gang];
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
    unit.told = {gang.entitled, gang.guaranteed, gang.charged_as_bound, gang.charge, gang.growth};
    unit.demand_milli = gang.worker_milli * gang.min_workers;
    unit.worker_milli = gang.worker_milli;
    unit.cpus_milli = gang.worker_cpus_milli * gang.min_workers;
    unit.worker_cpus_milli = gang.worker_cpus_milli;
    unit.host_cpus_milli = gang.host_cpus_milli * gang.min_workers;
    unit.worker_host_cpus_milli = gang.host_cpus_milli;
    leaf->wants_cpus = leaf->wants_cpus ||
                       std::any_of(gang.pools.begin(), gang.pools.end(),
                                   [&](int32_t c) { return model.pools[c].flavour == model.cpu; });
    leaf->counts_cpus = leaf->counts_cpus || gang.worker_cpus_milli > 0;
    unit.submit_ns = gang.submit_ns;
    unit.extra = gang.max_workers - gang.min_workers;
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
    // Tasks of a job stand side by side: they have its priority and its time of submission.
    if (gang.binds_others) {
      const bool same = index > 0 && leaf->units[index - 1].group >= 0 &&
                        model.gangs[leaf->units[index - 1].gang].ref.job == gang.ref.job;
      unit.group = same ? leaf->units[index - 1].group : index;
    }
    leaf->least_milli =
        std::min(leaf->least_milli, unit.extra > 0 ? unit.worker_milli : unit.demand_milli);
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
  if (branch.leaf && branch.within && ahead_) branch.position = EndOf(leaves_[node]);
  if (!branch.leaf) {
    branch.need_at = static_cast<int32_t>(need_.size());
    need_.resize(need_.size() + static_cast<size_t>(flavours_), 0);
    if (guaranteed && pool_at_[node] >= 0) {
      branch.pool_need_at = static_cast<int32_t>(pool_need_.size());
      pool_need_.resize(pool_need_.size() + static_cast<size_t>(pools_), 0);
    }
  }
  branches_of_[node].push_back(id);
  keys_.resize(branches_.size());
  if (dirty_.size() <= static_cast<size_t>(branch.depth))
    dirty_.resize(static_cast<size_t>(branch.depth) + 1);
  return id;
}

// ---- the run ----

void Entitlement::StartRun(const Model& model) {
  m_ = &model;
  unit_at_.resize(model.gangs.size(), -1);
  for (size_t n = 0; n < leaves_.size(); ++n) {
    Leaf& leaf = leaves_[n];
    leaf.fresh = false;
    if (!leaf.stale) continue;
    Read(model, &leaf);
    if (nests_) RunAlone(static_cast<int32_t>(n));
  }
  const bool was_ahead = ahead_;
  ahead_ = CanBeginAhead(model);
  for (Leaf& leaf : leaves_) {
    if (ahead_) {
      leaf.taken = leaf.alone_taken;
    } else {
      if (leaf.stale) {  // its guaranteed part bound tasks of jobs
        Read(model, &leaf);
        leaf.stale = true;
      }
      leaf.taken.assign(leaf.units.size(), 0);
    }
    if (was_ahead && ahead_ && !leaf.fresh)
      continue;  // what the last run changed is put back below
    for (Unit& unit : leaf.units) StartUnit(&unit);
  }
  if (was_ahead && ahead_) {
    for (const auto& [node, u] : changed_) {
      if (!leaves_[node].fresh) StartUnit(&leaves_[node].units[u]);
    }
  }
  turns_.clear();
  latest_.assign(quotas_.size(), {});
  phase_ = 0;
  StartBranches();
  room_.resize(model.pools.size());
  for (size_t c = 0; c < model.pools.size(); ++c) room_[c] = model.pools[c].capacity_milli;
  beside_.assign(model.pools.size(), 0);
  used_.assign(quotas_.size() * model.flavours.size(), 0);
  under_limit_.resize(used_.size());
  under_guarantee_.resize(used_.size());
  for (size_t n = 0; n < quotas_.size(); ++n) {
    for (int32_t f = 0; f < flavours_; ++f) {
      under_limit_[n * flavours_ + f] = quota_[n * flavours_ + f].limit_milli;
      under_guarantee_[n * flavours_ + f] = quota_[n * flavours_ + f].guarantee_milli;
    }
  }
  // The root's allowance is what there is. Of devices the pools' room says so already, of CPUs
  // where nothing else takes them.
  const bool counts_cpus = std::any_of(leaves_.begin(), leaves_.end(),
                                       [](const Leaf& leaf) { return leaf.counts_cpus; });
  if (counts_cpus)
    under_limit_[model.cpu] = std::min(under_limit_[model.cpu], model.flavour_milli[model.cpu]);
  under_pool_ = pool_guarantee_;
  if (ahead_) ChargeAlone();
}

// Nobody is a candidate yet, and cursors stand where the phase begins.
void Entitlement::StartBranches() {
  for (Branch& branch : branches_) {
    branch.open = branch.dirty = false;
    branch.pass[0].built = branch.pass[1].built = false;
    branch.best = branch.unit = branch.pool = branch.listed_at = -1;
    const bool over = branch.leaf && ((branch.within && ahead_) ||
                                      (phase_ == 1 && !leaves_[branch.node].wants_cpus));
    branch.position = over ? EndOf(leaves_[branch.node]) : 0;
    branch.choice = 0;
  }
  std::fill(keys_.begin(), keys_.end(), Key());
  std::fill(need_.begin(), need_.end(), 0);
  std::fill(pool_need_.begin(), pool_need_.end(), 0);
  listed_.resize(static_cast<size_t>(pools_));
  for (std::vector<int32_t>& list : listed_) list.clear();
  listed_need_.assign(static_cast<size_t>(pools_), 0);
}

// As the run begins.
void Entitlement::StartUnit(Unit* unit) const {
  unit->part = ahead_ ? unit->alone : Unit::Part();
  unit->order = 0;
  unit->turn = -1;
  unit->group_cluster = ahead_ ? unit->group_cluster : -1;
}

// What the queues of the branch's path may still take, and the pool has, holds the demand. CPUs
// beside devices are held against the limits of the queues that list cpu, and against guarantees
// where some were promised.
bool Entitlement::Fits(int32_t b, int32_t pool, int64_t demand_milli, int64_t cpus_milli) const {
  if (RoomFor(branches_[b], pool) < demand_milli) return false;
  const int32_t f = m_->pools[pool].flavour;
  if (under_limit_[m_->cpu] < (f == m_->cpu ? demand_milli : cpus_milli))
    return false;  // the root's
  for (; b > 0; b = branches_[b].parent) {
    const Branch& branch = branches_[b];
    const size_t at = static_cast<size_t>(branch.node) * flavours_ + f;
    if (under_limit_[at] < demand_milli) return false;
    if (cpus_milli > 0 && Allowed(branch, m_->cpu) < cpus_milli) return false;
    if (!branch.guaranteed) continue;
    if (under_guarantee_[at] < demand_milli) return false;
    if (pool_at_[branch.node] >= 0 && under_pool_[pool_at_[branch.node] + pool] < demand_milli)
      return false;
  }
  return true;
}

int64_t Entitlement::RoomFor(const Branch& branch, int32_t pool) const {
  if (!defers_ || branch.promised || m_->pools[pool].flavour != m_->cpu) return room_[pool];
  return phase_ == 0 ? 0 : room_[pool] - beside_[pool];
}

int64_t Entitlement::Allowed(const Branch& branch, int32_t flavour) const {
  const size_t at = static_cast<size_t>(branch.node) * flavours_ + flavour;
  const bool promised = flavour != m_->cpu || quota_[at].guarantee_milli > 0;
  return branch.guaranteed && promised ? std::min(under_limit_[at], under_guarantee_[at])
                                       : under_limit_[at];
}

// Tasks of a job share a directory: once one of them is charged to a cluster, the others go where
// its storage is reached.
bool Entitlement::GroupAllows(const Leaf& leaf, const Unit& unit, int32_t pool) const {
  if (unit.group < 0) return true;
  const int32_t cluster = leaf.units[unit.group].group_cluster;
  return cluster < 0 || m_->Reaches(cluster, m_->pools[pool].cluster);
}

// Binds a job's tasks to what reaches the cluster, as placing the first one will: of what is left
// of their lists the first cluster that could ever hold them is open.
void Entitlement::BindGroup(int32_t node, int32_t first, int32_t cluster) {
  Leaf& leaf = leaves_[node];
  leaf.units[first].group_cluster = cluster;
  leaf.stale = true;  // the lists are read again for the next run
  for (size_t u = static_cast<size_t>(first); u < leaf.units.size() && leaf.units[u].group == first;
       ++u) {
    Unit& unit = leaf.units[u];
    if (unit.part.taken) continue;
    const Gang& gang = m_->gangs[unit.gang];
    int32_t open = -1;  // that cluster
    unit.opened = 0;
    for (size_t i = 0; i < gang.pools.size(); ++i) {
      const Pool& pool = m_->pools[gang.pools[i]];
      if (!m_->Reaches(cluster, pool.cluster)) continue;
      const bool holds = pool.known_milli >= unit.demand_milli;
      if (open < 0 && holds) open = pool.cluster;
      if (gang.opened[i] || (holds && pool.cluster == open))
        leaf.pools[unit.pools_at + unit.pools + unit.opened++] = gang.pools[i];
    }
    for (const int32_t b : branches_of_[node]) {
      if (branches_[b].position < static_cast<int32_t>(u)) continue;
      branches_[b].position = static_cast<int32_t>(u);
      branches_[b].choice = 0;
    }
  }
}

bool Entitlement::Less(const Key& a, const Key& b) {
  if (a.rank != b.rank) return a.rank < b.rank;
  const __int128 left = static_cast<__int128>(a.numerator) * b.denominator,
                 right = static_cast<__int128>(b.numerator) * a.denominator;
  if (left != right) return left < right;
  if (a.history != b.history) return a.history < b.history;
  if (a.submit_ns != b.submit_ns) return a.submit_ns < b.submit_ns;
  if (a.gang != b.gang) return a.gang < b.gang;
  return a.growth < b.growth;
}

void Entitlement::Unlist(int32_t b) {
  Branch& branch = branches_[b];
  if (branch.listed_at < 0) return;
  std::vector<int32_t>& list = listed_[branch.pool];
  branches_[list.back()].listed_at = branch.listed_at;
  list[branch.listed_at] = list.back();
  list.pop_back();
  branch.listed_at = -1;
}

void Entitlement::SetCandidate(int32_t b, int32_t u, bool growth, int32_t pool) {
  Branch& branch = branches_[b];
  const Unit& unit = leaves_[branch.node].units[u];
  const int64_t demand_milli = growth ? unit.worker_milli : unit.demand_milli;
  const int32_t f = m_->pools[pool].flavour;
  branch.unit = u;
  branch.growth = growth;
  branch.pool = pool;
  branch.flavour = f;
  branch.demand_milli = demand_milli;
  branch.cpus_milli = growth ? unit.worker_cpus_milli : unit.cpus_milli;
  branch.best = b;
  branch.listed_at = static_cast<int32_t>(listed_[pool].size());
  listed_[pool].push_back(b);
  listed_need_[pool] = std::max(listed_need_[pool], demand_milli);
  for (int32_t up = branch.parent; up >= 0; up = branches_[up].parent) {
    int64_t& need = need_[branches_[up].need_at + f];
    need = std::max(need, demand_milli);
    if (branch.cpus_milli > 0) {
      int64_t& cpus_need = need_[branches_[up].need_at + m_->cpu];
      cpus_need = std::max(cpus_need, branch.cpus_milli);
    }
    if (branches_[up].pool_need_at < 0) continue;
    int64_t& pool_need = pool_need_[branches_[up].pool_need_at + pool];
    pool_need = std::max(pool_need, demand_milli);
  }
}

// Moves a leaf branch's cursor to the first unit that fits.
void Entitlement::Advance(int32_t b) {
  Branch& branch = branches_[b];
  const Leaf& leaf = leaves_[branch.node];
  Unlist(b);
  branch.best = -1;
  if (branch.guaranteed) {  // the common end: the guarantee is used up
    int64_t most = 0;
    for (int32_t f = 0; f < flavours_; ++f)
      most = std::max(most, under_guarantee_[static_cast<size_t>(branch.node) * flavours_ + f]);
    if (most < leaf.least_milli) return;
  }
  const int32_t gangs = static_cast<int32_t>(leaf.units.size());
  const int32_t end = gangs + static_cast<int32_t>(leaf.growing.size());
  for (; branch.position < end; ++branch.position, branch.choice = 0) {
    if (branch.position >= gangs) {
      const int32_t u = leaf.growing[branch.position - gangs];
      const Unit& unit = leaf.units[u];
      if (unit.part.taken && unit.part.growth < unit.extra &&
          Fits(b, unit.part.charge, unit.worker_milli, unit.worker_cpus_milli)) {
        return SetCandidate(b, u, true, unit.part.charge);
      }
      continue;
    }
    constexpr int32_t kAhead = 8;
    if (branch.position + kAhead < gangs && leaf.taken[branch.position + kAhead] == 0)
      __builtin_prefetch(&leaf.units[branch.position + kAhead]);
    if (leaf.taken[branch.position] != 0) continue;
    const Unit& unit = leaf.units[branch.position];
    // Within the leaf's guarantee every pool of its list counts, else only those opened so far
    // (§4).
    const int32_t at = branch.guaranteed ? unit.pools_at : unit.pools_at + unit.pools;
    const int32_t count = branch.guaranteed ? unit.pools : unit.opened;
    for (; branch.choice < count; ++branch.choice) {
      const int32_t pool = leaf.pools[at + branch.choice];
      if (Fits(b, pool, unit.demand_milli, unit.cpus_milli) && GroupAllows(leaf, unit, pool)) {
        return SetCandidate(b, branch.position, false, pool);
      }
    }
  }
}

// The better of two children, by index.
int32_t Entitlement::Better(const Pass& pass, int32_t i, int32_t j) const {
  return Less(keys_[pass.first + j], keys_[pass.first + i]) ? j : i;
}

// The child's branch; the tournament's leaves are the positions count..2*count-1.
int32_t Entitlement::Winner(const Pass& pass) const {
  return pass.first + (pass.count == 1 ? 0 : winners_[pass.winners + 1]);
}

void Entitlement::Replay(const Pass& pass, int32_t index) {
  const auto at = [&](int32_t position) {
    return position >= pass.count ? position - pass.count : winners_[pass.winners + position];
  };
  for (int32_t position = (pass.count + index) / 2; position >= 1; position /= 2) {
    int32_t& winner = winners_[pass.winners + position];
    const int32_t now = Better(pass, at(2 * position), at(2 * position + 1));
    if (now == winner && now != index) return;
    winner = now;
  }
}

void Entitlement::Build(int32_t b, int p) {
  if (!branches_[b].pass[p].made) {
    const int32_t first = static_cast<int32_t>(branches_.size());
    const int32_t node = branches_[b].node;
    int32_t count = 0;
    for (const int32_t child : quotas_[node].children) {
      const std::vector<FlavourQuota>& flavours = quotas_[child].flavours;
      const bool any = std::any_of(flavours.begin(), flavours.end(),
                                   [](const FlavourQuota& f) { return f.guarantee_milli > 0; });
      if (p == 0 && !any) continue;
      AddBranch(child, b, count++, p == 0);
    }
    Pass& pass = branches_[b].pass[p];
    pass.made = true;
    pass.first = first;
    pass.count = count;
    pass.winners = static_cast<int32_t>(winners_.size());
    winners_.resize(winners_.size() + static_cast<size_t>(count), 0);
  }
  const Pass pass = branches_[b].pass[p];  // evaluating adds branches
  for (int32_t child = pass.first; child < pass.first + pass.count; ++child) Evaluate(child);
  const auto at = [&](int32_t position) {
    return position >= pass.count ? position - pass.count : winners_[pass.winners + position];
  };
  for (int32_t position = pass.count - 1; position >= 1; --position) {
    winners_[pass.winners + position] = Better(pass, at(2 * position), at(2 * position + 1));
  }
  branches_[b].pass[p].built = true;
}

// An interior branch's candidate: its children's best, those within their guarantees strictly
// first.
void Entitlement::Select(int32_t b) {
  branches_[b].best = -1;
  for (int p = 0; p < 2; ++p) {
    if (!branches_[b].pass[p].built) Build(b, p);
    const Pass& pass = branches_[b].pass[p];
    if (pass.count == 0) continue;
    const int32_t best = branches_[Winner(pass)].best;
    if (best < 0) continue;
    branches_[b].best = best;
    return;
  }
}

void Entitlement::SetKey(int32_t b) {
  const Branch& branch = branches_[b];
  Key& key = keys_[b];
  if (branch.best < 0) {
    key.rank = kNoCandidate;
    return;
  }
  const Branch& best = branches_[branch.best];
  const Unit& unit = leaves_[best.node].units[best.unit];
  key.history = m_->history[branch.node];
  key.submit_ns = unit.submit_ns;
  key.gang = unit.gang;
  key.growth = best.growth;
  key.rank = 0;
  key.numerator = 0;
  key.denominator = 1;
  Dominate(branch, best.flavour, &key);
  if (best.cpus_milli > 0) Dominate(branch, m_->cpu, &key);
}

// Beside a share of what is listed, that of what isn't is the smallest there is.
void Entitlement::Dominate(const Branch& branch, int32_t flavour, Key* key) const {
  const FlavourQuota& quota = quota_[static_cast<size_t>(branch.node) * flavours_ + flavour];
  if (!quota.listed) return;
  const int64_t used = used_[static_cast<size_t>(branch.node) * flavours_ + flavour];
  int32_t rank = 0;
  int64_t numerator = used, denominator = quota.guarantee_milli;
  if (branch.guaranteed) {
    if (denominator == 0) return;  // CPUs of which nothing was promised
  } else {
    const int64_t whole = m_->flavour_milli[flavour] + 1;
    rank = quota.weight == 0 ? 2 : 1;
    numerator = std::max<int64_t>(0, used - quota.guarantee_milli);
    denominator = quota.weight == 0 ? whole : quota.weight * whole;
  }
  if (rank < key->rank) return;
  if (rank == key->rank && static_cast<__int128>(numerator) * key->denominator <=
                               static_cast<__int128>(key->numerator) * denominator)
    return;
  key->rank = rank;
  key->numerator = numerator;
  key->denominator = denominator;
}

void Entitlement::Evaluate(int32_t b) {
  branches_[b].open = true;
  if (branches_[b].leaf) {
    Advance(b);
  } else {
    Select(b);
  }
  SetKey(b);
}

void Entitlement::Mark(int32_t b) {
  Branch& branch = branches_[b];
  if (!branch.open || branch.dirty) return;
  branch.dirty = true;
  dirty_[branch.depth].push_back(b);
}

// Candidates that the pool has no room for any more.
void Entitlement::CheckPool(int32_t pool) {
  if (listed_need_[pool] <= room_[pool] - beside_[pool]) return;
  int64_t need = 0;
  for (const int32_t b : listed_[pool]) {
    if (branches_[b].demand_milli > RoomFor(branches_[b], pool)) {
      Mark(b);
    } else {
      need = std::max(need, branches_[b].demand_milli);
    }
  }
  listed_need_[pool] = need;
}

// Candidates below the branch that its queue may not take any more; returns the largest demand of
// the others.
int64_t Entitlement::CheckNeed(int32_t b, int32_t flavour, int64_t allowed_milli) {
  int64_t most = 0;
  for (const Pass& pass : branches_[b].pass) {
    if (!pass.built) continue;
    for (int32_t child = pass.first; child < pass.first + pass.count; ++child) {
      const Branch& branch = branches_[child];
      if (!branch.leaf) {
        const int64_t need = need_[branch.need_at + flavour];
        most =
            std::max(most, need > allowed_milli ? CheckNeed(child, flavour, allowed_milli) : need);
      } else if (branch.best >= 0) {
        const int64_t need = branch.flavour == flavour ? branch.demand_milli
                             : flavour == m_->cpu      ? branch.cpus_milli
                                                       : 0;
        if (need > allowed_milli) {
          Mark(child);
        } else {
          most = std::max(most, need);
        }
      }
    }
  }
  return need_[branches_[b].need_at + flavour] = most;
}

// The same for the queue's guarantee in the pool.
int64_t Entitlement::CheckPoolNeed(int32_t b, int32_t pool, int64_t allowed_milli) {
  int64_t most = 0;
  for (const Pass& pass : branches_[b].pass) {
    if (!pass.built) continue;
    for (int32_t child = pass.first; child < pass.first + pass.count; ++child) {
      const Branch& branch = branches_[child];
      if (!branch.leaf) {
        most = std::max(most, CheckPoolNeed(child, pool, allowed_milli));
      } else if (branch.best >= 0 && branch.pool == pool) {
        if (branch.demand_milli > allowed_milli) {
          Mark(child);
        } else {
          most = std::max(most, branch.demand_milli);
        }
      }
    }
  }
  if (branches_[b].pool_need_at >= 0) pool_need_[branches_[b].pool_need_at + pool] = most;
  return most;
}

void Entitlement::Charge(int32_t node, int32_t flavour, int64_t milli) {
  const size_t at = static_cast<size_t>(node) * flavours_ + flavour;
  used_[at] += milli;
  if (under_limit_[at] != kUnbounded) under_limit_[at] -= milli;
  under_guarantee_[at] -= milli;
}

void Entitlement::Accept(int32_t order) {
  const int32_t b = branches_[0].best;
  const int64_t demand_milli = branches_[b].demand_milli, cpus_milli = branches_[b].cpus_milli;
  const bool growth = branches_[b].growth;
  int32_t pool = branches_[b].pool;
  const int32_t node = branches_[b].node;
  Leaf& leaf = leaves_[node];
  Unit& unit = leaf.units[branches_[b].unit];
  if (!growth && unit.bound >= 0 && unit.bound != pool &&
      Fits(b, unit.bound, demand_milli, cpus_milli) && GroupAllows(leaf, unit, unit.bound)) {
    pool = unit.bound;
  }
  const int32_t f = m_->pools[pool].flavour;
  if (ahead_) {
    changed_.emplace_back(node, branches_[b].unit);
    KeepTurn(b, growth ? nullptr : &unit);
  }
  if (growth) {
    ++unit.part.growth;
  } else {
    unit.part.taken = true;
    leaf.taken[branches_[b].unit] = 1;
    unit.part.guaranteed = branches_[b].guaranteed;
    unit.part.charged_as_bound = pool != branches_[b].pool;
    unit.part.charge = pool;
    unit.order = order;
    if (unit.group >= 0 && leaf.units[unit.group].group_cluster < 0)
      BindGroup(node, unit.group, m_->pools[pool].cluster);
    if (unit.growth_at >= 0) {  // its growth may stand before the cursors
      const int32_t position = static_cast<int32_t>(leaf.units.size()) + unit.growth_at;
      for (const int32_t other : branches_of_[node]) {
        if (branches_[other].position > position) {
          branches_[other].position = position;
          branches_[other].choice = 0;
        }
      }
    }
  }
  room_[pool] -= demand_milli;
  MUSTER_CHECK(room_[pool] >= 0);
  CheckPool(pool);
  if (const int32_t cpus = cpu_pool_[pool]; cpus >= 0) {
    beside_[cpus] += growth ? unit.worker_host_cpus_milli : unit.host_cpus_milli;
    CheckPool(cpus);
  }
  for (int32_t n = node; n >= 0; n = quotas_[n].parent) {
    Charge(n, f, demand_milli);
    if (cpus_milli > 0) Charge(n, m_->cpu, cpus_milli);
    const int32_t pool_at = pool_at_[n];
    if (pool_at >= 0) under_pool_[pool_at + pool] -= demand_milli;
    for (const int32_t other : branches_of_[n]) {
      const Branch& branch = branches_[other];
      if (!branch.open) continue;
      Mark(other);
      if (branch.leaf) continue;
      if (const int64_t allowed_milli = Allowed(branch, f);
          need_[branch.need_at + f] > allowed_milli)
        CheckNeed(other, f, allowed_milli);
      if (cpus_milli > 0) {
        const int64_t allowed_milli = Allowed(branch, m_->cpu);
        if (need_[branch.need_at + m_->cpu] > allowed_milli)
          CheckNeed(other, m_->cpu, allowed_milli);
      }
      if (branch.pool_need_at >= 0 &&
          pool_need_[branch.pool_need_at + pool] > under_pool_[pool_at + pool]) {
        CheckPoolNeed(other, pool, under_pool_[pool_at + pool]);
      }
    }
  }
  // From the leaves up: what was marked is looked at again, and so are the queues above it.
  for (int32_t depth = static_cast<int32_t>(dirty_.size()) - 1; depth >= 0; --depth) {
    for (size_t i = 0; i < dirty_[depth].size(); ++i) {
      const int32_t marked = dirty_[depth][i];
      branches_[marked].dirty = false;
      Evaluate(marked);
      const int32_t parent = branches_[marked].parent;
      if (parent < 0) continue;
      const Pass& pass = branches_[parent].pass[branches_[marked].guaranteed ? 0 : 1];
      if (pass.count > 1) Replay(pass, branches_[marked].index);
      Mark(parent);
    }
    dirty_[depth].clear();
  }
}

std::vector<int32_t> Entitlement::Run(Model* model) {
  const bool kept_ahead = ahead_;
  const size_t changed_before = changed_.size();
  StartRun(*model);
  int32_t order = 0;
  for (Evaluate(0); branches_[0].best >= 0; ++order) Accept(order);
  if (defers_ && std::any_of(leaves_.begin(), leaves_.end(),
                             [](const Leaf& leaf) { return leaf.wants_cpus; })) {
    phase_ = 1;
    StartBranches();
    for (Evaluate(0); branches_[0].best >= 0; ++order) Accept(order);
  }
  // Gangs that are no units were never given anything.
  std::vector<int32_t> changed;
  const auto tell = [&](Unit* unit) {
    if (unit->told == unit->part) return;
    Gang& gang = model->gangs[unit->gang];
    gang.entitled = unit->part.taken;
    gang.guaranteed = unit->part.guaranteed;
    gang.charged_as_bound = unit->part.charged_as_bound;
    gang.charge = unit->part.charge;
    gang.growth = unit->part.growth;
    unit->told = unit->part;
    changed.push_back(unit->gang);
  };
  for (Leaf& leaf : leaves_) {
    if (ahead_ && kept_ahead && !leaf.fresh) continue;
    for (Unit& unit : leaf.units) tell(&unit);
  }
  for (const auto& [node, u] : changed_) {
    if (u < static_cast<int32_t>(leaves_[node].units.size())) tell(&leaves_[node].units[u]);
  }
  for (size_t c = 0; c < model->pools.size(); ++c) {
    model->pools[c].charged_milli = model->pools[c].capacity_milli - room_[c];
    model->pools[c].beside_milli = beside_[c];
  }
  model->entitled.resize(quotas_.size());
  for (size_t n = 0; n < quotas_.size(); ++n) {
    model->entitled[n].assign(used_.begin() + static_cast<int64_t>(n) * flavours_,
                              used_.begin() + static_cast<int64_t>(n + 1) * flavours_);
  }
  changed_.erase(changed_.begin(), changed_.begin() + static_cast<int64_t>(changed_before));
  m_ = nullptr;
  return changed;
}

}  // namespace muster
