// Leaves' guaranteed prefixes of the entitled set, kept from run to run
// (docs/decisions/037-guaranteed-parts-are-kept.md).
//
// Where guarantees nest, nothing but its own guarantee ever stands in the way of a unit that is
// accepted within the guarantees of its leaf and of all queues above: not the guarantees above,
// which hold their children's together, and not a pool's room, which holds all that is promised
// there. So it doesn't matter for the set in which order the queues had their turns, and each
// leaf's part is that of a run of its own. The order itself is what Sort finds: of several lines,
// each time the smallest key of those that stand first goes; so of two units the one goes first
// whose line had the smaller largest key up to there.
#include <algorithm>
#include <tuple>

#include "common/base/check.h"
#include "scheduler/decide/entitle/entitle.h"

namespace muster {
namespace {

void AddTo(std::vector<std::pair<int32_t, int64_t>>* sums, int32_t pool, int64_t milli) {
  const auto at =
      std::find_if(sums->begin(), sums->end(), [&](const auto& one) { return one.first == pool; });
  if (at != sums->end()) {
    at->second += milli;
  } else {
    sums->emplace_back(pool, milli);
  }
}

}  // namespace

// Guarantees are those of the root's children and of leaves below these; children's sums are no
// more than what holds them.
bool Entitlement::Nests(const Model& model) {
  const auto most = [&](size_t n, int32_t f) -> int64_t {  // within the guarantee
    const FlavourQuota& quota = quota_[n * flavours_ + f];
    return std::min(quota.guarantee_milli, quota.limit_milli);
  };
  const auto most_in = [&](size_t n, int32_t c) {
    const int64_t sum = most(n, model.pools[c].flavour);
    return pool_at_[n] < 0 ? sum : std::min(sum, pool_guarantee_[pool_at_[n] + c]);
  };
  promised_milli_.assign(static_cast<size_t>(pools_), 0);
  std::vector<int32_t> depth(quotas_.size(), 0);
  for (size_t n = 0; n < quotas_.size(); ++n) {
    if (n > 0) depth[n] = depth[quotas_[n].parent] + 1;
    for (int32_t f = 0; f < flavours_; ++f) {
      __int128 sum = 0;
      for (const int32_t child : quotas_[n].children) sum += most(static_cast<size_t>(child), f);
      if (n > 0 && !quotas_[n].children.empty() && sum > most(n, f)) return false;
      if (depth[n] > (quotas_[n].children.empty() ? 2 : 1) && most(n, f) > 0) return false;
    }
    if (quotas_[n].children.empty()) continue;
    for (int32_t c = 0; c < pools_; ++c) {
      __int128 sum = 0;
      for (const int32_t child : quotas_[n].children) sum += most_in(static_cast<size_t>(child), c);
      if (n > 0 && sum > most_in(n, c)) return false;
      if (n == 0) promised_milli_[c] = static_cast<int64_t>(std::min<__int128>(sum, kUnbounded));
    }
  }
  return true;
}

// What is promised is healthy. CPUs beside devices count against limits that hold other queues'
// CPUs, too.
bool Entitlement::CanBeginWithPrefixes(const Model& model) const {
  if (!nests_ || std::any_of(leaves_.begin(), leaves_.end(),
                             [](const Leaf& leaf) { return leaf.counts_cpus; }))
    return false;
  for (int32_t c = 0; c < pools_; ++c) {
    if (promised_milli_[c] > model.pools[c].capacity_milli) return false;
  }
  return true;
}

// What the leaf gets within its guarantee, were it alone.
void Entitlement::AcceptPrefix(int32_t node) {
  Leaf& leaf = leaves_[node];
  leaf.prefix.clear();
  leaf.prefix_pools.clear();
  leaf.prefix_host_cpus.clear();
  leaf.prefix_used.assign(static_cast<size_t>(flavours_), 0);
  const FlavourQuota* quotas = &quota_[static_cast<size_t>(node) * flavours_];
  std::vector<int64_t> left, left_in;
  for (int32_t f = 0; f < flavours_; ++f)
    left.push_back(std::min(quotas[f].guarantee_milli, quotas[f].limit_milli));
  if (pool_at_[node] >= 0)
    left_in.assign(pool_guarantee_.begin() + pool_at_[node],
                   pool_guarantee_.begin() + pool_at_[node] + pools_);
  const auto fits = [&](int32_t pool, int64_t milli) {
    return left[m_->pools[pool].flavour] >= milli && (left_in.empty() || left_in[pool] >= milli);
  };
  const auto accept = [&](const Unit& unit, bool growth, int32_t pool, int64_t milli,
                          int32_t charge) {
    Acceptance& accepted = leaf.prefix.emplace_back();
    accepted.milli = milli;
    accepted.submit_ns = unit.submit_ns;
    accepted.gang = unit.gang;
    accepted.flavour = static_cast<int16_t>(m_->pools[pool].flavour);
    accepted.charged = static_cast<int16_t>(m_->pools[charge].flavour);
    accepted.growth = growth;
    accepted.line_key = {leaf.prefix_used[accepted.flavour],
                         quotas[accepted.flavour].guarantee_milli, unit.submit_ns, unit.gang,
                         growth};
    if (leaf.prefix.size() > 1) {
      const LineKey& before = leaf.prefix[leaf.prefix.size() - 2].line_key;
      if (Earlier(accepted.line_key, 0, before, 0)) accepted.line_key = before;
    }
    left[accepted.charged] -= milli;
    if (!left_in.empty()) left_in[charge] -= milli;
    leaf.prefix_used[accepted.charged] += milli;
    AddTo(&leaf.prefix_pools, charge, milli);
    const int64_t host_cpus_milli = growth ? unit.growth_host_cpus_milli : unit.host_cpus_milli;
    if (host_cpus_milli > 0 && cpu_pool_[charge] >= 0)
      AddTo(&leaf.prefix_host_cpus, cpu_pool_[charge], host_cpus_milli);
  };
  // What is left of the time before a queue got queues of its own is in nobody's part.
  const size_t units = quotas_[node].children.empty() ? leaf.units.size() : 0;
  for (size_t u = 0; u < units; ++u) {
    if (*std::max_element(left.begin(), left.end()) < leaf.least_milli) break;
    Unit& unit = leaf.units[u];
    for (int32_t i = 0; i < unit.pools; ++i) {
      const int32_t pool = leaf.pools[unit.pools_at + i];
      if (!fits(pool, unit.demand_milli) || !GroupAllows(leaf, unit, pool)) continue;
      const bool as_bound = unit.bound >= 0 && unit.bound != pool &&
                            fits(unit.bound, unit.demand_milli) &&
                            GroupAllows(leaf, unit, unit.bound);
      unit.part = {true, true, as_bound, as_bound ? unit.bound : pool, 0};
      unit.prefix_at = static_cast<int32_t>(leaf.prefix.size());
      accept(unit, false, pool, unit.demand_milli, unit.part.charge);
      if (unit.group >= 0 && leaf.units[unit.group].group_cluster < 0)
        BindGroup(node, unit.group, m_->pools[unit.part.charge].cluster);
      break;
    }
  }
  for (const int32_t u : leaf.growing) {
    Unit& unit = leaf.units[u];
    while (unit.part.taken && unit.part.growth < unit.extra &&
           fits(unit.part.charge, unit.growth_milli)) {
      ++unit.part.growth;
      accept(unit, true, unit.part.charge, unit.growth_milli, unit.part.charge);
    }
  }
  leaf.prefix_taken.assign(leaf.units.size(), 0);
  for (size_t u = 0; u < leaf.units.size(); ++u) {
    leaf.units[u].prefix = leaf.units[u].part;
    leaf.prefix_taken[u] = leaf.units[u].part.taken;
  }
}

void Entitlement::ChargePrefixes() {
  for (size_t leaf = 0; leaf < leaves_.size(); ++leaf) {
    if (leaves_[leaf].prefix.empty()) continue;
    for (int32_t n = static_cast<int32_t>(leaf); n >= 0; n = quotas_[n].parent) {
      for (int32_t f = 0; f < flavours_; ++f) {
        if (leaves_[leaf].prefix_used[f] > 0) Charge(n, f, leaves_[leaf].prefix_used[f]);
      }
      if (pool_at_[n] < 0) continue;
      for (const auto& [pool, milli] : leaves_[leaf].prefix_pools)
        under_pool_[pool_at_[n] + pool] -= milli;
    }
    for (const auto& [pool, milli] : leaves_[leaf].prefix_pools) {
      room_[pool] -= milli;
      MUSTER_CHECK(room_[pool] >= 0);
    }
    for (const auto& [pool, milli] : leaves_[leaf].prefix_host_cpus) host_cpus_[pool] += milli;
  }
}

// ---- the order ----

bool Entitlement::Earlier(const LineKey& a, int64_t a_history, const LineKey& b,
                          int64_t b_history) {
  const __int128 left = static_cast<__int128>(a.numerator) * b.denominator,
                 right = static_cast<__int128>(b.numerator) * a.denominator;
  if (left != right) return left < right;
  return std::tie(a_history, a.submit_ns, a.gang, a.growth) <
         std::tie(b_history, b.submit_ns, b.gang, b.growth);
}

// Leaf branch b is about to be accepted, with a gang or (nullptr) with growth. Within the guarantee
// of a child of the root it stands behind that child's guaranteed prefix; the others of that class
// had their turns when their keys were as large. What borrows CPUs comes after all of them.
void Entitlement::KeepLineKey(int32_t b, Unit* unit) {
  while (branches_[b].depth > 1) b = branches_[b].parent;
  if (!branches_[b].guaranteed || phase_ == 1) return;
  const Key& key = keys_[b];
  LineKey& latest = latest_keys_[branches_[b].node];
  const LineKey now{key.numerator, key.denominator, key.submit_ns, key.gang, key.growth};
  if (Earlier(latest, 0, now, 0)) latest = now;
  if (unit == nullptr) return;
  unit->late_key = static_cast<int32_t>(late_keys_.size());
  late_keys_.push_back(latest);
}

// Brings it up to date: what leaves that were read again accept comes in anew.
const Entitlement::Promised& Entitlement::PromisedTo(const Model& model, int32_t node) {
  Promised& promised = promised_[node];
  std::vector<int64_t> history;
  for (const int32_t leaf : quotas_[node].children) history.push_back(model.history[leaf]);
  if (history != promised.history) {
    for (const int32_t leaf : quotas_[node].children) leaves_[leaf].merged = false;
    promised.history = std::move(history);
  }
  std::erase_if(promised.entries,
                [&](const Promised::Entry& one) { return !leaves_[one.leaf].merged; });
  const auto before = [&](const Promised::Entry& a, const Promised::Entry& b) {
    if (a.leaf == b.leaf) return a.at < b.at;
    return Earlier(a.line_key, model.history[a.leaf], b.line_key, model.history[b.leaf]);
  };
  const auto kept = static_cast<int64_t>(promised.entries.size());
  for (const int32_t leaf : quotas_[node].children) {
    if (leaves_[leaf].merged) continue;
    leaves_[leaf].merged = true;
    const std::vector<Acceptance>& prefix = leaves_[leaf].prefix;
    for (size_t s = 0; s < prefix.size(); ++s)
      promised.entries.push_back({prefix[s].line_key, leaf, static_cast<int32_t>(s)});
  }
  std::sort(promised.entries.begin() + kept, promised.entries.end(), before);
  std::inplace_merge(promised.entries.begin(), promised.entries.begin() + kept,
                     promised.entries.end(), before);
  return promised;
}

void Entitlement::Sort(const Model& model, std::vector<int32_t>* gangs) {
  struct Place {
    int32_t gang = 0, top = 0;
    int64_t position = 0;   // below `top`, or of all that was accepted within no such guarantee
    bool promised = false;  // within the guarantee of `top`, a child of the root
    LineKey key;
  };
  std::vector<Place> places;
  std::vector<std::vector<size_t>> asked(
      quotas_.size());  // by child of the root: places that its line tells
  for (const int32_t b : *gangs) {
    const int32_t node = model.gangs[b].leaf;
    const Unit& unit = leaves_[node].units[unit_at_[b]];
    Place& place = places.emplace_back();
    place.gang = b;
    place.position = unit.order;
    if (!with_prefixes_ || (unit.late_key < 0 && !unit.prefix.taken)) continue;
    place.promised = true;
    place.top = node;
    while (quotas_[place.top].parent > 0) place.top = quotas_[place.top].parent;
    if (place.top != node) asked[place.top].push_back(places.size() - 1);
    if (unit.prefix.taken) {
      place.position = unit.prefix_at;
      place.key = leaves_[node].prefix[unit.prefix_at].line_key;
    } else {
      place.key = late_keys_[unit.late_key];
    }
  }
  for (size_t top = 0; top < asked.size(); ++top) {
    if (asked[top].empty()) continue;
    const std::vector<Promised::Entry>& line = PromisedTo(model, static_cast<int32_t>(top)).entries;
    // Where each of them is in the line; what came behind the guaranteed prefix was accepted after
    // all of that.
    std::vector<std::pair<int64_t, size_t>> order;
    for (const size_t p : asked[top]) {
      Place& place = places[p];
      const int32_t node = model.gangs[place.gang].leaf;
      const Unit& unit = leaves_[node].units[unit_at_[place.gang]];
      if (unit.prefix.taken) {
        const Promised::Entry wanted{place.key, node, unit.prefix_at};
        const auto at = std::lower_bound(line.begin(), line.end(), wanted,
                                         [&](const Promised::Entry& a, const Promised::Entry& b) {
                                           if (a.leaf == b.leaf) return a.at < b.at;
                                           return Earlier(a.line_key, model.history[a.leaf],
                                                          b.line_key, model.history[b.leaf]);
                                         });
        MUSTER_CHECK(at != line.end() && at->leaf == node && at->at == unit.prefix_at);
        place.position = at - line.begin();
      } else {
        place.position = static_cast<int64_t>(line.size()) + unit.late_key;
      }
      order.emplace_back(place.position, p);
    }
    std::sort(order.begin(), order.end());
    std::vector<int64_t> used(static_cast<size_t>(flavours_), 0);
    LineKey most;
    auto next = order.begin();
    for (size_t s = 0; s < line.size() && next != order.end(); ++s) {
      const Acceptance& accepted = leaves_[line[s].leaf].prefix[line[s].at];
      const LineKey now{used[accepted.flavour],
                        quota_[top * flavours_ + accepted.flavour].guarantee_milli,
                        accepted.submit_ns, accepted.gang, accepted.growth};
      used[accepted.charged] += accepted.milli;
      if (Earlier(most, 0, now, 0)) most = now;
      if (next->first == static_cast<int64_t>(s)) places[(next++)->second].key = most;
    }
    for (; next != order.end(); ++next) {
      LineKey& key = places[next->second].key;
      if (Earlier(key, 0, most, 0)) key = most;
    }
  }
  std::sort(places.begin(), places.end(), [&](const Place& a, const Place& b) {
    if (a.promised != b.promised) return a.promised;
    if (!a.promised || a.top == b.top) return a.position < b.position;
    return Earlier(a.key, model.history[a.top], b.key, model.history[b.top]);
  });
  for (size_t i = 0; i < places.size(); ++i) (*gangs)[i] = places[i].gang;
}

}  // namespace muster
