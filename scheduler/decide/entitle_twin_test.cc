// The entitled set against its twin: the pseudo-code of SCHEDULING.md §1, written down word by
// word, on many small systems.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/decide/entitle.h"

namespace muster {
namespace {

// A small generator with the same numbers everywhere (SplitMix64).
struct Dice {
  uint64_t state;
  int64_t Of(int64_t n) {
    uint64_t z = (state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return static_cast<int64_t>((z ^ (z >> 31)) % static_cast<uint64_t>(n));
  }
  bool Chance(int64_t percent) { return Of(100) < percent; }
};

struct Instance {
  Model model;
  QuotaTree quotas;
};

// ---- the twin ----

class Twin {
 public:
  explicit Twin(const Instance& instance) : quotas_(instance.quotas), m_(instance.model) {}

  Model Entitle() {
    const size_t nodes = quotas_.size();
    u_.assign(nodes, std::vector<int64_t>(m_.flavours.size(), 0));
    u_cell_.assign(nodes, std::vector<int64_t>(m_.cells.size(), 0));
    m_.order.assign(m_.bases.size(), 0);
    for (Base& base : m_.bases) {
      base.entitled = base.guaranteed = false;
      base.charge = -1;
      base.growth = 0;
    }
    for (Cell& cell : m_.cells) cell.charged_milli = 0;
    beside_.assign(m_.cells.size(), 0);
    phase_ = 0;
    defers_ = std::any_of(m_.cells.begin(), m_.cells.end(), [&](const Cell& cell) {
      return cell.flavour != m_.cpu && m_.CellOf(cell.cluster, m_.cpu) >= 0;
    });
    for (int32_t turn = 0;; ++turn) {
      Room room;
      for (size_t f = 0; f < m_.flavours.size(); ++f)
        room.flavour.push_back(m_.flavour_milli[f] - u_[0][f]);
      room.cell.assign(m_.cells.size(), kUnbounded);
      room.cpus = m_.flavour_milli[m_.cpu] - u_[0][m_.cpu];
      const std::optional<Found> x = Cand(0, room, false, false);
      if (!x.has_value()) {  // then what is borrowed of CPUs
        if (phase_++ == 1) break;
        continue;
      }
      Base& base = m_.bases[x->base];
      int32_t c = x->k;
      const bool in_list =
          std::find(base.cells.begin(), base.cells.end(), base.bound_cell) != base.cells.end();
      if (!x->growth && in_list &&
          Fits(base.bound_cell, Demand(x->base, false), Cpus(x->base, false), x->room,
               x->promised) &&
          Together(base, base.bound_cell))
        c = base.bound_cell;
      const int64_t demand = Demand(x->base, x->growth);
      m_.cells[c].charged_milli += demand;
      const int32_t cpus = m_.CellOf(m_.cells[c].cluster, m_.cpu);
      if (m_.cells[c].flavour != m_.cpu && cpus >= 0)
        beside_[cpus] += base.host_cpus_milli * (x->growth ? 1 : base.min_workers);
      for (int32_t n = base.leaf; n >= 0; n = quotas_[n].parent) {
        u_[n][m_.cells[c].flavour] += demand;
        u_[n][m_.cpu] += Cpus(x->base, x->growth);
        u_cell_[n][c] += demand;
      }
      if (x->growth) {
        ++base.growth;
        continue;
      }
      base.entitled = true;
      base.guaranteed = x->guaranteed;
      base.charge = c;
      m_.order[x->base] = turn;
    }
    m_.entitled = u_;
    return m_;
  }

 private:
  struct Room {
    std::vector<int64_t> flavour, cell;
    int64_t cpus = kUnbounded;  // beside devices
  };
  struct Found {
    int32_t base = 0;
    bool growth = false, guaranteed = false;
    bool promised = false;  // by its queue or one above it
    int32_t k = 0;
    Room room;  // that it fits
  };
  struct Share {
    int rank = 0;
    __int128 over = 0, of = 1;
    int64_t history = 0;
  };

