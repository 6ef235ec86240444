// Parts of tensors, as tensor and expert parallelism share them out.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace muster::trainer {

// Indices [begin, end) of one dimension of a tensor, and all of the others.
struct Slice {
  int dim = 0;
  int64_t begin = 0, end = 0;
  bool operator==(const Slice&) const = default;
};

// Where the elements of a slice, in its own order, stand in the whole tensor. Value type.
class SlicePlaces {
 public:
  // Of a tensor of `shape`; no slice: all of it. The slice must lie inside.
  SlicePlaces(const std::vector<int64_t>& shape, const std::optional<Slice>& slice);

  int64_t numel() const { return numel_; }
  int64_t InTensor(int64_t element) const {
    return element / width_ * stride_ + first_ + element % width_;
  }
  // The first element whose place is `place` or behind it; numel() if there is none.
  int64_t FirstFrom(int64_t place) const;
  // How many elements from `element` on follow each other in the tensor, too.
  int64_t Together(int64_t element) const { return width_ - element % width_; }

 private:
  // Of every `stride_` elements of the tensor the slice has `width_`, from the `first_` on.
  int64_t stride_ = 1, first_ = 0, width_ = 1, numel_ = 1;
};

// Calls `body` for each run of elements that elements [a_begin, a_end) of one slice and [b_begin,
// b_end) of another have in common, in their order, with the first in the one, the first in the
// other, and their number.
void ForEachCommon(const SlicePlaces& a, int64_t a_begin, int64_t a_end, const SlicePlaces& b,
                   int64_t b_begin, int64_t b_end,
                   const std::function<void(int64_t, int64_t, int64_t)>& body);

}  // namespace muster::trainer
