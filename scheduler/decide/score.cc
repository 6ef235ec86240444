#include "scheduler/decide/score.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>

#include "common/base/check.h"
#include "scheduler/state/state.h"

namespace muster {
namespace {

// ln(k / (100 - k)) in thousand-millionths, for k = 51..99: where 100 * sigmoid reaches k. Those of
// k < 50 are the negatives.
constexpr std::array<int64_t, 49> kLogit = {
    40005335,   80042708,   120144312,  160342650,  200670695,  241162057,  281851152,
    322773392,  363965377,  405465108,  447312218,  489548225,  532216814,  575364145,
    619039208,  663294217,  708185058,  753771802,  800119300,  847297860,  895384047,
    944461609,  994622575,  1045968555, 1098612289, 1152679510, 1208311206, 1265666373,
    1324925415, 1386294361, 1450010176, 1516347489, 1585627264, 1658228077, 1734601055,
    1815289967, 1900958761, 1992430165, 2090741097, 2197224577, 2313634929, 2442347035,
    2586689344, 2751535313, 2944438979, 3178053830, 3476098690, 3891820298, 4595119850};

// What V sees of memory: hosts that differ by less are the same to it.
constexpr int64_t kMemoryGrain = int64_t{256} << 20;
constexpr size_t kMostRemembered = 1 << 20;

uint64_t SplitMix(
    uint64_t x) {  // Steele et al., "Fast Splittable Pseudorandom Number Generators", 2014
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// How often a typical task appears in roll-outs, by its GPUs: 1 + 20 * GPUs; more than four count
// up to whole_host_weight times that at eight, so that whole hosts aren't broken for a little less
// waste (4 by openb's seeds 1-5; bench/run.sh openb uses others).
int64_t RolloutWeight(int64_t gpus_milli, int64_t whole_host_weight) {
  return 1000 + 20 * gpus_milli *
                    (4000 + (whole_host_weight - 1) * std::max<int64_t>(0, gpus_milli - 4000)) /
                    4000;
}

int64_t WholeFree(const HostRoom& host) {
  return std::count(host.device_milli.begin(), host.device_milli.end(), 1000);
}

}  // namespace

int32_t HostKind::devices() const { return std::accumulate(islands.begin(), islands.end(), 0); }

std::optional<Demand> DemandOn(const SliceWish& wish, const HostKind& kind) {
  if ((wish.labels & kind.label) == 0) return std::nullopt;
  Demand demand = ShareOfHost(wish.worker, kind.devices(), kind.cpus_milli, kind.memory_bytes);
  demand.gpus_milli *= wish.workers;
  demand.cpus_milli *= wish.workers;
  demand.memory_bytes *= wish.workers;
  demand.disk_bytes *= wish.workers;
  return demand;
}

bool Holds(const HostRoom& host, const HostKind& kind, const Demand& demand, bool one_island) {
  if ((demand.cpus_milli > 0 && host.cpus_milli < demand.cpus_milli) ||
      (demand.memory_bytes > 0 && host.memory_bytes < demand.memory_bytes) ||
      (demand.disk_bytes > 0 && host.disk_bytes < demand.disk_bytes)) {
    return false;
  }
  if (demand.gpus_milli == 0) return true;
  if (demand.gpus_milli < 1000) {
    return std::any_of(host.device_milli.begin(), host.device_milli.end(),
                       [&](int16_t milli) { return milli >= demand.gpus_milli; });
  }
  const int64_t count = demand.gpus_milli / 1000;
  if (!one_island) return WholeFree(host) >= count;
  auto from = host.device_milli.begin();
  for (const int32_t size : kind.islands) {
    if (std::count(from, from + size, 1000) >= count) return true;
    from += size;
  }
  return false;
}

void Subtract(HostRoom* host, const HostKind& kind, const Demand& demand, int32_t device) {
  host->cpus_milli -= demand.cpus_milli;
  host->memory_bytes -= demand.memory_bytes;
  host->disk_bytes -= demand.disk_bytes;
  if (demand.gpus_milli == 0) return;
  int64_t count = demand.gpus_milli / 1000;
  int32_t only = -1;  // the island that gives them all
  if (count == 0) {
    host->device_milli[device] -= static_cast<int16_t>(demand.gpus_milli);
  } else {
    int64_t fewest = 0;
    auto from = host->device_milli.begin();
    for (size_t i = 0; i < kind.islands.size(); from += kind.islands[i++]) {
      const int64_t whole = std::count(from, from + kind.islands[i], 1000);
      if (whole >= count && (only < 0 || whole < fewest)) {
        only = static_cast<int32_t>(i);
        fewest = whole;
      }
    }
  }
  auto from = host->device_milli.begin();
  for (size_t i = 0; i < kind.islands.size(); ++i) {
    const auto to = from + kind.islands[i];
    for (auto d = from; d != to && count > 0 && (only < 0 || only == static_cast<int32_t>(i));
         ++d) {
      if (*d != 1000) continue;
      *d = 0;
      --count;
    }
    std::sort(from, to, std::greater<int16_t>());
    from = to;
  }
  MUSTER_CHECK(count == 0);
}

HostScorer::HostScorer(PlacementPolicy policy, std::vector<TypicalSlice> typical,
                       int64_t whole_host_weight)
    : policy_(policy), typical_(std::move(typical)) {
  int64_t weights = 0;
  std::vector<int64_t> until;  // running sum of the weights
  for (const TypicalSlice& task : typical_) {
    total_count_ += task.count;
    weights += task.count *
               RolloutWeight(task.wish.workers * task.wish.worker.gpus_milli, whole_host_weight);
    until.push_back(weights);
  }
  MUSTER_CHECK(total_count_ < (1 << 20));
  if (policy_ != PlacementPolicy::kV || weights == 0) return;
  for (int i = 0; i < kRollouts * kRolloutTasks; ++i) {
    const int64_t at =
        static_cast<int64_t>(SplitMix(static_cast<uint64_t>(i)) % static_cast<uint64_t>(weights));
    rollouts_.push_back(
        static_cast<int32_t>(std::upper_bound(until.begin(), until.end(), at) - until.begin()));
  }
}

int32_t HostScorer::AddKind(const HostKind& kind) {
  kinds_.push_back(kind);
  KindDemands& on = typical_on_.emplace_back();
  for (const TypicalSlice& task : typical_)
    on.demands.push_back(DemandOn(task.wish, kind).value_or(Demand{-1, 0, 0, 0}));
  return static_cast<int32_t>(kinds_.size()) - 1;
}

int64_t HostScorer::ExpectedWaste(const HostRoom& host) {
  HostRoom key = host;
  key.memory_bytes /= kMemoryGrain;
  key.disk_bytes = 0;
  const auto found = waste_.find(key);
  if (found != waste_.end()) return found->second;

  int32_t whole_free = 0;
  absl::InlinedVector<int32_t, 16> shares_free;
  int64_t idle_at_first = 0;
  for (const int16_t milli : host.device_milli) {
    if (milli <= 0) continue;
    idle_at_first += milli;
    if (milli == 1000)
      ++whole_free;
    else
      shares_free.push_back(milli);
  }
  int64_t waste = 0;
  const std::vector<Demand>& demands = typical_on_[host.kind].demands;
  for (int r = 0; idle_at_first > 0 && r < kRollouts && !rollouts_.empty(); ++r) {
    int64_t idle = idle_at_first, cpus = host.cpus_milli, memory = key.memory_bytes * kMemoryGrain;
    int32_t whole = whole_free;
    absl::InlinedVector<int32_t, 16> shares = shares_free;
    for (int k = 0; k < kRolloutTasks && idle > 0; ++k) {
      const Demand& demand = demands[rollouts_[r * kRolloutTasks + k]];
      if (demand.gpus_milli < 0 || demand.gpus_milli > idle || demand.cpus_milli > cpus ||
          demand.memory_bytes > memory)
        continue;
      if (demand.gpus_milli >= 1000) {
        const int32_t count = static_cast<int32_t>(demand.gpus_milli / 1000);
        if (count > whole) continue;
        whole -= count;
      } else if (demand.gpus_milli > 0) {
        int32_t* best = nullptr;  // the fullest device that holds it
        for (int32_t& share : shares) {
          if (share >= demand.gpus_milli && (best == nullptr || share < *best)) best = &share;
        }
        if (best != nullptr) {
          *best -= static_cast<int32_t>(demand.gpus_milli);
        } else if (whole > 0) {
          --whole;
          shares.push_back(1000 - static_cast<int32_t>(demand.gpus_milli));
        } else {
          continue;
        }
      }
      idle -= demand.gpus_milli;
      cpus -= demand.cpus_milli;
      memory -= demand.memory_bytes;
    }
    waste += idle;
  }
  if (waste_.size() >= kMostRemembered) waste_.clear();
  waste_.emplace(std::move(key), waste);
  return waste;
}

int64_t HostScorer::Fragment(const HostRoom& host) const {
  const int64_t whole = WholeFree(host);
  int64_t idle = 0, most = 0;
  for (const int16_t milli : host.device_milli) {
    idle += std::max<int64_t>(0, milli);
    most = std::max<int64_t>(most, milli);
  }
  int64_t sum = 0;
  const std::vector<Demand>& demands = typical_on_[host.kind].demands;
  for (size_t t = 0; t < typical_.size(); ++t) {
    const Demand& demand = demands[t];
    const int64_t device_milli = std::min<int64_t>(demand.gpus_milli, 1000);
    const bool holds =
        demand.gpus_milli > 0 && demand.cpus_milli <= host.cpus_milli &&
        (demand.gpus_milli >= 1000 ? whole >= demand.gpus_milli / 1000 : most >= demand.gpus_milli);
    int64_t useless = idle;
    if (holds) {
      useless = 0;
      for (const int16_t milli : host.device_milli) {
        if (milli > 0 && milli < device_milli) useless += milli;
      }
    }
    sum += typical_[t].count * useless;
  }
  return sum;
}

int32_t HostScorer::SigmoidBucket(int64_t decrease, int64_t total) {
  // x >= logit <=> decrease * 10^6 >= logit * total: no division, nothing rounds.
  const auto reaches = [&](int64_t logit) {
    return static_cast<__int128>(decrease) * 1'000'000 >= static_cast<__int128>(logit) * total;
  };
  if (reaches(0)) {
    return 50 + static_cast<int32_t>(std::partition_point(kLogit.begin(), kLogit.end(), reaches) -
                                     kLogit.begin());
  }
  // Below 50: the bucket is k where x reaches the negative of kLogit's entry for 100 - k.
  const auto missed = [&](int64_t logit) { return !reaches(-logit); };
  return 49 - static_cast<int32_t>(std::partition_point(kLogit.begin(), kLogit.end(), missed) -
                                   kLogit.begin());
}

int64_t HostScorer::Score(const HostRoom& host) {
  return policy_ == PlacementPolicy::kV ? ExpectedWaste(host) : Fragment(host);
}

HostScorer::Cost HostScorer::Of(const HostRoom& host, const Demand& demand) {
  const HostKind& kind = kinds_[host.kind];
  const int64_t before = policy_ == PlacementPolicy::kBestFit ? 0 : Score(host);
  const auto cost = [&](int32_t device) {
    HostRoom after = host;
    Subtract(&after, kind, demand, device);
    switch (policy_) {
      case PlacementPolicy::kV:
        return Cost{Score(after) - before, 0, device};
      case PlacementPolicy::kFgd:
        return Cost{-SigmoidBucket(before - Score(after), total_count_), 0, device};
      case PlacementPolicy::kBestFit:
        break;
    }
    const int64_t idle =
        std::accumulate(host.device_milli.begin(), host.device_milli.end(), int64_t{0});
    return Cost{(WholeFree(host) << 32) + idle, host.cpus_milli, device};
  };
  if (demand.gpus_milli == 0 || demand.gpus_milli >= 1000) return cost(-1);
  std::optional<Cost> best;
  int16_t tried = -1;
  for (size_t d = 0; d < host.device_milli.size(); ++d) {
    const int16_t milli = host.device_milli[d];
    if (milli < demand.gpus_milli || milli == tried) continue;
    tried = milli;
    const Cost here = cost(static_cast<int32_t>(d));
    const auto key = [&](const Cost& c) {
      return std::make_tuple(c.first, c.second, host.device_milli[c.device]);
    };
    if (!best.has_value() || key(here) < key(*best)) best = here;  // equal ones: the fullest device
  }
  MUSTER_CHECK(best.has_value());
  return *best;
}

}  // namespace muster
