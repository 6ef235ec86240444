// Where the gradient of a weight is summed up. In memory that holds nothing yet the first summand
// is written, not added: nobody has to make it zero before, nor to read it.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

namespace muster::trainer::ops {

// A view, to be copied. Not thread-safe.
class GradientSum {
 public:
  GradientSum() = default;  // of a frozen weight: nothing is summed
  // Of numbers that count: the first summand is added, too. Implicit, for those who have a tensor.
  GradientSum(at::Tensor sum) : sum_(std::move(sum)) {}
  // `begun`: whether something has come; until then it doesn't matter what stands in `sum`. Whoever
  // sums there shares it with whoever begins a sum anew.
  GradientSum(at::Tensor sum, std::shared_ptr<bool> begun)
      : sum_(std::move(sum)), begun_(std::move(begun)) {}

  bool defined() const { return sum_.defined(); }
  const at::Tensor& tensor() const { return sum_; }

  // Whether nothing has come so far. From now on something has: who asks must write each element.
  bool Begin() const { return begun_ != nullptr && !std::exchange(*begun_, true); }
  // The sum to add to: zero if nothing has come so far. Undefined if that is.
  const at::Tensor& ToAdd() const {
    if (Begin()) sum_.zero_();
    return sum_;
  }
  // Adds a summand of the same shape, of any type.
  void Add(const at::Tensor& summand) const {
    if (Begin())
      sum_.copy_(summand);
    else
      sum_.add_(summand);
  }
  // A sum [n, d] as `count` equal parts of its rows, each of which is begun by itself. Something
  // has come to the whole then: who asks must begin each part.
  std::vector<GradientSum> Split(int64_t count) const {
    const bool nothing = Begin();
    const at::Tensor rows = sum_.view({count, sum_.size(0) / count, sum_.size(1)});
    std::vector<GradientSum> parts;
    for (int64_t part = 0; part < count; ++part)
      parts.emplace_back(rows[part], nothing ? std::make_shared<bool>(false) : nullptr);
    return parts;
  }

 private:
  at::Tensor sum_;
  std::shared_ptr<bool> begun_;  // null: it is
};

}  // namespace muster::trainer::ops
