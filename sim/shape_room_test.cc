#include "sim/shape_room.h"

#include <gtest/gtest.h>

#include <set>

#include "scheduler/decide/testing/fixture.h"
#include "scheduler/state/testing/builders.h"

namespace muster::sim {
namespace {

using muster::testing::DecideQuickly;
using muster::testing::HeadOfLine;
using muster::testing::JobBuilder;
using muster::testing::ReservationOf;
using muster::testing::Scattered;
using muster::testing::StartAll;

// Two hosts of 4 devices with a task of one device on each.
TEST(ShapeRoom, WhatStaysLeavesNoHostWholeAndWhatDoesNotIsNotThere) {
  Scattered at(8);
  const auto room = [&](const std::set<uint64_t>& stays) {
    return ShapeRoom(at.system.state, 0, "gpu",
                     [stays](uint64_t job) { return stays.contains(job); });
  };
  EXPECT_FALSE(room({at.stay[0], at.stay[1]}).Take(1, 4000));
  EXPECT_TRUE(room({at.stay[0]}).Take(1, 4000));
  EXPECT_FALSE(room({at.stay[0]}).Take(2, 4000));
  EXPECT_TRUE(room({}).Take(2, 4000));
  ShapeRoom twice = room({at.stay[0]});
  EXPECT_TRUE(twice.Take(3, 1000)) << "on the fuller host";
  EXPECT_TRUE(twice.Take(1, 4000));
  EXPECT_FALSE(twice.Take(1, 1000));
  EXPECT_FALSE(ShapeRoom(at.system.state, 0, "other", [](uint64_t) { return false; }).Take(1, 1000))
      << "of this flavour only";
}

// 0.9 of one of two devices are kept for the head.
TEST(ShapeRoom, WhatIsKeptForAnOlderOneIsNotThere) {
  HeadOfLine at;
  const Reservation* const kept = ReservationOf(at.system, at.head);
  ASSERT_NE(kept, nullptr);
  const ShapeRoom all(at.system.state, 0, "gpu", [](uint64_t) { return false; });
  ShapeRoom beside = all, without = all;
  beside.Keep(*kept);
  EXPECT_TRUE(without.Take(2, 1000));
  EXPECT_FALSE(beside.Take(2, 1000));
  EXPECT_TRUE(beside.Take(1, 100));
  EXPECT_TRUE(beside.Take(1, 1000));
}

}  // namespace
}  // namespace muster::sim
