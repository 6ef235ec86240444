#include "common/base/durations.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

TEST(Durations, TellWhatSoManyDidNotExceed) {
  Durations durations;
  EXPECT_EQ(durations.PerMilleNs(990), 0);
  for (int64_t i = 1; i <= 1000; ++i) durations.Add(i * 1000);
  EXPECT_EQ(durations.count(), 1000u);
  EXPECT_EQ(durations.longest_ns(), 1'000'000);
  for (const int per_mille : {1, 10, 500, 900, 990, 999}) {
    EXPECT_GE(durations.PerMilleNs(per_mille), per_mille * 1000) << per_mille;
    EXPECT_LE(durations.PerMilleNs(per_mille), per_mille * 1125) << per_mille;
  }
  EXPECT_EQ(durations.PerMilleNs(1000), 1'000'000);
}

TEST(Durations, CountThoseUpToALength) {
  Durations durations;
  EXPECT_EQ(durations.CountUpTo(INT64_MAX), 0u);
  for (int64_t i = 1; i <= 1000; ++i) durations.Add(i * 1000);
  EXPECT_EQ(durations.sum_ns(), 500'500'000u);
  EXPECT_EQ(durations.CountUpTo(0), 0u);
  for (const int64_t us : {10, 100, 250, 500, 999}) {
    EXPECT_LE(durations.CountUpTo(us * 1000), static_cast<uint64_t>(us)) << us;
    EXPECT_GE(durations.CountUpTo(us * 1000), static_cast<uint64_t>(us * 8 / 9)) << us;
  }
  EXPECT_EQ(durations.CountUpTo(1'125'000), 1000u);
}

TEST(Durations, TakeWhatIsShortLongOrNegative) {
  for (const int64_t ns :
       {int64_t{-5}, int64_t{0}, int64_t{7}, int64_t{8}, int64_t{1} << 40, INT64_MAX}) {
    Durations durations;
    durations.Add(ns);
    EXPECT_EQ(durations.PerMilleNs(990), std::max<int64_t>(0, ns));
  }
}

}  // namespace
}  // namespace muster
