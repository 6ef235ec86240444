#include "trainer/parallel/schedule.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>

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
  PipelinePart pipeline = {};
};

// Blocks of a rank of a pipeline: of these stretches of layers, with embedding and head where they
// belong.
struct Stage {
  BlockFlats blocks;
  PipelinePart part;
};
Stage StageOf(PipelineKind kind, int stage, int stages, const std::vector<int>& layers) {
  Stage made{{}, {kind, stage, stages, {0}}};
  for (size_t chunk = 0; chunk < layers.size(); ++chunk) {
    const bool last = stage + 1 == stages && chunk + 1 == layers.size();
    const int blocks = layers[chunk] + (stage == 0 && chunk == 0 ? 1 : 0) + (last ? 1 : 0);
    for (int i = 0; i < blocks; ++i) made.blocks.push_back({static_cast<int>(made.blocks.size())});
    made.part.stretches.push_back(static_cast<int>(made.blocks.size()));
  }
  return made;
}

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

// Runs a schedule in a model of what is there, and holds it to the rules.
void Check(const BlockFlats& blocks, const Case& c, const std::vector<Action>& schedule) {
  const int n = static_cast<int>(blocks.size());
  const PipelinePart& pipeline = c.pipeline;
  const bool has_first = pipeline.stage == 0, has_last = pipeline.stage + 1 == pipeline.stages;
  const bool splits = pipeline.kind == PipelineKind::kZeroBubble;
  std::set<int> there, open, reducing;
  std::set<std::pair<int, int>> asked[2];  // of activations, of gradients: block and micro
  std::map<int, int> reduces, backwards, recomputes, weights;
  int sent = 0, at_head = -1;
  for (const Action& a : schedule) {
    const std::pair<int, int> what{a.index, a.micro};
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
      case Action::kBackwardInput: {
        const bool embeds = has_first && a.index == 0, ends = has_last && a.index + 1 == n;
        // Its gradients come with its forward: of one micro-batch at a time.
        if (ends && a.kind == Action::kForward)
          EXPECT_EQ(std::exchange(at_head, a.micro), -1);
        else if (ends && a.kind != Action::kRecompute)
          EXPECT_EQ(std::exchange(at_head, -1), a.micro);
        for (const int flat : blocks[a.index]) {
          EXPECT_TRUE(there.contains(flat) || (embeds && a.kind != Action::kForward))
              << "block " << a.index;
          if (a.kind == Action::kRecompute || (a.kind == Action::kForward && !ends))
            continue;  // adds to no gradient
          EXPECT_EQ(reducing.count(flat), 0u) << "added to while it is summed";
          EXPECT_TRUE(!c.gradient_slots || open.contains(flat));
        }
        recomputes[a.index] += a.kind == Action::kRecompute;
        if (a.kind == Action::kRecompute) break;
        const bool forward = a.kind == Action::kForward;
        EXPECT_TRUE(forward || splits == (a.kind == Action::kBackwardInput));
        backwards[a.index] += !forward;
        // From the block before or, where a stretch begins, from a neighbour.
        const auto& cuts = pipeline.stretches;
        const int border = forward ? a.index : a.index + 1;
        const bool at_border =
            !cuts.empty() && std::find(cuts.begin(), cuts.end(), border) != cuts.end();
        if (forward ? embeds : ends) break;
        if (at_border) EXPECT_EQ(asked[forward ? 0 : 1].erase(what), 1u) << "block " << a.index;
        break;
      }
      case Action::kWeights:
        EXPECT_LT(weights[a.index]++, backwards[a.index]);
        break;
      case Action::kReceiveInput:
      case Action::kReceiveGradient:
        EXPECT_TRUE(asked[a.kind == Action::kReceiveInput ? 0 : 1].insert(what).second);
        break;
      case Action::kSendOutput:
      case Action::kSendGradient:
        ++sent;
        break;
      case Action::kOpen:
        EXPECT_EQ(reducing.count(a.index), 0u) << "zeroed while it is summed";
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
  EXPECT_TRUE(open.empty() && reducing.empty() && asked[0].empty() && asked[1].empty());
  EXPECT_EQ(there.size(), c.slots ? 0u : blocks.size());
  const int chunks = std::max<int>(1, static_cast<int>(pipeline.stretches.size()) - 1);
  EXPECT_EQ(sent, (2 * chunks - (has_first ? 1 : 0) - (has_last ? 1 : 0)) * c.micro_batches);
  for (int flat = 0; flat < n; ++flat) {
    EXPECT_EQ(reduces[flat], c.each ? c.micro_batches : 1);
    EXPECT_EQ(backwards[flat], c.micro_batches);
    EXPECT_EQ(recomputes[flat], c.recompute ? c.micro_batches : 0);
    EXPECT_EQ(weights[flat], splits ? c.micro_batches : 0);
  }
}

TEST(Schedule, NothingIsUsedThatIsntThereAndAllIsClosedAtTheEnd) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(Name(c));
    const BlockFlats blocks = Blocks(c.layers, c.tied);
    Check(blocks, c, MakeSchedule(blocks, Needs(c), c.micro_batches));
  }
}

