// The entitled set (SCHEDULING.md §1), in the words of its pseudo-code: each turn takes the best candidate below the root.
#include <algorithm>
#include <optional>

#include "common/base/check.h"
#include "scheduler/decide/model.h"

namespace muster {
namespace {

// A share as a fraction of a class: compared by class, then numerator/denominator, in 128 bits.
struct Share {
  int32_t rank = 1;              // 0: within the guarantee or without quota, 1: borrows, 2: borrows with weight 0
  int64_t numerator = 0;
  __int128 denominator = 1;
};

int Compare(const Share& a, const Share& b) {
  if (a.rank != b.rank) return a.rank < b.rank ? -1 : 1;
  const __int128 left = a.numerator * b.denominator, right = b.numerator * a.denominator;
  return left < right ? -1 : left > right ? 1 : 0;
}

// What a node may still take: per flavour, and per cell inside guarantees.
struct Allowance {
  std::vector<int64_t> flavour;
  std::vector<int64_t> cell;
};

struct Candidate {
  int32_t base = -1;
  bool growth = false;
  int32_t cell = -1;             // that it is charged to when it is accepted
  bool guaranteed = false;
};

struct NodeQuota {
  struct Row {
    bool listed = false;
    int64_t guarantee = 0;
    int64_t limit = kUnbounded;
    int64_t weight = 1;
  };
  std::vector<Row> flavour;
  std::vector<int64_t> cell_guarantee;
  std::vector<int64_t> cell_used;
};

class Entitlement {
 public:
  Entitlement(const State& state, Model* model) : queues_(state.queues()), m_(*model) {
    quota_.resize(queues_.nodes.size());
    order_.resize(queues_.nodes.size());
    left_.assign(queues_.nodes.size(), 0);
    for (size_t n = 0; n < queues_.nodes.size(); ++n) ReadQuota(state, n);
    for (size_t b = 0; b < m_.bases.size(); ++b) {
      if (m_.bases[b].cells.empty()) continue;
      order_[m_.bases[b].leaf].push_back({static_cast<int32_t>(b), false});
    }
    for (size_t n = 0; n < order_.size(); ++n) {
      std::stable_sort(order_[n].begin(), order_[n].end(), [&](const Unit& a, const Unit& b) { return Before(a.base, b.base); });
      for (int32_t up = static_cast<int32_t>(n); up >= 0; up = queues_.nodes[up].parent) {
        left_[up] += static_cast<int64_t>(order_[n].size());
      }
    }
  }

  void Run() {
    Allowance all;
    for (size_t f = 0; f < m_.flavours.size(); ++f) all.flavour.push_back(m_.flavour_milli[f]);
    all.cell.assign(m_.cells.size(), kUnbounded);
    int32_t accepted = 0;
    for (;;) {
      Allowance room = all;
      for (size_t f = 0; f < m_.flavours.size(); ++f) room.flavour[f] -= m_.entitled[0][f];
      const std::optional<Candidate> next = Best(0, room, /*guaranteed=*/false, /*loosest=*/true);
      if (!next.has_value()) return;
      Accept(*next, accepted++);
    }
  }

 private:
  struct Unit {
    int32_t base;
    bool growth;
  };

  void ReadQuota(const State& state, size_t n) {
    NodeQuota& quota = quota_[n];
    quota.flavour.resize(m_.flavours.size());
    quota.cell_guarantee.assign(m_.cells.size(), 0);
    quota.cell_used.assign(m_.cells.size(), 0);
    for (size_t f = 0; f < m_.flavours.size(); ++f) {
      const auto it = queues_.nodes[n].spec.quota().find(m_.flavours[f]);
      if (it == queues_.nodes[n].spec.quota().end()) continue;
      const pb::Quota& row = it->second;
      quota.flavour[f].listed = true;
      quota.flavour[f].guarantee = row.guarantee_milli();
      if (row.has_limit_milli()) quota.flavour[f].limit = row.limit_milli();
      if (row.has_weight()) quota.flavour[f].weight = row.weight();
      for (size_t c = 0; c < m_.cells.size(); ++c) {
        if (m_.cells[c].flavour != static_cast<int32_t>(f)) continue;
        if (row.guarantee_per_cluster().empty()) {
          quota.cell_guarantee[c] = row.guarantee_milli();
        } else {
          const auto cell = row.guarantee_per_cluster().find(state.clusters()[m_.cells[c].cluster].name);
          if (cell != row.guarantee_per_cluster().end()) quota.cell_guarantee[c] = cell->second;
        }
      }
    }
  }

