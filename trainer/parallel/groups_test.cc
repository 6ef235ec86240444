// What ranks tell each other when one of them fails.
#include "trainer/parallel/groups.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>

#include <gtest/gtest.h>

#include "trainer/parallel/testing/test_ranks.h"

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

WorldInfo TwoHosts(const std::string& master_addr) {
  WorldInfo info;
  info.size = 2, info.master_addr = master_addr;
  return info;
}

TEST(GlooAddress, OfALoopbackMasterIsLoopback) {
  for (const char* master : {"localhost", "127.0.0.1", "127.0.1.1", "::1"})
    EXPECT_EQ(GlooAddress(TwoHosts(master)), "127.0.0.1");
}

TEST(GlooAddress, IsTheOneThatReachesTheMasterWhateverTheHostsNameStandsFor) {
  ifaddrs* all = nullptr;
  ASSERT_EQ(::getifaddrs(&all), 0);
  int others = 0;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET ||
        (one->ifa_flags & IFF_LOOPBACK) != 0 || (one->ifa_flags & IFF_UP) == 0)
      continue;
    char text[NI_MAXHOST];
    ASSERT_EQ(::getnameinfo(one->ifa_addr, sizeof(sockaddr_in), text, sizeof text, nullptr, 0,
                            NI_NUMERICHOST),
              0);
    EXPECT_EQ(GlooAddress(TwoHosts(text)), text);
    ++others;
  }
  ::freeifaddrs(all);
  char name[256] = "";
  ASSERT_EQ(::gethostname(name, sizeof name - 1), 0);
  const std::string address = GlooAddress(TwoHosts(name));
  EXPECT_FALSE(address.starts_with("127.") || address == "::1")
      << address << " is of no use to another host";
  if (others == 0) GTEST_SKIP() << "this host has only loopback";
}

}  // namespace
}  // namespace muster::trainer