TEST(Schedule, SoItIsOnEveryRankOfAPipeline) {
  for (const PipelineKind kind : {PipelineKind::kGpipe, PipelineKind::k1F1B,
                                  PipelineKind::kInterleaved, PipelineKind::kZeroBubble}) {
    for (const int stage : {0, 1, 2}) {
      for (const int layers : {1, 3}) {
        for (const int micros : {1, 2, 3, 7}) {
          for (const bool slots : {false, true}) {
            if (slots && kind == PipelineKind::kZeroBubble) continue;
            const bool interleaved = kind == PipelineKind::kInterleaved;
            const Stage made =
                StageOf(kind, stage, 3, std::vector<int>(interleaved ? 2 : 1, layers));
            Case c{layers, false, micros, slots, slots, slots, true, made.part};
            SCOPED_TRACE(Name(c) + ", stage " + std::to_string(stage) + " of " +
                         std::string(PipelineName(kind)));
            ScheduleNeeds needs{
                std::vector<FlatNeeds>(made.blocks.size(), {true, slots, slots, slots}), true,
                made.part};
            const std::vector<Action> schedule = MakeSchedule(made.blocks, needs, micros);
            Check(made.blocks, c, schedule);
            // What some numbers of micro-batches say of slots holds for others.
            const SlotMap map =
                AssignSlots(TypicalSchedules(made.blocks, needs), Action::kUnshard,
                            {Action::kReshard}, std::vector<int64_t>(made.blocks.size(), 1));
            EXPECT_TRUE(SlotsHold(MakeSchedule(made.blocks, needs, 29), Action::kUnshard,
                                  {Action::kReshard}, map.slot_of));
          }
        }
      }
    }
  }
}

TEST(Schedule, WhatOtherStagesHoldTooIsReducedAfterAllElse) {
  const Stage made = StageOf(PipelineKind::k1F1B, 1, 2, {2});
  ScheduleNeeds needs{std::vector<FlatNeeds>(made.blocks.size()), false, made.part};
  const int head = static_cast<int>(made.blocks.size()) - 1;
  needs.flats[head].reduce_last = true;
  const std::vector<Action> schedule = MakeSchedule(made.blocks, needs, 3);
  EXPECT_EQ(std::count(schedule.begin(), schedule.end(), Action{Action::kReduce, head}), 1);
  const auto reduce = std::find(schedule.begin(), schedule.end(), Action{Action::kReduce, head});
  EXPECT_TRUE(std::all_of(reduce + 1, schedule.end(),
                          [](const Action& a) { return a.kind == Action::kWaitReduce; }));
}

// Those of its stage sum it for each micro-batch, and the stages do at the end.
TEST(Schedule, WhatOtherStagesHoldTooIsReducedLikeTheRestWhereEachMicroBatchIs) {
  const Stage made = StageOf(PipelineKind::k1F1B, 1, 2, {2});
  ScheduleNeeds needs{
      std::vector<FlatNeeds>(made.blocks.size(), {true, false, /*gradients_in_slot=*/true, true}),
      false, made.part};
  const std::vector<Action> wanted = MakeSchedule(made.blocks, needs, 3);
  needs.flats.back().reduce_last = true;
  EXPECT_EQ(MakeSchedule(made.blocks, needs, 3), wanted);
}

TEST(Schedule, GradientsInSlotsCantWait) {
  const Stage made = StageOf(PipelineKind::kZeroBubble, 0, 2, {2});
  const ScheduleNeeds needs{std::vector<FlatNeeds>(made.blocks.size(), {true, false, true, false}),
                            false, made.part};
  EXPECT_THROW(MakeSchedule(made.blocks, needs, 2), std::invalid_argument);
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
