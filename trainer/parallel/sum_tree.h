// Sums as binary trees: the same bits for any number of ranks.
//
// A step's gradient is the sum over its *parts*: what a unit (mesh.h) computes at once. That is a
// micro-batch, whose gradient the unit's ranks have summands of; or, where ep makes ranks with
// different rows one unit, a micro-batch of each of them. Within a unit, summands are added in the
// order of its ranks, which is the same in each unit of one layout.
//
// Numbered as the global batch has them, parts 2k and 2k + 1 are added, then such sums by twos, and
// so on; what is left over where their number is no power of two is added from the smallest up.
// Units take parts in turns: unit u of n has parts u, n + u, 2n + u, …, n a power of two that
// divides their number. So the n parts of one turn are a whole tree over the units, and a rank adds
// turn after turn as a binary counter carries. (The pairwise sum of N. J. Higham, Accuracy and
// Stability of Numerical Algorithms, 2002, section 4.2; which units hold which parts makes no
// difference to it.)
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

namespace muster::trainer {

// Units that take parts: the largest power of two that is at most `units` and divides `parts`.
int TreeUnits(int64_t parts, int units);
// Sums under way at most, beside the one that is asked for, where `turns` of them are added.
int TreeLevels(int64_t turns);

// The sum of the rows of [n, numel], n a power of two, as a tree; it overwrites them. A view.
at::Tensor SumOfRows(const at::Tensor& rows);
// The same of one turn, where [ranks, numel] are the summands of `units`, unit after unit, of which
// the first `taking` have a part each.
at::Tensor SumOfTurn(const at::Tensor& summands, int units, int taking);

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
