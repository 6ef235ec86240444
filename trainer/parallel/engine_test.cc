// A model trained for some steps in every way that may not change its numbers, or only their last
// digits.
#include "trainer/parallel/engine.h"

#include <atomic>
#include <utility>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "trainer/model/init.h"
#include "trainer/optim/adamw.h"
#include "trainer/parallel/testing/engine_ways.h"
#include "trainer/parallel/testing/test_ranks.h"

namespace muster::trainer {
namespace {

TEST(Engine, AnyStageOnFourRanksTrainsAsOneRankDoes) {
  for (const bool tied : {false, true}) {
    const Outcome wanted = Train({.name = "one rank"}, tied);
    EXPECT_LT(wanted.losses.back(), wanted.losses.front());
    for (const Way& way : {Way{"0", 4, 1, {.flats = Stage(0)}},
                           {"1", 4, 2, {.flats = Stage(1)}},
                           {"2", 4, 2, {.flats = Stage(2)}},
                           {"3", 4, 2, {.flats = Stage(3)}},
                           {"3, one micro-batch", 4, 1, {.flats = Stage(3)}},
                           {"hybrid 1", 4, 1, {.flats = Stage(1)}, 2},
                           {"hybrid 2", 4, 2, {.flats = Stage(2)}, 2},
                           {"hybrid 3", 4, 2, {.flats = Stage(3)}, 2},
                           {"3, groups of one", 4, 2, {.flats = Stage(3)}, 1}}) {
      SCOPED_TRACE(way.name);
      ExpectNear(Train(way, tied), wanted, kRounding);
    }
  }
}

TEST(Engine, AnyShardSizeTrainsAsOneRankDoesWhereGradientsAreScattered) {
  const Outcome wanted = Train({.name = "one rank"});
  for (const int stage : {0, 1, 2, 3}) {
    for (const int shard_size : {1, 2, 4}) {
      SCOPED_TRACE(absl::StrCat("stage ", stage, ", shards of ", shard_size));
      ExpectNear(
          Train({"scattered", 4, 2, {.flats = Stage(stage)}, shard_size, 0, /*scatter=*/true}),
          wanted, kRounding);
    }
  }
}

// A model with all that a family may have: heads that are shared, biases, norms of heads.
ModelConfig WithEverything(bool tied) {
  ModelConfig c = Tiny(tied);
  c.num_heads = 8, c.num_kv_heads = 4, c.head_dim = 4, c.num_layers = 2;
  c.qkv_bias = c.out_bias = c.mlp_bias = c.qk_norm = true;
  c.intermediate_size = 42;  // 4 slices of it aren't equal
  return c;
}

const Way kSliced[] = {
    {.name = "tp 2", .ranks = 2, .micro_batches = 2, .options = {.flats = Stage(1)}, .tp = 2},
    {.name = "tp 4, parts that aren't equal",
     .ranks = 4,
     .micro_batches = 8,
     .options = {.flats = Poisoned(3)},
     .tp = 4},
    {.name = "dp 2 x tp 2, stage 0", .ranks = 4, .options = {.flats = Stage(0)}, .tp = 2},
    {.name = "dp 2 x tp 2, stage 2",
     .ranks = 4,
     .micro_batches = 2,
     .options = {.flats = Poisoned(2)},
     .tp = 2},
    {.name = "dp 2 x tp 2, stage 3",
     .ranks = 4,
     .micro_batches = 2,
     .options = {.flats = Poisoned(3), .recompute = RecomputeMode::kFull},
     .tp = 2},
    // Slices aren't shared with other ranks, the rest is: what is in slots differs in a layer.
    {.name = "two copies of tp 2, stage 2",
     .ranks = 4,
     .micro_batches = 2,
     .options = {.flats = Poisoned(2)},
     .shard_size = 2,
     .tp = 2},
    {.name = "two copies of tp 2, stage 3",
     .ranks = 4,
     .micro_batches = 2,
     .options = {.flats = Poisoned(3)},
     .shard_size = 2,
     .tp = 2},
};

TEST(Engine, GradientsOfEveryParameterAreThoseOfOneRankInAnySlices) {
  for (const bool tied : {false, true}) {
    const ModelConfig model = WithEverything(tied);
    double wanted_norm = 0;
    const auto wanted = GradientsOf({.name = "one rank"}, model, &wanted_norm);
    for (const Way& way : kSliced) {
      SCOPED_TRACE(absl::StrCat(way.name, tied ? ", tied" : ""));
      ExpectGradients(way, model, wanted, wanted_norm);
    }
  }
}

TEST(Engine, SlicesTrainAsOneRankDoes) {
  for (const bool tied : {false, true}) {
    const ModelConfig model = WithEverything(tied);
    const Outcome wanted = Train({.name = "one rank"}, model);
    for (Way way : kSliced) {
      way.scatter = tied && way.ranks != way.tp;  // without it: the gradients' test, too
      SCOPED_TRACE(absl::StrCat(way.name, tied ? ", tied" : "", way.scatter ? ", scattered" : ""));
      const Outcome found = Train(way, model);
      ExpectNear(found, wanted, kRounding);
      ExpectWeights(found, wanted);
    }
  }
}

TEST(Engine, SlicesInBf16StayNear) {
  for (const FlatOptions& flats :
       {Stage(2, {.dtype = at::kBFloat16}),
        Stage(3, {.dtype = at::kBFloat16, .split_masters = true, .bf16_gradients = true})}) {
    const Outcome wanted = Train({.name = "dp", .ranks = 2, .options = {.flats = flats}});
    Way sliced{.name = "tp", .ranks = 4, .options = {.flats = flats}};
    sliced.tp = 2;
    ExpectNear(Train(sliced), wanted, 2e-2);
  }
}

TEST(Engine, WhatSavesMemoryChangesNoBitOfSlicesEither) {
  Way plain{.name = "plain", .ranks = 4, .micro_batches = 2, .options = {.flats = Stage(2)}};
  plain.tp = 2;
  const Outcome wanted = Train(plain, true);
  for (const RecomputeMode mode :
       {RecomputeMode::kPointwise, RecomputeMode::kKeepAttention, RecomputeMode::kFull}) {
    Way way = plain;
    way.options.recompute = mode;
    way.options.flats = Stage(3, {.host_state = true, .poison = true});
    SCOPED_TRACE(static_cast<int>(mode));
    ExpectSame(Train(way, true), wanted);
  }
}

// Pipelines: who has which layers and when changes no bit, but for an embedding that the head is
// tied to, whose gradient is summed over stages.

ModelConfig FourLayers(bool tied) {
  ModelConfig c = Tiny(tied);
  c.num_layers = 4;
  return c;
}

Way Piped(const char* name, int ranks, int pp, PipelineKind kind, int micro_batches,
          FlatOptions flats = {}) {
  Way way{
      .name = name, .ranks = ranks, .micro_batches = micro_batches, .options = {.flats = flats}};
  way.pp = pp;
  way.options.pipeline = kind;
  way.options.chunks = kind == PipelineKind::kInterleaved ? 2 : 1;
  return way;
}

// The same without stages.
Way Unpiped(Way way) {
  way.ranks /= way.pp;
  way.pp = way.options.chunks = 1;
  way.options.pipeline = PipelineKind::k1F1B;
  return way;
}

TEST(Engine, PipelinesOfEveryKindChangeNoBit) {
  const Way ways[] = {
      Piped("gpipe", 2, 2, PipelineKind::kGpipe, 4),
      Piped("1f1b", 3, 3, PipelineKind::k1F1B, 8),
      Piped("1f1b, fewer micro-batches than stages", 4, 4, PipelineKind::k1F1B, 2),
      Piped("interleaved", 2, 2, PipelineKind::kInterleaved, 4),
      Piped("interleaved, one micro-batch", 2, 2, PipelineKind::kInterleaved, 1),
      Piped("zero-bubble", 4, 4, PipelineKind::kZeroBubble, 8),
  };
  for (Way way : ways) {
    SCOPED_TRACE(way.name);
    way.clip_norm = 0.5;
    ExpectSame(Train(way, FourLayers(false)), Train(Unpiped(way), FourLayers(false)));
  }
}

TEST(Engine, PipelinesBesideEveryStageOfZeroAndSlicesChangeNoBit) {
  Way sliced = Piped("tp 2", 4, 2, PipelineKind::k1F1B, 4, Poisoned(2));
  sliced.tp = 2;
  Way all = Piped("tp 2, dp 2, stage 3", 8, 2, PipelineKind::kInterleaved, 2, Poisoned(3));
  all.tp = 2;
  all.options.recompute = RecomputeMode::kFull;
  Way copies = Piped("two copies, stage 3", 8, 2, PipelineKind::kGpipe, 2, Poisoned(3));
  copies.shard_size = 2;
  for (const Way& way :
       {sliced, all, copies, Piped("stage 1", 4, 2, PipelineKind::kZeroBubble, 4, Stage(1)),
        Piped("stage 3", 4, 2, PipelineKind::kGpipe, 4, Poisoned(3)),
        Piped("stage 2, interleaved", 4, 2, PipelineKind::kInterleaved, 4, Poisoned(2)),
        Piped("bf16", 2, 2, PipelineKind::kZeroBubble, 4,
              Stage(1, {.dtype = at::kBFloat16, .split_masters = true}))}) {
    SCOPED_TRACE(way.name);
    ExpectSame(Train(way, FourLayers(false)), Train(Unpiped(way), FourLayers(false)));
  }
}

// Layers computed again, and masters and moments on the host, of which some are of an embedding
// that the first and the last stage hold.
TEST(Engine, WhatSavesMemoryChangesNoBitOfPipelinesEither) {
  Way sliced = Piped("tp 2", 4, 2, PipelineKind::k1F1B, 4, Stage(2));
  sliced.tp = 2;
  const Way ways[] = {sliced, Piped("gpipe, stage 3", 4, 2, PipelineKind::kGpipe, 2, Stage(3)),
                      Piped("interleaved", 2, 2, PipelineKind::kInterleaved, 4, Stage(1)),
                      Piped("zero-bubble", 4, 4, PipelineKind::kZeroBubble, 4, Stage(1)),
                      Piped("zero-bubble, bf16", 4, 2, PipelineKind::kZeroBubble, 4,
                            Stage(1, {.dtype = at::kBFloat16}))};
  bool tied = false;
  for (const Way& plain : ways) {
    tied = !tied;  // every second: each takes seconds
    const Outcome wanted = Train(plain, FourLayers(tied));
    for (const RecomputeMode mode : {RecomputeMode::kNone, RecomputeMode::kPointwise,
                                     RecomputeMode::kKeepAttention, RecomputeMode::kFull}) {
      // Which would compute a layer twice more, and is refused.
      if (mode == RecomputeMode::kFull && plain.options.pipeline == PipelineKind::kZeroBubble)
        continue;
      Way way = plain;
      way.options.recompute = mode;
      way.options.flats.host_state = way.options.flats.poison = true;
      SCOPED_TRACE(absl::StrCat(way.name, tied ? ", tied, " : ", ", static_cast<int>(mode)));
      ExpectSame(Train(way, FourLayers(tied)), wanted);
      way.update_beside = mode == RecomputeMode::kNone;
      if (way.update_beside) ExpectSame(Train(way, FourLayers(tied)), wanted);
    }
  }
}

TEST(Engine, ATiedEmbeddingIsSummedOverBothEndsAndOwnedOnce) {
  const ModelConfig model = WithEverything(true);
  double wanted_norm = 0;
  const auto wanted = GradientsOf({.name = "one rank"}, model, &wanted_norm);
  Way sliced = Piped("tp 2", 4, 2, PipelineKind::k1F1B, 2, Poisoned(3));
  sliced.tp = 2;
  Way scattered = Piped("dp 2, stage 2, scattered", 4, 2, PipelineKind::k1F1B, 4, Poisoned(2));
  scattered.scatter = true;
  for (const Way& way : {Piped("pp 2", 2, 2, PipelineKind::k1F1B, 4), sliced, scattered,
                         Piped("dp 2, deterministic", 4, 2, PipelineKind::kGpipe, 2,
                               Stage(3, {.separate_gradients = true, .poison = true})),
                         Piped("dp 2", 4, 2, PipelineKind::kZeroBubble, 4, Stage(1))}) {
    SCOPED_TRACE(way.name);
    double norm = 0;
    const auto found = GradientsOf(way, model, &norm);
    EXPECT_NEAR(norm / wanted_norm, 1, 5e-6);
    for (const auto& [name, gradient] : wanted) {
      const double distance = (found.at(name) - gradient).norm().item<double>();
      EXPECT_LE(distance / gradient.norm().item<double>(), 1e-5) << name;
    }
    ExpectNear(Train(way, model), Train({.name = "one rank"}, model), kRounding);
  }
}

TEST(Engine, TwoRanksAreTwoMicroBatchesBitForBit) {
  for (const bool tied : {false, true}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const FlatOptions exact = {.dtype = dtype, .separate_gradients = true};
      const Outcome wanted = Train({"one process", 1, 2, {.flats = Stage(0, exact)}}, tied);
      for (const int stage : {0, 1, 2, 3}) {
        SCOPED_TRACE(stage);
        ExpectSame(Train({"two ranks", 2, 1, {.flats = Stage(stage, exact)}}, tied), wanted);
      }
    }
  }
}

// Eight micro-batches, and four: a rank of three computes nothing, and four of eight where there
// are four.
TEST(Engine, AnyNumberOfRanksIsTheSameBitsWhereSumsAreTrees) {
  const auto way = [](int ranks, int64_t rows, FlatOptions flats) {
    const int64_t parts = kRows / rows;
    flats.tree_units = TreeUnits(parts, ranks);
    flats.tree_levels = TreeLevels(parts / flats.tree_units);
    return Way{"", ranks, static_cast<int>(parts), {.flats = flats}};
  };
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t rows : {1, 2}) {
      const FlatOptions plain = Stage(0, {.dtype = dtype});
      const Outcome wanted = Train(way(1, rows, plain));
      ExpectNear(wanted, Train({"plain", 1, 1, {.flats = plain}}),
                 dtype == at::kFloat ? 2e-6 : 2e-2);
      for (const int ranks : {2, 3, 4, 8}) {
        for (const int stage : {0, 1, 2, 3}) {
          SCOPED_TRACE(absl::StrCat(ranks, " ranks, stage ", stage, ", rows: ", rows));
          Way found = way(ranks, rows, Stage(stage, {.dtype = dtype, .poison = true}));
          found.shard_size = ranks == 4 && stage % 2 == 1 ? 2 : 0;
          const Outcome its = Train(found);
          ExpectNear(its, wanted, 1e-12);
          ExpectSameWeights(its, wanted);
        }
      }
    }
  }
}

