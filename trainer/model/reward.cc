#include "trainer/model/reward.h"

#include <algorithm>
#include <utility>

#include "trainer/ops/ops.h"

namespace muster::trainer {
namespace {

class RewardHead : public Block {
 public:
  RewardHead(const ModelConfig& config, Parameter norm, Parameter score,
             const BlockOptions& options)
      : norm_(config, std::move(norm)),
        score_(std::move(score)),
        tensor_(options.tensor),
        reward_(options.reward) {}

  // The score's gradient and that of what it is of come out of the forward, as the loss does.
  at::Tensor Forward(const at::Tensor& x, const BatchMeta& meta, Saved& saved) override {
    PairBatch& pairs = *meta.pairs;
    const ops::RmsNormResult norm = norm_.Forward(x);
    const at::Tensor rows = norm.y.to(at::kFloat), w = score_.w.flatten().to(at::kFloat);
    const at::Tensor scores =
        tensor_.GatherTokens(at::mv(rows, w).unsqueeze(1), meta.tokens()).squeeze(1);  // [T]
    pairs.policy = SumLogps(pairs, scores);
    const PairCosts costs = RewardCosts(pairs, reward_);
    const at::Tensor loss = at::zeros({2}, scores.options().dtype(at::kDouble));
    if (tensor_.rank() == 0) {  // all ranks of a slice know the same
      loss[0] = (costs.costs * pairs.shares).sum();
      pairs.means = RewardMeans(pairs);
    }
    saved = {x, norm.rstd, at::Tensor()};
    if (meta.loss_only) return loss;
    const at::Tensor d_scores = OwnPart(-TokenWeights(pairs, costs), rows.size(0));
    if (score_.d.defined()) score_.d.Add(at::mv(rows.t(), d_scores).unsqueeze(0));
    saved[2] = at::outer(d_scores, w).to(x.scalar_type());
    return loss;
  }

  at::Tensor Backward(const at::Tensor&, const BatchMeta&, Saved& saved) override {
    const Saved own = std::exchange(saved, {});
    return norm_.Backward(own[2], own[0], own[1]);
  }

 private:
  // This rank's part of what is of all tokens, filled up with zeros to `size`.
  at::Tensor OwnPart(const at::Tensor& all, int64_t size) const {
    const at::Tensor part = at::zeros({size}, all.options());
    const int64_t begin = std::min(tensor_.rank() * size, all.size(0));
    const int64_t count = std::min(size, all.size(0) - begin);
    part.narrow(0, 0, count).copy_(all.narrow(0, begin, count));
    return part;
  }

  const Norm norm_;
  Parameter score_;
  const TensorGroup tensor_;
  const RewardConfig reward_;
};

}  // namespace

PairCosts RewardCosts(const PairBatch& batch, const RewardConfig& config) {
  const at::Tensor apart = batch.policy.chosen - batch.policy.rejected,
                   sum = batch.policy.chosen + batch.policy.rejected;
  const double center = config.center_rewards_coefficient;
  const at::Tensor costs = center * sum.square() - at::log_sigmoid(apart);
  const at::Tensor wrong = at::sigmoid(-apart), towards_zero = 2 * center * sum;
  return {costs, (towards_zero - wrong) * batch.shares, (towards_zero + wrong) * batch.shares};
}

at::Tensor RewardMeans(const PairBatch& batch) {
  const at::Tensor &chosen = batch.policy.chosen, &rejected = batch.policy.rejected;
  const at::Tensor none = at::zeros_like(chosen);
  return at::mv(at::stack({chosen, rejected, chosen.gt(rejected).to(at::kDouble), none, none}),
                batch.shares);
}

std::unique_ptr<Block> MakeRewardHead(const ModelConfig& config, Parameter norm, Parameter score,
                                      const BlockOptions& options) {
  return std::make_unique<RewardHead>(config, std::move(norm), std::move(score), options);
}

}  // namespace muster::trainer
