// What a slice of one host costs there, by policy: the lower the better (docs/scheduling.md §3).
// Integers only.
//
//   best_fit  the host with the fewest whole devices free, then the least of shared ones, then the
//   fewest CPUs. fgd       Weng et al., "Beware of Fragmentation", USENIX ATC'23: least growth of
//   what typical tasks couldn't use, compared
//             in 100 buckets of a sigmoid, as its reference implementation does.
//   v         least growth of V, the idle GPU expected on the host after 32 more typical tasks came
//   by.
//
// Where several devices of a host would do equally, a share goes to the fullest.
//
// Inside of scheduler/decide. A scorer is used by one thread at a time; what it remembers never
// changes its answers.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/inlined_vector.h"
#include "scheduler/state/options.h"
#include "scheduler/state/rows.h"

namespace muster {

// Hosts alike but for what they have free.
struct HostKind {
  std::vector<int32_t> islands;  // devices of each; the sum is the host's
  int64_t cpus_milli = 0, memory_bytes = 0;
  uint64_t label = 1;  // one bit; see SliceWish::labels

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

// `workers` workers side by side on one host.
struct SliceWish {
  Demand worker;  // CPUs and memory 0: the GPUs' share of the host (WorkerDemand)
  int32_t workers = 1;
  uint64_t labels = ~uint64_t{0};  // kinds that it accepts
  bool one_island = false;         // all its devices in one island

  bool operator==(const SliceWish& o) const { return Key() == o.Key(); }
  bool operator<(const SliceWish& o) const { return Key() < o.Key(); }

 private:
  std::tuple<int64_t, int64_t, int64_t, int64_t, int32_t, uint64_t, bool> Key() const {
    return {worker.gpus_milli, worker.cpus_milli, worker.memory_bytes,
            worker.disk_bytes, workers,           labels,
            one_island};
  }
};

struct TypicalSlice {
  SliceWish wish;
  int64_t count = 0;

  bool operator==(const TypicalSlice&) const = default;
};

// What the slice takes of a host of that kind; nullopt: it doesn't accept the kind.
std::optional<Demand> DemandOn(const SliceWish& wish, const HostKind& kind);
// The host holds it. A demand below 1000 GPU thousandths is a share of one device, else whole
// devices.
bool Holds(const HostRoom& host, const HostKind& kind, const Demand& demand, bool one_island);
// Takes it: a share from the device at `device` (a position in device_milli), whole ones from the
// island with the fewest free ones that holds them all, else from the islands in order. The host
// must hold it.
void Subtract(HostRoom* host, const HostKind& kind, const Demand& demand, int32_t device);

class HostScorer {
 public:
  // `typical` is what may come: for fgd and v. Counts are positive and sum to less than 2^20. The
  // larger `whole_host_weight`, the less V breaks hosts of eight GPUs, at the cost of what it
  // allocates: a typical task of eight GPUs counts so many times.
  static constexpr int64_t kWholeHostWeight = 4;
  HostScorer(PlacementPolicy policy, std::vector<TypicalSlice> typical,
             int64_t whole_host_weight = kWholeHostWeight);

  // Kinds are numbered from 0 in the order they are added.
  int32_t AddKind(const HostKind& kind);
  const std::vector<HostKind>& kinds() const { return kinds_; }

  // Compared as a pair. `device` is the position in device_milli that a share takes, else -1.
  struct Cost {
    int64_t first = 0, second = 0;
    int32_t device = -1;
  };
  // The host must hold the demand.
  Cost Of(const HostRoom& host, const Demand& demand);

  // V of a host, in thousandths of a GPU times kRollouts.
  int64_t ExpectedWaste(const HostRoom& host);
  // F of a host: GPU thousandths that a typical task couldn't use, times the sum of the counts.
  int64_t Fragment(const HostRoom& host) const;
  // floor(100 * sigmoid(x)) of x = decrease / total / 1000.
  static int32_t SigmoidBucket(int64_t decrease, int64_t total);

  static constexpr int kRollouts = 48, kRolloutTasks = 32;

 private:
  struct KindDemands {  // by typical task; gpus_milli -1: doesn't accept the kind
    std::vector<Demand> demands;
  };

  int64_t Score(const HostRoom& host);

  PlacementPolicy policy_;
  std::vector<TypicalSlice> typical_;
  int64_t total_count_ = 0;
  std::vector<int32_t> rollouts_;  // [kRollouts][kRolloutTasks]: index in typical_
  std::vector<HostKind> kinds_;
  std::vector<KindDemands> typical_on_;
  absl::btree_map<HostRoom, int64_t> waste_;
};

}  // namespace muster
