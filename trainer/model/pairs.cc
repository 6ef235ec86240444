#include "trainer/model/pairs.h"

namespace muster::trainer {
namespace {

// A value a row → the same at each of the row's tokens, [rows, length], where `counts` says so.
at::Tensor Spread(const at::Tensor& of_rows, const at::Tensor& counts) {
  return of_rows.to(at::kFloat).unsqueeze(1) * counts.view({of_rows.size(0), -1});
}

at::Tensor SumRows(const at::Tensor& of_tokens, const at::Tensor& counts, int64_t rows) {
  return (of_tokens.to(at::kDouble) * counts).view({rows, -1}).sum(1);
}

}  // namespace

PairLogps SumLogps(const PairBatch& batch, const at::Tensor& token_logps) {
  const int64_t rows = batch.shares.size(0);
  return {SumRows(token_logps, batch.chosen, rows), SumRows(token_logps, batch.rejected, rows)};
}

PairCosts CostsOf(const PairBatch& batch, const DpoConfig& config) {
  const double beta = config.beta, wrong = config.label_smoothing;
  const int64_t rows = batch.shares.size(0);
  at::Tensor chosen = batch.policy.chosen - batch.reference.chosen;
  at::Tensor rejected = batch.policy.rejected - batch.reference.rejected;
  if (config.loss_type == PairLoss::kIpo) {
    const auto tokens = [&](const at::Tensor& counts) {
      return counts.view({rows, -1}).sum(1).to(at::kDouble).clamp_min(1);
    };
    const at::Tensor of_chosen = tokens(batch.chosen), of_rejected = tokens(batch.rejected);
    const at::Tensor off = chosen / of_chosen - rejected / of_rejected - 1 / (2 * beta);
    const at::Tensor slope = 2 * off * batch.shares;
    return {off.square(), slope / of_chosen, -slope / of_rejected};
  }
  const at::Tensor z = beta * (chosen - rejected);
  at::Tensor costs, slope;
  switch (config.loss_type) {
    case PairLoss::kHinge:
      costs = at::relu(1 - z);
      slope = -z.lt(1).to(at::kDouble);
      break;
    case PairLoss::kRobust:
      costs = ((wrong - 1) * at::log_sigmoid(z) + wrong * at::log_sigmoid(-z)) / (1 - 2 * wrong);
      slope = ((wrong - 1) * at::sigmoid(-z) - wrong * at::sigmoid(z)) / (1 - 2 * wrong);
      break;
    default:
      costs = -at::log_sigmoid(z);
      slope = -at::sigmoid(-z);
  }
  slope = slope * batch.shares * beta;
  return {costs, slope, -slope};
}

at::Tensor TokenWeights(const PairBatch& batch, const PairCosts& costs) {
  return (Spread(-costs.d_chosen, batch.chosen) + Spread(-costs.d_rejected, batch.rejected))
      .flatten();
}

at::Tensor MeansOf(const PairBatch& batch, double beta) {
  const at::Tensor chosen = beta * (batch.policy.chosen - batch.reference.chosen);
  const at::Tensor rejected = beta * (batch.policy.rejected - batch.reference.rejected);
  const at::Tensor right = chosen.gt(rejected).to(at::kDouble);
  return at::mv(at::stack({chosen, rejected, right, batch.policy.chosen, batch.policy.rejected}),
                batch.shares);
}

}  // namespace muster::trainer
