#include "trainer/parallel/sum_tree.h"

#include <cmath>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "trainer/data/batches.h"

namespace muster::trainer {
namespace {

TEST(SumTree, UnitsAreTheMostThatShareOutThePartsEvenly) {
  struct Case {
    int64_t parts;
    int units, wanted;
  };
  for (const Case& c : {Case{8, 1, 1},
                        {8, 2, 2},
                        {8, 3, 2},
                        {8, 7, 4},
                        {8, 8, 8},
                        {8, 100, 8},
                        {6, 4, 2},
                        {12, 8, 4},
                        {7, 8, 1},
                        {1, 4, 1}})
    EXPECT_EQ(TreeUnits(c.parts, c.units), c.wanted) << c.parts << " " << c.units;
}

// The k-th of so many: of any size, so that the order in which they are added matters.
at::Tensor Part(int64_t k) {
  at::Tensor part = at::empty({64});
  for (int64_t i = 0; i < 64; ++i)
    part[i] = std::ldexp(1.0 + static_cast<double>((k * 37 + i * 11) % 97) / 97,
                         static_cast<int>((k * 5 + i * 3) % 9)) *
              ((k + i) % 3 == 0 ? -1 : 1);
  return part;
}

// As the header says it: by twos, and what is left over from the smallest up.
at::Tensor Wanted(int64_t first, int64_t parts) {
  if (parts == 1) return Part(first);
  int64_t whole = 1;
  while (2 * whole <= parts) whole *= 2;
  if (whole == parts) return Wanted(first, parts / 2) + Wanted(first + parts / 2, parts / 2);
  return Wanted(first, whole) + Wanted(first + whole, parts - whole);
}

at::Tensor Sum(int64_t parts, int ranks, bool twice) {
  const int taking = TreeUnits(parts, ranks);
  SumTree tree;
  for (int level = 0; level < TreeLevels(parts / taking); ++level) tree.TakeMemory(at::zeros({64}));
  at::Tensor sum = at::zeros({64});
  for (int step = twice ? 0 : 1; step < 2; ++step) {
    tree.Clear();
    for (int64_t turn = 0; turn < parts / taking; ++turn) {
      at::Tensor rows = at::zeros({taking, 64});
      for (int rank = 0; rank < taking; ++rank)
        rows[rank] = Part(CutBatch(parts, 1, rank, ranks, taking)[turn].first);
      tree.Add(SumOfRows(rows));
    }
    tree.CopyTotal(sum);
  }
  return sum;
}

TEST(SumTree, AnyNumberOfRanksHasTheSameBits) {
  int differ = 0;
  for (const int64_t parts : {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 24, 31, 32, 48}) {
    const at::Tensor wanted = Wanted(0, parts);
    at::Tensor in_order = at::zeros({64});
    for (int64_t k = 0; k < parts; ++k) in_order += Part(k);
    differ += !at::equal(in_order, wanted);
    for (const int ranks : {1, 2, 3, 4, 6, 8, 16, 64}) {
      EXPECT_TRUE(at::equal(Sum(parts, ranks, false), wanted)) << parts << " " << ranks;
      EXPECT_TRUE(at::equal(Sum(parts, ranks, true), wanted)) << "again, " << parts << " " << ranks;
    }
  }
  EXPECT_GT(differ, 5) << "the order makes no difference here";
}

// A unit's summands in their order, and of three units the two that have parts.
TEST(SumTree, SummandsOfAUnitAreAddedBeforeUnitsAre) {
  const auto summands = [](int units, int in_unit) {
    at::Tensor all = at::zeros({units * in_unit, 64});
    for (int64_t i = 0; i < units * in_unit; ++i) all[i] = Part(i);
    return all;
  };
  EXPECT_TRUE(at::equal(SumOfTurn(summands(2, 3), 2, 2),
                        ((Part(0) + Part(1)) + Part(2)) + ((Part(3) + Part(4)) + Part(5))));
  EXPECT_TRUE(
      at::equal(SumOfTurn(summands(3, 2), 3, 2), (Part(0) + Part(1)) + (Part(2) + Part(3))));
  EXPECT_TRUE(
      at::equal(SumOfTurn(summands(4, 1), 4, 4), (Part(0) + Part(1)) + (Part(2) + Part(3))));
  EXPECT_TRUE(at::equal(SumOfTurn(summands(2, 1), 2, 1), Part(0)));
  EXPECT_THROW(SumOfTurn(summands(1, 3), 2, 1), c10::Error);
}

TEST(SumTree, EachRankTakesItsTurnsAndTheOthersNothing) {
  const auto rows = [](int rank) {
    std::vector<std::pair<int64_t, int64_t>> found;
    for (const Cut& cut : CutBatch(11, 2, rank, 3, 2)) found.emplace_back(cut.first, cut.rows);
    return found;
  };
  using Found = std::vector<std::pair<int64_t, int64_t>>;
  EXPECT_EQ(rows(0), (Found{{0, 2}, {4, 2}, {8, 2}}));
  EXPECT_EQ(rows(1), (Found{{2, 2}, {6, 2}, {10, 1}}));
  EXPECT_EQ(rows(2), (Found{{11, 1}, {11, 1}, {11, 1}}));
}

// Of three ranks that are one part together the last have rows of the first turn alone.
TEST(SumTree, APartOfSeveralRanksIsFilledUp) {
  EXPECT_EQ(CutBatch(8, 2, 0, 3, 3)[1].first, 6);
  const Cut filled = CutBatch(8, 2, 1, 3, 3)[1];
  EXPECT_EQ(filled.first, 8);
  EXPECT_EQ(filled.rows, 1);
}

}  // namespace
}  // namespace muster::trainer