TEST(Engine, WhatSavesMemoryChangesNoBit) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const FlatOptions plain = Stage(3, {.dtype = dtype});
    const auto with = [&](auto change) {
      FlatOptions changed = plain;
      change(changed);
      return changed;
    };
    const Outcome wanted = Train({"plain", 2, 2, {.flats = plain}}, true);
    std::vector<Way> ways = {
        {"slots poisoned", 2, 2, {.flats = with([](FlatOptions& o) { o.poison = true; })}},
        {"weights resident", 2, 2, {.flats = with([](FlatOptions& o) { o.zero_stage = 2; })}},
        {"recompute all", 2, 2, {.flats = plain, .recompute = RecomputeMode::kFull}},
        {"recompute norms and activations",
         2,
         2,
         {.flats = plain, .recompute = RecomputeMode::kPointwise}},
        {"recompute all but attention, poisoned",
         2,
         2,
         {.flats = with([](FlatOptions& o) { o.poison = true; }),
          .recompute = RecomputeMode::kKeepAttention}},
        {"state on the host", 2, 2, {.flats = with([](FlatOptions& o) { o.host_state = true; })}},
        {"weights on the host", 2, 2, {.flats = with([](FlatOptions& o) {
                                         o.host_state = o.host_weights = o.poison = true;
                                       })}},
    };
    if (dtype == at::kBFloat16)
      ways.push_back(
          {"split masters", 2, 2, {.flats = with([](FlatOptions& o) { o.split_masters = true; })}});
    for (const Way& way : ways) {
      SCOPED_TRACE(way.name);
      ExpectSame(Train(way, true), wanted);
    }
  }
}

