// What ranks that hold slices of one model (tensor parallelism) tell each other inside a layer.
// They take the same rows. Between the products, each has only its part of the tokens (sequence
// parallelism): what is normed and added up is computed once. T tokens in parts are T / size each,
// rounded up: rows of zeros fill up the last ones.
#pragma once

#include <cstdint>

#include <ATen/ATen.h>

#include "trainer/parallel/groups.h"

namespace muster::trainer {

// Every rank of the group calls the same methods in the same order; not thread-safe. With one rank
// everything is what it was given.
class TensorGroup {
 public:
  TensorGroup() = default;
  explicit TensorGroup(const Group& group) : group_(group) {}

  int rank() const { return group_.rank; }
  int size() const { return group_.size; }
  int64_t PartSize(int64_t tokens) const { return (tokens + size() - 1) / size(); }

  // All `tokens` of which each rank has its part: [PartSize, d] → [tokens, d].
  at::Tensor GatherTokens(const at::Tensor& part, int64_t tokens) const;
  // This rank's part of the sum of what the ranks have: [tokens, d] → [PartSize, d]. Summed in fp32
  // in the order of the ranks, and rounded once, on every backend.
  at::Tensor SumScatterTokens(const at::Tensor& all) const;
  // The largest of what the ranks have, by element.
  at::Tensor Largest(const at::Tensor& mine) const;
  // Each rank's tensor, of one shape, under the others': [size, …].
  at::Tensor Stack(const at::Tensor& mine) const;

  // Seconds that were waited for others since the last call; of CPUs alone, as on a GPU it is its
  // stream that waits.
  static double TakeWaited();
  // Waits, and counts that.
  static void WaitFor(const c10::intrusive_ptr<c10d::Work>& work);

 private:
  Group group_;
};

}  // namespace muster::trainer
