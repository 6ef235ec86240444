// For tests: a small model trained for some steps on ranks that are threads, in any way.
#pragma once

#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "trainer/data/batches.h"
#include "trainer/data/context_rows.h"
#include "trainer/model/family.h"
#include "trainer/model/init.h"
#include "trainer/model/router_bias.h"
#include "trainer/optim/adamw.h"
#include "trainer/parallel/engine.h"
#include "trainer/parallel/testing/test_ranks.h"

namespace muster::trainer {

inline constexpr int64_t kRows = 8, kLength = 6;
inline constexpr int kSteps = 4;
// How far losses of the same training may be apart that is summed in another order. It depends on
// the CPU: 1.5e-6 was seen with vectors of 512 bits, 1e-6 with those of 256.
inline constexpr double kRounding = 5e-6;
inline constexpr double kBiasSpeed = 0.05;  // of routers' biases, where tokens are counted

inline ModelConfig Tiny(bool tied) {
  ModelConfig c;
  c.vocab_size = 37, c.hidden_size = 24, c.intermediate_size = 40, c.num_layers = 3,
  c.num_heads = 4, c.num_kv_heads = 2, c.head_dim = 8;
  c.tie_word_embeddings = tied;
  return c;
}

// Rows [begin, end) of step `step`. How many of a row's targets count differs from row to row.
inline BatchMeta Rows(int step, int64_t begin, int64_t end) {
  at::manual_seed(static_cast<uint64_t>(100 + step));
  const at::Tensor ids = at::randint(0, 37, {kRows, kLength}, at::kLong),
                   targets = at::randint(0, 37, {kRows, kLength}, at::kLong);
  at::Tensor weights = at::zeros({kRows, kLength});
  int64_t count = 0;
  for (int64_t row = 0; row < kRows; ++row) {
    const int64_t n = 1 + row % kLength;
    weights.select(0, row).narrow(0, 0, n).fill_(1);
    count += n;
  }
  weights.div_(static_cast<double>(count));
  const auto cut = [&](const at::Tensor& all) {
    return all.narrow(0, begin, end - begin).flatten();
  };
  return {.batch = end - begin,
          .length = kLength,
          .ids = cut(ids),
          .targets = cut(targets),
          .weights = cut(weights),
          .row_shares = std::vector<float>(static_cast<size_t>(end - begin), 1.0f / kRows)};
}

// The same with documents in them, one of which leaves off before the row's end. Row 3 has no
// weighted token.
inline BatchMeta PackedRows(int step, int64_t begin, int64_t end) {
  BatchMeta meta = Rows(step, begin, end);
  meta.positions = at::zeros({meta.tokens()}, at::kLong);
  meta.in_documents = at::zeros({meta.tokens()}, at::kFloat);
  for (int64_t row = 0; row < meta.batch; ++row) {
    const int64_t cut = 1 + (begin + row) % (kLength - 1), last = kLength - (begin + row) % 2;
    if (begin + row == 3) meta.weights.narrow(0, row * kLength, kLength).zero_();
    if (last < kLength) meta.weights[row * kLength + last].zero_();
    int64_t from = 0;
    for (const int64_t to : {cut, last}) {
      if (from >= to) continue;
      meta.documents.push_back({row, from, to});
      meta.in_documents.narrow(0, row * kLength + from, to - from).fill_(1);
      for (int64_t at = from; at < to; ++at)
        meta.positions.data_ptr<int64_t>()[row * kLength + at] = at - from;
      from = to;
    }
  }
  return meta;
}

struct Way {
  const char* name;
  int ranks = 1;
  int micro_batches = 1;
  EngineOptions options = {};
  int shard_size = 0;
  double clip_norm = 0;
  bool scatter = false;  // gradients are summed as on GPUs
  int tp = 1, pp = 1, ep = 1;
  int cp = 1;
  ContextSharding sharding = ContextSharding::kAuto;
  // Rows of documents instead of whole ones.
  bool packed = false;
  // Weights are updated as those of a GPU with its state on the host, beside what comes next.
  bool update_beside = false;
  bool evaluate = true;  // after each step
};

// What a rank takes of rows [begin, end).
inline BatchMeta PartOfRows(const Way& way, const World& world, int step, int64_t begin,
                            int64_t end) {
  const ContextShare share{world.mesh().CpIndex(world.rank()), world.mesh().cp(), way.sharding};
  return TakeContextPart(way.packed ? PackedRows(step, begin, end) : Rows(step, begin, end), share);
}

// A rank's micro-batches of a step: of its share of the rows, or where sums are trees in turns. Not
// by two ranks at once, as the generator behind Rows is the process's.
inline std::vector<BatchMeta> BatchesOf(const Way& way, const World& world, int step) {
  const int dp = world.mesh().dp(),
            tree_ranks = way.options.flats.tree_units * (dp / world.mesh().units());
  const int64_t share = tree_ranks > 0 ? kRows : kRows / dp;
  std::vector<BatchMeta> batches;
  for (const Cut& cut : CutBatch(kRows, share / way.micro_batches,
                                 world.mesh().DpIndex(world.rank()), dp, tree_ranks)) {
    const bool exists = cut.first < kRows;
    const int64_t first = exists ? cut.first : 0;
    batches.push_back(PartOfRows(way, world, step, first, first + cut.rows));
    if (exists) continue;
    batches.back().weights.zero_();
    batches.back().row_shares = {0};
  }
  return batches;
}

struct Outcome {
  std::vector<double> losses;
  std::vector<at::Tensor> weights;  // every parameter of the model, in the end
};

inline Outcome Train(const Way& way, const ModelConfig& model) {
  Outcome outcome;
  std::mutex mutex, seeds;  // the generator behind manual_seed is the process's
  const auto body = [&](World& world) {
    EngineOptions options = way.options;
    options.max_length = kLength;
    if (way.scatter) world.PreferAllReduce(false);
    Engine engine(model, &world, options);
    for (const auto& flat : engine.flats()) InitialiseMasters(*flat, 3, 0.3);
    AdamW optimizer(engine.flats(), {.weight_decay = 0.1}, BestCpuForm(),
                    way.update_beside ? -64 : AdamW::kStagedNumel);
    std::vector<double> losses;
    const auto sum = [&](double mine) {
      double all = 0;
      for (const auto& row : world.GatherRows({mine})) all += row[0];
      return all;
    };
    for (int step = 0; step < kSteps; ++step) {
      std::vector<BatchMeta> batches;
      {
        const std::lock_guard<std::mutex> lock(seeds);
        batches = BatchesOf(way, world, step);
      }
      losses.push_back(sum(engine.Run(batches).loss));
      const double norm = std::sqrt(sum(ShardSquaredNorm(engine.flats()).Value()));
      optimizer.Start(step + 1, 1e-2, ClipCoefficient(norm, way.clip_norm));
      if (options.count_tokens) MoveRouterBiases(engine.flats(), kBiasSpeed);
      if (!way.evaluate) continue;
      std::vector<BatchMeta> again;
      {
        const std::lock_guard<std::mutex> lock(seeds);
        again = BatchesOf(way, world, step);
      }
      losses.push_back(sum(engine.Evaluate(again)));
    }
    engine.UnshardAll();
    if (world.rank() != 0) return;
    const std::lock_guard<std::mutex> lock(mutex);
    outcome.losses = losses;
    for (const FlatLayout& flat : MakeLayout(model).flats) {
      for (const Segment& segment : flat.segments())
        outcome.weights.push_back(engine.WholeWeight(segment.name).clone());
    }
  };
  OnRanks(way.ranks, body, way.shard_size, way.tp, way.pp, way.options.chunks > 1, way.ep, way.cp);
  return outcome;
}

inline Outcome Train(const Way& way, bool tied = false) { return Train(way, Tiny(tied)); }

inline void ExpectSameWeights(const Outcome& found, const Outcome& wanted) {
  ASSERT_EQ(found.weights.size(), wanted.weights.size());
  for (size_t i = 0; i < found.weights.size(); ++i)
    EXPECT_TRUE(at::equal(found.weights[i], wanted.weights[i])) << i;
}

inline void ExpectNear(const Outcome& found, const Outcome& wanted, double bound) {
  ASSERT_EQ(found.losses.size(), wanted.losses.size());
  for (size_t i = 0; i < found.losses.size(); ++i)
    EXPECT_LE(std::abs(found.losses[i] - wanted.losses[i]) / wanted.losses[i], bound) << i;
}

inline void ExpectSame(const Outcome& found, const Outcome& wanted) {
  EXPECT_EQ(found.losses, wanted.losses);
  ExpectSameWeights(found, wanted);
}

// As far as AdamW's steps let them differ.
inline void ExpectWeights(const Outcome& found, const Outcome& wanted) {
  for (size_t i = 0; i < wanted.weights.size(); ++i)
    EXPECT_TRUE(at::allclose(found.weights[i], wanted.weights[i], 1e-3, 1e-4)) << i;
}

inline FlatOptions Stage(int stage, FlatOptions more = {}) {
  more.zero_stage = stage;
  return more;
}

// Gradients of a step by parameter, put together from what each rank owns alone. How often each
// element was owned must be once.
inline std::map<std::string, at::Tensor> GradientsOf(const Way& way, const ModelConfig& model,
                                                     double* norm) {
  std::map<std::string, at::Tensor> gradients, owners;
  for (const FlatLayout& flat : MakeLayout(model).flats) {
    for (const Segment& segment : flat.segments()) {
      gradients[segment.name] = at::zeros(segment.shape);
      owners[segment.name] = at::zeros(segment.shape);
    }
  }
  std::mutex mutex;
  OnRanks(
      way.ranks,
      [&](World& world) {
        EngineOptions options = way.options;
        options.max_length = kLength;
        if (way.scatter) world.PreferAllReduce(false);
        Engine engine(model, &world, options);
        for (const auto& flat : engine.flats()) InitialiseMasters(*flat, 3, 0.3);
        std::vector<BatchMeta> batches;
        {
          const std::lock_guard<std::mutex> lock(mutex);
          batches = BatchesOf(way, world, 0);
        }
        engine.Run(batches);
        double squares = 0;
        for (const auto& row : world.GatherRows({ShardSquaredNorm(engine.flats()).Value()}))
          squares += row[0];
        const std::lock_guard<std::mutex> lock(mutex);
        *norm = std::sqrt(squares);
        for (const auto& flat : engine.flats()) {
          const at::Tensor own = flat->ShardGradient();
          const FlatLayout& layout = flat->layout();
          for (const SegmentPiece& piece :
               PiecesIn(layout, flat->shard_begin(), flat->shard_begin() + flat->shard_numel())) {
            const std::string& name = layout.segments()[piece.segment].name;
            ForEachRun(layout, piece, [&](int64_t at, int64_t in_parameter, int64_t count) {
              gradients[name]
                  .view(-1)
                  .narrow(0, in_parameter, count)
                  .add_(own.narrow(0, at, count));
              owners[name].view(-1).narrow(0, in_parameter, count).add_(1);
            });
          }
        }
      },
      way.shard_size, way.tp, way.pp, way.options.chunks > 1, way.ep, way.cp);
  for (const auto& [name, count] : owners) EXPECT_TRUE(count.eq(1).all().item<bool>()) << name;
  return gradients;
}

// That the gradients of a step are `wanted`, those of one rank, and their norm is. `bound`: how
// far each may be off, of its length.
inline void ExpectGradients(const Way& way, const ModelConfig& model,
                            const std::map<std::string, at::Tensor>& wanted, double wanted_norm,
                            double bound = 1e-5) {
  double norm = 0;
  const auto found = GradientsOf(way, model, &norm);
  EXPECT_NEAR(norm / wanted_norm, 1, 5e-6);
  for (const auto& [name, gradient] : wanted) {
    const double distance = (found.at(name) - gradient).norm().item<double>(),
                 length = gradient.norm().item<double>();
    EXPECT_GT(length, 0) << name;
    EXPECT_LE(distance / length, bound) << name;
  }
}

inline FlatOptions Poisoned(int stage) { return Stage(stage, {.poison = true}); }

}  // namespace muster::trainer
