#include "trainer/parallel/slice.h"

#include <algorithm>

namespace muster::trainer {

SlicePlaces::SlicePlaces(const std::vector<int64_t>& shape, const std::optional<Slice>& slice) {
  for (const int64_t dim : shape) numel_ *= dim;
  stride_ = width_ = numel_;
  if (!slice) return;
  int64_t inner = 1;
  for (size_t d = static_cast<size_t>(slice->dim) + 1; d < shape.size(); ++d) inner *= shape[d];
  stride_ = shape[slice->dim] * inner;
  first_ = slice->begin * inner;
  width_ = (slice->end - slice->begin) * inner;
  numel_ = numel_ / stride_ * width_;
}

int64_t SlicePlaces::FirstFrom(int64_t place) const {
  const int64_t row = place / stride_, inside = place % stride_ - first_;
  return std::min(numel_, row * width_ + std::clamp<int64_t>(inside, 0, width_));
}

void ForEachCommon(const SlicePlaces& a, int64_t a_begin, int64_t a_end, const SlicePlaces& b,
                   int64_t b_begin, int64_t b_end,
                   const std::function<void(int64_t, int64_t, int64_t)>& body) {
  if (a_begin >= a_end || b_begin >= b_end) return;
  int64_t place = std::max(a.InTensor(a_begin), b.InTensor(b_begin));
  while (true) {
    const int64_t in_a = a.FirstFrom(place), in_b = b.FirstFrom(place);
    if (in_a >= a_end || in_b >= b_end) return;
    const int64_t next = std::max(a.InTensor(in_a), b.InTensor(in_b));
    if (next != place) {  // one of the two has nothing here
      place = next;
      continue;
    }
    const int64_t count =
        std::min({a.Together(in_a), b.Together(in_b), a_end - in_a, b_end - in_b});
    body(in_a, in_b, count);
    place += count;
  }
}

}  // namespace muster::trainer
