// A rank's part of each global batch, as tensors. The global batch is cut into equal contiguous shares; where the ranks
// don't divide it, sequences of weight zero fill up, so that every rank runs the same micro-batches.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

#include "absl/status/statusor.h"
#include "trainer/data/packing.h"
#include "trainer/model/blocks.h"

namespace muster::trainer {

// Sequences of a global batch per rank: ceil(batch / ranks).
int64_t SharePerRank(int64_t global_batch, int ranks);

struct StepBatches {
  std::vector<BatchMeta> micro;
  int64_t target_tokens = 0;  // that count, over all ranks
};

// Not thread-safe.
class BatchReader {
 public:
  BatchReader(Packer packer, const TokenShards& shards, int64_t max_length, int64_t global_batch, int64_t micro_batch, int rank, int ranks,
              at::Device device);
  // This rank's micro-batches of the step that starts with sequence `first`.
  absl::StatusOr<StepBatches> Read(int64_t first);
  // All ids of that step, sequence by sequence, max_length + 1 each.
  absl::StatusOr<std::vector<int32_t>> ReadIds(int64_t first);

 private:
  Packer packer_;
  const bool masked_;
  const int64_t max_length_, global_batch_, micro_batch_, share_;
  const int rank_;
  const at::Device device_;
};

}  // namespace muster::trainer
