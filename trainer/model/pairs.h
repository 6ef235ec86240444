// Preferences: what a micro-batch of pairs knows of itself, and what a pair costs. Every row of it
// is a pair (data/pairs.h).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

#include "trainer/model/dpo_config.h"

namespace muster::trainer {

// Log-probabilities of what counts in each row's chosen and rejected document: [rows] double, on
// the rows' device.
struct PairLogps {
  at::Tensor chosen, rejected;
};

// Sums over the pairs of a step, each times 1 / (pairs of the step): over all ranks they are TRL's
// means rewards/chosen, rewards/rejected, rewards/accuracies, logps/chosen and logps/rejected.
inline constexpr int kPairMeans = 5;
using PairMeans = std::array<double, kPairMeans>;

// The pairs of a micro-batch. Written by the reader, then by the head; not thread-safe.
struct PairBatch {
  at::Tensor chosen = {}, rejected = {};  // [T] fp32: 1 where that document's target counts
  at::Tensor shares = {};                 // [rows] double: 1 / pairs of the step; 0: no pair
  std::vector<int64_t> pairs = {};        // each row's number in the data; -1: no pair
  PairLogps reference = {};               // undefined: not known yet
  PairLogps policy = {};  // of the weights of the last forward, on ranks with a head
  at::Tensor means = {};  // [kPairMeans] double, on ranks that count them
};

// Of the rows' log-probabilities, their reference's and how many tokens count: what they cost, and
// the derivatives of Σ shares · cost by the chosen's and the rejected's.
//   sigmoid  -log σ(z), z = β · ((chosen - its reference) - (rejected - its reference))  (DPO, eq.
//            7)
//   hinge    max(0, 1 - z)  (SLiC, arXiv 2305.10425)
//   ipo      (difference of the two log-ratios, each a mean over its tokens, - 1 / 2β)²  (IPO,
//            arXiv 2310.12036, eq. 17; a mean as TRL has it)
//   robust   (-(1 - ε) log σ(z) + ε log σ(-z)) / (1 - 2ε), ε label_smoothing  (arXiv 2403.00409)
struct PairCosts {
  at::Tensor costs, d_chosen, d_rejected;  // [rows] double
};
PairCosts CostsOf(const PairBatch& batch, const DpoConfig& config);

// Σ over each row of token_logps [T] where `chosen` or `rejected` says so.
PairLogps SumLogps(const PairBatch& batch, const at::Tensor& token_logps);
// Each token's weight in a cross-entropy whose gradient is that of Σ shares · cost: [T] fp32.
at::Tensor TokenWeights(const PairBatch& batch, const PairCosts& costs);
// This micro-batch's summands of the step's means.
at::Tensor MeansOf(const PairBatch& batch, double beta);

}  // namespace muster::trainer