TEST(Engine, UpdatesBesideTheNextPassChangeNoBit) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const bool weights : {false, true}) {
        if (weights && stage != 3) continue;
        SCOPED_TRACE(absl::StrCat("stage ", stage, weights ? ", weights on the host" : ""));
        const FlatOptions flats = Stage(
            stage, {.dtype = dtype, .host_state = true, .host_weights = weights, .poison = true});
        for (const bool evaluate : {false, true}) {
          Way way{"", 2, 2, {.flats = flats}};
          way.evaluate = evaluate;
          const Outcome wanted = Train(way, true);
          way.update_beside = true;
          ExpectSame(Train(way, true), wanted);
        }
      }
    }
  }
}

TEST(Engine, WaitsForEachFlatsUpdateBeforeItsFirstUseAndBeginsItsGradientsThen) {
  OnRanks(1, [](World& world) {
    EngineOptions options;
    options.max_length = kLength;
    Engine engine(Tiny(false), &world, options);
    for (const auto& flat : engine.flats()) InitialiseMasters(*flat, 3, 0.3);
    const std::vector<BatchMeta> batches = {Rows(0, 0, kRows)};
    engine.Run(batches);
    std::vector<at::Tensor> gradients;
    std::vector<size_t> order, wanted;
    for (size_t f = 0; f < engine.flats().size(); ++f) {
      FlatParam& flat = *engine.flats()[f];
      gradients.push_back(flat.OwnedGradient().clone());
      wanted.push_back(f);
      flat.SetUpdate([&, f] {
        order.push_back(f);
        EXPECT_TRUE(at::equal(engine.flats()[f]->OwnedGradient(), gradients[f])) << f;
      });
    }
    engine.Run(batches);
    EXPECT_EQ(order, wanted);
    for (size_t f = 0; f < wanted.size(); ++f) {
      EXPECT_FALSE(engine.flats()[f]->being_updated());
      EXPECT_TRUE(at::equal(engine.flats()[f]->OwnedGradient(), gradients[f])) << f;
    }
  });
}

