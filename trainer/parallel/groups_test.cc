// What ranks tell each other when one of them fails.
#include "trainer/parallel/groups.h"

#include <atomic>
#include <chrono>
#include <future>

#include <gtest/gtest.h>

#include "trainer/parallel/test_ranks.h"

namespace muster::trainer {
namespace {

TEST(World, ARankThatWatchesLearnsWhichOtherFailedAndWhy) {
  std::promise<std::string> told;
  OnRanks(2, [&](World& world) {
    if (world.rank() == 0) {
      world.WatchFailures([&](const std::string& why) { told.set_value(why); });
      std::future<std::string> why = told.get_future();
      ASSERT_EQ(why.wait_for(std::chrono::seconds(30)), std::future_status::ready);
      EXPECT_EQ(why.get(), "rank 1: its disk is full");
      world.StopWatching();
    } else {
      world.AnnounceFailure("its disk is full");
    }
  });
}

TEST(World, WatchingEndsWithoutAWordWhereNothingFails) {
  std::atomic<int> calls{0};
  OnRanks(2, [&](World& world) {
    world.WatchFailures([&](const std::string&) { ++calls; });
    world.GatherRows({1});
    world.StopWatching();
  });
  EXPECT_EQ(calls, 0);
}

}  // namespace
}  // namespace muster::trainer
