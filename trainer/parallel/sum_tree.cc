#include "trainer/parallel/sum_tree.h"

#include <bit>

#include <c10/util/Exception.h>

namespace muster::trainer {

int TreeUnits(int64_t parts, int units) {
  int found = 1;
  while (2 * found <= units && parts % (2 * found) == 0) found *= 2;
  return found;
}

int TreeLevels(int64_t turns) {
  return static_cast<int>(std::bit_width(static_cast<uint64_t>(turns) + 1)) - 1;
}

at::Tensor SumOfRows(const at::Tensor& rows) {
  const int64_t n = rows.size(0);
  TORCH_CHECK(std::has_single_bit(static_cast<uint64_t>(n)), "no whole tree: ", n);
  for (int64_t width = 1; width < n; width *= 2) {
    for (int64_t at = 0; at < n; at += 2 * width)
      rows.select(0, at).add_(rows.select(0, at + width));
  }
  return rows.select(0, 0);
}

at::Tensor SumOfTurn(const at::Tensor& summands, int units, int taking) {
  const int64_t ranks = summands.size(0), in_unit = ranks / units;
  TORCH_CHECK(in_unit * units == ranks && taking <= units, "no ", units, " units of ", ranks);
  const at::Tensor parts = summands.view({units, in_unit, summands.size(1)}).narrow(0, 0, taking);
  for (int64_t rank = 1; rank < in_unit; ++rank) parts.select(1, 0).add_(parts.select(1, rank));
  return SumOfRows(parts.select(1, 0));
}

void SumTree::Clear() {
  count_ = 0;
  std::erase_if(sums_, [](const at::Tensor& sum) { return !sum.defined(); });
}

void SumTree::Add(const at::Tensor& turn) {
  size_t level = 0;
  at::Tensor carried = turn;
  for (; (count_ >> level & 1) != 0; ++level) carried = sums_[level].add_(carried);
  ++count_;
  if (level == sums_.size()) sums_.emplace_back();
  if (level > 0) {
    std::swap(sums_[level], sums_[level - 1]);  // the one that was added to last
    return;
  }
  TORCH_CHECK(sums_[0].defined(), "memory for fewer turns");
  sums_[0].copy_(carried);
}

void SumTree::CopyTotal(const at::Tensor& to) {
  at::Tensor total;
  for (size_t level = 0; level < sums_.size(); ++level) {
    if ((count_ >> level & 1) == 0) continue;
    total = total.defined() ? sums_[level].add_(total) : sums_[level];
  }
  TORCH_CHECK(total.defined(), "a sum of nothing");
  to.copy_(total);
}

int64_t SumTree::bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor& sum : sums_)
    bytes += sum.defined() ? static_cast<int64_t>(sum.nbytes()) : 0;
  return bytes;
}

}  // namespace muster::trainer