  // Leaf order, and the order among equal shares: priority, submission, id.
  bool Before(int32_t a, int32_t b) const {
    const Base &x = m_.bases[a], &y = m_.bases[b];
    if (x.job->spec->priority() != y.job->spec->priority()) return x.job->spec->priority() > y.job->spec->priority();
    return std::make_tuple(x.job->submit_ns, x.ref) < std::make_tuple(y.job->submit_ns, y.ref);
  }

  int64_t UnitMilli(const Unit& unit) const {
    const Base& base = m_.bases[unit.base];
    return unit.growth ? base.worker_milli : base.worker_milli * base.min_workers;
  }

  bool Fits(int32_t cell, int64_t demand, const Allowance& room) const {
    const Cell& c = m_.cells[cell];
    return c.capacity_milli - c.charged_milli >= demand && room.flavour[c.flavour] >= demand && room.cell[cell] >= demand;
  }

  // -1: none. Within the leaf's guarantee every cell of the list counts, else only those opened so far (§4).
  int32_t FirstCell(const Unit& unit, const Allowance& room, bool guaranteed) const {
    const Base& base = m_.bases[unit.base];
    const int64_t demand = UnitMilli(unit);
    if (unit.growth) return Fits(base.charge, demand, room) ? base.charge : -1;
    for (size_t i = 0; i < base.cells.size(); ++i) {
      if ((guaranteed || base.opened[i]) && Fits(base.cells[i], demand, room)) return base.cells[i];
    }
    return -1;
  }

  std::optional<Candidate> BestOfLeaf(int32_t n, const Allowance& room, bool guaranteed, bool loosest) {
    std::vector<Unit>& units = order_[n];
    for (size_t i = 0; i < units.size();) {
      const Unit unit = units[i];
      const int32_t cell = FirstCell(unit, room, guaranteed);
      if (cell >= 0) {
        Candidate found{unit.base, unit.growth, cell, guaranteed};
        const int32_t bound = m_.bases[unit.base].bound_cell;
        const std::vector<int32_t>& cells = m_.bases[unit.base].cells;
        if (!unit.growth && bound >= 0 && std::find(cells.begin(), cells.end(), bound) != cells.end() &&
            Fits(bound, UnitMilli(unit), room)) {
          found.cell = bound;
        }
        return found;
      }
      // Room only shrinks: what fits in no cell under the loosest allowance never will.
      if (loosest && FirstCell(unit, room, true) < 0) {
        units.erase(units.begin() + static_cast<int64_t>(i));
        Count(n, -1);
      } else {
        ++i;
      }
    }
    return std::nullopt;
  }

