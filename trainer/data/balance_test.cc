#include "trainer/data/balance.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "trainer/data/packing.h"

namespace muster::trainer {
namespace {

// Mostly short documents, a few up to `max_length`.
std::vector<int64_t> LongTail(int64_t count, int64_t max_length, uint64_t seed) {
  SplitMix64 random{seed};
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t octaves = static_cast<int64_t>(random.Below(100));
    const int64_t top = octaves < 70 ? max_length / 32 : octaves < 95 ? max_length / 4 : max_length;
    lengths.push_back(1 + static_cast<int64_t>(random.Below(static_cast<uint64_t>(top))));
  }
  return lengths;
}

int64_t RowWork(const std::vector<int64_t>& row, const std::vector<int64_t>& lengths,
                int64_t linear) {
  int64_t work = 0;
  for (const int64_t document : row) work += DocumentWork(lengths[document], linear);
  return work;
}

TEST(Balance, EveryDocumentStandsInOneRowAndRowsKeepTheirLimit) {
  for (const uint64_t seed : {1, 2, 3}) {
    const BalanceOptions options{1024, 1280, 8, 300};
    const std::vector<int64_t> lengths = LongTail(3000, 1024, seed);
    std::vector<int> seen(lengths.size(), 0);
    for (const Step& step : BalanceSteps(lengths, options)) {
      ASSERT_EQ(step.size(), 8u);
      for (const std::vector<int64_t>& row : step) {
        int64_t length = 0;
        for (const int64_t document : row) ++seen[document], length += lengths[document];
        EXPECT_LE(length, 1280);
      }
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), static_cast<int64_t>(seen.size()));
  }
}

TEST(Balance, RefinementNeverMakesAStepsHeaviestRowHeavier) {
  const std::vector<int64_t> lengths = LongTail(5000, 1024, 5);
  const std::vector<Step> refined = BalanceSteps(lengths, {1024, 1280, 8, 300, true}),
                          plain = BalanceSteps(lengths, {1024, 1280, 8, 300, false});
  ASSERT_EQ(refined.size(), plain.size());
  const auto heaviest = [&](const Step& step) {
    int64_t most = 0;
    for (const auto& row : step) most = std::max(most, RowWork(row, lengths, 300));
    return most;
  };
  int better = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_LE(heaviest(refined[i]), heaviest(plain[i]));
    better += heaviest(refined[i]) < heaviest(plain[i]);
  }
  EXPECT_GT(better, 0);
}

TEST(Balance, AnOutlierWaitsForItsLike) {
  // Four of full length among short ones, spread out: they come together, one a row.
  std::vector<int64_t> lengths(4000, 10);
  for (const int64_t at : {5, 900, 1700, 2500}) lengths[at] = 1000;
  int steps_with = 0;
  for (const Step& step : BalanceSteps(lengths, {1000, 1250, 4, 100})) {
    std::vector<int> outliers;
    for (const auto& row : step)
      outliers.push_back(static_cast<int>(
          std::count_if(row.begin(), row.end(), [&](int64_t d) { return lengths[d] == 1000; })));
    if (std::accumulate(outliers.begin(), outliers.end(), 0) == 0) continue;
    ++steps_with;
    EXPECT_EQ(outliers, (std::vector<int>{1, 1, 1, 1}));
  }
  EXPECT_EQ(steps_with, 1);
}

}  // namespace
}  // namespace muster::trainer
