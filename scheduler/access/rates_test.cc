#include "scheduler/access/rates.h"

#include <gtest/gtest.h>

#include "common/base/units.h"

namespace muster {
namespace {

TEST(Rates, AUserHasABurstAndThenSoManyASecond) {
  Rates rates;
  const RateLimit limit = LimitOf(pb::RATE_READ);
  int64_t now_ns = 1000 * kSecond;
  for (int64_t i = 0; i < limit.burst; ++i)
    ASSERT_TRUE(rates.Take("ann", pb::RATE_READ, now_ns)) << i;
  EXPECT_FALSE(rates.Take("ann", pb::RATE_READ, now_ns));
  EXPECT_TRUE(rates.Take("bob", pb::RATE_READ, now_ns)) << "everybody has their own";
  EXPECT_TRUE(rates.Take("ann", pb::RATE_SUBMIT, now_ns)) << "and each kind of call";
  int taken = 0;
  for (int64_t ms = 0; ms < 10'000; ms += 5)
    taken += rates.Take("ann", pb::RATE_READ, now_ns + ms * 1'000'000);
  EXPECT_NEAR(taken, 10 * limit.per_s, 2);
}

TEST(Rates, OfNobodyWhoRestsAnythingIsKept) {
  Rates rates;
  for (int user = 0; user < 100; ++user)
    rates.Take(std::to_string(user), pb::RATE_READ, 1000 * kSecond);
  EXPECT_TRUE(rates.Take("ann", pb::RATE_READ, 2000 * kSecond));
  EXPECT_EQ(rates.users(), 1u);
}

TEST(Rates, OneCallMayCountAsMany) {
  Rates rates;
  const RateLimit limit = LimitOf(pb::RATE_SUBMIT);
  EXPECT_TRUE(rates.Take("ann", pb::RATE_SUBMIT, 0, limit.burst - 1));
  EXPECT_FALSE(rates.Take("ann", pb::RATE_SUBMIT, 0, 2)) << "and takes nothing";
  EXPECT_TRUE(rates.Take("ann", pb::RATE_SUBMIT, 0));
}

TEST(Rates, WhatHasNoLimitIsNotCounted) {
  Rates rates;
  for (int i = 0; i < 10'000; ++i) ASSERT_TRUE(rates.Take("ann", pb::RATE_NONE, 0));
  EXPECT_EQ(rates.users(), 0u);
}

}  // namespace
}  // namespace muster
