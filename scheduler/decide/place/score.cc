#include "scheduler/decide/place/score.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
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

// How much a task counts, in thousandths, by its GPUs.
int64_t SizeWeight(int64_t gpus_milli) { return 1000 + 5 * gpus_milli; }

// A gang: what needs several whole devices side by side, and finds no place in gaps.
constexpr int64_t kGangMilli = 2000;
// What a place for a gang would be worth, in thousandths of an idle GPU, if nothing but this gang
// came and every host could hold it. It is worth as much less as the gang's part of the GPUs that
// tasks ask for is smaller, and more by the square of how much fewer hosts could hold it.
constexpr int64_t kPlaceMilli = 20;

constexpr int64_t kPointBits = 16;  // of where in its stratum a point lies

// Where in the running sum of the weights each task of each roll-out is drawn:
// [kRollouts][kRolloutTasks], in 2^-16 of a stratum, of which there is one a roll-out. At each
// position the roll-outs take each stratum once: Latin hypercube sampling (McKay et al., 1979).
// Points are the same for every host, so that two hosts differ by what they hold and not by chance.
const std::vector<int64_t>& Points() {
  static const std::vector<int64_t>* const points = [] {
    constexpr int kRollouts = HostScorer::kRollouts, kTasks = HostScorer::kRolloutTasks;
    auto* made = new std::vector<int64_t>(kRollouts * kTasks);
    uint64_t number = 0;
    const auto random = [&] { return SplitMix(++number); };
    std::vector<int64_t> strata(kRollouts);
    for (int position = 0; position < kTasks; ++position) {
      std::iota(strata.begin(), strata.end(), 0);
      for (uint64_t n = kRollouts; n > 1; --n) std::swap(strata[n - 1], strata[random() % n]);
      for (int rollout = 0; rollout < kRollouts; ++rollout) {
        (*made)[rollout * kTasks + position] =
            (strata[rollout] << kPointBits) + static_cast<int64_t>(random() >> (64 - kPointBits));
      }
    }
    return made;
  }();
  return *points;
}

