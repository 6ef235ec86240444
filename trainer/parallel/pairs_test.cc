// Losses of pairs: against autograd, and against themselves on ranks, in slices and with adapters.
#include "trainer/model/pairs.h"

#include <functional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "trainer/data/batches.h"
#include "trainer/parallel/testing/engine_ways.h"

namespace muster::trainer {
namespace {

constexpr DpoConfig kLosses[] = {{true, PairLoss::kSigmoid, 0.3},
                                 {true, PairLoss::kHinge, 0.3},
                                 {true, PairLoss::kIpo, 0.3},
                                 {true, PairLoss::kRobust, 0.3, 0.2}};

// Three rows of four tokens: answers of two tokens and one, of one and two, and no pair.
PairBatch Batch() {
  PairBatch batch;
  batch.chosen = at::tensor({0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}, at::kFloat);
  batch.rejected = at::tensor({0, 0, 0, 1, 0, 0, 1, 1, 0, 0, 0, 0}, at::kFloat);
  batch.shares = at::tensor({0.25, 0.25, 0.0}, at::kDouble);
  batch.pairs = {0, 1, -1};
  batch.reference = {at::tensor({-3.0, -2.0, 0.0}, at::kDouble),
                     at::tensor({-1.0, -2.5, 0.0}, at::kDouble)};
  return batch;
}

// As pairs.h has the formulas.
at::Tensor Cost(const DpoConfig& config, const at::Tensor& chosen, const at::Tensor& rejected) {
  at::Tensor z = config.beta * (chosen - rejected);
  switch (config.loss_type) {
    case PairLoss::kSigmoid:
      return at::softplus(-z);
    case PairLoss::kHinge:
      return at::clamp_min(1 - z, 0);
    case PairLoss::kIpo: {
      const at::Tensor of_chosen = at::tensor({2.0, 1.0, 1.0}, at::kDouble),
                       of_rejected = at::tensor({1.0, 2.0, 1.0}, at::kDouble);
      return (chosen / of_chosen - rejected / of_rejected - 1 / (2 * config.beta)).square();
    }
    case PairLoss::kRobust:
      return (0.8 * at::softplus(-z) - 0.2 * at::softplus(z)) / 0.6;
  }
  return z;
}

TEST(Pairs, CostsHaveTheDerivativesThatAutogradFinds) {
  for (const DpoConfig& config : kLosses) {
    PairBatch batch = Batch();
    const at::Tensor logps = at::tensor({0, -1, -2, -3, -4, -5, -6, -7, -8, -9, -8, -7}, at::kFloat)
                                 .mul(0.3)
                                 .set_requires_grad(true);
    const auto sum = [&](const at::Tensor& counts) {
      return (logps.to(at::kDouble) * counts).view({3, 4}).sum(1);
    };
    const at::Tensor chosen = sum(batch.chosen), rejected = sum(batch.rejected);
    const at::Tensor wanted =
        Cost(config, chosen - batch.reference.chosen, rejected - batch.reference.rejected);
    (wanted * batch.shares).sum().backward();
    const at::NoGradGuard no_grad;
    batch.policy = SumLogps(batch, logps.detach());
    const PairCosts found = CostsOf(batch, config);
    const auto kind = static_cast<int>(config.loss_type);
    EXPECT_TRUE(at::allclose(found.costs, wanted, 1e-9, 1e-9)) << kind;
    // A cross-entropy is of log-probabilities below zero.
    EXPECT_TRUE(at::allclose(-TokenWeights(batch, found), logps.grad(), 1e-6, 1e-9)) << kind;
    EXPECT_GT(logps.grad().abs().sum().item<double>(), 0.01) << kind;
  }
}

TEST(Pairs, MeansAreOfThePairsAlone) {
  PairBatch batch = Batch();
  batch.policy = {at::tensor({-2.0, -3.0, 9.0}, at::kDouble),
                  at::tensor({-2.0, -3.5, 0.0}, at::kDouble)};
  const at::Tensor wanted = at::tensor(
      {0.25 * (0.1 - 0.1), 0.25 * (-0.1 - 0.1), 0.25 * 1, 0.25 * -5, 0.25 * -5.5}, at::kDouble);
  EXPECT_TRUE(at::allclose(MeansOf(batch, 0.1), wanted, 1e-12, 1e-12)) << MeansOf(batch, 0.1);
}

// Pair g: a chosen document of 2 + g % 2 tokens, the first of which doesn't count, and a rejected
// one of 3.
class PairRows : public Packer {
 public:
  absl::Status Get(int64_t row, Sequence& out) override {
    const int64_t middle = 2 + row % 2, length = middle + 3;
    out = {};
    for (int64_t i = 0; i < length; ++i) {
      out.tokens.push_back((7 * row + 3 * i) % 37);
      out.targets.push_back((5 * row + 11 * i) % 37);
      out.counts.push_back(i != 0 && i != middle);
    }
    out.bounds = {0, middle, length};
    out.pair = row;
    return absl::OkStatus();
  }
  int64_t rows_per_epoch() const override { return 100; }
  int64_t row_length_max() const override { return kLength; }
  bool uniform() const override { return false; }
  bool pairs() const override { return true; }
};

TEST(Pairs, EachStandsWholeOnOneRankAndAllCountOnce) {
  PairRows packer;
  for (const int ranks : {1, 2, 3, 5, 7}) {
    double shares = 0;
    std::vector<int64_t> pairs;
    for (int rank = 0; rank < ranks; ++rank) {
      BatchReader reader(&packer, /*global_batch=*/5, /*micro_batch=*/2, rank, ranks, at::kCPU);
      const StepBatches step = *reader.Read(10);
      EXPECT_EQ(step.averaged, 5);
      for (const BatchMeta& meta : step.micro) {
        shares += meta.pairs->shares.sum().item<double>();
        for (int64_t row = 0; row < meta.batch; ++row) {
          const int64_t pair = meta.pairs->pairs[row];
          const auto counted = [&](const at::Tensor& counts) {
            return counts.narrow(0, row * meta.length, meta.length).sum().item<double>();
          };
          EXPECT_EQ(counted(meta.pairs->chosen), pair < 0 ? 0 : 1 + static_cast<double>(pair % 2));
          EXPECT_EQ(counted(meta.pairs->rejected), pair < 0 ? 0 : 2);
          if (pair >= 0) pairs.push_back(pair);
        }
      }
    }
    EXPECT_NEAR(shares, 1, 1e-12) << ranks;
    EXPECT_EQ(pairs, (std::vector<int64_t>{10, 11, 12, 13, 14})) << ranks;
  }
}

struct Told {
  double loss = 0;
  std::vector<double> means = std::vector<double>(kPairMeans, 0.0);
  std::vector<std::pair<double, double>> reference;  // of the pairs of the first rank
};

// A step of eight pairs on ranks. The adapters, if any, are as masters are drawn: they matter.
Told Step(int ranks, int tp, int pp, const LoraConfig& lora) {
  Told told;
  std::mutex mutex;
  OnRanks(
      ranks,
      [&](World& world) {
        EngineOptions options;
        options.max_length = kLength;
        options.lora = lora;
        options.dpo = kLosses[0];
        options.flats.poison = true;
        Engine engine(Tiny(false), &world, options);
        for (const auto& flat : engine.model_flats()) InitialiseMasters(*flat, 3, 0.3);
        if (lora.on())
          for (const auto& flat : engine.flats()) InitialiseMasters(*flat, 4, 0.3);
        PairRows packer;
        BatchReader reader(&packer, kRows, 2, world.mesh().DpIndex(world.rank()), world.mesh().dp(),
                           at::kCPU);
        const StepBatches step = *reader.Read(0);
        engine.FindReference(step.micro);
        std::vector<double> row = {engine.Run(step.micro).loss};
        row.resize(1 + kPairMeans);
        for (const BatchMeta& batch : step.micro) {
          for (int i = 0; i < kPairMeans && batch.pairs->means.defined(); ++i)
            row[1 + i] += batch.pairs->means[i].item<double>();
        }
        const auto rows = world.GatherRows(row);
        const std::lock_guard<std::mutex> lock(mutex);
        if (world.rank() != 0) return;
        for (const std::vector<double>& one : rows) {
          told.loss += one[0];
          for (int i = 0; i < kPairMeans; ++i) told.means[i] += one[1 + i];
        }
        for (const BatchMeta& batch : step.micro) {
          const PairLogps& its = batch.pairs->reference;
          for (int64_t i = 0; its.chosen.defined() && i < batch.batch; ++i)
            told.reference.emplace_back(its.chosen[i].item<double>(),
                                        its.rejected[i].item<double>());
        }
      },
      0, tp, pp);
  return told;
}

const LoraConfig kLora = {2, 4, 0, {"all-linear", "lm_head"}};

TEST(Pairs, AReferenceIsOfTheModelWithoutItsAdapters) {
  const Told without = Step(1, 1, 1, {}), with = Step(1, 1, 1, kLora);
  EXPECT_EQ(with.reference, without.reference);
  EXPECT_NEAR(without.loss, std::log(2.0), 1e-9) << "nothing has been learnt";
  EXPECT_GT(std::abs(with.loss - std::log(2.0)), 1e-4) << "adapters matter";
  EXPECT_EQ(with.reference.size(), static_cast<size_t>(kRows));
}

TEST(Pairs, RanksAndSlicesAndStagesCountThemOnce) {
  const Told wanted = Step(1, 1, 1, kLora);
  const struct {
    int ranks, tp, pp;
  } ways[] = {{2, 1, 1}, {3, 1, 1}, {2, 2, 1}, {4, 2, 1}, {2, 1, 2}};
  for (const auto& way : ways) {
    const Told found = Step(way.ranks, way.tp, way.pp, kLora);
    EXPECT_NEAR(found.loss, wanted.loss, 1e-5) << way.ranks << way.tp << way.pp;
    for (int i = 0; i < kPairMeans; ++i)
      EXPECT_NEAR(found.means[i], wanted.means[i], 1e-5 * (1 + std::abs(wanted.means[i]))) << i;
  }
}

}  // namespace
}  // namespace muster::trainer