// A graph of the CPU's work: done when it is recorded, and again by each Replay but the first, into
// the same memory.
class HostGraph : public Graph {
 public:
  std::vector<at::Tensor> Record(const Work& work) override {
    work_ = work;  // a copy, with what the original uses up
    return results_ = work();
  }
  void Replay() override {
    if (std::exchange(fresh_, false)) return;
    const Work again = work_;
    const std::vector<at::Tensor> results = again();
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i].defined() && !results[i].is_same(results_[i])) results_[i].copy_(results[i]);
    }
    ++replays;
  }
  static inline std::atomic<int> replays = 0;

 private:
  Work work_;
  std::vector<at::Tensor> results_;
  bool fresh_ = true;
};

TEST(Engine, LayersRunAsGraphsToTheSameBits) {
  const FlatOptions three = Stage(3, {.dtype = at::kBFloat16, .poison = true});
  for (const Way& way :
       {Way{"plain", 1, 1},
        {"micro-batches", 1, 4},
        {"stage 3", 2, 2, {.flats = three}},
        {"recompute all", 2, 2, {.flats = three, .recompute = RecomputeMode::kFull}},
        {"recompute all but attention", 1, 2, {.recompute = RecomputeMode::kKeepAttention}}}) {
    SCOPED_TRACE(way.name);
    const Outcome wanted = Train(way);
    Way graphs = way;
    graphs.options.graphs = [] { return std::make_unique<HostGraph>(); };
    HostGraph::replays = 0;
    ExpectSame(Train(graphs), wanted);
    // 3 layers, forward and backward, in all steps but the first; a recorded one runs without a
    // replay.
    EXPECT_EQ(HostGraph::replays, way.ranks * 3 * 2 * (way.micro_batches * (kSteps - 1) - 1));
  }
}

