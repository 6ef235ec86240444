// Gradients that nobody made zero before: what is in their memory never shows.
#include <cmath>
#include <mutex>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "trainer/parallel/flat_param.h"
#include "trainer/parallel/sum_tree.h"
#include "trainer/parallel/testing/engine_ways.h"
#include "trainer/parallel/testing/test_ranks.h"

namespace muster::trainer {
namespace {

// Tied or not, with biases and norms of heads.
ModelConfig Dense(bool tied) {
  ModelConfig c = Tiny(tied);
  c.num_layers = 4;
  c.qk_norm = c.qkv_bias = c.out_bias = c.mlp_bias = true;
  return c;
}

// Gemma 2's: norms behind attention and MLP, which count from one, and capped logits.
ModelConfig WithPostNorms() {
  ModelConfig c = Tiny(true);
  c.num_layers = 4;
  c.post_norms = c.norms_from_one = c.scaled_embeddings = true;
  c.final_softcap = 5;
  return c;
}

// A dense layer, and three with routers that have biases and an expert that every token meets. Of
// so many experts some meet no token of a micro-batch, and some none of a step.
ModelConfig WithExperts() {
  ModelConfig c = Tiny(false);
  c.num_layers = 4;
  c.family = "dots1";
  c.qk_norm = true;
  c.experts.count = 64, c.experts.per_token = 2, c.experts.width = 8;
  c.experts.sigmoid = true, c.experts.groups = 4, c.experts.top_groups = 1;
  c.experts.shared = 1, c.experts.shared_width = 10;
  c.experts.sparse_layers = {false, true, true, true};
  return c;
}

struct Model {
  const char* name;
  ModelConfig config;
  bool lora = false, experts = false;
};

std::vector<Model> Models() {
  return {{"untied", Dense(false)},
          {"tied", Dense(true)},
          {"post norms", WithPostNorms()},
          {"adapters", Dense(false), /*lora=*/true},
          {"experts", WithExperts(), /*lora=*/false, /*experts=*/true}};
}

FlatOptions Tree(int stage, int units) {
  FlatOptions flats = Stage(stage);
  flats.tree_units = TreeUnits(kRows, units);
  flats.tree_levels = TreeLevels(kRows / flats.tree_units);
  return flats;
}

EngineOptions Piped(PipelineKind kind, int stage) {
  EngineOptions options;
  options.flats = Stage(stage);
  options.pipeline = kind, options.chunks = kind == PipelineKind::kInterleaved ? 2 : 1;
  return options;
}

std::vector<Way> Ways() {
  const FlatOptions half = {.dtype = at::kBFloat16, .split_masters = true};
  FlatOptions rounded = Stage(2, half);
  rounded.bf16_gradients = true;
  return {
      {"one rank", 1, 2},
      {"one rank, one row at a time", 1, 8, {.recompute = RecomputeMode::kFull}},
      {"separate", 1, 2, {.flats = {.separate_gradients = true}}},
      {"stage 1, scattered", 2, 2, {.flats = Stage(1)}, 0, 0, /*scatter=*/true},
      {"stage 2", 2, 2, {.flats = Stage(2)}},
      {"two copies, stage 3", 4, 2, {.flats = Stage(3)}, 2},
      {"bf16", 1, 2, {.flats = half}},
      {"bf16 gradients", 2, 2, {.flats = rounded}},
      {.name = "tp 2", .ranks = 2, .micro_batches = 2, .options = {.flats = Stage(1)}, .tp = 2},
      {.name = "zero-bubble",
       .ranks = 2,
       .micro_batches = 4,
       .options = Piped(PipelineKind::kZeroBubble, 1),
       .pp = 2},
      {.name = "interleaved, stage 2",
       .ranks = 4,
       .micro_batches = 2,
       .options = Piped(PipelineKind::kInterleaved, 2),
       .pp = 2},
      {.name = "tree", .ranks = 2, .micro_batches = kRows, .options = {.flats = Tree(2, 2)}},
  };
}

// Each rank's gradients, gaps between parameters among them, one step behind the other.
using Gradients = std::vector<std::vector<at::Tensor>>;

Gradients StepsOf(Way way, const Model& model) {
  Gradients gradients(static_cast<size_t>(way.ranks));
  std::mutex seeds;
  way.options.max_length = kLength;
  way.options.count_tokens = model.experts;
  if (model.lora) way.options.lora = {2, 4, 0, {"all-linear", "lm_head"}};
  OnRanks(
      way.ranks,
      [&](World& world) {
        if (way.scatter) world.PreferAllReduce(false);
        Engine engine(model.config, &world, way.options);
        for (const auto& flat : engine.model_flats()) InitialiseMasters(*flat, 3, 0.3);
        if (model.lora)
          for (const auto& flat : engine.flats()) InitialiseMasters(*flat, 4, 0.3);
        AdamW optimizer(engine.flats(), {});
        for (int step = 0; step < 3; ++step) {
          std::vector<BatchMeta> batches;
          {
            const std::lock_guard<std::mutex> lock(seeds);
            batches = BatchesOf(way, world, step);
          }
          engine.Run(batches);
          for (const auto& flat : engine.flats())
            gradients[static_cast<size_t>(world.rank())].push_back(flat->OwnedGradient().clone());
          optimizer.Step(step + 1, 1e-2, 1);
          if (model.experts) MoveRouterBiases(engine.flats(), kBiasSpeed);
        }
      },
      way.shard_size, way.tp, way.pp, way.options.chunks > 1, way.ep, way.cp);
  return gradients;
}

// With NaN where a gradient begins, in each step and micro-batch.
TEST(Gradients, AreTheBitsOfThoseThatBeginWithZeros) {
  for (const Model& model : Models()) {
    for (Way way : Ways()) {
      SCOPED_TRACE(absl::StrCat(model.name, ", ", way.name));
      way.options.flats.zero_first = true;
      const Gradients wanted = StepsOf(way, model);
      way.options.flats.zero_first = false, way.options.flats.poison = true;
      const Gradients found = StepsOf(way, model);
      for (size_t rank = 0; rank < wanted.size(); ++rank) {
        ASSERT_EQ(found[rank].size(), wanted[rank].size());
        for (size_t i = 0; i < wanted[rank].size(); ++i)
          EXPECT_TRUE(at::equal(found[rank][i], wanted[rank][i])) << rank << ", " << i;
      }
    }
  }
}

// Of the experts there are some that meet no token in a whole step: else it shows nothing.
TEST(Gradients, OfAnExpertWithoutTokensAreZero) {
  Way way{"one rank", 1, 2};
  way.options.flats.poison = true;
  way.options.count_tokens = true;
  double norm = 0;
  int without = 0;
  for (const auto& [name, gradient] : GradientsOf(way, WithExperts(), &norm)) {
    EXPECT_FALSE(gradient.isnan().any().item<bool>()) << name;
    without += gradient.eq(0).all().item<bool>() ? 1 : 0;
  }
  EXPECT_TRUE(std::isfinite(norm));
  EXPECT_GT(without, 0);
}

// Three segments with a gap between them, and padding behind.
FlatLayout Gapped() {
  FlatLayout layout;
  layout.Add("first", {5, 3}, true);
  layout.Add("second", {4}, true);
  layout.Add("third", {7}, true);
  return layout;
}

// Steps of two micro-batches: what comes to which segment.
TEST(Gradients, AreZeroWhereNothingCame) {
  const FlatOptions kinds[] = {Poisoned(0), Poisoned(1), Poisoned(2), Poisoned(3),
                               Stage(0, {.separate_gradients = true, .poison = true})};
  for (const int ranks : {1, 2}) {
    for (const FlatOptions& options : kinds) {
      SCOPED_TRACE(absl::StrCat(ranks, " ranks, stage ", options.zero_stage,
                                options.separate_gradients ? ", separate" : ""));
      OnRanks(ranks, [&](World& world) {
        FlatParam flat(Gapped(), &world, options);
        const at::Tensor slot = at::full({flat.padded_numel()}, std::nan(""), at::kFloat);
        if (flat.gradients_in_slot()) flat.BindGradient(slot.data_ptr());
        for (const int segment : {0, 2, 1}) {
          flat.BeginGradients();
          for (const double summand : {1.0, 2.0}) {
            flat.OpenGradient();
            const ops::GradientSum sum = flat.SumOf(segment);
            sum.Add(at::full_like(sum.tensor(), summand));
            flat.AccumulateGradient();
            if (!flat.reduces_each_micro_batch()) continue;
            flat.StartReduce();
            flat.WaitReduce();
          }
          if (!flat.reduces_each_micro_batch()) {
            flat.StartReduce();
            flat.WaitReduce();
          }
          flat.FinishGradients();
          const Segment& own = flat.layout().segments()[segment];
          const at::Tensor wanted = at::zeros({flat.padded_numel()});
          wanted.narrow(0, own.offset, own.numel).fill_(3.0 * ranks);
          EXPECT_TRUE(at::equal(
              flat.OwnedGradient(),
              wanted.narrow(0, flat.owned_begin(), flat.owned_end() - flat.owned_begin())))
              << own.name;
        }
        // And a step in which no block used it.
        flat.BeginGradients();
        flat.FinishGradients();
        EXPECT_TRUE(flat.OwnedGradient().eq(0).all().item<bool>());
        // And one that somebody updated beside: nobody began its gradients.
        flat.OwnedGradient().fill_(1);
        bool awaited = false;
        flat.SetUpdate([&] { awaited = true; });
        EXPECT_THROW(flat.CopyShard(FlatParam::kMaster, 0, at::empty({flat.shard_numel()})),
                     c10::Error);
        flat.FinishGradients();
        EXPECT_TRUE(awaited);
        EXPECT_FALSE(flat.being_updated());
        EXPECT_TRUE(flat.OwnedGradient().eq(0).all().item<bool>());
      });
    }
  }
}

TEST(Gradients, ASegmentIsSummedUpInOneWay) {
  OnRanks(1, [&](World& world) {
    FlatLayout layout;
    layout.Add("a", {3, 2}, true);
    layout.Add("b", {3, 2}, true, /*joined=*/true);
    layout.Add("c", {3, 2}, true, /*joined=*/true);
    FlatParam flat(std::move(layout), &world, {});
    EXPECT_TRUE(flat.SumOf(0, 2).Begin());
    EXPECT_FALSE(flat.SumOf(0, 2).Begin()) << "the same sum";
    EXPECT_TRUE(flat.SumOf(2).Begin());
    EXPECT_THROW(flat.SumOf(0), c10::Error);
    EXPECT_THROW(flat.SumOf(1), c10::Error);
    FlatParam frozen(Gapped(), &world, {.frozen = true});
    EXPECT_FALSE(frozen.SumOf(0).defined());
  });
}

}  // namespace
}  // namespace muster::trainer
