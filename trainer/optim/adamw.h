// AdamW (Loshchilov & Hutter 2019) on what a rank owns, equal to torch.optim.AdamW; and the
// clipping of torch.nn.utils.clip_grad_norm_. State in the host's memory is updated by our own
// kernel (adamw_kernel.h), state on a GPU by the same as a CUDA kernel (trainer/ops/cuda), or,
// where this program was built without nvcc, by ATen's fused one.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "trainer/ops/cuda/squares.h"
#include "trainer/optim/adamw_kernel.h"
#include "trainer/parallel/flat_param.h"

namespace muster::trainer {

struct AdamWConfig {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
};

// Sum of squares of the gradients in this rank's shards: over all ranks each element is counted
// once. Exact (trainer/ops/cuda/squares.h): the sum over the ranks is the same however the model is
// sharded.
kernels::ExactSum ShardSquaredNorm(const std::vector<std::unique_ptr<FlatParam>>& flats);

// min(1, max_norm / (norm + 1e-6)); 1 when max_norm is 0.
double ClipCoefficient(double norm, double max_norm);

// Not thread-safe. The moments live in the FlatParams, so that checkpoints find them there.
class AdamW {
 public:
  // `form`: of the kernel; the tests try all.
  AdamW(std::vector<std::unique_ptr<FlatParam>>& flats, const AdamWConfig& config,
        CpuForm form = BestCpuForm());

  // One update with gradients times `clip`. `step`: number of this update, from 1. Makes the
  // weights and marks the flats stale.
  void Step(int64_t step, double learning_rate, double clip);

 private:
  // A run of owned elements of one flat, inside one segment.
  struct Run {
    int64_t begin = 0, numel = 0;  // inside the owned range
    bool decay = false;
    uint32_t number = 0;  // of its first element: by the parameter's name and the place in it
  };
  void StepOnHost(const AdamWStep& numbers, double learning_rate);
  void StepOnDevice(const AdamWStep& numbers, double learning_rate);
  void StepByAten(int64_t step, double learning_rate, double clip);

  std::vector<std::unique_ptr<FlatParam>>& flats_;
  const AdamWConfig config_;
  const CpuForm form_;
  std::vector<std::vector<Run>> runs_;  // by flat
  std::vector<at::Tensor> steps_;       // on the device, one a run
};

}  // namespace muster::trainer
