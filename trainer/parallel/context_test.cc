// Ranks that share out rows train as one rank does.
#include <cmath>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "trainer/parallel/testing/engine_ways.h"

namespace muster::trainer {
namespace {

// A window of three tokens in two of three layers, norms of heads and biases.
ModelConfig WithWindows() {
  ModelConfig c = Tiny(true);
  c.num_heads = 8, c.num_kv_heads = 4, c.head_dim = 4;
  c.qk_norm = c.qkv_bias = true;
  c.sliding_window = 3;
  c.sliding_layers = {true, false, true};
  return c;
}

ModelConfig WithExperts() {
  ModelConfig c = Tiny(false);
  c.family = "qwen3_moe";
  c.qk_norm = true;
  c.experts.count = 4, c.experts.per_token = 2, c.experts.width = 18;
  c.experts.sparse_layers = {true, false, true};
  return c;
}

// Rows have 6 tokens: with cp 4 there are more chunks than tokens.
const Way kShared[] = {
    {.name = "cp 2", .ranks = 2, .micro_batches = 2, .options = {.flats = Stage(0)}, .cp = 2},
    {.name = "cp 3, stage 2", .ranks = 3, .options = {.flats = Poisoned(2)}, .cp = 3},
    {.name = "cp 4, stage 3",
     .ranks = 4,
     .micro_batches = 2,
     .options = {.flats = Poisoned(3), .recompute = RecomputeMode::kFull},
     .cp = 4},
    {.name = "dp 2 x cp 2, two copies, stage 3",
     .ranks = 4,
     .micro_batches = 2,
     .options = {.flats = Poisoned(3), .recompute = RecomputeMode::kPointwise},
     .shard_size = 2,
     .cp = 2},
    {.name = "tp 2 x cp 2",
     .ranks = 4,
     .micro_batches = 2,
     .options = {.flats = Stage(1), .recompute = RecomputeMode::kKeepAttention},
     .tp = 2,
     .cp = 2},
    {.name = "pp 3 x cp 2",
     .ranks = 6,
     .micro_batches = 4,
     .options = {.flats = Stage(2)},
     .pp = 3,
     .cp = 2},
};

std::string NameOf(const Way& way) {
  return absl::StrCat(way.name, ", sharding ", static_cast<int>(way.sharding),
                      way.packed ? ", packed" : "");
}

TEST(Context, GradientsOfEveryParameterAreThoseOfOneRank) {
  const ModelConfig model = WithWindows();
  for (const bool packed : {false, true}) {
    double wanted_norm = 0;
    const auto wanted = GradientsOf({.name = "one rank", .packed = packed}, model, &wanted_norm);
    for (const ContextSharding sharding :
         {ContextSharding::kSequence, ContextSharding::kDocument}) {
      for (Way way : kShared) {
        way.packed = packed, way.sharding = sharding;
        SCOPED_TRACE(NameOf(way));
        ExpectGradients(way, model, wanted, wanted_norm);
      }
    }
  }
}

TEST(Context, GradientsOfExpertsAreThoseOfOneRankBalancedOrNot) {
  const ModelConfig model = WithExperts();
  for (const BalanceKind kind : {BalanceKind::kNone, BalanceKind::kSequence, BalanceKind::kBatch}) {
    Way alone{.name = "one rank"};
    alone.options.balance = {kind, 0.7};
    alone.packed = true;
    double wanted_norm = 0;
    const auto wanted = GradientsOf(alone, model, &wanted_norm);
    for (const int ep : {1, 2, 4}) {
      Way way{.name = "cp 2 x dp 2", .ranks = 4, .options = {.flats = Poisoned(2)}};
      way.options.balance = alone.options.balance;
      way.packed = true, way.ep = ep, way.cp = 2;
      // The loss of a batch is of all rows of a micro-batch at once: dp 2 would be another one.
      if (kind == BalanceKind::kBatch) way.ranks = 4, way.cp = 4;
      SCOPED_TRACE(absl::StrCat("ep ", ep, ", balance ", static_cast<int>(kind)));
      ExpectGradients(way, model, wanted, wanted_norm);
    }
  }
}

TEST(Context, TrainsAsOneRankDoes) {
  for (const bool packed : {false, true}) {
    const ModelConfig model = WithWindows();
    const Outcome wanted = Train({.name = "one rank", .packed = packed}, model);
    EXPECT_LT(wanted.losses.back(), wanted.losses.front());
    for (Way way : kShared) {
      way.packed = packed;
      way.scatter = way.ranks != way.tp && way.pp <= 1;
      SCOPED_TRACE(NameOf(way));
      const Outcome found = Train(way, model);
      // Few tokens count there, and AdamW magnifies what rounding leaves of a gradient near zero.
      ExpectNear(found, wanted, packed ? 1e-5 : kRounding);
      ExpectWeights(found, wanted);
    }
  }
}

// Row 3 has no weighted token; with one row a micro-batch all ranks that share it have none.
TEST(Context, RanksWithoutAWeightedTokenChangeNothing) {
  const Outcome wanted = Train({.name = "one rank", .packed = true});
  Way way{.name = "cp 4", .ranks = 4, .micro_batches = 8, .options = {.flats = Stage(2)}, .cp = 4};
  way.packed = true;
  ExpectNear(Train(way), wanted, kRounding);
}

TEST(Context, WhatSavesMemoryChangesNoBit) {
  Way plain{.name = "plain", .ranks = 2, .micro_batches = 2, .options = {.flats = Stage(2)}};
  plain.cp = 2, plain.packed = true;
  const Outcome wanted = Train(plain, WithWindows());
  for (const RecomputeMode mode :
       {RecomputeMode::kPointwise, RecomputeMode::kKeepAttention, RecomputeMode::kFull}) {
    SCOPED_TRACE(static_cast<int>(mode));
    Way way = plain;
    way.options.recompute = mode;
    way.options.flats = Stage(3, {.host_state = true, .poison = true});
    ExpectSame(Train(way, WithWindows()), wanted);
  }
}

TEST(Context, StagesChangeNoBit) {
  for (const PipelineKind kind : {PipelineKind::k1F1B, PipelineKind::kZeroBubble}) {
    Way plain{.name = "plain", .ranks = 2, .micro_batches = 4, .options = {.flats = Stage(1)}};
    plain.cp = 2, plain.packed = true;
    Way way = plain;
    way.ranks = 6, way.pp = 3;
    way.options.pipeline = kind;
    ExpectSame(Train(way), Train(plain));
  }
}

}  // namespace
}  // namespace muster::trainer
