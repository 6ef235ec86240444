// What ranks tell each other when one of them fails.
#include "trainer/parallel/groups.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include <c10/core/AllocatorConfig.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

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

// Rank 0 of two: it meets its own store, and then finds no interface for its group.
TEST(World, ARankThatFailsWhileItConnectsCanStillAnnounceItAndNobodyWaitsForItThen) {
  WorldInfo info;
  info.size = 2, info.local_size = 2, info.master_port = FreePort();
  std::unique_ptr<World> world;
  ::setenv("GLOO_SOCKET_IFNAME", "no-such-interface", /*overwrite=*/1);
  EXPECT_ANY_THROW(World::Connect(info, at::kCPU, world));
  ::unsetenv("GLOO_SOCKET_IFNAME");
  ASSERT_NE(world, nullptr);
  world->AnnounceFailure("it has no such interface");
  EXPECT_EQ(world->AnnouncedFailure(), "rank 0: it has no such interface");
  info.rank = info.local_rank = 1;
  std::unique_ptr<World> other;
  std::string why;
  try {
    World::Connect(info, at::kCPU, other);
  } catch (const std::exception& e) {
    why = e.what();
  }
  EXPECT_NE(why.find("gave up waiting for the other ranks to come"), std::string::npos) << why;
  ASSERT_NE(other, nullptr);
  EXPECT_EQ(other->AnnouncedFailure(), "rank 0: it has no such interface");
}

// In one group a gradient would wait behind an activation that goes the other way.
TEST(World, EachWayBetweenNeighboursOfAPipelineHasAGroupOfItsOwn) {
  for (const int stages : {2, 3}) {
    for (const bool ring : {false, true}) {
      const auto body = [&](World& world) {
        const PipelineGroups& links = world.pipeline();
        std::set<const c10d::Backend*> groups;
        size_t ways = 0;
        for (const Link* link :
             {&links.forward_from, &links.forward_to, &links.backward_from, &links.backward_to}) {
          if (!link->backend) continue;
          groups.insert(link->backend.get());
          ++ways;
        }
        const bool between = world.rank() > 0 && world.rank() + 1 < stages;
        EXPECT_EQ(ways, ring || between ? 4u : 2u);
        EXPECT_EQ(groups.size(), ways);
      };
      OnRanks(stages, body, 0, 1, stages, ring);
    }
  }
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

// A backend that makes memory, may say that it can't, or fail at it.
class MakesMemory : public c10d::Backend {
 public:
  enum What { kCan, kCannot, kFails };
  explicit MakesMemory(What what) : Backend(0, 2), what_(what) {}
  const std::string getBackendName() const override { return "makes-memory"; }
  bool supportsTensorAlloc(c10::DeviceIndex) override { return what_ != kCannot; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override {
    TORCH_CHECK(what_ != kFails, "no memory left");
    return at::empty({size}, options);
  }

 private:
  const What what_;
};

TEST(World, MemoryIsRegisteredOnAllRanksOrOnNone) {
  for (const auto& [first, second] : {std::pair{MakesMemory::kCan, MakesMemory::kCan},
                                      {MakesMemory::kCan, MakesMemory::kCannot},
                                      {MakesMemory::kFails, MakesMemory::kCan}}) {
    const bool wanted = second == MakesMemory::kCan && first == MakesMemory::kCan;
    const MakesMemory::What whats[] = {first, second};
    OnRanks(2, [&](World& world) {
      const Group group{world.rank(), 2, c10::make_intrusive<MakesMemory>(whats[world.rank()])};
      const at::Tensor memory = world.RegisteredMemory(group, 100);
      EXPECT_EQ(memory.defined(), wanted);
      if (memory.defined()) {
        EXPECT_EQ(memory.numel(), 100);
      }
      EXPECT_FALSE(world.RegisteredMemory({world.rank(), 2, world.backend()}, 100).defined())
          << "Gloo makes none";
    });
  }
}

// NCCL wants a GPU a rank. A group of one shows that it starts, and takes each call that ranks
// make.
class Nccl : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, Nccl, ::testing::Values("gpu"),
                         [](const auto& info) { return info.param; });

TEST_P(Nccl, AGroupOfOneTakesEveryCall) {
  const absl::StatusOr<at::Device> device = ChooseDevice(0);
  ASSERT_TRUE(device.ok()) << device.status();
  if (!device->is_cuda()) GTEST_SKIP() << "no GPU here";
  auto made = c10::make_intrusive<c10d::ProcessGroupNCCL>(
      c10::make_intrusive<c10d::HashStore>(), 0, 1,
      c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true));
  made->setBoundDeviceId(*device);
  made->eagerConnectSingleDevice(*device);
  const c10::intrusive_ptr<c10d::Backend> nccl = made;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kByte}) {
    at::Tensor mine = at::arange(64, at::TensorOptions().device(*device)).to(type);
    const at::Tensor wanted = mine.clone();
    at::Tensor all = at::zeros_like(mine);
    nccl->_allgather_base(all, mine, {})->wait();
    EXPECT_TRUE(at::equal(all, wanted));
    all.zero_();
    std::vector<int64_t> equal;
    nccl->alltoall_base(all, mine, equal, equal, {})->wait();
    EXPECT_TRUE(at::equal(all, wanted));
    std::vector<at::Tensor> tensors = {mine};
    nccl->broadcast(tensors, {})->wait();
    if (type != at::kByte) {
      nccl->allreduce(tensors, {})->wait();
      at::Tensor part = mine;
      nccl->_reduce_scatter_base(part, mine, {})->wait();  // in place, as flats are summed
    }
    EXPECT_TRUE(at::equal(mine, wanted));
  }
  nccl->abort();
}

// As the engine's slots are made, with the allocator as the trainer sets it; where the GPU can't
// multicast, they are plain memory and there is nothing to show.
TEST_P(Nccl, MemoryOfItsOwnTakesEveryCallToo) {
  const absl::StatusOr<at::Device> device = ChooseDevice(0);
  ASSERT_TRUE(device.ok()) << device.status();
  if (!device->is_cuda()) GTEST_SKIP() << "no GPU here";
  c10::CachingAllocator::setAllocatorSettings("expandable_segments:True");
  auto nccl = c10::make_intrusive<c10d::ProcessGroupNCCL>(
      c10::make_intrusive<c10d::HashStore>(), 0, 1,
      c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true));
  nccl->setBoundDeviceId(*device);
  nccl->eagerConnectSingleDevice(*device);
  const bool can = nccl->supportsTensorAlloc(device->index());
  std::printf("memory of NCCL's own: %s\n", can ? "yes" : "no");
  for (int round = 0; can && round < 2; ++round) {  // the second takes memory that the first left
    constexpr int64_t kBytes = int64_t{40} << 20, kPart = kBytes / 8;
    const at::Tensor memory =
        nccl->allocateTensor(kBytes, at::TensorOptions().dtype(at::kByte).device(*device));
    ASSERT_EQ(memory.numel(), kBytes);
    at::Tensor all = memory.narrow(0, 512, kPart * 4).view(at::kFloat);
    const at::Tensor wanted = at::arange(kPart, all.options());
    all.copy_(wanted);
    at::Tensor part = all.narrow(0, 0, kPart);
    nccl->_allgather_base(all, part, {})->wait();
    EXPECT_TRUE(at::equal(all, wanted));
    nccl->_reduce_scatter_base(part, all, {})->wait();
    std::vector<at::Tensor> tensors = {all};
    nccl->allreduce(tensors, {})->wait();
    EXPECT_TRUE(at::equal(all, wanted));
  }
  nccl->abort();
}

}  // namespace
}  // namespace muster::trainer