  int64_t Demand(int32_t b, bool growth) const {
    return m_.bases[b].worker_milli * (growth ? 1 : m_.bases[b].min_workers);
  }

  int64_t Cpus(int32_t b, bool growth) const {
    return m_.bases[b].worker_cpus_milli * (growth ? 1 : m_.bases[b].min_workers);
  }

  bool Fits(int32_t cell, int64_t demand, int64_t cpus, const Room& room, bool promised) const {
    const Cell& c = m_.cells[cell];
    const bool borrows_cpus = defers_ && c.flavour == m_.cpu && !promised;
    if (borrows_cpus &&
        (phase_ == 0 || c.capacity_milli - c.charged_milli - beside_[cell] < demand))
      return false;
    return (cpus == 0 || room.cpus >= cpus) && c.capacity_milli - c.charged_milli >= demand &&
           room.flavour[c.flavour] >= demand && room.cell[cell] >= demand;
  }

  int32_t OrderOf(const Base& base) const { return m_.order[&base - m_.bases.data()]; }

  // Tasks of an unbound job go to clusters that reach the storage of the first one's; -1: no other
  // task is charged yet.
  int32_t BoundTo(const Base& base) const {
    const Base* first = nullptr;
    for (const Base& other : m_.bases) {
      if (!base.binds_others || other.ref.job != base.ref.job || !other.entitled) continue;
      if (first == nullptr || OrderOf(other) < OrderOf(*first)) first = &other;
    }
    return first == nullptr ? -1 : m_.cells[first->charge].cluster;
  }
  bool Together(const Base& base, int32_t cell) const {
    const int32_t cluster = BoundTo(base);
    return cluster < 0 || m_.Reaches(cluster, m_.cells[cell].cluster);
  }
  // And of those the first that could ever hold the base is open.
  bool Opened(const Base& base, size_t i) const {
    if (base.opened[i] || BoundTo(base) < 0) return base.opened[i];
    const auto holds = [&](int32_t cell) {
      return m_.cells[cell].known_milli >= base.worker_milli * base.min_workers;
    };
    const auto first = std::find_if(base.cells.begin(), base.cells.end(), [&](int32_t cell) {
      return Together(base, cell) && holds(cell);
    });
    return first != base.cells.end() && holds(base.cells[i]) &&
           m_.cells[*first].cluster == m_.cells[base.cells[i]].cluster;
  }

  std::optional<Found> Cand(int32_t n, const Room& room, bool guaranteed, bool promised) const {
    if (n != 0 && quotas_[n].children.empty()) return CandOfLeaf(n, room, guaranteed, promised);
    for (const bool in_guarantee : {true, false}) {
      std::optional<Found> best;
      Share best_share;
      for (const int32_t c : quotas_[n].children) {
        Room a = room;
        for (size_t f = 0; f < m_.flavours.size(); ++f) {
          const FlavourQuota& quota = quotas_[c].flavours[f];
          if (quota.limit_milli != kUnbounded)
            a.flavour[f] = std::min(a.flavour[f], quota.limit_milli - u_[c][f]);
          if (in_guarantee) a.flavour[f] = std::min(a.flavour[f], quota.guarantee_milli - u_[c][f]);
          a.flavour[f] = std::max<int64_t>(0, a.flavour[f]);
        }
        const FlavourQuota& cpu = quotas_[c].flavours[m_.cpu];
        if (cpu.limit_milli != kUnbounded)
          a.cpus = std::min(a.cpus, cpu.limit_milli - u_[c][m_.cpu]);
        if (in_guarantee && cpu.guarantee_milli > 0)
          a.cpus = std::min(a.cpus, cpu.guarantee_milli - u_[c][m_.cpu]);
        for (size_t k = 0; in_guarantee && !quotas_[c].cells.empty() && k < m_.cells.size(); ++k) {
          if (quotas_[c].cells[k] == kUnbounded) continue;
          a.cell[k] =
              std::max<int64_t>(0, std::min(a.cell[k], quotas_[c].cells[k] - u_cell_[c][k]));
        }
        std::optional<Found> x = Cand(c, a, in_guarantee, promised || in_guarantee);
        if (!x.has_value()) continue;
        Share share = KeyOf(c, m_.cells[x->k].flavour, in_guarantee);
        if (Cpus(x->base, x->growth) > 0 && !(in_guarantee && cpu.guarantee_milli == 0)) {
          const Share cpus = KeyOf(c, m_.cpu, in_guarantee);
          if (share.rank < cpus.rank ||
              (share.rank == cpus.rank && share.over * cpus.of < cpus.over * share.of))
            share = cpus;
        }
        share.history = m_.history[c];
        if (!best.has_value() || Before(share, *x, best_share, *best)) {
          best = std::move(x);
          best_share = share;
        }
      }
      if (best.has_value()) return best;
    }
    return std::nullopt;
  }

