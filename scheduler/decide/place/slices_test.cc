// One-host slices: the policies' scores against plain reference forms, and the index against a look
// at every host.
#include "scheduler/decide/place/slices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

namespace muster {
namespace {

HostKind Kind(std::vector<int32_t> islands, int64_t cpus = 64) {
  return {std::move(islands), cpus * 1000, int64_t{256} << 30};
}

HostRoom Room(const HostScorer& scorer, int32_t kind, std::vector<int16_t> devices,
              int64_t cpus = 64) {
  HostRoom room;
  room.kind = kind;
  room.cpus_milli = cpus * 1000;
  room.memory_bytes = scorer.kinds()[kind].memory_bytes;
  room.disk_bytes = int64_t{1} << 40;
  room.device_milli.assign(devices.begin(), devices.end());
  return room;
}

SliceWish Wish(int64_t gpus_milli, int64_t cpus = 1) {
  return {Demand{gpus_milli, cpus * 1000, 1 << 20, 0}};
}

TEST(Score, BucketsAreThoseOfTheSigmoid) {
  for (const int64_t total : {1, 7, 8152}) {
    for (int64_t thousandths = -6000; thousandths <= 6000; thousandths += 7) {
      const double x = static_cast<double>(thousandths) / 1000;
      EXPECT_EQ(HostScorer::SigmoidBucket(thousandths * total, total),
                static_cast<int>(100 / (1 + std::exp(-x))))
          << x;
    }
  }
  EXPECT_EQ(HostScorer::SigmoidBucket(0, 5), 50);
  EXPECT_EQ(HostScorer::SigmoidBucket(8'000'000, 5), 99);
  EXPECT_EQ(HostScorer::SigmoidBucket(-8'000'000, 5), 0);
}

TEST(Score, FragmentIsWhatTypicalTasksCannotUse) {
  HostScorer scorer(PlacementPolicy::kFgd, {{Wish(500), 3}, {Wish(2000), 1}, {Wish(0), 2}},
                    {{Kind({4}), 1}});
  const int32_t kind = 0;
  struct Case {
    const char* why;
    std::vector<int16_t> devices;
    int64_t cpus;
    int64_t wanted;
  };
  for (const Case& c : std::vector<Case>{
           {"two whole ones: only what needs no GPU can't use them",
            {1000, 1000, 0, 0},
            64,
            2 * 2000},
           {"no pair: lost for the pair", {1000, 400, 0, 0}, 64, 3 * 400 + 1 * 1400 + 2 * 1400},
           {"no CPUs: lost for all", {1000, 1000, 0, 0}, 0, 6 * 2000},
           {"nothing idle, nothing lost", {0, 0, 0, 0}, 64, 0},
       }) {
    EXPECT_EQ(scorer.Fragment(Room(scorer, kind, c.devices, c.cpus)), c.wanted) << c.why;
  }
}

TEST(Score, ExpectedWasteIsWhatNoTypicalTaskCanEverUse) {
  HostScorer scorer(PlacementPolicy::kV, {{Wish(2000, 4), 1}}, {{Kind({4}), 1}});
  const int32_t kind = 0;
  struct Case {
    const char* why;
    std::vector<int16_t> devices;
    int64_t cpus;
    int64_t wanted_milli;
  };
  for (const Case& c : std::vector<Case>{
           {"pairs fill it", {1000, 1000, 1000, 1000}, 64, 0},
           {"the third stays idle", {1000, 1000, 1000, 0}, 64, 1000},
           {"CPUs for one pair", {1000, 1000, 1000, 1000}, 7, 2000},
           {"a share is of no use", {1000, 1000, 600, 0}, 64, 600},
       }) {
    EXPECT_EQ(scorer.ExpectedWaste(Room(scorer, kind, c.devices, c.cpus)),
              c.wanted_milli * HostScorer::kRollouts)
        << c.why;
  }
}

// Three kinds of hosts, and tasks that fit some of them only.
struct Mixed {
  std::vector<TypicalSlice> typical = {{Wish(300, 2), 400},  {Wish(1000, 8), 300},
                                       {Wish(2000, 8), 40},  {Wish(8000, 60), 9},
                                       {Wish(8000, 120), 1}, {Wish(0, 4), 50}};
  std::vector<KindCount> kinds = {{Kind({8}, 96), 500}, {Kind({8}, 128), 20}, {Kind({2}, 32), 80}};
  HostScorer scorer{PlacementPolicy::kV, typical, kinds};
};

TEST(Score, ATaskWeighsTheMoreTheFewerHostsCouldHoldIt) {
  const Mixed mixed;
  for (size_t k = 0; k < mixed.kinds.size(); ++k) {
    for (size_t t = 0; t < mixed.typical.size(); ++t) {
      const auto holds = [&](const KindCount& of) {
        const Demand& worker = mixed.typical[t].wish.worker;
        return worker.cpus_milli <= of.kind.cpus_milli &&
               worker.gpus_milli <= 1000 * of.kind.devices();
      };
      int64_t could = 0;
      for (const KindCount& of : mixed.kinds) could += holds(of) ? of.hosts : 0;
      const double gpus = static_cast<double>(mixed.typical[t].wish.worker.gpus_milli) / 1000;
      const double wanted = holds(mixed.kinds[k])
                                ? static_cast<double>(mixed.typical[t].count) * (1 + 5 * gpus) *
                                      600 / static_cast<double>(could)
                                : 0;
      const int64_t weight = mixed.scorer.Weight(static_cast<int32_t>(k), static_cast<int32_t>(t));
      EXPECT_NEAR(static_cast<double>(weight) / 1000, wanted, 0.001)
          << "kind " << k << " task " << t;
    }
  }
}

TEST(Score, EachPositionOfTheRollOutsDrawsATaskAsOftenAsItsWeightSays) {
  const Mixed mixed;
  for (int32_t k = 0; k < 3; ++k) {
    double sum = 0;
    for (int32_t t = 0; t < 6; ++t) sum += static_cast<double>(mixed.scorer.Weight(k, t));
    for (int position = 0; position < HostScorer::kRolloutTasks; ++position) {
      std::vector<int> drawn(6);
      for (int r = 0; r < HostScorer::kRollouts; ++r) ++drawn[mixed.scorer.Drawn(k, r, position)];
      for (int32_t t = 0; t < 6; ++t) {
        const double wanted =
            HostScorer::kRollouts * static_cast<double>(mixed.scorer.Weight(k, t)) / sum;
        EXPECT_LE(std::abs(drawn[t] - wanted), 2) << "kind " << k << " task " << t;
      }
    }
  }
}

// V by its definition, on devices one by one.
int64_t PlainWaste(const HostScorer& scorer, const std::vector<TypicalSlice>& typical,
                   const HostRoom& host) {
  int64_t waste = 0;
  for (int r = 0; r < HostScorer::kRollouts; ++r) {
    HostRoom left = host;
    for (int k = 0; k < HostScorer::kRolloutTasks; ++k) {
      const Demand& demand = typical[scorer.Drawn(host.kind, r, k)].wish.worker;
      if (!Holds(left, scorer.kinds()[host.kind], demand, SliceWish())) continue;
      int32_t fullest = -1;
      for (size_t d = 0; d < left.device_milli.size() && demand.gpus_milli < 1000; ++d) {
        if (left.device_milli[d] >= demand.gpus_milli &&
            (fullest < 0 || left.device_milli[d] < left.device_milli[fullest]))
          fullest = static_cast<int32_t>(d);
      }
      Subtract(&left, scorer.kinds()[host.kind], demand, fullest);
    }
    for (const int16_t milli : left.device_milli) waste += milli;
  }
  return waste;
}

TEST(Score, AgreesWithThePlainFormsAndWithItself) {
  const Mixed mixed;
  const HostScorer again(PlacementPolicy::kV, mixed.typical, mixed.kinds);
  double asked = 0;
  for (const TypicalSlice& task : mixed.typical) {
    const double gpus = static_cast<double>(task.wish.worker.gpus_milli) / 1000;
    asked += static_cast<double>(task.count) * (1 + 5 * gpus) * gpus;
  }
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) {
    const int32_t kind = static_cast<int32_t>(random() % 3);
    std::vector<int16_t> devices(mixed.kinds[kind].kind.devices());
    for (int16_t& milli : devices)
      milli = random() % 2 == 0 ? 1000 : static_cast<int16_t>(100 * (random() % 10));
    std::sort(devices.begin(), devices.end(), std::greater<int16_t>());
    const HostRoom host = Room(mixed.scorer, kind, devices, static_cast<int64_t>(random() % 129));
    ASSERT_EQ(mixed.scorer.ExpectedWaste(host), PlainWaste(mixed.scorer, mixed.typical, host)) << i;
    ASSERT_EQ(mixed.scorer.ExpectedWaste(host), again.ExpectedWaste(host)) << i;

    const int64_t whole = std::count(devices.begin(), devices.end(), 1000);
    double places = 0;
    for (int32_t t = 2; t < 5; ++t) {  // the gangs
      const Demand& worker = mixed.typical[t].wish.worker;
      const int64_t fit =
          std::min(whole / (worker.gpus_milli / 1000), host.cpus_milli / worker.cpus_milli);
      const double weight = static_cast<double>(mixed.scorer.Weight(kind, t));
      const double scarcity =
          weight / static_cast<double>(mixed.typical[t].count * (1000 + 5 * worker.gpus_milli));
      places += static_cast<double>(fit) * weight * scarcity / 1000 *
                static_cast<double>(worker.gpus_milli) / 1000 / asked * 20 * HostScorer::kRollouts;
    }
    // Each place's worth is rounded down.
    ASSERT_NEAR(static_cast<double>(mixed.scorer.GangPlaces(host)), places, 8) << i;
  }
}

TEST(Slices, ASmallTaskLeavesTheOnlyHostThatCouldHoldARareLargeOne) {
  // Host 0 alone holds the gang with 120 CPUs, one of a thousand tasks.
  const std::vector<TypicalSlice> typical = {
      {Wish(500, 4), 500}, {Wish(1000, 8), 480}, {Wish(8000, 80), 19}, {Wish(8000, 120), 1}};
  HostScorer scorer(PlacementPolicy::kV, typical, {{Kind({8}, 128), 1}, {Kind({8}, 96), 30}});
  for (const int64_t gpus_milli : {500, 1000, 2000, 4000}) {
    SliceIndex index(&scorer);
    const std::vector<int16_t> free(8, 1000);
    index.Set(0, Room(scorer, 0, free, 128));
    for (int32_t slot = 1; slot <= 30; ++slot) index.Set(slot, Room(scorer, 1, free, 96));
    const auto choice = index.Pick(Wish(gpus_milli, gpus_milli / 125));
    ASSERT_TRUE(choice.has_value());
    EXPECT_NE(choice->slot, 0) << gpus_milli;
  }
}

TEST(Slices, PoliciesChooseTheirHosts) {
  struct Case {
    const char* why;
    PlacementPolicy policy;
    std::vector<TypicalSlice> typical;
    std::vector<std::vector<int16_t>> hosts;
    SliceWish wish;
    int32_t slot;
    int16_t share_of;
  };
  const auto V = PlacementPolicy::kV, Fgd = PlacementPolicy::kFgd, Best = PlacementPolicy::kBestFit;
  for (const Case& c : std::vector<Case>{
           {"best fit leaves the fewest whole devices",
            Best,
            {},
            {{1000, 1000}, {1000, 0}},
            Wish(1000),
            1,
            0},
           {"v keeps the pair for the pairs that come",
            V,
            {{Wish(2000), 9}, {Wish(1000), 1}},
            {{1000, 1000}, {1000, 0}},
            Wish(1000),
            1,
            0},
           {"fgd as well",
            Fgd,
            {{Wish(2000), 9}, {Wish(1000), 1}},
            {{1000, 1000}, {1000, 0}},
            Wish(1000),
            1,
            0},
           {"a share closes the gap it fits",
            V,
            {{Wish(1000), 5}, {Wish(300), 5}},
            {{1000, 1000}, {700, 300}},
            Wish(300),
            1,
            300},
           {"best fit takes the fullest device",
            Best,
            {},
            {{700, 300}, {1000, 1000}},
            Wish(300),
            0,
            300},
           {"equal hosts: the lowest slot",
            V,
            {{Wish(1000), 1}},
            {{1000, 1000}, {1000, 1000}},
            Wish(1000),
            0,
            0},
           {"no host holds it",
            V,
            {{Wish(1000), 1}},
            {{1000, 500}, {500, 1000}},
            Wish(2000),
            -1,
            0},
       }) {
    HostScorer scorer(c.policy, c.typical, {{Kind({2}), 2}});
    const int32_t kind = 0;
    SliceIndex index(&scorer);
    for (size_t h = 0; h < c.hosts.size(); ++h)
      index.Set(static_cast<int32_t>(h), Room(scorer, kind, c.hosts[h]));
    const auto choice = index.Pick(c.wish);
    EXPECT_EQ(choice.has_value() ? choice->slot : -1, c.slot) << c.why;
    EXPECT_EQ(choice.has_value() ? choice->share_of : 0, c.share_of) << c.why;
  }
}

TEST(Slices, TheIndexChoosesWhatALookAtEveryHostChooses) {
  std::mt19937 random(3);
  const auto upto = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const std::vector<TypicalSlice> typical = {
      {Wish(1000, 8), 5}, {Wish(300, 2), 4}, {Wish(2000, 16), 2}, {Wish(0, 4), 1}};
  for (const PlacementPolicy policy :
       {PlacementPolicy::kV, PlacementPolicy::kFgd, PlacementPolicy::kBestFit}) {
    HostKind other = Kind({4}, 48);
    other.label = 2;
    const std::vector<KindCount> kinds = {{Kind({4}), 20}, {Kind({2, 2}, 32), 15}, {other, 5}};
    HostScorer scorer(policy, typical, kinds), plain(policy, typical, kinds);
    SliceIndex index(&scorer);
    std::vector<std::optional<HostRoom>> hosts(40);
    for (int step = 0; step < 4000; ++step) {
      const int32_t slot = upto(40);
      if (upto(12) == 0) {
        hosts[slot].reset();
        index.Remove(slot);
      } else {
        const int32_t kind = upto(3);
        std::vector<int16_t> devices;
        for (int d = 0; d < 4; ++d)
          devices.push_back(static_cast<int16_t>(upto(3) == 0   ? 0
                                                 : upto(2) == 0 ? 1000
                                                                : 100 * upto(10)));
        auto from = devices.begin();
        for (const int32_t size : scorer.kinds()[kind].islands) {
          std::sort(from, from + size, std::greater<int16_t>());
          from += size;
        }
        hosts[slot] = Room(scorer, kind, devices, upto(33));
        index.Set(slot, *hosts[slot]);
      }
      const int64_t gpus[] = {0, 300, 500, 1000, 2000, 3000};
      SliceWish wish = Wish(gpus[upto(6)], upto(9));
      if (upto(4) == 0) wish.labels = 1 + static_cast<uint64_t>(upto(2));
      wish.one_island = upto(3) == 0;
      if (wish.worker.gpus_milli == 2000 && upto(2) == 0) wish.island_gpus = 2;
      std::vector<int32_t> avoid;
      for (int32_t s = 0; s < 40; ++s) {
        if (upto(20) == 0) avoid.push_back(s);
      }
      std::optional<SliceIndex::Choice> wanted;
      for (int32_t s = 0; s < 40; ++s) {
        if (!hosts[s].has_value() || std::binary_search(avoid.begin(), avoid.end(), s)) continue;
        const HostKind& kind = plain.kinds()[hosts[s]->kind];
        const std::optional<Demand> demand = DemandOn(wish, kind);
        if (!demand.has_value() || !Holds(*hosts[s], kind, *demand, wish)) continue;
        const HostScorer::Cost cost = plain.Of(*hosts[s], *demand);
        if (!wanted.has_value() || cost.price < wanted->price) {
          wanted = SliceIndex::Choice{
              s, cost.device < 0 ? int16_t{0} : hosts[s]->device_milli[cost.device], cost.price};
        }
      }
      const std::optional<SliceIndex::Choice> chosen = index.Pick(wish, avoid);
      ASSERT_EQ(chosen.has_value(), wanted.has_value()) << step;
      if (!chosen.has_value()) continue;
      ASSERT_EQ(chosen->slot, wanted->slot) << step;
      ASSERT_EQ(chosen->share_of, wanted->share_of) << step;
    }
  }
}

}  // namespace
}  // namespace muster
