// AdamW (Loshchilov & Hutter 2019) on the fp32 masters that a rank owns, by ATen's fused kernel, equal to
// torch.optim.AdamW; and the clipping of torch.nn.utils.clip_grad_norm_.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "trainer/parallel/flat_param.h"

namespace muster::trainer {

struct AdamWConfig {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
};

// Sum of squares, in double, of the gradients in this rank's shards: over all ranks each element is counted once.
double ShardSquaredNorm(const std::vector<std::unique_ptr<FlatParam>>& flats);

// min(1, max_norm / (norm + 1e-6)); 1 when max_norm is 0.
double ClipCoefficient(double norm, double max_norm);

// Not thread-safe. The moments live in the FlatParams, so that checkpoints find them there.
class AdamW {
 public:
  AdamW(std::vector<std::unique_ptr<FlatParam>>& flats, const AdamWConfig& config);

  // One update with gradients times `clip`. `step`: number of this update, from 1. Marks the flats stale.
  void Step(int64_t step, double learning_rate, double clip);

 private:
  // Runs of owned elements with the same weight decay, as views.
  struct Views {
    std::vector<at::Tensor> params, grads, exp_avgs, exp_avg_sqs, steps;
  };
  void Add(Views& views, FlatParam& flat, int64_t begin, int64_t numel);

  std::vector<std::unique_ptr<FlatParam>>& flats_;
  const AdamWConfig config_;
  Views decayed_, plain_;
};

}  // namespace muster::trainer
