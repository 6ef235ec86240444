// Ranks that share out experts: the way of rows to them and back, and training as one rank does.
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "trainer/model/experts_config.h"
#include "trainer/model/moe.h"
#include "trainer/model/router_bias.h"
#include "trainer/parallel/expert_group.h"
#include "trainer/parallel/testing/engine_ways.h"
#include "trainer/parallel/testing/test_ranks.h"

namespace muster::trainer {
namespace {

// Rows of `rank` for each of 4 experts.
using Counts = std::vector<std::vector<int64_t>>;

// The number of a row, from which one sees whose it is and for which expert.
double Number(int rank, int64_t expert, int64_t row) {
  return static_cast<double>(10000 * rank + 1000 * expert + row);
}

TEST(ExpertGroup, RowsGoToTheirExpertsInTheOrderOfRanksAndComeBack) {
  const Counts cases[] = {
      {{1, 2, 3, 4}, {4, 3, 2, 1}}, {{0, 5, 0, 0}, {0, 0, 0, 7}},
      {{0, 0, 0, 0}, {3, 0, 0, 0}},  // a rank without rows, and one whose experts get none
      {{9, 0, 0, 0}, {9, 0, 0, 0}},  // all for one
      {{0, 0, 0, 0}, {0, 0, 0, 0}},
  };
  OnRanks(
      2,
      [&](World& world) {
        const ExpertGroup group(world.experts(), 4, at::kCPU);
        ASSERT_EQ(group.size(), 2);
        for (const Counts& counts : cases) {
          const std::vector<int64_t>& mine = counts[world.rank()];
          std::vector<double> numbers, wanted;
          for (int64_t expert = 0; expert < 4; ++expert) {
            for (int64_t row = 0; row < mine[expert]; ++row)
              numbers.push_back(Number(world.rank(), expert, row));
          }
          std::vector<int64_t> wanted_counts;
          for (int64_t expert = 2 * world.rank(); expert < 2 * world.rank() + 2; ++expert) {
            wanted_counts.push_back(counts[0][expert] + counts[1][expert]);
            for (int rank = 0; rank < 2; ++rank) {
              for (int64_t row = 0; row < counts[rank][expert]; ++row)
                wanted.push_back(Number(rank, expert, row));
            }
          }
          const at::Tensor rows = at::tensor(numbers, at::kFloat);
          const ExpertGroup::Route route = group.Plan(mine, group.TellCounts(mine));
          EXPECT_EQ(route.counts, wanted_counts);
          for (const at::Tensor& sent : {rows, rows.unsqueeze(1).repeat({1, 3})}) {
            const at::Tensor there = group.ToExperts(sent, route);
            EXPECT_TRUE(at::equal(there.dim() == 1 ? there : there.select(1, 2),
                                  at::tensor(wanted, at::kFloat)));
            EXPECT_TRUE(at::equal(group.FromExperts(there, route), sent));
          }
        }
      },
      0, 1, 1, false, /*ep=*/2);
}

// A layer without experts between two that have them.
ModelConfig WithExperts(bool normalise) {
  ModelConfig c = Tiny(false);
  c.family = "qwen3_moe";
  c.num_heads = 8, c.num_kv_heads = 4, c.head_dim = 4, c.qk_norm = true;
  c.experts.count = 4, c.experts.per_token = 2, c.experts.width = 18;  // 4 slices aren't equal
  c.experts.normalise = normalise;
  c.experts.sparse_layers = {true, false, true};
  return c;
}

// A dense layer, and two with DeepSeek's routing and experts that every token meets.
ModelConfig WithRouterBiases() {
  ModelConfig c = WithExperts(true);
  c.family = "dots1";
  c.experts.count = 8, c.experts.per_token = 3, c.experts.width = 10;
  c.experts.sigmoid = true, c.experts.groups = 4, c.experts.top_groups = 2, c.experts.scale = 1.5;
  c.experts.shared = 2, c.experts.shared_width = 20;
  c.experts.sparse_layers = {false, true, true};
  return c;
}

const Way kShared[] = {
    {.name = "dp 2", .ranks = 2, .options = {.flats = Stage(2)}},
    {.name = "tp 2", .ranks = 2, .micro_batches = 2, .options = {.flats = Stage(1)}, .tp = 2},
    {.name = "tp 4", .ranks = 4, .micro_batches = 8, .options = {.flats = Poisoned(3)}, .tp = 4},
    {.name = "ep 2", .ranks = 2, .micro_batches = 2, .options = {.flats = Stage(0)}, .ep = 2},
    {.name = "ep 4, stage 3",
     .ranks = 4,
     .micro_batches = 2,
     .options = {.flats = Poisoned(3), .recompute = RecomputeMode::kFull},
     .ep = 4},
    {.name = "dp 2 x ep 2, stage 2", .ranks = 4, .options = {.flats = Poisoned(2)}, .ep = 2},
    {.name = "two copies of ep 2, stage 3",
     .ranks = 4,
     .micro_batches = 2,
     .options = {.flats = Poisoned(3), .recompute = RecomputeMode::kPointwise},
     .shard_size = 2,
     .ep = 2},
    // Parts of 6 tokens in 4: some ranks have rows that only fill up.
    {.name = "tp 4 x ep 2",
     .ranks = 4,
     .micro_batches = 8,
     .options = {.flats = Poisoned(3), .recompute = RecomputeMode::kKeepAttention},
     .tp = 4,
     .ep = 2},
    {.name = "tp 2 x ep 4, stage 3",
     .ranks = 4,
     .micro_batches = 2,
     .options = {.flats = Poisoned(3)},
     .tp = 2,
     .ep = 4},
    {.name = "pp 3 x ep 2",
     .ranks = 6,
     .micro_batches = 4,
     .options = {.flats = Poisoned(2)},
     .pp = 3,
     .ep = 2},
};

TEST(Experts, GradientsOfEveryParameterAreThoseOfOneRankHoweverTheyAreSharedOut) {
  for (const BalanceKind kind : {BalanceKind::kNone, BalanceKind::kSequence}) {
    const ModelConfig model = WithExperts(kind == BalanceKind::kNone);
    double wanted_norm = 0;
    Way alone{.name = "one rank"};
    alone.options.balance = {kind, 0.7};
    const auto wanted = GradientsOf(alone, model, &wanted_norm);
    for (Way way : kShared) {
      SCOPED_TRACE(absl::StrCat(way.name, kind == BalanceKind::kNone ? "" : ", balanced"));
      way.options.balance = {kind, 0.7};
      ExpectGradients(way, model, wanted, wanted_norm);
    }
  }
}

// In place of a router's bias's gradient there is how many tokens met each expert: exact.
TEST(Experts, TokensOfEachExpertAreCountedOnceInEveryLayout) {
  const ModelConfig model = WithRouterBiases();
  for (const bool packed : {false, true}) {
    Way alone{.name = "one rank"};
    alone.options.count_tokens = true, alone.packed = packed;
    double wanted_norm = 0, again_norm = 0;
    const auto wanted = GradientsOf(alone, model, &wanted_norm);
    int64_t tokens = kRows * kLength;
    if (packed) {
      tokens = 0;
      for (const ops::DocumentSpan& span : PackedRows(0, 0, kRows).documents)
        tokens += span.end - span.begin;
      EXPECT_LT(tokens, kRows * kLength) << "nothing is padded";
    }
    int layers = 0;
    for (const auto& [name, counts] : wanted) {
      if (!absl::EndsWith(name, kRouterBias)) continue;
      ++layers;
      EXPECT_EQ(counts.sum().item<double>(), 3.0 * static_cast<double>(tokens)) << name;
    }
    EXPECT_EQ(layers, 2);
    Way without = alone;
    without.options.count_tokens = false;
    GradientsOf(without, model, &again_norm);
    EXPECT_EQ(again_norm, wanted_norm) << "counts are in the norm";
    for (Way way : kShared) {
      SCOPED_TRACE(absl::StrCat(way.name, packed ? ", packed" : ""));
      way.options.count_tokens = true, way.packed = packed;
      // Norms of heads have gradients that mostly cancel: fp32 rounds more of these.
      ExpectGradients(way, model, wanted, wanted_norm, /*bound=*/3e-5);
      double norm = 0;
      for (const auto& [name, counts] : GradientsOf(way, model, &norm)) {
        if (absl::EndsWith(name, kRouterBias))
          EXPECT_TRUE(at::equal(counts, wanted.at(name))) << name;
      }
    }
  }
}

TEST(Experts, TrainAsOneRankDoesHoweverTheyAreSharedOut) {
  for (const bool biases : {false, true}) {
    const ModelConfig model = biases ? WithRouterBiases() : WithExperts(true);
    Way alone{.name = "one rank"};
    alone.options.count_tokens = biases;
    const Outcome wanted = Train(alone, model);
    EXPECT_LT(wanted.losses.back(), wanted.losses.front());
    for (Way way : kShared) {
      way.options.count_tokens = biases;
      way.scatter = way.ranks != way.tp && way.pp <= 1;  // without it: the gradients' test, too
      SCOPED_TRACE(absl::StrCat(way.name, way.scatter ? ", scattered" : "",
                                biases ? ", with biases of routers" : ""));
      const Outcome found = Train(way, model);
      ExpectNear(found, wanted, kRounding);
      ExpectWeights(found, wanted);
    }
  }
}

// By the sign of how far an expert is from the mean, and by nothing else: no gradient, decay or
// moment.
TEST(Experts, BiasesOfRoutersGoByOneStepTowardsTheMean) {
  OnRanks(2, [&](World& world) {
    FlatLayout layout;
    layout.MarkRouterBias();
    layout.Add("model.layers.0.mlp.gate.e_score_correction_bias", {5}, /*weight_decay=*/false);
    const FlatOptions options = OptionsOf(layout, Stage(3, {.dtype = at::kBFloat16,
                                                            .bf16_moments = true,
                                                            .bf16_gradients = true,
                                                            .host_state = true}));
    std::vector<std::unique_ptr<FlatParam>> flats;
    flats.push_back(std::make_unique<FlatParam>(layout, &world, options));
    FlatParam& flat = *flats[0];
    EXPECT_EQ(flat.Weight(0).scalar_type(), at::kFloat);
    const at::Tensor begin = at::tensor({0.1f, -0.2f, 0.3f, 0.4f, 0.0f});
    flat.Weight(0).copy_(begin);
    // Of both ranks together: 3, 7, 5, 0, 10, whose mean is 5.
    flat.Gradient(0).copy_(world.rank() == 0 ? at::tensor({1.0f, 7.0f, 2.0f, 0.0f, 4.0f})
                                             : at::tensor({2.0f, 0.0f, 3.0f, 0.0f, 6.0f}));
    flat.StartReduce();
    flat.WaitReduce();
    AdamW optimizer(flats, {.weight_decay = 0.5});
    optimizer.Step(1, 0.1, 1);
    EXPECT_TRUE(at::equal(flat.Weight(0), begin));
    MoveRouterBiases(flats, 0);
    EXPECT_TRUE(at::equal(flat.Weight(0), begin));
    MoveRouterBiases(flats, 0.001);
    flat.StartUnshard();
    flat.WaitUnshard();
    const at::Tensor up = at::tensor({1.0f, -1.0f, 0.0f, 1.0f, -1.0f});
    EXPECT_TRUE(at::equal(flat.Weight(0), begin + up * 0.001f));
  });
}

TEST(Experts, WhatSavesMemoryChangesNoBit) {
  for (const bool biases : {false, true}) {
    const ModelConfig model = biases ? WithRouterBiases() : WithExperts(true);
    for (const int ep : {1, 2}) {
      Way plain{.name = "plain", .ranks = 2, .micro_batches = 2, .options = {.flats = Stage(2)}};
      plain.ep = ep;
      if (!biases) plain.options.balance = {BalanceKind::kSequence, 0.1};
      plain.options.count_tokens = biases;
      const Outcome wanted = Train(plain, model);
      for (const RecomputeMode mode :
           {RecomputeMode::kPointwise, RecomputeMode::kKeepAttention, RecomputeMode::kFull}) {
        SCOPED_TRACE(absl::StrCat("ep ", ep, ", mode ", static_cast<int>(mode),
                                  biases ? ", with biases of routers" : ""));
        Way way = plain;
        way.options.recompute = mode;
        way.options.flats = Stage(3, {.host_state = true, .poison = true});
        ExpectSame(Train(way, model), wanted);
      }
    }
  }
}

TEST(Experts, StagesChangeNoBit) {
  for (const bool biases : {false, true}) {
    const ModelConfig model = biases ? WithRouterBiases() : WithExperts(true);
    Way plain{.name = "plain", .micro_batches = 4, .options = {.flats = Stage(1)}};
    plain.options.count_tokens = biases;
    const Outcome wanted = Train(plain, model);
    for (const PipelineKind kind : {PipelineKind::k1F1B, PipelineKind::kZeroBubble}) {
      for (const RecomputeMode mode :
           {RecomputeMode::kNone, RecomputeMode::kPointwise, RecomputeMode::kKeepAttention}) {
        SCOPED_TRACE(absl::StrCat(std::string(PipelineName(kind)), ", mode ",
                                  static_cast<int>(mode), biases ? ", with biases" : ""));
        Way way{.name = "pp 3", .ranks = 3, .micro_batches = 4, .options = {.flats = Stage(1)}};
        way.options.pipeline = kind, way.options.recompute = mode;
        way.options.count_tokens = biases;
        way.options.flats.poison = true;
        way.pp = 3;
        ExpectSame(Train(way, model), wanted);
      }
    }
  }
}

// A router may be asked twice; what it chose first counts, or the backward would be of other
// experts than the forward.
TEST(Experts, WhoWasChosenIsKeptInEveryMode) {
  for (const RecomputeMode mode : {RecomputeMode::kNone, RecomputeMode::kPointwise,
                                   RecomputeMode::kKeepAttention, RecomputeMode::kFull}) {
    EXPECT_TRUE(MoePart::Keeps(MoePart::kExperts, mode));
    EXPECT_TRUE(MoePart::Keeps(MoePart::kAllExperts, mode));
    EXPECT_TRUE(MoePart::Keeps(MoePart::kTold, mode));
  }
}

}  // namespace
}  // namespace muster::trainer
