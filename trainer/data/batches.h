// A rank's part of each global batch, as tensors. The global batch is cut into equal contiguous
// shares; where the ranks don't divide it, rows of weight zero fill up, so that every rank runs the
// same micro-batches. Or it is cut into micro-batches, which ranks take in turns. Rows of one
// micro-batch are padded to the longest of them.
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <vector>

#include <ATen/ATen.h>

#include "absl/status/statusor.h"
#include "trainer/data/context_rows.h"
#include "trainer/data/packing.h"
#include "trainer/model/blocks.h"

namespace muster::trainer {

// Rows of a global batch per rank: ceil(batch / ranks).
int64_t SharePerRank(int64_t global_batch, int ranks);

// Rows of a global batch that are one micro-batch.
struct Cut {
  int64_t first = 0, rows = 0;
};
// A rank's micro-batches; `rank` is one of `ranks` that take different rows. `tree_ranks`: so many
// of them take them in turns (sum_tree.h), and the others have as many of one row that doesn't
// exist, as has who comes after the last one; 0: each rank has a share.
std::vector<Cut> CutBatch(int64_t global_batch, int64_t micro_batch, int rank, int ranks,
                          int tree_ranks);

struct StepBatches {
  std::vector<BatchMeta> micro;
  // Of the whole global batch, over all ranks:
  int64_t target_tokens = 0;   // that count in the loss
  int64_t averaged = 0;        // what the loss is the mean of: those, or pairs
  int64_t tokens = 0;          // without padding
  double attended_tokens = 0;  // sum of the squares of the lengths that attention runs over
};

// Not thread-safe.
class BatchReader {
 public:
  // `rows`: rows from this number on don't exist (weight zero); -1: there is no end. `context`: the
  // rank's part of the rows that it takes. `tree_ranks`: as CutBatch has it.
  BatchReader(Packer* packer, int64_t global_batch, int64_t micro_batch, int rank, int ranks,
              at::Device device, int64_t rows = -1, const ContextShare& context = {},
              int tree_ranks = 0);
  // This rank's micro-batches of the step that starts with row `first`; those of the last ReadAhead
  // are there already, or soon.
  absl::StatusOr<StepBatches> Read(int64_t first);
  // Begins to read a step in a thread of its own. What is wrong Read says.
  void ReadAhead(int64_t first);
  // All ids of that step, row by row: row_length_max() inputs (-1 where a row is shorter) and the
  // last one's target.
  absl::StatusOr<std::vector<int32_t>> ReadIds(int64_t first);

 private:
  bool Exists(int64_t row) const { return rows_ < 0 || row < rows_; }
  absl::StatusOr<StepBatches> ReadOnHost(int64_t first);
  // The packer isn't thread-safe.
  void Wait() const {
    if (ahead_.valid()) ahead_.wait();
  }

  Packer& packer_;
  const int64_t global_batch_;
  const std::vector<Cut> cuts_;
  const at::Device device_;
  const int64_t rows_;
  const ContextShare context_;
  int64_t ahead_first_ = -1;
  std::future<absl::StatusOr<StepBatches>> ahead_;  // last, so that it ends before the rest goes
};

}  // namespace muster::trainer
