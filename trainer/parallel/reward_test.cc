// Reward models: the loss against autograd, and against itself on ranks, in slices and in stages.
#include "trainer/model/reward.h"

#include <gtest/gtest.h>

#include "trainer/data/batches.h"
#include "trainer/parallel/testing/engine_ways.h"

namespace muster::trainer {
namespace {

constexpr RewardConfig kPlain{true, 0}, kCentred{true, 0.3};

ModelConfig Scored() {
  ModelConfig c = Tiny(/*tied=*/true);
  c.score = true;
  return c;
}

TEST(Reward, CostsHaveTheDerivativesThatAutogradFinds) {
  for (const RewardConfig& config : {kPlain, kCentred}) {
    PairBatch batch;
    batch.shares = at::tensor({0.25, 0.5, 0.0}, at::kDouble);
    at::Tensor chosen = at::tensor({1.5, -2.0, 3.0}, at::kDouble).set_requires_grad(true),
               rejected = at::tensor({1.0, 0.5, -7.0}, at::kDouble).set_requires_grad(true);
    const at::Tensor cost =
        at::softplus(rejected - chosen) +
        config.center_rewards_coefficient * (chosen + rejected).square();  // -log σ(x) as it is
    (cost * batch.shares).sum().backward();
    const at::NoGradGuard no_grad;
    batch.policy = {chosen.detach(), rejected.detach()};
    const PairCosts found = RewardCosts(batch, config);
    EXPECT_TRUE(at::allclose(found.costs, cost, 1e-9, 1e-12));
    EXPECT_TRUE(at::allclose(found.d_chosen, chosen.grad(), 1e-9, 1e-12));
    EXPECT_TRUE(at::allclose(found.d_rejected, rejected.grad(), 1e-9, 1e-12));
    EXPECT_TRUE(at::allclose(
        RewardMeans(batch),
        at::tensor({0.25 * 1.5 - 0.5 * 2, 0.25 * 1 + 0.5 * 0.5, 0.25, 0.0, 0.0}, at::kDouble)));
  }
}

// Pair g: a chosen document of 2 + g % 2 tokens and a rejected one of 3, each of which is scored at
// one of them.
class ScoredRows : public Packer {
 public:
  absl::Status Get(int64_t row, Sequence& out) override {
    const int64_t middle = 2 + row % 2, length = middle + 3;
    out = {};
    for (int64_t i = 0; i < length; ++i) {
      out.tokens.push_back((7 * row + 3 * i) % 37);
      out.targets.push_back(0);
      out.counts.push_back(i == middle - 1 || i == length - 1 - row % 2);
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

// The gradients of a step of kRows pairs by parameter, and beside them under "" the loss and the
// means.
std::map<std::string, at::Tensor> Step(int ranks, int tp, int pp, int stage) {
  std::map<std::string, at::Tensor> found;
  std::mutex mutex;
  OnRanks(
      ranks,
      [&](World& world) {
        EngineOptions options;
        options.max_length = kLength;
        options.reward = kCentred;
        options.flats = Poisoned(stage);
        Engine engine(Scored(), &world, options);
        for (const auto& flat : engine.flats()) InitialiseMasters(*flat, 3, 0.3);
        ScoredRows packer;
        BatchReader reader(&packer, kRows, 2, world.mesh().DpIndex(world.rank()), world.mesh().dp(),
                           at::kCPU);
        const StepBatches step = *reader.Read(0);
        std::vector<double> row = {engine.Run(step.micro).loss};
        row.resize(1 + kPairMeans);
        for (const BatchMeta& batch : step.micro) {
          for (int i = 0; i < kPairMeans && batch.pairs->means.defined(); ++i)
            row[1 + i] += batch.pairs->means[i].item<double>();
        }
        const auto rows = world.GatherRows(row);
        const std::lock_guard<std::mutex> lock(mutex);
        if (world.rank() == 0) {
          found[""] = at::zeros({1 + kPairMeans}, at::kDouble);
          for (const auto& one : rows) found[""].add_(at::tensor(one, at::kDouble));
        }
        for (const auto& flat : engine.flats()) {
          const FlatLayout& layout = flat->layout();
          for (const SegmentPiece& piece :
               PiecesIn(layout, flat->shard_begin(), flat->shard_begin() + flat->shard_numel())) {
            const Segment& segment = layout.segments()[piece.segment];
            at::Tensor& whole = found[segment.name];
            if (!whole.defined()) whole = at::zeros(segment.parameter_shape());
            ForEachRun(layout, piece, [&](int64_t at, int64_t in_parameter, int64_t count) {
              whole.view(-1)
                  .narrow(0, in_parameter, count)
                  .add_(flat->ShardGradient().narrow(0, at, count));
            });
          }
        }
      },
      0, tp, pp);
  return found;
}

TEST(Reward, RanksAndSlicesAndStagesHaveTheGradientsOfOne) {
  const auto wanted = Step(1, 1, 1, 0);
  EXPECT_GT(wanted.at(kScoreName).norm().item<double>(), 1e-3);
  EXPECT_FALSE(wanted.contains("lm_head.weight"));
  const struct {
    int ranks, tp, pp, stage;
  } ways[] = {{2, 1, 1, 1}, {3, 1, 1, 3}, {2, 2, 1, 0}, {4, 2, 1, 3}, {2, 1, 2, 1}};
  for (const auto& way : ways) {
    const auto found = Step(way.ranks, way.tp, way.pp, way.stage);
    ASSERT_EQ(found.size(), wanted.size());
    for (const auto& [name, its] : wanted) {
      const at::Tensor off = found.at(name) - its;
      EXPECT_LE((off.norm() / (its.norm() + 1e-12)).item<double>(), 1e-5)
          << name << " " << way.ranks << way.tp << way.pp << way.stage;
    }
  }
}

// The gradient of the score, and of the model behind it, by finite differences of the loss.
TEST(Reward, GradientsAreThoseOfTheLoss) {
  const ModelConfig model = Scored();
  OnRanks(1, [&](World& world) {
    EngineOptions options;
    options.max_length = kLength;
    options.reward = kCentred;
    Engine engine(model, &world, options);
    for (const auto& flat : engine.flats()) InitialiseMasters(*flat, 3, 0.3);
    ScoredRows packer;
    BatchReader reader(&packer, kRows, 2, 0, 1, at::kCPU);
    const std::vector<BatchMeta> batches = reader.Read(0)->micro;
    engine.Run(batches);
    for (const size_t number : {engine.flats().size() - 1, engine.flats().size() - 2}) {
      FlatParam& flat = *engine.flats()[number];
      const at::Tensor gradient = flat.OwnedGradient().clone(), was = flat.masters().clone();
      const at::Tensor direction = gradient / gradient.norm();
      const auto loss = [&](double step) {
        flat.SetOwned(FlatParam::kMaster, was + step * direction);
        std::vector<BatchMeta> again = reader.Read(0)->micro;
        return engine.Evaluate(again);
      };
      constexpr double kStep = 1e-2;
      EXPECT_NEAR((loss(kStep) - loss(-kStep)) / (2 * kStep), gradient.norm().item<double>(),
                  5e-3 * gradient.norm().item<double>());
      flat.SetOwned(FlatParam::kMaster, was);
    }
  });
}

}  // namespace
}  // namespace muster::trainer
