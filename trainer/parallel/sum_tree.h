// Sums as binary trees: the same bits for any number of ranks.
//
// A step's gradient is the sum over its micro-batches, the *parts*. Numbered as the global batch
// has them, parts 2k and 2k + 1 are added, then such sums by twos, and so on; what is left over
// where their number is no power of two is added from the smallest up. Ranks take parts in turns:
// rank r of n has parts r, n + r, 2n + r, …, n a power of two that divides their number. So the n
// parts of one turn are a whole tree over the ranks, and a rank adds turn after turn as a binary
// counter carries. (The pairwise sum of N. J. Higham, Accuracy and Stability of Numerical
// Algorithms, 2002, section 4.2; which ranks hold which parts makes no difference to it.)
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

namespace muster::trainer {

// Ranks that take parts: the largest power of two that is at most `ranks` and divides `parts`.
int TreeRanks(int64_t parts, int ranks);
// Sums under way at most, beside the one that is asked for, where `turns` of them are added.
int TreeLevels(int64_t turns);

// The sum of the rows of [n, numel], n a power of two, as a tree; it overwrites them. A view.
at::Tensor SumOfRows(const at::Tensor& rows);

// Adds one turn's sum after the other, in memory for TreeLevels(turns) of them that it is given
// first. All are of one shape.
class SumTree {
 public:
  void TakeMemory(at::Tensor memory) { sums_.push_back(std::move(memory)); }
  void Clear();
  void Add(const at::Tensor& turn);
  // The sum of all since Clear(); nothing may be added after it.
  void CopyTotal(const at::Tensor& to);
  int64_t bytes() const;

 private:
  int64_t count_ = 0;             // turns so far: where bit k is set, sums_[k] is of 2^k of them
  std::vector<at::Tensor> sums_;  // undefined: it has no memory now
};

}  // namespace muster::trainer
