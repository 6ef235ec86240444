#include "scheduler/api/allowance.h"

#include <gtest/gtest.h>

#include "common/base/units.h"

namespace muster {
namespace {

AllowanceLimits Limits() {
  AllowanceLimits limits;
  limits.bytes_at_once = 1000;
  limits.bytes_per_s = 100;
  limits.wait_s = 10;
  limits.connections_at_once = 3;
  limits.connections_per_s = 2;
  return limits;
}

TEST(Allowance, AnAddressHasSoManyBytesAtOnceAndThenSoManyASecond) {
  Allowance allowance(Limits());
  EXPECT_TRUE(allowance.Take("a", 999, kSecond));
  EXPECT_FALSE(allowance.Take("a", 1, kSecond));
  EXPECT_TRUE(allowance.Take("b", 999, kSecond)) << "it is another address";
  EXPECT_TRUE(allowance.Take("b", 99, 2 * kSecond));
  EXPECT_FALSE(allowance.Take("b", 2, 2 * kSecond));
  EXPECT_TRUE(allowance.Take("a", 999, 60 * kSecond)) << "it is full again, and no fuller";
  EXPECT_FALSE(allowance.Take("a", 1, 60 * kSecond));
}

TEST(Allowance, WhatIsExplainedLaterIsGivenBack) {
  Allowance allowance(Limits());
  EXPECT_TRUE(allowance.Take("a", 900, kSecond));
  EXPECT_TRUE(allowance.Take("a", -900, kSecond));
  EXPECT_TRUE(allowance.Take("a", 999, kSecond));
  EXPECT_TRUE(allowance.Take("a", -5000, kSecond));
  EXPECT_FALSE(allowance.Take("a", 1000, kSecond)) << "no more than there was";
}

TEST(Allowance, WhoEmptiesItMayNotConnectForAWhile) {
  Allowance allowance(Limits());
  EXPECT_FALSE(allowance.Take("a", 1'000'000'000, kSecond));
  EXPECT_FALSE(allowance.Take("a", 1, kSecond));
  EXPECT_FALSE(allowance.Connect("a", 2 * kSecond));
  EXPECT_TRUE(allowance.Connect("b", 2 * kSecond));
  EXPECT_FALSE(allowance.Connect("a", 10 * kSecond));
  EXPECT_TRUE(allowance.Connect("a", 12 * kSecond));
}

TEST(Allowance, AnAddressConnectsSoOften) {
  Allowance allowance(Limits());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(allowance.Connect("a", kSecond)) << i;
  EXPECT_FALSE(allowance.Connect("a", kSecond));
  EXPECT_FALSE(allowance.Connect("a", kSecond + 400 * kMillisecond));
  EXPECT_TRUE(allowance.Connect("a", kSecond + 500 * kMillisecond));
  EXPECT_FALSE(allowance.Connect("a", kSecond + 500 * kMillisecond));
}

// As often as it is asked: what comes in between is not lost.
TEST(Allowance, FillsNoSlowerForBeingAskedOften) {
  Allowance allowance(Limits());
  EXPECT_TRUE(allowance.Take("a", 999, kSecond));
  for (int64_t at_ns = kSecond; at_ns <= 2 * kSecond; at_ns += 10 * kMillisecond)
    allowance.Take("a", 0, at_ns);
  EXPECT_TRUE(allowance.Take("a", 99, 2 * kSecond));
}

TEST(Allowance, ForgetsWhoIsAtRest) {
  Allowance allowance(Limits());
  for (int i = 0; i < 100; ++i) allowance.Connect(std::to_string(i), kSecond);
  allowance.Connect("a", 10 * kMinute);
  EXPECT_EQ(allowance.addresses(), 1u);
}

}  // namespace
}  // namespace muster
