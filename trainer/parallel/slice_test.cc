#include "trainer/parallel/slice.h"

#include <tuple>

#include <gtest/gtest.h>

namespace muster::trainer {
namespace {

using Common = std::tuple<int64_t, int64_t, int64_t>;

// Element by element.
std::vector<int64_t> PlacesByHand(const std::vector<int64_t>& shape,
                                  const std::optional<Slice>& slice) {
  std::vector<int64_t> places;
  int64_t numel = 1;
  for (const int64_t dim : shape) numel *= dim;
  for (int64_t place = 0; place < numel; ++place) {
    int64_t inner = 1;
    for (size_t d = shape.size(); slice && d-- > static_cast<size_t>(slice->dim) + 1;)
      inner *= shape[d];
    const int64_t index = slice ? place / inner % shape[slice->dim] : 0;
    if (!slice || (index >= slice->begin && index < slice->end)) places.push_back(place);
  }
  return places;
}

std::vector<std::optional<Slice>> SlicesOf(const std::vector<int64_t>& shape) {
  std::vector<std::optional<Slice>> slices = {std::nullopt};
  for (int d = 0; d < static_cast<int>(shape.size()); ++d) {
    for (int64_t begin = 0; begin < shape[d]; ++begin) {
      for (int64_t end = begin + 1; end <= shape[d]; ++end)
        slices.emplace_back(Slice{d, begin, end});
    }
  }
  return slices;
}

TEST(SlicePlaces, AreThoseOfTheElementsTakenOneByOne) {
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{}, {5}, {3, 4}, {4, 1, 3}, {2, 3, 2}}) {
    for (const std::optional<Slice>& slice : SlicesOf(shape)) {
      const std::vector<int64_t> wanted = PlacesByHand(shape, slice);
      const SlicePlaces places(shape, slice);
      ASSERT_EQ(places.numel(), static_cast<int64_t>(wanted.size()));
      for (int64_t e = 0; e < places.numel(); ++e) {
        EXPECT_EQ(places.InTensor(e), wanted[e]);
        EXPECT_EQ(places.FirstFrom(wanted[e]), e);
      }
      EXPECT_EQ(places.FirstFrom(wanted.back() + 1), places.numel());
    }
  }
}

TEST(ForEachCommon, GivesEveryElementOfBothOnceInFewRuns) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{5}, {3, 4}, {2, 3, 2}}) {
    for (const std::optional<Slice>& first : SlicesOf(shape)) {
      for (const std::optional<Slice>& second : SlicesOf(shape)) {
        const SlicePlaces a(shape, first), b(shape, second);
        for (int64_t cut = 0; cut <= a.numel(); ++cut) {
          const int64_t b_begin = b.numel() / 3;
          std::vector<Common> wanted;
          for (int64_t e = cut; e < a.numel(); ++e) {
            const int64_t there = b.FirstFrom(a.InTensor(e));
            if (there >= b_begin && there < b.numel() && b.InTensor(there) == a.InTensor(e))
              wanted.emplace_back(e, there, 1);
          }
          std::vector<Common> found;
          int64_t end_in_a = -1, end_in_b = -1;
          ForEachCommon(a, cut, a.numel(), b, b_begin, b.numel(),
                        [&](int64_t in_a, int64_t in_b, int64_t count) {
                          for (int64_t e = 0; e < count; ++e)
                            found.emplace_back(in_a + e, in_b + e, 1);
                          end_in_a = in_a + count, end_in_b = in_b + count;
                        });
          EXPECT_EQ(found, wanted);
          EXPECT_LE(end_in_a, a.numel());
          EXPECT_LE(end_in_b, b.numel());
        }
      }
    }
  }
  int runs = 0;
  const SlicePlaces whole({1000, 8}, std::nullopt), rows({1000, 8}, Slice{0, 200, 900});
  ForEachCommon(whole, 0, 8000, rows, 0, 5600, [&](int64_t, int64_t, int64_t) { ++runs; });
  EXPECT_EQ(runs, 1);
}

}  // namespace
}  // namespace muster::trainer
