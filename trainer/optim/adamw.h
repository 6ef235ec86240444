// AdamW (Loshchilov & Hutter 2019) on what a rank owns, equal to torch.optim.AdamW; and the
// clipping of torch.nn.utils.clip_grad_norm_. State in the host's memory is updated by our own
// kernel (adamw_kernel.h), state on a GPU by the same as a CUDA kernel (trainer/ops/cuda), or,
// where this program was built without nvcc, by ATen's fused one.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <c10/core/Event.h>

#include "trainer/ops/cuda/kernels.h"
#include "trainer/ops/cuda/squares.h"
#include "trainer/optim/adamw_kernel.h"
#include "trainer/optim/host_staging.h"
#include "trainer/parallel/flat_param.h"

namespace muster::trainer {

struct AdamWConfig {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
};

// Sum of squares of the gradients in this rank's shards, but of routers' biases, which have none:
// over all ranks each element is counted once. Exact (trainer/ops/cuda/squares.h): the sum over the
// ranks is the same however the model is sharded.
kernels::ExactSum ShardSquaredNorm(const std::vector<std::unique_ptr<FlatParam>>& flats);

// min(1, max_norm / (norm + 1e-6)); 1 when max_norm is 0.
double ClipCoefficient(double norm, double max_norm);

// Not thread-safe. The moments live in the FlatParams, so that checkpoints find them there.
class AdamW {
 public:
  // `form`: of the kernel; the tests try all. `staged_numel`: where gradients lie elsewhere than
  // the state, elements that are fetched at once; below 0, for tests: so many also where they
  // don't.
  AdamW(std::vector<std::unique_ptr<FlatParam>>& flats, const AdamWConfig& config,
        CpuForm form = BestCpuForm(), int64_t staged_numel = kStagedNumel);
  // Waits for what is under way.
  ~AdamW();
  AdamW(const AdamW&) = delete;
  AdamW& operator=(const AdamW&) = delete;
  static constexpr int64_t kStagedNumel = int64_t{1} << 24;

  // One update with gradients times `clip`. `step`: number of this update, from 1. Makes the
  // weights and marks the flats stale.
  void Step(int64_t step, double learning_rate, double clip);
  // The same, but where gradients lie elsewhere than the state a thread does it, one flat after the
  // other, beside what is queued next; each flat waits for its own (FlatParam::SetUpdate). Until
  // Finish returns nothing else may be done with masters, moments and gradients.
  void Start(int64_t step, double learning_rate, double clip);
  // Waits for what was started, if anything was; throws what it threw.
  void Finish();

 private:
  // A run of owned elements of one flat, inside one segment.
  struct Run {
    int64_t begin = 0, numel = 0;  // inside the owned range
    bool decay = false;
    uint32_t number = 0;  // of its first element: by the parameter's name and the place in it
  };
  // Elements [begin, end) of a flat's owned range, with their gradients and the weights that are
  // made of them (null: none are) from the first on.
  struct HostPart {
    size_t flat = 0;
    int64_t begin = 0, end = 0;
    const char* gradient = nullptr;
    char* weights = nullptr;
  };
  void UpdateOnHost(const HostPart& part, const AdamWStep& numbers, double learning_rate) const;
  void StepOnHost(const AdamWStep& numbers, double learning_rate);
  void StartStaged(const AdamWStep& numbers, double learning_rate);
  void UpdateStaged(const AdamWStep& numbers, double learning_rate);
  void UpdateStagedPart(int64_t chunk, HostPart part, const AdamWStep& numbers,
                        double learning_rate);
  std::vector<HostPart> StagedParts() const;
  void Await(size_t flat);
  void StepOnDevice(const AdamWStep& numbers, double learning_rate);
  void StepCoded(size_t flat, kernels::AdamWArguments a);
  void StepByAten(int64_t step, double learning_rate, double clip);

  std::vector<std::unique_ptr<FlatParam>>& flats_;
  const AdamWConfig config_;
  const CpuForm form_;
  const int64_t staged_numel_;
  std::optional<HostStaging> staging_;  // made when it is needed
  std::vector<std::vector<Run>> runs_;  // by flat
  std::vector<at::Tensor> steps_;       // on the device, one a run

  // Of what is under way.
  std::thread updating_;
  std::mutex mutex_;  // of what follows
  std::condition_variable updated_;
  size_t made_ = 0;            // of so many flats, from the first on, all is made or on its way
  std::exception_ptr failed_;  // what has ended it
  std::vector<std::optional<c10::Event>> sent_;  // by flat
};

}  // namespace muster::trainer