  std::optional<Candidate> Best(int32_t n, const Allowance& room, bool guaranteed, bool loosest) {
    if (left_[n] == 0) return std::nullopt;
    if (n != 0 && queues_.leaf(n)) return BestOfLeaf(n, room, guaranteed, loosest);
    for (const bool in_guarantee : {true, false}) {
      std::optional<Candidate> best;
      Share best_share;
      for (const int32_t child : queues_.nodes[n].children) {
        if (left_[child] == 0) continue;
        const NodeQuota& quota = quota_[child];
        Allowance allowance = room;
        bool any = false;
        for (size_t f = 0; f < m_.flavours.size(); ++f) {
          const NodeQuota::Row& row = quota.flavour[f];
          const int64_t used = m_.entitled[child][f];
          int64_t& a = allowance.flavour[f];
          if (row.limit != kUnbounded) a = std::min(a, row.limit - used);
          if (in_guarantee) a = std::min(a, row.guarantee - used);
          a = std::max<int64_t>(a, 0);
          any = any || a > 0;
        }
        if (in_guarantee) {
          for (size_t c = 0; c < m_.cells.size(); ++c) {
            allowance.cell[c] = std::max<int64_t>(0, std::min(allowance.cell[c], quota.cell_guarantee[c] - quota.cell_used[c]));
          }
        }
        if (!any && in_guarantee) continue;
        const std::optional<Candidate> found = Best(child, allowance, in_guarantee, loosest && !in_guarantee);
        if (!found.has_value()) continue;
        const Share share = ShareOf(child, m_.cells[found->cell].flavour, in_guarantee);
        const int order = best.has_value() ? Compare(share, best_share) : -1;
        if (order < 0 || (order == 0 && Earlier(*found, *best))) {
          best = found;
          best_share = share;
        }
      }
      if (best.has_value()) return best;
    }
    return std::nullopt;
  }

  bool Earlier(const Candidate& a, const Candidate& b) const {
    const Base &x = m_.bases[a.base], &y = m_.bases[b.base];
    return std::make_tuple(x.job->submit_ns, x.ref, a.growth) < std::make_tuple(y.job->submit_ns, y.ref, b.growth);
  }

  Share ShareOf(int32_t n, int32_t f, bool in_guarantee) const {
    const NodeQuota::Row& row = quota_[n].flavour[f];
    const int64_t used = m_.entitled[n][f];
    if (!row.listed) return {0, 0, 1};
    if (in_guarantee) return {0, used, row.guarantee};
    const int64_t over = std::max<int64_t>(0, used - row.guarantee);
    const __int128 whole = static_cast<__int128>(m_.flavour_milli[f]) + 1;
    if (row.weight == 0) return {2, over, whole};
    return {1, over, row.weight * whole};
  }

  void Accept(const Candidate& next, int32_t accepted) {
    Base& base = m_.bases[next.base];
    const Unit unit{next.base, next.growth};
    const int64_t demand = UnitMilli(unit);
    const int32_t f = m_.cells[next.cell].flavour;
    m_.cells[next.cell].charged_milli += demand;
    MUSTER_CHECK(m_.cells[next.cell].charged_milli <= m_.cells[next.cell].capacity_milli);
    for (int32_t n = base.leaf; n >= 0; n = queues_.nodes[n].parent) {
      m_.entitled[n][f] += demand;
      quota_[n].cell_used[next.cell] += demand;
    }
    if (next.growth) {
      ++base.growth;
    } else {
      base.entitled = true;
      base.charge = next.cell;
      base.guaranteed = next.guaranteed;
      base.order = accepted;
    }
    std::vector<Unit>& units = order_[base.leaf];
    const auto at = std::find_if(units.begin(), units.end(),
                                 [&](const Unit& u) { return u.base == next.base && u.growth == next.growth; });
    if (next.growth) {
      if (base.min_workers + base.growth < base.max_workers) return;  // its next worker stands in the same place
      units.erase(at);
      Count(base.leaf, -1);
      return;
    }
    units.erase(at);
    Count(base.leaf, -1);
    if (base.max_workers == base.min_workers) return;
    const auto growth = std::find_if(units.begin(), units.end(), [&](const Unit& u) { return u.growth && Before(next.base, u.base); });
    units.insert(growth, Unit{next.base, true});
    Count(base.leaf, 1);
  }

  void Count(int32_t leaf, int64_t change) {
    for (int32_t n = leaf; n >= 0; n = queues_.nodes[n].parent) left_[n] += change;
  }

  const QueueIndex& queues_;
  Model& m_;
  std::vector<NodeQuota> quota_;
  std::vector<std::vector<Unit>> order_;   // by leaf: not accepted and not ruled out; bases before growth
  std::vector<int64_t> left_;              // units in order_ at or below the node
};

}  // namespace

void Entitle(const State& state, Model* model) { Entitlement(state, model).Run(); }

}  // namespace muster
