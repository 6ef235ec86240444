#include "trainer/parallel/schedule.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>

#include <gtest/gtest.h>

namespace muster::trainer {
namespace {

// Embedding, layers, head; tied: the head uses the embedding's flat as well.
BlockFlats Blocks(int layers, bool tied) {
  BlockFlats blocks;
  for (int i = 0; i < layers + 2; ++i) blocks.push_back({i});
  if (tied) blocks.back().push_back(0);
  return blocks;
}

struct Case {
  int layers;
  bool tied;
  int micro_batches;
  bool slots, gradient_slots, each, recompute;
};

std::string Name(const Case& c) {
  return std::to_string(c.layers) + " layers" + (c.tied ? " tied" : "") +
         (c.slots ? " slots" : "") + (c.gradient_slots ? " gradient slots" : "") +
         (c.each ? " each" : "") + (c.recompute ? " recompute" : "") + " x" +
         std::to_string(c.micro_batches);
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const int layers : {1, 2, 3, 7}) {
    for (const bool tied : {false, true}) {
      for (const int micros : {1, 2, 3}) {
        for (const bool recompute : {false, true}) {
          cases.push_back({layers, tied, micros, false, false, false, recompute});
          cases.push_back({layers, tied, micros, false, true, false, recompute});
          cases.push_back({layers, tied, micros, false, true, true, recompute});
          cases.push_back({layers, tied, micros, true, true, true, recompute});
        }
      }
    }
  }
  return cases;
}

ScheduleNeeds Needs(const Case& c) {
  return {std::vector<FlatNeeds>(static_cast<size_t>(c.layers + 2),
                                 {true, c.slots, c.gradient_slots, c.each}),
          c.recompute};
}

TEST(Schedule, NothingIsUsedThatIsntThereAndAllIsClosedAtTheEnd) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(Name(c));
    const BlockFlats blocks = Blocks(c.layers, c.tied);
    const int n = static_cast<int>(blocks.size());
    std::set<int> there, open, reducing;
    std::map<int, int> reduces, backwards, recomputes;
    for (const Action& a : MakeSchedule(blocks, Needs(c), c.micro_batches)) {
      switch (a.kind) {
        case Action::kUnshard:
          EXPECT_TRUE(there.insert(a.index).second);
          break;
        case Action::kReshard:
          EXPECT_TRUE(c.slots);
          EXPECT_EQ(there.erase(a.index), 1u);
          break;
        case Action::kForward:
        case Action::kRecompute:
        case Action::kBackward:
          for (const int flat : blocks[a.index]) {
            EXPECT_TRUE(there.contains(flat) || (a.index == 0 && a.kind != Action::kForward))
                << "block " << a.index;
            if (a.kind != Action::kBackward && !(a.kind == Action::kForward && a.index + 1 == n))
              continue;  // adds to no gradient
            EXPECT_EQ(reducing.count(flat), 0u) << "added to while it is summed";
            EXPECT_TRUE(!c.gradient_slots || open.contains(flat));
          }
          backwards[a.index] += a.kind == Action::kBackward;
          recomputes[a.index] += a.kind == Action::kRecompute;
          break;
        case Action::kOpen:
          EXPECT_TRUE(open.insert(a.index).second);
          break;
        case Action::kAccumulate:
          EXPECT_EQ(open.erase(a.index), 1u);
          break;
        case Action::kReduce:
          reducing.insert(a.index);
          ++reduces[a.index];
          break;
        case Action::kWaitReduce:
          EXPECT_EQ(reducing.erase(a.index), 1u);
          EXPECT_TRUE(!c.each || open.erase(a.index) == 1u);
          break;
      }
    }
    EXPECT_TRUE(open.empty() && reducing.empty());
    EXPECT_EQ(there.size(), c.slots ? 0u : blocks.size());
    for (int flat = 0; flat < n; ++flat) {
      EXPECT_EQ(reduces[flat], c.each ? c.micro_batches : 1);
      EXPECT_EQ(backwards[flat], c.micro_batches);
      EXPECT_EQ(recomputes[flat], c.recompute ? c.micro_batches : 0);
    }
  }
}