  std::optional<Found> CandOfLeaf(int32_t n, const Room& room, bool guaranteed,
                                  bool promised) const {
    std::vector<std::tuple<bool, int32_t, int64_t, int32_t>>
        order;  // bases before growth, then priority, submission, id
    for (size_t b = 0; b < m_.bases.size(); ++b) {
      const Base& base = m_.bases[b];
      if (base.leaf != n || base.cells.empty()) continue;
      const bool growth = base.entitled;
      if (growth && base.min_workers + base.growth >= base.max_workers) continue;
      order.emplace_back(growth, -base.priority, base.submit_ns, static_cast<int32_t>(b));
    }
    std::sort(order.begin(), order.end());
    for (const auto& [growth, priority, submit_ns, b] : order) {
      const Base& base = m_.bases[b];
      for (size_t i = 0; i < (growth ? 1 : base.cells.size()); ++i) {
        const int32_t cell = growth ? base.charge : base.cells[i];
        if (!growth && !guaranteed && !Opened(base, i)) continue;
        if (!growth && !Together(base, cell)) continue;
        if (Fits(cell, Demand(b, growth), Cpus(b, growth), room, promised))
          return Found{b, growth, guaranteed, promised, cell, room};
      }
    }
    return std::nullopt;
  }

  Share KeyOf(int32_t c, int32_t f, bool in_guarantee) const {
    const FlavourQuota& quota = quotas_[c].flavours[f];
    if (!quota.listed) return {0, 0, 1};
    if (in_guarantee) return {0, u_[c][f], quota.guarantee_milli};
    const __int128 over = std::max<int64_t>(0, u_[c][f] - quota.guarantee_milli);
    if (quota.weight == 0) return {2, over, m_.flavour_milli[f] + 1};
    return {1, over, static_cast<__int128>(quota.weight) * (m_.flavour_milli[f] + 1)};
  }

  bool Before(const Share& a, const Found& x, const Share& b, const Found& y) const {
    if (a.rank != b.rank) return a.rank < b.rank;
    if (a.over * b.of != b.over * a.of) return a.over * b.of < b.over * a.of;
    if (a.history != b.history) return a.history < b.history;
    return std::make_tuple(m_.bases[x.base].submit_ns, x.base, x.growth) <
           std::make_tuple(m_.bases[y.base].submit_ns, y.base, y.growth);
  }

