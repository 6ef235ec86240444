#include "scheduler/decide/entitle/entitle.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "common/base/check.h"

namespace muster {
void Entitlement::StartRun(const Model& model) {
  m_ = &model;
  unit_at_.resize(model.gangs.size(), -1);
  for (size_t n = 0; n < leaves_.size(); ++n) {
    Leaf& leaf = leaves_[n];
    leaf.fresh = false;
    if (!leaf.stale) continue;
    Read(model, &leaf);
    if (nests_) AcceptPrefix(static_cast<int32_t>(n));
  }
  const bool had_prefixes = with_prefixes_;
  with_prefixes_ = CanBeginWithPrefixes(model);
  for (Leaf& leaf : leaves_) {
    if (with_prefixes_) {
      leaf.taken = leaf.prefix_taken;
    } else {
      if (leaf.stale) {  // its guaranteed prefix bound tasks of jobs
        Read(model, &leaf);
        leaf.stale = true;
      }
      leaf.taken.assign(leaf.units.size(), 0);
    }
    if (had_prefixes && with_prefixes_ && !leaf.fresh)
      continue;  // what the last run changed is put back below
    for (Unit& unit : leaf.units) StartUnit(&unit);
  }
  if (had_prefixes && with_prefixes_) {
    for (const auto& [node, u] : changed_) {
      if (!leaves_[node].fresh) StartUnit(&leaves_[node].units[u]);
    }
  }
  late_keys_.clear();
  latest_keys_.assign(quotas_.size(), {});
  phase_ = 0;
  StartBranches();
  room_.resize(model.pools.size());
  for (size_t c = 0; c < model.pools.size(); ++c) room_[c] = model.pools[c].capacity_milli;
  host_cpus_.assign(model.pools.size(), 0);
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
  if (with_prefixes_) ChargePrefixes();
}

// Nobody is a candidate yet, and cursors stand where the phase begins.
void Entitlement::StartBranches() {
  for (Branch& branch : branches_) {
    branch.open = branch.dirty = false;
    branch.pass[0].built = branch.pass[1].built = false;
    branch.best = branch.unit = branch.pool = branch.listed_at = -1;
    const bool over = branch.leaf && ((branch.within && with_prefixes_) ||
                                      (phase_ == 1 && !leaves_[branch.node].wants_cpus));
    branch.position = over ? EndOf(leaves_[branch.node]) : 0;
    branch.choice = 0;
  }
  std::fill(keys_.begin(), keys_.end(), Key());
  std::fill(max_demand_below_.begin(), max_demand_below_.end(), 0);
  std::fill(max_pool_demand_below_.begin(), max_pool_demand_below_.end(), 0);
  listed_.resize(static_cast<size_t>(pools_));
  for (std::vector<int32_t>& list : listed_) list.clear();
  listed_max_demand_.assign(static_cast<size_t>(pools_), 0);
}

// As the run begins.
void Entitlement::StartUnit(Unit* unit) const {
  unit->part = with_prefixes_ ? unit->prefix : Unit::Part();
  unit->order = 0;
  unit->late_key = -1;
  unit->group_cluster = with_prefixes_ ? unit->group_cluster : -1;
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
  return phase_ == 0 ? 0 : room_[pool] - host_cpus_[pool];
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
  const int64_t demand_milli = growth ? unit.growth_milli : unit.demand_milli;
  const int32_t f = m_->pools[pool].flavour;
  branch.unit = u;
  branch.growth = growth;
  branch.pool = pool;
  branch.flavour = f;
  branch.demand_milli = demand_milli;
  branch.cpus_milli = growth ? unit.growth_cpus_milli : unit.cpus_milli;
  branch.best = b;
  branch.listed_at = static_cast<int32_t>(listed_[pool].size());
  listed_[pool].push_back(b);
  listed_max_demand_[pool] = std::max(listed_max_demand_[pool], demand_milli);
  for (int32_t up = branch.parent; up >= 0; up = branches_[up].parent) {
    int64_t& need = max_demand_below_[branches_[up].max_demand_at + f];
    need = std::max(need, demand_milli);
    if (branch.cpus_milli > 0) {
      int64_t& cpus_need = max_demand_below_[branches_[up].max_demand_at + m_->cpu];
      cpus_need = std::max(cpus_need, branch.cpus_milli);
    }
    if (branches_[up].max_pool_demand_at < 0) continue;
    int64_t& pool_need = max_pool_demand_below_[branches_[up].max_pool_demand_at + pool];
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
          Fits(b, unit.part.charge, unit.growth_milli, unit.growth_cpus_milli)) {
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
  if (listed_max_demand_[pool] <= room_[pool] - host_cpus_[pool]) return;
  int64_t need = 0;
  for (const int32_t b : listed_[pool]) {
    if (branches_[b].demand_milli > RoomFor(branches_[b], pool)) {
      Mark(b);
    } else {
      need = std::max(need, branches_[b].demand_milli);
    }
  }
  listed_max_demand_[pool] = need;
}

// Candidates below the branch that its queue may not take any more; returns the largest demand of
// the others.
int64_t Entitlement::CheckBelow(int32_t b, int32_t flavour, int64_t allowed_milli) {
  int64_t most = 0;
  for (const Pass& pass : branches_[b].pass) {
    if (!pass.built) continue;
    for (int32_t child = pass.first; child < pass.first + pass.count; ++child) {
      const Branch& branch = branches_[child];
      if (!branch.leaf) {
        const int64_t need = max_demand_below_[branch.max_demand_at + flavour];
        most =
            std::max(most, need > allowed_milli ? CheckBelow(child, flavour, allowed_milli) : need);
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
  return max_demand_below_[branches_[b].max_demand_at + flavour] = most;
}

// The same for the queue's guarantee in the pool.
int64_t Entitlement::CheckBelowInPool(int32_t b, int32_t pool, int64_t allowed_milli) {
  int64_t most = 0;
  for (const Pass& pass : branches_[b].pass) {
    if (!pass.built) continue;
    for (int32_t child = pass.first; child < pass.first + pass.count; ++child) {
      const Branch& branch = branches_[child];
      if (!branch.leaf) {
        most = std::max(most, CheckBelowInPool(child, pool, allowed_milli));
      } else if (branch.best >= 0 && branch.pool == pool) {
        if (branch.demand_milli > allowed_milli) {
          Mark(child);
        } else {
          most = std::max(most, branch.demand_milli);
        }
      }
    }
  }
  if (branches_[b].max_pool_demand_at >= 0)
    max_pool_demand_below_[branches_[b].max_pool_demand_at + pool] = most;
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
  if (with_prefixes_) {
    changed_.emplace_back(node, branches_[b].unit);
    KeepLineKey(b, growth ? nullptr : &unit);
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
    host_cpus_[cpus] += growth ? unit.growth_host_cpus_milli : unit.host_cpus_milli;
    CheckPool(cpus);
  }
  ChargePath(node, pool, demand_milli, cpus_milli);
  EvaluateMarked();
}

// The queues from the node up hold so much more, and candidates that don't fit any more are marked.
void Entitlement::ChargePath(int32_t node, int32_t pool, int64_t demand_milli, int64_t cpus_milli) {
  const int32_t f = m_->pools[pool].flavour;
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
          max_demand_below_[branch.max_demand_at + f] > allowed_milli)
        CheckBelow(other, f, allowed_milli);
      if (cpus_milli > 0) {
        const int64_t allowed_milli = Allowed(branch, m_->cpu);
        if (max_demand_below_[branch.max_demand_at + m_->cpu] > allowed_milli)
          CheckBelow(other, m_->cpu, allowed_milli);
      }
      if (branch.max_pool_demand_at >= 0 &&
          max_pool_demand_below_[branch.max_pool_demand_at + pool] > under_pool_[pool_at + pool]) {
        CheckBelowInPool(other, pool, under_pool_[pool_at + pool]);
      }
    }
  }
}

// From the leaves up: what was marked is looked at again, and so are the queues above it.
void Entitlement::EvaluateMarked() {
  for (int32_t depth = static_cast<int32_t>(dirty_.size()) - 1; depth >= 0; --depth) {
    // NOLINTNEXTLINE(modernize-loop-convert): what is marked meanwhile may be added to it
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
  const bool had_prefixes = with_prefixes_;
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
    if (unit->published == unit->part) return;
    Gang& gang = model->gangs[unit->gang];
    gang.entitled = unit->part.taken;
    gang.guaranteed = unit->part.guaranteed;
    gang.charged_as_bound = unit->part.charged_as_bound;
    gang.charge = unit->part.charge;
    gang.growth = unit->part.growth * gang.step_workers;
    unit->published = unit->part;
    changed.push_back(unit->gang);
  };
  for (Leaf& leaf : leaves_) {
    if (with_prefixes_ && had_prefixes && !leaf.fresh) continue;
    for (Unit& unit : leaf.units) tell(&unit);
  }
  for (const auto& [node, u] : changed_) {
    if (u < static_cast<int32_t>(leaves_[node].units.size())) tell(&leaves_[node].units[u]);
  }
  for (size_t c = 0; c < model->pools.size(); ++c) {
    model->pools[c].charged_milli = model->pools[c].capacity_milli - room_[c];
    model->pools[c].host_cpus_milli = host_cpus_[c];
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