TEST(Schedule, TiedEmbeddingsAreReducedLastAndOnceAStep) {
  const std::vector<Action> actions =
      MakeSchedule(Blocks(2, true), {std::vector<FlatNeeds>(4), false}, 2);
  const auto reduce = std::find(actions.begin(), actions.end(), Action{Action::kReduce, 0});
  ASSERT_NE(reduce, actions.end());
  EXPECT_TRUE(std::none_of(reduce, actions.end(),
                           [](const Action& a) { return a.kind == Action::kBackward; }));
}

TEST(Schedule, EvaluatingOnlyGoesForward) {
  for (const Action& a : MakeSchedule(
           Blocks(3, false), {std::vector<FlatNeeds>(5, {true, true, true, true}), true}, 2,
           /*training=*/false)) {
    EXPECT_TRUE(a.kind == Action::kUnshard || a.kind == Action::kReshard ||
                a.kind == Action::kForward);
  }
}

TEST(Schedule, FrozenFlatsAreGatheredAndNeverReduced) {
  ScheduleNeeds needs{std::vector<FlatNeeds>(4, {false, true, true, true}), false};
  needs.flats[3].trained = true;
  const BlockFlats blocks = {{0}, {1, 3}, {2}};
  int gathers = 0;
  for (const Action& a : MakeSchedule(blocks, needs, 1)) {
    gathers += a.kind == Action::kUnshard;
    EXPECT_TRUE(
        (a.kind != Action::kOpen && a.kind != Action::kReduce && a.kind != Action::kWaitReduce) ||
        a.index == 3);
  }
  EXPECT_EQ(gathers, 4);
}

TEST(Schedule, EachFlatIsReducedAsOftenAsItNeeds) {
  // A layer of two flats: the gradients of one are summed over ranks by micro-batch, the other's
  // once, after they have been added up where they are.
  ScheduleNeeds needs{std::vector<FlatNeeds>(4, {true, true, true, true}), false};
  needs.flats[2] = {};
  std::map<int, std::map<Action::Kind, int>> count;
  for (const Action& a : MakeSchedule({{0}, {1, 2}, {3}}, needs, 3)) ++count[a.index][a.kind];
  EXPECT_EQ(count[1][Action::kReduce], 3);
  EXPECT_EQ(count[1][Action::kOpen], 3);
  EXPECT_EQ(count[2][Action::kReduce], 1);
  EXPECT_EQ(count[2][Action::kWaitReduce], 1);
  EXPECT_EQ(count[2][Action::kOpen] + count[2][Action::kReshard], 0);
}

TEST(Slots, GatheredWeightsAreAtMostTwoLayersAndTheLargerOfHeadAndEmbedding) {
  for (const Case& c : Cases()) {
    if (!c.slots) continue;
    SCOPED_TRACE(Name(c));
    const BlockFlats blocks = Blocks(c.layers, c.tied);
    constexpr int64_t kLayer = 100, kEmbedding = 1000, kHead = 1010, kNorm = 1;
    std::vector<int64_t> numel(blocks.size(), kLayer);
    numel.front() = kEmbedding, numel.back() = c.tied ? kNorm : kHead;
    const std::vector<Action> schedule = MakeSchedule(blocks, Needs(c), c.micro_batches);
    const SlotMap weights = AssignSlots({schedule}, Action::kUnshard, {Action::kReshard}, numel);
    const int64_t bound = std::min(2, c.layers) * kLayer + (c.tied ? kEmbedding + kNorm : kHead);
    EXPECT_LE(std::accumulate(weights.slot_numel.begin(), weights.slot_numel.end(), int64_t{0}),
              c.layers == 1 ? bound + kEmbedding : bound);
    const SlotMap gradients =
        AssignSlots({schedule}, Action::kOpen, {Action::kAccumulate, Action::kWaitReduce}, numel);
    EXPECT_LE(std::accumulate(gradients.slot_numel.begin(), gradients.slot_numel.end(), int64_t{0}),
              c.layers == 1 ? bound + kEmbedding : bound);
    // No two that are there together are in one slot.
    std::map<int, int> holder;
    for (const Action& a : schedule) {
      EXPECT_TRUE(a.kind != Action::kUnshard ||
                  holder.emplace(weights.slot_of[a.index], a.index).second);
      if (a.kind == Action::kReshard) holder.erase(weights.slot_of[a.index]);
    }
  }
}

}  // namespace
}  // namespace muster::trainer