TEST(Engine, WhatCantBeRecordedRunsByPlainLaunches) {
  struct Refusing : HostGraph {
    std::vector<at::Tensor> Record(const Work&) override {
      TORCH_CHECK(false, "operation not permitted when stream is capturing");
    }
  };
  const Way plain{"plain", 1, 2, {.recompute = RecomputeMode::kFull}};
  Way second = plain;  // the second layer's forward is the first that can't be
  second.options.graphs = [made = 0]() mutable -> std::unique_ptr<Graph> {
    return ++made == 1 ? std::make_unique<HostGraph>() : std::make_unique<Refusing>();
  };
  ExpectSame(Train(second), Train(plain));
}

TEST(Engine, ARecorderThatIsStuckEndsTheRunNamingTheField) {
  struct Stuck : HostGraph {
    std::vector<at::Tensor> Record(const Work&) override {
      throw Graph::Stuck("operation not permitted when stream is capturing");
    }
  };
  OnRanks(1, [&](World& world) {
    Engine engine(Tiny(false), &world,
                  {.max_length = kLength, .graphs = [] { return std::make_unique<Stuck>(); }});
    for (const auto& flat : engine.flats()) InitialiseMasters(*flat, 3, 0.3);
    const std::vector<BatchMeta> batches = {Rows(0, 0, 3)};
    engine.Run(batches);
    std::string why;
    try {
      engine.Run(batches);
    } catch (const c10::Error& e) {
      why = e.what();
    }
    EXPECT_NE(
        why.find("forward can't be recorded; set cuda_graphs: false (operation not permitted"),
        std::string::npos)
        << why;
  });
}

