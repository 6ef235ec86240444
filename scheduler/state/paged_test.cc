#include "scheduler/state/paged.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

std::vector<std::pair<size_t, std::string>> Rows(const PagedArray<std::string>& array) {
  std::vector<std::pair<size_t, std::string>> rows;
  array.ForEach([&](size_t index, const std::string& row) { rows.emplace_back(index, row); });
  return rows;
}

TEST(PagedArray, KeepsRowsByIndexAcrossPages) {
  PagedArray<std::string> array;
  *array.Mutable(200) = "far";
  *array.Mutable(0) = "first";
  *array.Mutable(63) = "last of its page";
  EXPECT_THAT(Rows(array),
              ElementsAre(Pair(0, "first"), Pair(63, "last of its page"), Pair(200, "far")));
  EXPECT_EQ(array.Find(64), nullptr);   // a page that nobody wrote
  EXPECT_EQ(array.Find(201), nullptr);  // beside a row
  EXPECT_EQ(array.Find(100'000), nullptr);
  EXPECT_GE(array.size_bound(), 201u);
}

TEST(PagedArray, IsReadDownwardsFromAnywhereUntilItIsEnough) {
  PagedArray<std::string> array;
  for (const size_t index : {0, 1, 63, 64, 500}) *array.Mutable(index) = std::to_string(index);
  const auto below = [&](size_t end, size_t most) {
    std::vector<std::string> rows;
    array.ForEachBelow(end, [&](const std::string& row) {
      rows.push_back(row);
      return rows.size() < most;
    });
    return rows;
  };
  EXPECT_THAT(below(SIZE_MAX, 9), ElementsAre("500", "64", "63", "1", "0"));
  EXPECT_THAT(below(500, 9), ElementsAre("64", "63", "1", "0"));
  EXPECT_THAT(below(450, 2), ElementsAre("64", "63"));
  EXPECT_THAT(below(64, 9), ElementsAre("63", "1", "0"));
  EXPECT_THAT(below(0, 9), IsEmpty());
}

TEST(PagedArray, ErasedRowsAreGoneAndComeBackEmpty) {
  PagedArray<std::string> array;
  *array.Mutable(5) = "five";
  *array.Mutable(6) = "six";
  array.Erase(5);
  array.Erase(5);
  array.Erase(70);
  EXPECT_THAT(Rows(array), ElementsAre(Pair(6, "six")));
  array.Erase(6);
  EXPECT_THAT(Rows(array), IsEmpty());
  EXPECT_EQ(*array.Mutable(5), "");
}

TEST(PagedArray, ACopyKeepsWhatItSawAndSharesTheRest) {
  PagedArray<std::string> array;
  for (size_t i = 0; i < 130; ++i) *array.Mutable(i) = "old";
  const PagedArray<std::string> copy = array;
  EXPECT_EQ(copy.Find(1), array.Find(1)) << "nothing is copied before a write";
  *array.Mutable(1) = "new";
  array.Erase(2);
  *array.Mutable(500) = "added";
  EXPECT_EQ(*copy.Find(1), "old");
  EXPECT_EQ(*copy.Find(2), "old");
  EXPECT_EQ(copy.Find(500), nullptr);
  EXPECT_EQ(*array.Find(1), "new");
  EXPECT_EQ(copy.Find(3), array.Find(3)) << "rows beside the written one stay shared";
  EXPECT_EQ(copy.Find(129), array.Find(129));
}

TEST(PagedArray, ARowThatNobodySharesIsWrittenInPlace) {
  PagedArray<std::string> array;
  const std::string* row = array.Mutable(3);
  EXPECT_EQ(array.Mutable(3), row);
  {
    // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): it is there, that's all
    const PagedArray<std::string> copy = array;
  }
  EXPECT_EQ(array.Mutable(3), row) << "the copy is gone";
}

TEST(PagedIndex, FindsSetsErasesAndLists) {
  PagedIndex index;
  for (uint64_t i = 1; i <= 1000; ++i) index.Set("key" + std::to_string(i), i);
  index.Set("key7", 70);
  index.Erase("key8");
  index.Erase("nobody");
  EXPECT_EQ(index.Find("key1"), 1u);
  EXPECT_EQ(index.Find("key7"), 70u);
  EXPECT_EQ(index.Find("key8"), 0u);
  EXPECT_EQ(index.Find(""), 0u);
  EXPECT_EQ(index.Entries().size(), 999u);
}

TEST(PagedIndex, GrowsUnderACopyThatStaysAsItWas) {
  PagedIndex index;
  for (uint64_t i = 1; i <= 300; ++i) index.Set("key" + std::to_string(i), i);
  const PagedIndex copy = index;
  for (uint64_t i = 301; i <= 5000; ++i) index.Set("key" + std::to_string(i), i);
  for (uint64_t i = 1; i <= 5000; i += 2) index.Erase("key" + std::to_string(i));
  for (uint64_t i = 1; i <= 5000; ++i) {
    ASSERT_EQ(index.Find("key" + std::to_string(i)), i % 2 == 0 ? i : 0);
    ASSERT_EQ(copy.Find("key" + std::to_string(i)), i <= 300 ? i : 0);
  }
  EXPECT_EQ(index.Entries().size(), 2500u);
  EXPECT_EQ(copy.Entries().size(), 300u);
}

TEST(PagedIndex, ACopyKeepsWhatItSaw) {
  PagedIndex index;
  index.Set("a", 1);
  const PagedIndex copy = index;
  index.Set("a", 2);
  index.Set(std::string_view("a\0b", 3), 3);
  EXPECT_EQ(copy.Find("a"), 1u);
  EXPECT_EQ(copy.Find(std::string_view("a\0b", 3)), 0u);
  index.Erase("a");
  EXPECT_EQ(copy.Find("a"), 1u);
  EXPECT_THAT(index.Entries(), ElementsAre(Pair(std::string("a\0b", 3), 3)));
}

}  // namespace
}  // namespace muster
