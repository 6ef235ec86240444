// The auxiliary loss that keeps routers from always choosing the same experts (Switch Transformers,
// arXiv 2101.03961, equations 4 to 6): E · Σ over experts of the share of tokens that met one times
// the mean of its probability. Those of a sequence: summed over each row for itself and each layer
// for itself, and then a mean of both, so that no layout of ranks changes it. Those of a batch:
// over all rows of a micro-batch and all layers at once, as transformers has it.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

#include "trainer/model/blocks.h"
#include "trainer/parallel/tensor_group.h"

namespace muster::trainer {

enum class BalanceKind { kNone, kSequence, kBatch };
struct BalanceOptions {
  BalanceKind kind = BalanceKind::kNone;
  double coefficient = 0;
};

// Of each of a micro-batch's tokens, 1 if it counts: 0 for padding, and in rows that fill up.
std::vector<uint8_t> CountedTokens(const BatchMeta& meta);

// What the routers of all layers tell of one micro-batch. Padding doesn't count, nor do rows that
// fill up. Where ranks have parts of the tokens (`tensor`) or of the rows (`context`), all of them
// call Count for the same layers in the same order. Not thread-safe.
class RouterBalance {
 public:
  RouterBalance(const BalanceOptions& options, const BatchMeta& meta, const ModelConfig& config,
                const TensorGroup& tensor, const TensorGroup& context, at::Device device);

  // Of one layer, once: which experts this rank's tokens met ([P, k]) with which probabilities
  // ([P, E]). Returns what its backward needs.
  at::Tensor Count(const at::Tensor& experts, const at::Tensor& probabilities);
  // The loss's gradient of that layer's probabilities, [P, E]. Of a batch, once all layers have
  // counted.
  at::Tensor Gradient(const at::Tensor& counts) const;
  // This rank's share of the loss, times the coefficient; after all layers.
  double Loss() const;

 private:
  at::Tensor Factors(const at::Tensor& counts) const;

  const BalanceOptions options_;
  const TensorGroup tensor_, context_;
  const int64_t experts_;
  int64_t groups_ = 1;  // of tokens that are summed together: rows, or 1
  at::Tensor group_;    // [P] int64, of each of this rank's tokens
  at::Tensor scale_;    // [P] fp32; 0: it doesn't count
  at::Tensor counts_;   // [1, E] of a batch's layers so far
  at::Tensor sums_;     // [E] of its scaled probabilities, of this rank's tokens
  at::Tensor loss_;     // of sequences
};

}  // namespace muster::trainer