HostRoom Empty(const HostKind& kind) {
  HostRoom room;
  room.cpus_milli = kind.cpus_milli;
  room.memory_bytes = kind.memory_bytes;
  room.disk_bytes = std::numeric_limits<int64_t>::max();
  room.device_milli.assign(kind.devices(), 1000);
  return room;
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

bool Holds(const HostRoom& host, const HostKind& kind, const Demand& demand,
           const SliceWish& wish) {
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
  if (!wish.one_island && wish.island_gpus <= 1) return WholeFree(host) >= count;
  int64_t in_runs = 0;
  auto from = host.device_milli.begin();
  for (const int32_t size : kind.islands) {
    const int64_t whole = std::count(from, from + size, 1000);
    if (wish.one_island && whole >= count) return true;
    in_runs += whole - whole % wish.island_gpus;
    from += size;
  }
  return !wish.one_island && in_runs >= count;
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
                       const std::vector<KindCount>& kinds)
    : policy_(policy), typical_(std::move(typical)), could_hold_(typical_.size()) {
  for (const TypicalSlice& task : typical_) total_count_ += task.count;
  MUSTER_CHECK(total_count_ < (1 << 20));
  for (const KindCount& of : kinds) {
    kinds_.push_back(of.kind);
    hosts_ += of.hosts;
    OnKind& on = on_.emplace_back();
    const HostRoom empty = Empty(of.kind);
    for (size_t t = 0; t < typical_.size(); ++t) {
      const SliceWish& wish = typical_[t].wish;
      const std::optional<Demand> demand = DemandOn(wish, of.kind);
      on.demands.push_back(demand.value_or(Demand{-1, 0, 0, 0}));
      on.holds.push_back(demand.has_value() && Holds(empty, of.kind, *demand, wish));
      if (on.holds.back()) could_hold_[t] += of.hosts;
    }
  }
  if (policy_ != PlacementPolicy::kV) return;
  // Neighbours in the running sum are alike, so that a stratum of it holds much the same tasks.
  std::vector<int32_t> by_size(typical_.size());
  std::iota(by_size.begin(), by_size.end(), 0);
  std::stable_sort(by_size.begin(), by_size.end(), [&](int32_t a, int32_t b) {
    const auto size = [&](int32_t t) {
      const SliceWish& wish = typical_[t].wish;
      return std::make_tuple(wish.workers * wish.worker.gpus_milli,
                             wish.workers * wish.worker.cpus_milli,
                             wish.workers * wish.worker.memory_bytes);
    };
    return size(a) < size(b);
  });
  for (size_t kind = 0; kind < kinds_.size(); ++kind) {
    Draw(static_cast<int32_t>(kind), by_size);
    SetPrices(static_cast<int32_t>(kind));
  }
}

int64_t HostScorer::Weight(int32_t kind, int32_t task) const {
  if (!on_[kind].holds[task] || could_hold_[task] == 0) return 0;
  const SliceWish& wish = typical_[task].wish;
  return typical_[task].count * SizeWeight(wish.workers * wish.worker.gpus_milli) * hosts_ /
         could_hold_[task];
}

void HostScorer::Draw(int32_t kind, const std::vector<int32_t>& by_size) {
  std::vector<int64_t> until;  // running sum of the weights
  int64_t sum = 0;
  for (const int32_t task : by_size) until.push_back(sum += Weight(kind, task));
  if (sum == 0) return;  // it holds none of them
  for (const int64_t point : Points()) {
    const __int128 at = static_cast<__int128>(point) * sum / (int64_t{kRollouts} << kPointBits);
    const auto drawn = std::upper_bound(until.begin(), until.end(), static_cast<int64_t>(at));
    on_[kind].drawn.push_back(by_size[drawn - until.begin()]);
  }
}

void HostScorer::SetPrices(int32_t kind) {
  const auto gpus_milli = [&](size_t t) {
    return typical_[t].wish.workers * typical_[t].wish.worker.gpus_milli;
  };
  __int128 asked = 0;  // GPUs, by what finds a host at all
  for (size_t t = 0; t < typical_.size(); ++t) {
    if (could_hold_[t] > 0)
      asked += static_cast<__int128>(typical_[t].count) * SizeWeight(gpus_milli(t)) * gpus_milli(t);
  }
  for (size_t t = 0; t < typical_.size(); ++t) {
    const __int128 weight = Weight(kind, static_cast<int32_t>(t));
    if (weight == 0 || gpus_milli(t) < kGangMilli) continue;
    on_[kind].gangs.push_back(
        {on_[kind].demands[t],
         static_cast<int64_t>(weight * gpus_milli(t) * kRollouts * kPlaceMilli * hosts_ /
                              could_hold_[t] / asked)});
  }
}

int64_t HostScorer::GangPlaces(const HostRoom& host) const {
  const int64_t whole = WholeFree(host);
  int64_t sum = 0;
  for (const auto& [demand, each] : on_[host.kind].gangs) {
    int64_t places = whole / (demand.gpus_milli / 1000);
    if (demand.cpus_milli > 0)
      places = std::min(places, std::max<int64_t>(0, host.cpus_milli) / demand.cpus_milli);
    if (demand.memory_bytes > 0)
      places = std::min(places, std::max<int64_t>(0, host.memory_bytes) / demand.memory_bytes);
    sum += places * each;
  }
  return sum;
}

int64_t HostScorer::ExpectedWaste(const HostRoom& host) const {
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
  const OnKind& on = on_[host.kind];
  if (on.drawn.empty()) return kRollouts * idle_at_first;
  for (int r = 0; idle_at_first > 0 && r < kRollouts; ++r) {
    int64_t idle = idle_at_first, cpus = host.cpus_milli, memory = host.memory_bytes;
    int32_t whole = whole_free;
    absl::InlinedVector<int32_t, 16> shares = shares_free;
    for (int k = 0; k < kRolloutTasks && idle > 0; ++k) {
      const Demand& demand = on.demands[on.drawn[r * kRolloutTasks + k]];
      if (demand.gpus_milli > idle || demand.cpus_milli > cpus || demand.memory_bytes > memory)
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
  const std::vector<Demand>& demands = on_[host.kind].demands;
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
  if (policy_ != PlacementPolicy::kV) return Fragment(host);
  HostRoom key = host;
  key.memory_bytes -= key.memory_bytes % kMemoryGrain;
  key.disk_bytes = 0;
  const auto found = scores_.find(key);
  if (found != scores_.end()) return found->second;
  const int64_t score = ExpectedWaste(key) - GangPlaces(key);
  if (scores_.size() >= kMostRemembered) scores_.clear();
  scores_.emplace(std::move(key), score);
  return score;
}

HostScorer::Cost HostScorer::Of(const HostRoom& host, const Demand& demand) {
  const HostKind& kind = kinds_[host.kind];
  const int64_t before = policy_ == PlacementPolicy::kBestFit ? 0 : Score(host);
  const auto cost = [&](int32_t device) {
    HostRoom after = host;
    Subtract(&after, kind, demand, device);
    switch (policy_) {
      case PlacementPolicy::kV:
        return Cost{{Score(after) - before}, device};
      case PlacementPolicy::kFgd:
        return Cost{{-SigmoidBucket(before - Score(after), total_count_)}, device};
      case PlacementPolicy::kBestFit:
        break;
    }
    const int64_t idle =
        std::accumulate(host.device_milli.begin(), host.device_milli.end(), int64_t{0});
    return Cost{{WholeFree(host), idle, host.cpus_milli}, device};
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
      return std::make_tuple(c.price, host.device_milli[c.device]);
    };
    if (!best.has_value() || key(here) < key(*best)) best = here;  // equal ones: the fullest device
  }
  MUSTER_CHECK(best.has_value());
  return *best;
}

}  // namespace muster