TEST(Engine, MicroBatchesOfAnotherShapeRunByPlainLaunches) {
  const auto train = [](MakeGraph graphs) {
    std::vector<double> losses;
    OnRanks(1, [&](World& world) {
      Engine engine(Tiny(false), &world, {.max_length = kLength, .graphs = graphs});
      for (const auto& flat : engine.flats()) InitialiseMasters(*flat, 3, 0.3);
      AdamW optimizer(engine.flats(), {});
      for (int step = 0; step < 5; ++step) {
        // Three rows, then two, then three.
        std::vector<BatchMeta> batches = {Rows(step, 0, 3), Rows(step, 3, 5), Rows(step, 5, 8)};
        losses.push_back(engine.Run(batches).loss);
        optimizer.Step(step + 1, 1e-2, 1);
      }
      EXPECT_EQ(engine.replayed_micro_batches(), graphs ? 2 * 4 - 1 : 0);
    });
    return losses;
  };
  HostGraph::replays = 0;
  EXPECT_EQ(train([] { return std::make_unique<HostGraph>(); }), train({}));
  EXPECT_EQ(HostGraph::replays, 3 * 2 * (2 * 4 - 1));
}

TEST(Engine, OneRankWithItsWeightsOnTheHostUsesSlotsToo) {
  const FlatOptions host = Stage(3, {.host_state = true, .host_weights = true, .poison = true});
  ExpectSame(Train({"slots", 1, 2, {.flats = host}}), Train({"plain", 1, 2, {.flats = Stage(3)}}));
}

