// One layout on any number of units (mesh.h): the same bits where sums are trees.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "trainer/parallel/sum_tree.h"
#include "trainer/parallel/testing/engine_ways.h"

namespace muster::trainer {
namespace {

// Tied, with norms of heads and biases; enough layers for two stretches a stage.
ModelConfig Dense(bool tied) {
  ModelConfig c = Tiny(tied);
  c.num_layers = 4;
  c.qk_norm = c.qkv_bias = c.out_bias = true;
  return c;
}

// A dense layer and two whose routers have biases, with an expert that every token meets.
ModelConfig WithExperts() {
  ModelConfig c = Tiny(false);
  c.family = "dots1";
  c.qk_norm = true;
  c.experts.count = 8, c.experts.per_token = 3, c.experts.width = 10;
  c.experts.sigmoid = true, c.experts.groups = 4, c.experts.top_groups = 2;
  c.experts.shared = 1, c.experts.shared_width = 10;
  c.experts.sparse_layers = {false, true, true};
  return c;
}

struct Layout {
  Way unit;    // one unit's ranks
  int dp = 1;  // of those, with different rows
  bool tied = true, experts = false;

  ModelConfig Model() const { return experts ? WithExperts() : Dense(tied); }
  int64_t Parts() const { return kRows / dp; }
  // One row a micro-batch.
  Way On(int units, int stage) const {
    Way way = unit;
    way.ranks = units * unit.ranks;
    way.micro_batches = static_cast<int>(kRows);
    way.options.count_tokens = experts;
    FlatOptions& flats = way.options.flats;
    flats.zero_stage = stage, flats.poison = true;
    flats.tree_units = TreeUnits(Parts(), units);
    flats.tree_levels = TreeLevels(Parts() / flats.tree_units);
    // Two copies of what is sharded, where stages are odd.
    if (stage % 2 == 1 && units % 2 == 0) way.shard_size = units / 2 * unit.ranks / unit.pp;
    return way;
  }
  // The same rows without trees, on a unit alone.
  Way Plain() const {
    Way way = unit;
    way.micro_batches = static_cast<int>(Parts());
    way.options.count_tokens = experts;
    return way;
  }
};

EngineOptions Interleaved() {
  EngineOptions options;
  options.pipeline = PipelineKind::kInterleaved, options.chunks = 2;
  return options;
}

std::vector<Layout> Layouts() {
  return {
      {{.name = "tp 2", .ranks = 2, .tp = 2}},
      {{.name = "pp 2", .ranks = 2, .pp = 2}},
      {{.name = "pp 2, interleaved", .ranks = 2, .options = Interleaved(), .pp = 2}},
      {{.name = "cp 2, documents", .ranks = 2, .cp = 2, .packed = true}},
      {{.name = "cp 3", .ranks = 3, .cp = 3}},  // a sum of three has an order
      {{.name = "pp 2 x tp 2",
        .ranks = 4,
        .options = {.recompute = RecomputeMode::kFull},
        .tp = 2,
        .pp = 2}},
      {{.name = "ep 2", .ranks = 2, .ep = 2}, 2, false, true},
      {{.name = "tp 2 x ep 2", .ranks = 2, .tp = 2, .ep = 2}, 1, false, true},
      {{.name = "tp 2 x ep 4", .ranks = 4, .tp = 2, .ep = 4}, 2, false, true},
  };
}

// Of three units two have parts.
TEST(Elastic, ALayoutOnAnyNumberOfUnitsIsTheSameBits) {
  for (const Layout& layout : Layouts()) {
    SCOPED_TRACE(layout.unit.name);
    const Outcome wanted = Train(layout.On(1, 1), layout.Model());
    // AdamW's first steps move a weight by the rate whatever its gradient's size: of gradients that
    // are little but rounding, by its sign. How many there are depends on the CPU.
    ExpectNear(wanted, Train(layout.Plain(), layout.Model()), 1e-3);
    for (const int units : {2, 3}) {
      if (units * layout.unit.ranks > 8) continue;
      const int stage = units == 2 ? 3 : 2;
      SCOPED_TRACE(absl::StrCat(units, " units, stage ", stage));
      const Outcome its = Train(layout.On(units, stage), layout.Model());
      ExpectNear(its, wanted, 1e-12);
      ExpectSameWeights(its, wanted);
    }
  }
}

// The order matters here: without trees two units round otherwise.
TEST(Elastic, WithoutTreesAnotherNumberOfUnitsIsOtherBits) {
  const Layout layout = Layouts()[0];
  const Outcome wanted = Train(layout.Plain(), layout.Model());
  Way way = layout.Plain();
  way.ranks *= 2, way.micro_batches /= 2;
  const Outcome its = Train(way, layout.Model());
  size_t same = 0;
  for (size_t i = 0; i < wanted.weights.size(); ++i)
    same += at::equal(its.weights[i], wanted.weights[i]) ? 1 : 0;
  EXPECT_LT(same, wanted.weights.size());
}

// An embedding of its own is in one stage.
TEST(Elastic, StagesChangeNoBitOfATree) {
  Layout layout{{.name = "pp 2", .ranks = 2, .pp = 2}};
  layout.tied = false;
  Layout alone{{.name = "one rank"}};
  alone.tied = false;
  const Outcome wanted = Train(alone.On(1, 1), alone.Model());
  for (const int units : {1, 2, 4}) {
    SCOPED_TRACE(units);
    ExpectSameWeights(Train(layout.On(units, 2), layout.Model()), wanted);
  }
}

}  // namespace
}  // namespace muster::trainer