  const QuotaTree& quotas_;
  Model m_;
  std::vector<std::vector<int64_t>> u_, u_cell_;
  std::vector<int64_t> beside_;  // [cell] of CPUs: what units with devices take of them
  int phase_ = 0;
  bool defers_ = false;  // some cluster has devices and CPUs
};

// ---- random systems ----

// Gives leaves what cells have, and queues above them that and a little more: all of it can be kept
// at once.
void Nest(Instance* instance, Dice* dice) {
  const Model& m = instance->model;
  std::vector<int64_t> left;
  for (const Cell& cell : m.cells)
    left.push_back(dice->Chance(90) ? cell.capacity_milli : cell.known_milli);
  const auto set = [&](QuotaNode* node) {
    for (FlavourQuota& quota : node->flavours) quota = FlavourQuota();
    for (size_t c = 0; c < m.cells.size(); ++c)
      node->flavours[m.cells[c].flavour].guarantee_milli += node->cells[c];
    for (FlavourQuota& quota : node->flavours) {
      quota.listed = quota.guarantee_milli > 0 || dice->Chance(70);
      if (!quota.listed) continue;
      if (dice->Chance(25)) quota.limit_milli = quota.guarantee_milli + 1000 * dice->Of(8);
      quota.weight = dice->Of(4);
    }
  };
  const auto take = [&](size_t c) {
    const int64_t milli =
        dice->Chance(60) ? 1000 * dice->Of(std::min<int64_t>(left[c], 9000) / 1000 + 1) : 0;
    left[c] -= milli;
    return milli;
  };
  for (size_t n = instance->quotas.size(); n-- > 1;) {
    QuotaNode& node = instance->quotas[n];
    node.cells.assign(m.cells.size(), 0);
    for (size_t c = 0; c < m.cells.size(); ++c) {
      if (node.children.empty() || dice->Chance(20)) node.cells[c] = take(c);
      for (const int32_t child : node.children) node.cells[c] += instance->quotas[child].cells[c];
    }
    set(&node);
  }
}

// 1-4 clusters with 1-3 flavours, some capacity lost, a tree of up to three levels; guarantees may
// exceed what is there, unless they are to nest. About as many bases as given, 0: a few.
Instance RandomInstance(Dice* dice, bool nests = false, int64_t about = 0) {
  Instance instance;
  Model& m = instance.model;
  const int64_t clusters = 1 + dice->Of(4), flavours = 1 + dice->Of(3);
  for (int64_t f = 0; f < flavours; ++f) m.flavours.push_back(absl::StrCat("f", f));
  m.flavour_milli.assign(m.flavours.size(), 0);
  for (int32_t c = 0; c < clusters; ++c) {
    for (int32_t f = 0; f < flavours; ++f) {
      if (dice->Chance(30) && !(c == 0 && f == 0)) continue;
      Cell& cell = m.cells.emplace_back();
      cell.cluster = c;
      cell.flavour = f;
      cell.known_milli = 1000 * (1 + dice->Of(about == 0 ? 12 : about));
      cell.capacity_milli =
          dice->Chance(nests ? 97 : 75) ? cell.known_milli : cell.known_milli * dice->Of(4) / 4;
      m.flavour_milli[f] += cell.capacity_milli;
    }
  }
  m.cpu = static_cast<int32_t>(flavours - 1);
  m.reaches.assign(static_cast<size_t>(clusters),
                   std::vector<bool>(static_cast<size_t>(clusters), false));
  for (auto& row : m.reaches) {
    for (size_t c = 0; c < row.size(); ++c) row[c] = dice->Chance(60);
  }
  const int64_t nodes = 2 + dice->Of(dice->Chance(30) ? 10 : 5);
  std::vector<int> depth = {0};
  instance.quotas.emplace_back();
  for (int32_t n = 1; n < nodes; ++n) {
    int32_t parent = static_cast<int32_t>(dice->Of(n));
    while (depth[parent] >= (nests ? 1 + dice->Chance(5) : 3))
      parent = instance.quotas[parent].parent;
    depth.push_back(depth[parent] + 1);
    instance.quotas.emplace_back();
    instance.quotas[n].parent = parent;
    instance.quotas[parent].children.push_back(n);
  }
  for (QuotaNode& node : instance.quotas) {
    node.flavours.resize(m.flavours.size());
    if (node.parent < 0) continue;
    for (size_t f = 0; f < m.flavours.size(); ++f) {
      FlavourQuota& quota = node.flavours[f];
      quota.listed = dice->Chance(85);
      if (!quota.listed) continue;
      if (dice->Chance(60)) quota.guarantee_milli = 1000 * dice->Of(9);
      if (dice->Chance(30)) quota.limit_milli = quota.guarantee_milli + 1000 * dice->Of(8);
      quota.weight = dice->Of(4);
      if (quota.guarantee_milli == 0 || dice->Chance(40)) continue;
      if (node.cells.empty()) node.cells.assign(m.cells.size(), kUnbounded);
      int64_t left = quota.guarantee_milli;
      for (size_t c = 0; c < m.cells.size(); ++c) {
        if (m.cells[c].flavour != static_cast<int32_t>(f)) continue;
        node.cells[c] = 1000 * dice->Of(left / 1000 + 1);
        left -= node.cells[c];
      }
    }
  }
  if (nests) Nest(&instance, dice);
  for (int64_t n = 0; n < nodes; ++n) m.history.push_back(dice->Of(3));
  const bool with_cpus = flavours > 1 && dice->Chance(nests ? 3 : 40);
  const int64_t bases =
      1 + (about == 0 ? dice->Of(dice->Chance(20) ? 24 : 9) : about / 2 + dice->Of(about));
  uint64_t job = 0;
  for (int64_t b = 0; b < bases; ++b) {
    Base& base = m.bases.emplace_back();
    base.unit = true;
    const bool sibling = b > 0 && dice->Chance(15);
    base.ref = {sibling ? job : ++job, sibling ? m.bases[b - 1].ref.task + 1 : 0};
    do {
      base.leaf = 1 + static_cast<int32_t>(dice->Of(nodes - 1));
    } while (!instance.quotas[base.leaf].children.empty());
    base.priority = static_cast<int32_t>(dice->Of(3));
    base.submit_ns = dice->Of(4);
    base.worker_milli = dice->Chance(80) ? 1000 * (1 + dice->Of(3)) : 250 * (1 + dice->Of(3));
    if (with_cpus && dice->Chance(60)) base.worker_cpus_milli = 500 * (1 + dice->Of(4));
    base.min_workers = 1 + static_cast<int32_t>(dice->Of(3));
    base.max_workers =
        base.min_workers + (dice->Chance(40) ? static_cast<int32_t>(dice->Of(4)) : 0);
    for (size_t tries = 1 + static_cast<size_t>(dice->Of(static_cast<int64_t>(m.cells.size()) + 1));
         tries > 0; --tries) {
      const int32_t cell = static_cast<int32_t>(dice->Of(static_cast<int64_t>(m.cells.size())));
      if (std::find(base.cells.begin(), base.cells.end(), cell) == base.cells.end())
        base.cells.push_back(cell);
    }
    // A task is work on devices, with CPUs beside them, or on CPUs.
    const auto of_cpus = [&](int32_t c) { return m.cells[c].flavour == m.cpu; };
    const bool on_cpus = base.worker_cpus_milli == 0 && of_cpus(base.cells.front());
    base.cells.erase(std::remove_if(base.cells.begin(), base.cells.end(),
                                    [&](int32_t c) { return of_cpus(c) != on_cpus; }),
                     base.cells.end());
    if (!on_cpus)
      base.host_cpus_milli =
          base.worker_cpus_milli > 0 ? base.worker_cpus_milli : 500 * dice->Of(5);
    const int64_t opened = dice->Of(3);
    for (size_t i = 0; i < base.cells.size(); ++i)
      base.opened.push_back(static_cast<int64_t>(i) <= opened);
    if (dice->Chance(35))
      base.bound_cell = static_cast<int32_t>(dice->Of(static_cast<int64_t>(m.cells.size())));
    if (sibling) {
      base.leaf = m.bases[b - 1].leaf;
      base.priority = m.bases[b - 1].priority;
      base.submit_ns = m.bases[b - 1].submit_ns;
      if (dice->Chance(70)) base.binds_others = m.bases[b - 1].binds_others = true;
    }
  }
  // A job binds all its tasks or none.
  for (size_t b = 1; b < m.bases.size(); ++b) {
    if (m.bases[b].ref.job == m.bases[b - 1].ref.job && m.bases[b - 1].binds_others)
      m.bases[b].binds_others = true;
  }
  for (size_t b = m.bases.size(); b-- > 1;) {
    if (m.bases[b].ref.job == m.bases[b - 1].ref.job && m.bases[b].binds_others)
      m.bases[b - 1].binds_others = true;
  }
  for (Base& base : m.bases) {
    if (base.binds_others) base.bound_cell = -1;
  }
  return instance;
}

void RunAndSort(Entitlement* entitlement, Model* model) {
  entitlement->Run(model);
  std::vector<int32_t> bases;
  for (size_t b = 0; b < model->bases.size(); ++b) {
    if (model->bases[b].entitled) bases.push_back(static_cast<int32_t>(b));
  }
  entitlement->Sort(*model, &bases);
  model->order.assign(model->bases.size(), 0);
  for (size_t i = 0; i < bases.size(); ++i) model->order[bases[i]] = static_cast<int32_t>(i);
}

// S, its charges and its order.
std::string Text(const Model& model) {
  std::string text;
  std::vector<int32_t> orders;  // growth has its turns between the bases'
  for (size_t b = 0; b < model.bases.size(); ++b) {
    if (model.bases[b].entitled) orders.push_back(model.order[b]);
  }
  std::sort(orders.begin(), orders.end());
  for (size_t b = 0; b < model.bases.size(); ++b) {
    const Base& base = model.bases[b];
    absl::StrAppend(&text, base.ref.job, ".", base.ref.task, ":");
    if (base.entitled) {
      absl::StrAppend(
          &text, base.entitled_workers(), "@", base.charge, base.guaranteed ? "g" : "", "#",
          std::lower_bound(orders.begin(), orders.end(), model.order[b]) - orders.begin());
    }
    absl::StrAppend(&text, " ");
  }
  for (const Cell& cell : model.cells)
    absl::StrAppend(&text, " ", cell.charged_milli, "/", cell.capacity_milli);
  for (const auto& row : model.entitled) {
    for (const int64_t milli : row) absl::StrAppend(&text, " ", milli);
  }
  return text;
}

constexpr uint64_t kInstances = 100'000;

TEST(EntitleTwin, EqualsThePseudoCode) {
  int64_t accepted = 0, guaranteed = 0, grown = 0, as_bound = 0, ahead = 0;
  for (uint64_t seed = 1; seed <= kInstances; ++seed) {
    Dice dice{seed * 1000};
    Instance instance = RandomInstance(&dice, /*nests=*/seed % 2 == 0);
    const std::string want = Text(Twin(instance).Entitle());
    Entitlement entitlement;
    entitlement.Reset(instance.quotas, instance.model);
    RunAndSort(&entitlement, &instance.model);
    ASSERT_EQ(Text(instance.model), want) << "seed " << seed;
    ahead += entitlement.began_ahead();
    for (const Base& base : instance.model.bases) {
      accepted += base.entitled;
      guaranteed += base.guaranteed;
      grown += base.growth;
      as_bound += base.charged_as_bound;
    }
  }
  EXPECT_GT(accepted, 100'000);
  EXPECT_GT(guaranteed, 20'000);
  EXPECT_GT(grown, 20'000);
  EXPECT_GT(as_bound, 1'000);
  EXPECT_GT(ahead, static_cast<int64_t>(kInstances) / 4);
}

// Starting units of S in their charged cells, stopping movers and what is outside of S.
TEST(EntitleTwin, CarryingItOutInFullOrInPartChangesNeitherTheSetNorItsCharges) {
  int64_t moved = 0;
  for (uint64_t seed = 1; seed <= kInstances; ++seed) {
    Dice dice{seed * 999};
    Instance instance = RandomInstance(&dice, /*nests=*/seed % 2 == 0);
    for (Base& base : instance.model.bases)
      base.binds_others = false;  // binding a job is a new fact of its own
    Entitlement entitlement;
    entitlement.Reset(instance.quotas, instance.model);
    RunAndSort(&entitlement, &instance.model);
    const std::string before = Text(instance.model);
    const bool all = dice.Chance(30);
    for (size_t b = 0; b < instance.model.bases.size(); ++b) {
      Base& base = instance.model.bases[b];
      if (!all && dice.Chance(50)) continue;
      const int32_t to =
          base.entitled && (base.bound_cell < 0 || dice.Chance(50)) ? base.charge
          : base.entitled && base.bound_cell == base.charge         ? base.charge
          : base.entitled || dice.Chance(70)
              ? -1
              : static_cast<int32_t>(dice.Of(static_cast<int64_t>(instance.model.cells.size())));
      if (to == base.bound_cell) continue;
      base.bound_cell = to;
      entitlement.Rebind(instance.model, static_cast<int32_t>(b));
      ++moved;
    }
    RunAndSort(&entitlement, &instance.model);
    ASSERT_EQ(Text(instance.model), before) << "seed " << seed;
  }
  EXPECT_GT(moved, static_cast<int64_t>(kInstances));
}

// Units come, go and change, capacity is lost and comes back, history goes on; of few queues that
// are long, too.
TEST(EntitleTwin, EqualsThePseudoCodeWhatEverWasKept) {
  struct Kind {
    uint64_t seeds;
    int steps;
    bool nests;
    int64_t about, changes;
  };
  int64_t ahead = 0, runs = 0;
  for (const Kind& kind : {Kind{2'000, 12, false, 0, 4}, Kind{6'000, 20, true, 0, 4},
                           Kind{60, 40, true, 60, 4}, Kind{12, 25, true, 160, 8}}) {
    for (uint64_t seed = 1; seed <= kind.seeds; ++seed) {
      Dice dice{seed * 998};
      Instance instance = RandomInstance(&dice, kind.nests, kind.about);
      Model& m = instance.model;
      const auto any = [&](int64_t n) { return static_cast<size_t>(dice.Of(n)); };
      Entitlement kept;
      kept.Reset(instance.quotas, m);
      for (int step = 0; step < kind.steps; ++step) {
        for (int64_t changes = dice.Of(kind.changes); changes > 0; --changes) {
          const int32_t b = static_cast<int32_t>(any(static_cast<int64_t>(m.bases.size())));
          Base& base = m.bases[b];
          const int64_t what = dice.Of(20);
          if (what < 2) {
            Cell& cell = m.cells[any(static_cast<int64_t>(m.cells.size()))];
            m.flavour_milli[cell.flavour] -= cell.capacity_milli;
            cell.capacity_milli =
                dice.Chance(70) ? cell.known_milli : cell.known_milli * dice.Of(5) / 4;
            m.flavour_milli[cell.flavour] += cell.capacity_milli;
          } else if (what == 2) {
            m.history[any(static_cast<int64_t>(m.history.size()))] = dice.Of(4);
          } else if (base.binds_others) {
            continue;  // its siblings would have to change with it
          } else if (what < 8) {
            base.bound_cell = static_cast<int32_t>(any(static_cast<int64_t>(m.cells.size())));
            if (base.entitled && dice.Chance(60)) base.bound_cell = base.charge;
            kept.Rebind(m, b);
          } else {
            kept.Remove(m, b);
            base.entitled = base.guaranteed = base.charged_as_bound = false;
            base.charge = -1;
            base.growth = 0;
            if (what < 13) {
              base.priority = static_cast<int32_t>(dice.Of(3));
              base.max_workers = base.min_workers + static_cast<int32_t>(dice.Of(3));
            } else if (base.cells.empty()) {
              base.cells = {0};
              base.opened = {1};
            } else {
              base.cells.clear();
              base.opened.clear();
            }
            kept.Add(m, b);
          }
        }
        RunAndSort(&kept, &m);
        ASSERT_EQ(Text(m), Text(Twin(instance).Entitle()))
            << "about " << kind.about << " seed " << seed << " step " << step;
        ++runs;
        ahead += kept.began_ahead();
        if (!dice.Chance(10)) continue;
        // Jobs that are over go, and the others get new numbers.
        std::vector<int32_t> to(m.bases.size(), -1);
        std::vector<Base> left;
        for (size_t b = 0; b < m.bases.size(); ++b) {
          if (m.bases[b].cells.empty() && m.bases.size() - b + left.size() > 1) continue;
          to[b] = static_cast<int32_t>(left.size());
          left.push_back(m.bases[b]);
        }
        m.bases = std::move(left);
        kept.Renumber(to);
      }
    }
  }
  EXPECT_GT(ahead, runs / 3);
  EXPECT_LT(ahead, runs * 9 / 10);
}

}  // namespace
}  // namespace muster
