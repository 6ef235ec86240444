// What a slice of one host costs there, by policy: the lower the better (docs/scheduling.md §3).
// Integers only.
//
//   best_fit  the host with the fewest whole devices free, then the least of shared ones, then the
//   fewest CPUs. fgd       Weng et al., "Beware of Fragmentation", USENIX ATC'23: least growth of
//   what typical tasks couldn't use, compared
//             in 100 buckets of a sigmoid, as its reference implementation does.
//   v         least growth of V, the idle GPU expected on the host after 32 more typical tasks came
//             by, and of what it costs that typical gangs lose their place there
//             (docs/decisions/061-rare-shapes.md).
//
// Where several devices of a host would do equally, a share goes to the fullest.
//
// Inside of scheduler/decide. A scorer is used by one thread at a time; what it remembers never
// changes its answers.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/inlined_vector.h"
#include "scheduler/state/abilities.h"
#include "scheduler/state/options.h"
#include "scheduler/state/rows.h"

namespace muster {

// Hosts alike but for what they have free.
struct HostKind {
  std::vector<int32_t> islands;  // devices of each; the sum is the host's
  int64_t cpus_milli = 0, memory_bytes = 0;
  uint64_t label = 1;  // one bit: of what its agent does (LabelOf); see SliceWish::labels

  int32_t devices() const;
  auto operator<=>(const HostKind&) const = default;
};

// What one host has free. Devices that are down have nothing.
struct HostRoom {
  int32_t kind = 0;
  int64_t cpus_milli = 0, memory_bytes = 0, disk_bytes = 0;
  absl::InlinedVector<int16_t, 8> device_milli;  // island after island, descending in each

  bool operator==(const HostRoom&) const = default;
  bool operator<(const HostRoom& o) const {
    return std::tie(kind, cpus_milli, memory_bytes, disk_bytes, device_milli) <
           std::tie(o.kind, o.cpus_milli, o.memory_bytes, o.disk_bytes, o.device_milli);
  }
};

// The label of hosts that do this, and those of hosts that do this at least.
constexpr uint64_t LabelOf(Abilities abilities) { return uint64_t{1} << abilities; }
constexpr uint64_t LabelsWith(Abilities needs) {
  if (needs == 0) return ~uint64_t{0};
  uint64_t labels = 0;
  for (Abilities has = 0; has < Abilities{1} << kAbilityBits; ++has)
    labels |= Can(has, needs) ? LabelOf(has) : 0;
  return labels;
}

// `workers` workers side by side on one host.
struct SliceWish {
  Demand worker;  // CPUs and memory 0: the GPUs' share of the host (WorkerDemand)
  int32_t workers = 1;
  uint64_t labels = ~uint64_t{0};  // kinds that it accepts
  bool one_island = false;         // all its devices in one island
  int32_t island_gpus = 1;         // else runs of so many are, of which its devices are a multiple

  bool operator==(const SliceWish& o) const { return Key() == o.Key(); }
  bool operator<(const SliceWish& o) const { return Key() < o.Key(); }

 private:
  std::tuple<int64_t, int64_t, int64_t, int64_t, int32_t, uint64_t, bool, int32_t> Key() const {
    return {worker.gpus_milli, worker.cpus_milli, worker.memory_bytes,
            worker.disk_bytes, workers,           labels,
            one_island,        island_gpus};
  }
};

struct TypicalSlice {
  SliceWish wish;
  int64_t count = 0;

  bool operator==(const TypicalSlice&) const = default;
};

// What the slice takes of a host of that kind; nullopt: it doesn't accept the kind.
std::optional<Demand> DemandOn(const SliceWish& wish, const HostKind& kind);
// The host holds it, with as many devices of an island together as the wish says. A demand below
// 1000 GPU thousandths is a share of one device, else whole devices.
bool Holds(const HostRoom& host, const HostKind& kind, const Demand& demand, const SliceWish& wish);
// Takes it: a share from the device at `device` (a position in device_milli), whole ones from the
// island with the fewest free ones that holds them all, else from the islands in order. The host
// must hold it.
void Subtract(HostRoom* host, const HostKind& kind, const Demand& demand, int32_t device);

// A kind of host, and how many of the hosts are of it.
struct KindCount {
  HostKind kind;
  int64_t hosts = 0;

  bool operator==(const KindCount&) const = default;
};

class HostScorer {
 public:
  // `typical` is what may come, all of it: for fgd and v. Counts are positive and sum to less than
  // 2^20. Kinds are numbered from 0 in this order.
  HostScorer(PlacementPolicy policy, std::vector<TypicalSlice> typical,
             const std::vector<KindCount>& kinds);

  const std::vector<HostKind>& kinds() const { return kinds_; }

  // The smallest is the best. `device` is the position in device_milli that a share takes, else -1.
  using Price = std::array<int64_t, 3>;
  struct Cost {
    Price price = {};
    int32_t device = -1;
  };
  // The host must hold the demand.
  Cost Of(const HostRoom& host, const Demand& demand);

  // V of a host: the GPU that stays idle, in thousandths times kRollouts.
  int64_t ExpectedWaste(const HostRoom& host) const;
  // What the places that typical gangs (two whole GPUs and more) have on the host are worth, in the
  // unit of V: summed over the gangs, how often each finds a place there times what one is worth.
  int64_t GangPlaces(const HostRoom& host) const;
  // How likely the task is to come to a host of the kind, in proportion to the others: its count,
  // times 1 + 5 * GPUs, times (all hosts / hosts that could hold it when empty), in thousandths. 0:
  // the kind can't hold it. A task is the likelier to need this host, the fewer others could take
  // it.
  int64_t Weight(int32_t kind, int32_t task) const;
  // The typical task that a roll-out on a host of the kind draws at this position. Over the
  // roll-outs, each position draws a task as often as its weight says, give or take one.
  int32_t Drawn(int32_t kind, int rollout, int position) const {
    return on_[kind].drawn[rollout * kRolloutTasks + position];
  }
  // F of a host: GPU thousandths that a typical task couldn't use, times the sum of the counts.
  int64_t Fragment(const HostRoom& host) const;
  // floor(100 * sigmoid(x)) of x = decrease / total / 1000.
  static int32_t SigmoidBucket(int64_t decrease, int64_t total);

  static constexpr int kRollouts = 48, kRolloutTasks = 32;

 private:
  struct GangPrice {
    Demand demand;
    int64_t each = 0;  // what one place for it is worth
  };
  struct OnKind {
    std::vector<Demand> demands;  // by typical task; gpus_milli -1: doesn't accept the kind
    std::vector<bool> holds;      // when empty, by typical task
    std::vector<int32_t> drawn;   // [kRollouts][kRolloutTasks]: typical tasks
    std::vector<GangPrice> gangs;
  };

  void Draw(int32_t kind, const std::vector<int32_t>& by_size);
  void SetPrices(int32_t kind);
  int64_t Score(const HostRoom& host);

  PlacementPolicy policy_;
  std::vector<TypicalSlice> typical_;
  int64_t total_count_ = 0;
  int64_t hosts_ = 0;                // of all kinds
  std::vector<int64_t> could_hold_;  // by typical task: hosts that hold it when empty
  std::vector<HostKind> kinds_;
  std::vector<OnKind> on_;  // by kind
  absl::btree_map<HostRoom, int64_t> scores_;
};

}  // namespace muster
