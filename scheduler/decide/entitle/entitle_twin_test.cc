// The entitled set against its twin: the pseudo-code of docs/scheduling.md §1, written down word by
// word, on many small systems.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/decide/entitle/entitle.h"

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
    u_pool_.assign(nodes, std::vector<int64_t>(m_.pools.size(), 0));
    m_.order.assign(m_.gangs.size(), 0);
    for (Gang& gang : m_.gangs) {
      gang.entitled = gang.guaranteed = false;
      gang.charge = -1;
      gang.growth = 0;
    }
    for (Pool& pool : m_.pools) pool.charged_milli = 0;
    beside_.assign(m_.pools.size(), 0);
    phase_ = 0;
    defers_ = std::any_of(m_.pools.begin(), m_.pools.end(), [&](const Pool& pool) {
      return pool.flavour != m_.cpu && m_.PoolOf(pool.cluster, m_.cpu) >= 0;
    });
    for (int32_t turn = 0;; ++turn) {
      Room room;
      for (size_t f = 0; f < m_.flavours.size(); ++f)
        room.flavour.push_back(m_.flavour_milli[f] - u_[0][f]);
      room.pool.assign(m_.pools.size(), kUnbounded);
      room.cpus = m_.flavour_milli[m_.cpu] - u_[0][m_.cpu];
      const std::optional<Found> x = Cand(0, room, false, false);
      if (!x.has_value()) {  // then what is borrowed of CPUs
        if (phase_++ == 1) break;
        continue;
      }
      Gang& gang = m_.gangs[x->gang];
      int32_t c = x->k;
      const bool in_list =
          std::find(gang.pools.begin(), gang.pools.end(), gang.bound_pool) != gang.pools.end();
      if (!x->growth && in_list &&
          Fits(gang.bound_pool, Demand(x->gang, false), Cpus(x->gang, false), x->room,
               x->promised) &&
          Together(gang, gang.bound_pool))
        c = gang.bound_pool;
      const int64_t demand = Demand(x->gang, x->growth);
      m_.pools[c].charged_milli += demand;
      const int32_t cpus = m_.PoolOf(m_.pools[c].cluster, m_.cpu);
      if (m_.pools[c].flavour != m_.cpu && cpus >= 0)
        beside_[cpus] += gang.host_cpus_milli * Workers(x->gang, x->growth);
      for (int32_t n = gang.leaf; n >= 0; n = quotas_[n].parent) {
        u_[n][m_.pools[c].flavour] += demand;
        u_[n][m_.cpu] += Cpus(x->gang, x->growth);
        u_pool_[n][c] += demand;
      }
      if (x->growth) {
        gang.growth += gang.step_workers;
        continue;
      }
      gang.entitled = true;
      gang.guaranteed = x->guaranteed;
      gang.charge = c;
      m_.order[x->gang] = turn;
    }
    m_.entitled = u_;
    return m_;
  }

 private:
  struct Room {
    std::vector<int64_t> flavour, pool;
    int64_t cpus = kUnbounded;  // beside devices
  };
  struct Found {
    int32_t gang = 0;
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

  int64_t Workers(int32_t b, bool growth) const {
    return growth ? m_.gangs[b].step_workers : m_.gangs[b].min_workers;
  }

  int64_t Demand(int32_t b, bool growth) const {
    return m_.gangs[b].worker_milli * Workers(b, growth);
  }

  int64_t Cpus(int32_t b, bool growth) const {
    return m_.gangs[b].worker_cpus_milli * Workers(b, growth);
  }

  bool Fits(int32_t pool, int64_t demand, int64_t cpus, const Room& room, bool promised) const {
    const Pool& c = m_.pools[pool];
    const bool borrows_cpus = defers_ && c.flavour == m_.cpu && !promised;
    if (borrows_cpus &&
        (phase_ == 0 || c.capacity_milli - c.charged_milli - beside_[pool] < demand))
      return false;
    return (cpus == 0 || room.cpus >= cpus) && c.capacity_milli - c.charged_milli >= demand &&
           room.flavour[c.flavour] >= demand && room.pool[pool] >= demand;
  }

  int32_t OrderOf(const Gang& gang) const { return m_.order[&gang - m_.gangs.data()]; }

  // Tasks of an unbound job go to clusters that reach the storage of the first one's; -1: no other
  // task is charged yet.
  int32_t BoundTo(const Gang& gang) const {
    const Gang* first = nullptr;
    for (const Gang& other : m_.gangs) {
      if (!gang.binds_others || other.ref.job != gang.ref.job || !other.entitled) continue;
      if (first == nullptr || OrderOf(other) < OrderOf(*first)) first = &other;
    }
    return first == nullptr ? -1 : m_.pools[first->charge].cluster;
  }
  bool Together(const Gang& gang, int32_t pool) const {
    const int32_t cluster = BoundTo(gang);
    return cluster < 0 || m_.Reaches(cluster, m_.pools[pool].cluster);
  }
  // And of those the first that could ever hold the gang is open.
  bool Opened(const Gang& gang, size_t i) const {
    if (gang.opened[i] || BoundTo(gang) < 0) return gang.opened[i];
    const auto holds = [&](int32_t pool) {
      return m_.pools[pool].known_milli >= gang.worker_milli * gang.min_workers;
    };
    const auto first = std::find_if(gang.pools.begin(), gang.pools.end(), [&](int32_t pool) {
      return Together(gang, pool) && holds(pool);
    });
    return first != gang.pools.end() && holds(gang.pools[i]) &&
           m_.pools[*first].cluster == m_.pools[gang.pools[i]].cluster;
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
        for (size_t k = 0; in_guarantee && !quotas_[c].pools.empty() && k < m_.pools.size(); ++k) {
          if (quotas_[c].pools[k] == kUnbounded) continue;
          a.pool[k] =
              std::max<int64_t>(0, std::min(a.pool[k], quotas_[c].pools[k] - u_pool_[c][k]));
        }
        std::optional<Found> x = Cand(c, a, in_guarantee, promised || in_guarantee);
        if (!x.has_value()) continue;
        Share share = KeyOf(c, m_.pools[x->k].flavour, in_guarantee);
        if (Cpus(x->gang, x->growth) > 0 && !(in_guarantee && cpu.guarantee_milli == 0)) {
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
    std::vector<std::tuple<bool, int32_t, int32_t, int64_t, int32_t>>
        order;  // gangs before growth, then priority, band, submission, id
    for (size_t b = 0; b < m_.gangs.size(); ++b) {
      const Gang& gang = m_.gangs[b];
      if (gang.leaf != n || gang.pools.empty()) continue;
      const bool growth = gang.entitled;
      if (growth && gang.entitled_workers() >= gang.max_workers) continue;
      order.emplace_back(growth, -gang.priority, gang.band, gang.submit_ns,
                         static_cast<int32_t>(b));
    }
    std::sort(order.begin(), order.end());
    for (const auto& [growth, priority, band, submit_ns, b] : order) {
      const Gang& gang = m_.gangs[b];
      for (size_t i = 0; i < (growth ? 1 : gang.pools.size()); ++i) {
        const int32_t pool = growth ? gang.charge : gang.pools[i];
        if (!growth && !guaranteed && !Opened(gang, i)) continue;
        if (!growth && !Together(gang, pool)) continue;
        if (Fits(pool, Demand(b, growth), Cpus(b, growth), room, promised))
          return Found{b, growth, guaranteed, promised, pool, room};
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
    return std::make_tuple(m_.gangs[x.gang].submit_ns, x.gang, x.growth) <
           std::make_tuple(m_.gangs[y.gang].submit_ns, y.gang, y.growth);
  }

  const QuotaTree& quotas_;
  Model m_;
  std::vector<std::vector<int64_t>> u_, u_pool_;
  std::vector<int64_t> beside_;  // [pool] of CPUs: what units with devices take of them
  int phase_ = 0;
  bool defers_ = false;  // some cluster has devices and CPUs
};

// ---- random systems ----

// Gives leaves what pools have, and queues above them that and a little more: all of it can be kept
// at once.
void Nest(Instance* instance, Dice* dice) {
  const Model& m = instance->model;
  std::vector<int64_t> left;
  for (const Pool& pool : m.pools)
    left.push_back(dice->Chance(90) ? pool.capacity_milli : pool.known_milli);
  const auto set = [&](QuotaNode* node) {
    for (FlavourQuota& quota : node->flavours) quota = FlavourQuota();
    for (size_t c = 0; c < m.pools.size(); ++c)
      node->flavours[m.pools[c].flavour].guarantee_milli += node->pools[c];
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
    node.pools.assign(m.pools.size(), 0);
    for (size_t c = 0; c < m.pools.size(); ++c) {
      if (node.children.empty() || dice->Chance(20)) node.pools[c] = take(c);
      for (const int32_t child : node.children) node.pools[c] += instance->quotas[child].pools[c];
    }
    set(&node);
  }
}

// 1-4 clusters with 1-3 flavours, some capacity lost, a tree of up to three levels; guarantees may
// exceed what is there, unless they are to nest. About as many gangs as given, 0: a few.
Instance RandomInstance(Dice* dice, bool nests = false, int64_t about = 0) {
  Instance instance;
  Model& m = instance.model;
  const int64_t clusters = 1 + dice->Of(4), flavours = 1 + dice->Of(3);
  for (int64_t f = 0; f < flavours; ++f) m.flavours.push_back(absl::StrCat("f", f));
  m.flavour_milli.assign(m.flavours.size(), 0);
  for (int32_t c = 0; c < clusters; ++c) {
    for (int32_t f = 0; f < flavours; ++f) {
      if (dice->Chance(30) && !(c == 0 && f == 0)) continue;
      Pool& pool = m.pools.emplace_back();
      pool.cluster = c;
      pool.flavour = f;
      pool.known_milli = 1000 * (1 + dice->Of(about == 0 ? 12 : about));
      pool.capacity_milli =
          dice->Chance(nests ? 97 : 75) ? pool.known_milli : pool.known_milli * dice->Of(4) / 4;
      m.flavour_milli[f] += pool.capacity_milli;
    }
  }
  m.cpu = static_cast<int32_t>(flavours - 1);
  m.reaches.assign(static_cast<size_t>(clusters),
                   std::vector<bool>(static_cast<size_t>(clusters), false));
  for (auto& row : m.reaches) {
    for (auto reaches : row) reaches = dice->Chance(60);
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
      if (node.pools.empty()) node.pools.assign(m.pools.size(), kUnbounded);
      int64_t left = quota.guarantee_milli;
      for (size_t c = 0; c < m.pools.size(); ++c) {
        if (m.pools[c].flavour != static_cast<int32_t>(f)) continue;
        node.pools[c] = 1000 * dice->Of(left / 1000 + 1);
        left -= node.pools[c];
      }
    }
  }
  if (nests) Nest(&instance, dice);
  for (int64_t n = 0; n < nodes; ++n) m.history.push_back(dice->Of(3));
  const bool with_cpus = flavours > 1 && dice->Chance(nests ? 3 : 40);
  const int64_t gangs =
      1 + (about == 0 ? dice->Of(dice->Chance(20) ? 24 : 9) : about / 2 + dice->Of(about));
  uint64_t job = 0;
  for (int64_t b = 0; b < gangs; ++b) {
    Gang& gang = m.gangs.emplace_back();
    gang.unit = true;
    const bool sibling = b > 0 && dice->Chance(15);
    gang.ref = {sibling ? job : ++job, sibling ? m.gangs[b - 1].ref.task + 1 : 0};
    do {
      gang.leaf = 1 + static_cast<int32_t>(dice->Of(nodes - 1));
    } while (!instance.quotas[gang.leaf].children.empty());
    gang.priority = static_cast<int32_t>(dice->Of(3));
    gang.band = dice->Chance(30) ? static_cast<int32_t>(dice->Of(4)) : 0;
    gang.submit_ns = dice->Of(4);
    gang.worker_milli = dice->Chance(80) ? 1000 * (1 + dice->Of(3)) : 250 * (1 + dice->Of(3));
    if (with_cpus && dice->Chance(60)) gang.worker_cpus_milli = 500 * (1 + dice->Of(4));
    gang.min_workers = 1 + static_cast<int32_t>(dice->Of(3));
    gang.step_workers = dice->Chance(30) ? 2 + static_cast<int32_t>(dice->Of(2)) : 1;
    gang.max_workers =
        gang.min_workers +
        (dice->Chance(40) ? gang.step_workers * static_cast<int32_t>(dice->Of(4)) : 0);
    for (size_t tries = 1 + static_cast<size_t>(dice->Of(static_cast<int64_t>(m.pools.size()) + 1));
         tries > 0; --tries) {
      const int32_t pool = static_cast<int32_t>(dice->Of(static_cast<int64_t>(m.pools.size())));
      if (std::find(gang.pools.begin(), gang.pools.end(), pool) == gang.pools.end())
        gang.pools.push_back(pool);
    }
    // A task is work on devices, with CPUs beside them, or on CPUs.
    const auto of_cpus = [&](int32_t c) { return m.pools[c].flavour == m.cpu; };
    const bool on_cpus = gang.worker_cpus_milli == 0 && of_cpus(gang.pools.front());
    gang.pools.erase(std::remove_if(gang.pools.begin(), gang.pools.end(),
                                    [&](int32_t c) { return of_cpus(c) != on_cpus; }),
                     gang.pools.end());
    if (!on_cpus)
      gang.host_cpus_milli =
          gang.worker_cpus_milli > 0 ? gang.worker_cpus_milli : 500 * dice->Of(5);
    const int64_t opened = dice->Of(3);
    for (size_t i = 0; i < gang.pools.size(); ++i)
      gang.opened.push_back(static_cast<int64_t>(i) <= opened);
    if (dice->Chance(35))
      gang.bound_pool = static_cast<int32_t>(dice->Of(static_cast<int64_t>(m.pools.size())));
    if (sibling) {
      gang.leaf = m.gangs[b - 1].leaf;
      gang.priority = m.gangs[b - 1].priority;
      gang.band = m.gangs[b - 1].band;
      gang.submit_ns = m.gangs[b - 1].submit_ns;
      if (dice->Chance(70)) gang.binds_others = m.gangs[b - 1].binds_others = true;
    }
  }
  // A job binds all its tasks or none.
  for (size_t b = 1; b < m.gangs.size(); ++b) {
    if (m.gangs[b].ref.job == m.gangs[b - 1].ref.job && m.gangs[b - 1].binds_others)
      m.gangs[b].binds_others = true;
  }
  for (size_t b = m.gangs.size(); b-- > 1;) {
    if (m.gangs[b].ref.job == m.gangs[b - 1].ref.job && m.gangs[b].binds_others)
      m.gangs[b - 1].binds_others = true;
  }
  for (Gang& gang : m.gangs) {
    if (gang.binds_others) gang.bound_pool = -1;
  }
  return instance;
}

void RunAndSort(Entitlement* entitlement, Model* model) {
  entitlement->Run(model);
  std::vector<int32_t> gangs;
  for (size_t b = 0; b < model->gangs.size(); ++b) {
    if (model->gangs[b].entitled) gangs.push_back(static_cast<int32_t>(b));
  }
  entitlement->Sort(*model, &gangs);
  model->order.assign(model->gangs.size(), 0);
  for (size_t i = 0; i < gangs.size(); ++i) model->order[gangs[i]] = static_cast<int32_t>(i);
}

// S, its charges and its order.
std::string Text(const Model& model) {
  std::string text;
  std::vector<int32_t> orders;  // growth has its turns between the gangs'
  for (size_t b = 0; b < model.gangs.size(); ++b) {
    if (model.gangs[b].entitled) orders.push_back(model.order[b]);
  }
  std::sort(orders.begin(), orders.end());
  for (size_t b = 0; b < model.gangs.size(); ++b) {
    const Gang& gang = model.gangs[b];
    absl::StrAppend(&text, gang.ref.job, ".", gang.ref.task, ":");
    if (gang.entitled) {
      absl::StrAppend(
          &text, gang.entitled_workers(), "@", gang.charge, gang.guaranteed ? "g" : "", "#",
          std::lower_bound(orders.begin(), orders.end(), model.order[b]) - orders.begin());
    }
    absl::StrAppend(&text, " ");
  }
  for (const Pool& pool : model.pools)
    absl::StrAppend(&text, " ", pool.charged_milli, "/", pool.capacity_milli);
  for (const auto& row : model.entitled) {
    for (const int64_t milli : row) absl::StrAppend(&text, " ", milli);
  }
  return text;
}

#if defined(__SANITIZE_ADDRESS__)
constexpr int64_t kInstances = 25'000;  // it looks for other faults than the release's run
#else
constexpr int64_t kInstances = 100'000;
#endif

TEST(EntitleTwin, EqualsThePseudoCode) {
  int64_t accepted = 0, guaranteed = 0, grown = 0, as_bound = 0, with_prefixes = 0;
  for (int64_t seed = 1; seed <= kInstances; ++seed) {
    Dice dice{static_cast<uint64_t>(seed) * 1000};
    Instance instance = RandomInstance(&dice, /*nests=*/seed % 2 == 0);
    const std::string want = Text(Twin(instance).Entitle());
    Entitlement entitlement;
    entitlement.Reset(instance.quotas, instance.model);
    RunAndSort(&entitlement, &instance.model);
    ASSERT_EQ(Text(instance.model), want) << "seed " << seed;
    with_prefixes += entitlement.began_with_prefixes();
    for (const Gang& gang : instance.model.gangs) {
      accepted += gang.entitled;
      guaranteed += gang.guaranteed;
      grown += gang.growth;
      as_bound += gang.charged_as_bound;
    }
  }
  // That the instances are of every kind.
  EXPECT_GT(accepted, kInstances);
  EXPECT_GT(guaranteed, kInstances / 5);
  EXPECT_GT(grown, kInstances / 5);
  EXPECT_GT(as_bound, kInstances / 100);
  EXPECT_GT(with_prefixes, kInstances / 4);
}

// Starting units of S in their charged pools, stopping movers and what is outside of S.
TEST(EntitleTwin, CarryingItOutInFullOrInPartChangesNeitherTheSetNorItsCharges) {
  int64_t moved = 0;
  for (int64_t seed = 1; seed <= kInstances; ++seed) {
    Dice dice{static_cast<uint64_t>(seed) * 999};
    Instance instance = RandomInstance(&dice, /*nests=*/seed % 2 == 0);
    for (Gang& gang : instance.model.gangs)
      gang.binds_others = false;  // binding a job is a new fact of its own
    Entitlement entitlement;
    entitlement.Reset(instance.quotas, instance.model);
    RunAndSort(&entitlement, &instance.model);
    const std::string before = Text(instance.model);
    const bool all = dice.Chance(30);
    for (size_t b = 0; b < instance.model.gangs.size(); ++b) {
      Gang& gang = instance.model.gangs[b];
      if (!all && dice.Chance(50)) continue;
      const int32_t to =
          gang.entitled && (gang.bound_pool < 0 || dice.Chance(50)) ? gang.charge
          : gang.entitled && gang.bound_pool == gang.charge         ? gang.charge
          : gang.entitled || dice.Chance(70)
              ? -1
              : static_cast<int32_t>(dice.Of(static_cast<int64_t>(instance.model.pools.size())));
      if (to == gang.bound_pool) continue;
      gang.bound_pool = to;
      entitlement.Rebind(instance.model, static_cast<int32_t>(b));
      ++moved;
    }
    RunAndSort(&entitlement, &instance.model);
    ASSERT_EQ(Text(instance.model), before) << "seed " << seed;
  }
  EXPECT_GT(moved, kInstances);
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
  int64_t with_prefixes = 0, runs = 0;
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
          const int32_t b = static_cast<int32_t>(any(static_cast<int64_t>(m.gangs.size())));
          Gang& gang = m.gangs[b];
          const int64_t what = dice.Of(20);
          if (what < 2) {
            Pool& pool = m.pools[any(static_cast<int64_t>(m.pools.size()))];
            m.flavour_milli[pool.flavour] -= pool.capacity_milli;
            pool.capacity_milli =
                dice.Chance(70) ? pool.known_milli : pool.known_milli * dice.Of(5) / 4;
            m.flavour_milli[pool.flavour] += pool.capacity_milli;
          } else if (what == 2) {
            m.history[any(static_cast<int64_t>(m.history.size()))] = dice.Of(4);
          } else if (gang.binds_others) {
            continue;  // its siblings would have to change with it
          } else if (what < 8) {
            gang.bound_pool = static_cast<int32_t>(any(static_cast<int64_t>(m.pools.size())));
            if (gang.entitled && dice.Chance(60)) gang.bound_pool = gang.charge;
            kept.Rebind(m, b);
          } else {
            kept.Remove(m, b);
            gang.entitled = gang.guaranteed = gang.charged_as_bound = false;
            gang.charge = -1;
            gang.growth = 0;
            if (what < 13) {
              gang.priority = static_cast<int32_t>(dice.Of(3));
              gang.max_workers =
                  gang.min_workers + gang.step_workers * static_cast<int32_t>(dice.Of(3));
            } else if (gang.pools.empty()) {
              gang.pools = {0};
              gang.opened = {1};
            } else {
              gang.pools.clear();
              gang.opened.clear();
            }
            kept.Add(m, b);
          }
        }
        RunAndSort(&kept, &m);
        ASSERT_EQ(Text(m), Text(Twin(instance).Entitle()))
            << "about " << kind.about << " seed " << seed << " step " << step;
        ++runs;
        with_prefixes += kept.began_with_prefixes();
        if (!dice.Chance(10)) continue;
        // Jobs that are over go, and the others get new numbers.
        std::vector<int32_t> to(m.gangs.size(), -1);
        std::vector<Gang> left;
        for (size_t b = 0; b < m.gangs.size(); ++b) {
          if (m.gangs[b].pools.empty() && m.gangs.size() - b + left.size() > 1) continue;
          to[b] = static_cast<int32_t>(left.size());
          left.push_back(m.gangs[b]);
        }
        m.gangs = std::move(left);
        kept.Renumber(to);
      }
    }
  }
  EXPECT_GT(with_prefixes, runs / 3);
  EXPECT_LT(with_prefixes, runs * 9 / 10);
}

}  // namespace
}  // namespace muster
