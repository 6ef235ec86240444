#include "trainer/loop/process.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <thread>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/AllocatorConfig.h>

#include "trainer/ops/fused.h"

namespace muster::trainer {
namespace {

void ChooseThreads(int64_t wanted, int local_size) {
  const int64_t cores = std::max<unsigned>(1, std::thread::hardware_concurrency());
  at::set_num_threads(
      static_cast<int>(wanted > 0 ? wanted : std::max<int64_t>(1, cores / local_size)));
}

}  // namespace

void PrepareProcess(bool gpu, int local_size, const TrainConfig& config) {
  if (gpu && std::getenv("PYTORCH_CUDA_ALLOC_CONF") == nullptr &&
      std::getenv("PYTORCH_ALLOC_CONF") == nullptr) {
    // Rows of different lengths would leave holes that no later tensor fits into.
    c10::CachingAllocator::setAllocatorSettings("expandable_segments:True");
  }
  ops::fused::Allow(!config.reference_ops);
  // Sums in a product depend on how many threads share it out.
  const bool alone = config.deterministic == Determinism::kElastic && !gpu;
  ChooseThreads(config.threads == 0 && alone ? 1 : config.threads, local_size);
  if (config.deterministic != Determinism::kNo)
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  // It would write all memory that is made, and nothing here reads what it didn't write.
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

}  // namespace muster::trainer