TEST(Engine, RoundedStateStaysNear) {
  const Outcome wanted = Train({"plain", 2, 2, {.flats = Stage(2, {.dtype = at::kBFloat16})}});
  for (const Way& way :
       {Way{"moments", 2, 2, {.flats = Stage(2, {.dtype = at::kBFloat16, .bf16_moments = true})}},
        Way{"gradients",
            2,
            2,
            {.flats = Stage(1, {.dtype = at::kBFloat16, .bf16_gradients = true})}}}) {
    SCOPED_TRACE(way.name);
    ExpectNear(Train(way), wanted, 2e-2);
  }
}

TEST(Engine, MemoryIsWhatWasSaidBefore) {
  std::vector<FlatOptions> all;
  for (const int stage : {0, 1, 2, 3}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const bool more : {false, true}) {
        const bool half = dtype == at::kBFloat16;
        all.push_back({.zero_stage = stage, .dtype = dtype, .separate_gradients = more});
        all.push_back(
            {.zero_stage = stage, .dtype = dtype, .tree_units = more ? 4 : 1, .tree_levels = 2});
        all.push_back({.zero_stage = stage, .dtype = dtype, .frozen = true});
        all.push_back({.zero_stage = stage,
                       .dtype = dtype,
                       .frozen = true,
                       .quantisation = more ? Quantisation::kNf4Nested : Quantisation::kNf4});
        all.push_back({.zero_stage = stage, .dtype = dtype, .int8_moments = true});
        all.push_back({.zero_stage = stage,
                       .dtype = dtype,
                       .split_masters = half && more,
                       .bf16_moments = true,
                       .bf16_gradients = half});
        all.push_back({.zero_stage = stage,
                       .dtype = dtype,
                       .host_state = true,
                       .host_weights = stage == 3 && more});
      }
    }
  }
  FlatLayout layout;
  layout.Add("w", {300, 150}, true);
  for (const auto& [ranks, group] : {std::pair<int, int>{1, 0}, {4, 0}, {4, 2}, {4, 1}}) {
    OnRanks(
        ranks,
        [&](World& world) {
          for (const FlatOptions& options : all) {
            EXPECT_EQ(FlatParam(layout, &world, options).Memory(),
                      MemoryOf(layout, world.size(), world.holders({}).shard.size, options));
          }
        },
        group);
  }
}

TEST(Engine, ReductionsAreSumsInFp32) {
  // 256 + 1 is 256 in bf16; with gradients kept in bf16 the ranks' are summed in fp32 and rounded
  // once.
  OnRanks(3, [&](World& world) {
    FlatLayout layout;
    layout.Add("w", {64}, true);
    FlatParam flat(std::move(layout), &world,
                   {.zero_stage = 2, .dtype = at::kBFloat16, .bf16_gradients = true});
    const at::Tensor slot = at::empty({flat.padded_numel()}, at::kFloat);
    flat.BindGradient(slot.data_ptr());
    flat.BeginGradients();
    flat.OpenGradient();
    flat.SumOf(0).ToAdd().fill_(world.rank() == 0 ? 256.0 : 1.0);
    flat.StartReduce();
    flat.WaitReduce();
    for (const SegmentPiece& p : PiecesIn(flat.layout(), flat.owned_begin(), flat.owned_end())) {
      EXPECT_TRUE(
          (flat.OwnedGradient().narrow(0, p.range_begin, p.numel) == 258).all().item<bool>());
    }
  });
}

TEST(Engine, WhatWasReleasedIsPoison) {
  OnRanks(2, [&](World& world) {
    Engine engine(Tiny(false), &world,
                  {.max_length = kLength, .flats = Stage(3, {.poison = true})});
    for (const auto& flat : engine.flats()) InitialiseMasters(*flat, 3, 0.3);
    at::Tensor weight = engine.flats()[1]->Weight(1);
    EXPECT_TRUE(weight.isnan().all().item<bool>());
    engine.flats()[1]->StartUnshard();
    engine.flats()[1]->WaitUnshard();
    EXPECT_FALSE(weight.isnan().any().item<bool>());
    engine.flats()[1]->Reshard();
    EXPECT_TRUE(weight.isnan().all().item<bool>());
  });
}

}  // namespace
}  // namespace muster::trainer
