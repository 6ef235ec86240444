// What the shim says of memory and CPU time, over control groups that are folders of files, over
// real processes, and over looks that are values.
#include "agent/shim/usage.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "agent/shim/times.h"

namespace muster::shim {
namespace {

constexpr int64_t kOneS = 1'000'000'000;
constexpr int64_t kMib = int64_t{1} << 20;

struct At {
  int64_t s;
  Measured measured;
  bool last = false;
};

TEST(UsageMeter, KeepsTheMostOfMemoryAndTheBusiestStretchOfCpuTime) {
  const struct {
    const char* what;
    std::vector<At> looks;
    Used used;
  } kCases[] = {
      {"nothing can be told", {{1, {}}, {60, {}, true}}, {60 * kOneS, -1, -1, -1}},
      {"memory goes up and down",
       {{1, {.memory_bytes = 100}}, {2, {.memory_bytes = 900}}, {3, {.memory_bytes = 50}, true}},
       {3 * kOneS, 900, -1, -1}},
      {"a process that ended between two looks had used more",
       {{1, {.memory_bytes = 100}}, {9, {.process_peak_bytes = 700}, true}},
       {9 * kOneS, 700, -1, -1}},
      {"no more than the kernel counted for all of them",
       {{1, {.memory_bytes = 100}}, {9, {.memory_bound_bytes = 300, .process_peak_bytes = 700}}},
       {9 * kOneS, 300, -1, -1}},
      {"two cores for ten seconds, then idle",
       {{5, {.cpu_us = 10'000'000}}, {10, {.cpu_us = 20'000'000}}, {60, {.cpu_us = 20'000'000}}},
       {60 * kOneS, -1, 20'000'000, 2000}},
      {"a short run is one stretch",
       {{1, {.cpu_us = 500'000}}, {2, {.cpu_us = 3'000'000}, true}},
       {2 * kOneS, -1, 3'000'000, 1500}},
      {"what ran for a moment says nothing of cores",
       {{0, {.cpu_us = 0}}, {0, {.cpu_us = 90'000}, true}},
       {0, -1, 90'000, -1}},
      {"a last stretch of a second is chance",
       {{10, {.cpu_us = 10'000'000}}, {11, {.cpu_us = 18'000'000}, true}},
       {11 * kOneS, -1, 18'000'000, 1000}},
      {"a counter that falls back is no less used",
       {{10, {.cpu_us = 10'000'000}}, {20, {.cpu_us = 4'000'000}}},
       {20 * kOneS, -1, 10'000'000, 1000}},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.what);
    UsageMeter meter;
    for (const At& look : c.looks) meter.Add(look.measured, look.s * kOneS, look.last);
    EXPECT_EQ(meter.used().ran_ns, c.used.ran_ns);
    EXPECT_EQ(meter.used().memory_peak_bytes, c.used.memory_peak_bytes);
    EXPECT_EQ(meter.used().cpu_us, c.used.cpu_us);
    EXPECT_EQ(meter.used().cpus_most_milli, c.used.cpus_most_milli);
  }
}

TEST(UsageMeter, LooksOftenAtFirstAndSeldomWhereALookTakesLong) {
  EXPECT_EQ(NextMeasureNs(0, 0), kOneS);
  EXPECT_EQ(NextMeasureNs(3600 * kOneS, 50'000), 5 * kOneS);
  EXPECT_EQ(NextMeasureNs(3600 * kOneS, kOneS), 100 * kOneS);
}

class MeasureTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/muster-usage-test-XXXXXX";
    directory_ = ::mkdtemp(name);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  void Write(const char* name, const std::string& text) {
    std::ofstream(directory_ + "/" + name) << text;
  }

  std::string directory_;
};

TEST_F(MeasureTest, AGroupOfVersionTwoTellsItsMemoryWithoutCachedFiles) {
  Write("cpu.stat", "usage_usec 1234567\nuser_usec 1000000\nsystem_usec 234567\n");
  Write("memory.current", "1000000\n");
  Write("memory.peak", "1200000\n");
  Write("memory.stat", "anon 300000\nfile 600000\nshmem 100000\nslab_reclaimable 50000\n");
  const Measured measured = Measure({{directory_, "", ""}, ::getpid()}, /*live=*/true);
  EXPECT_EQ(measured.cpu_us, 1'234'567);
  EXPECT_EQ(measured.memory_bytes, 450'000) << "all but 500000 of files and 50000 of the kernel's";
  EXPECT_EQ(measured.memory_bound_bytes, 1'200'000);
}

TEST_F(MeasureTest, AGroupOfVersionOneTellsItsMemory) {
  Write("memory.stat", "cache 900000\nrss 5\nshmem 6\ntotal_rss 300000\ntotal_shmem 100000\n");
  Write("memory.max_usage_in_bytes", "1300000\n");
  const Measured measured = Measure({{"", directory_, ""}, ::getpid()}, /*live=*/true);
  EXPECT_EQ(measured.memory_bytes, 400'000);
  EXPECT_EQ(measured.memory_bound_bytes, 1'300'000);
}

TEST_F(MeasureTest, FilesThatAreDamagedOrMissingTellNothing) {
  Write("cpu.stat", "usage_usec many\n");
  Write("memory.current", "-7\n");
  Write("memory.stat", "file 1\n");
  const Measured measured = Measure({{directory_, "", ""}, ::getpid()}, /*live=*/false);
  EXPECT_EQ(measured.memory_bytes, -1);
  EXPECT_EQ(measured.memory_bound_bytes, -1);
  EXPECT_GE(measured.cpu_us, 0) << "of the children that have ended";
}

// A child, and one of its own, use 64 MiB and a good deal of CPU time each; then they end.
TEST_F(MeasureTest, WithoutGroupsProcessesAreMeasuredByThemselvesAndAfterTheirEnd) {
  int ready[2], end[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(end), 0);
  const Measured before = Measure({{}, ::getpid()}, /*live=*/true);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(end[1]);
    const pid_t own = ::fork();
    void* memory =
        ::mmap(nullptr, 64 * kMib, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(memory, 1, 64 * kMib);
    volatile uint64_t turns = 0;
    while (ClockNs(CLOCK_PROCESS_CPUTIME_ID) < 200 * kMillisecond) turns = turns + 1;
    char byte = 0;
    if (::write(ready[1], &byte, 1) != 1) ::_exit(1);
    while (::read(end[0], &byte, 1) > 0) {
    }
    if (own > 0) ::waitpid(own, nullptr, 0);
    ::_exit(0);
  }
  char bytes[2];
  ASSERT_EQ(::read(ready[0], bytes, 1) + ::read(ready[0], bytes, 1), 2);
  const Measured live = Measure({{}, ::getpid()}, /*live=*/true);
  EXPECT_GE(live.memory_bytes, 128 * kMib);
  EXPECT_GE(live.cpu_us - before.cpu_us, 340'000) << "in ticks of a hundredth of a second";
  const Measured other = Measure({{}, child}, /*live=*/true);
  EXPECT_LT(other.memory_bytes, live.memory_bytes) << "of the child's child alone";
  ::close(end[1]);
  ::waitpid(child, nullptr, 0);
  const Measured ended = Measure({{}, ::getpid()}, /*live=*/false);
  EXPECT_GE(ended.cpu_us - before.cpu_us, 380'000);
  EXPECT_GE(ended.process_peak_bytes, 64 * kMib);
  for (const int fd : {ready[0], ready[1], end[0]}) ::close(fd);
}

TEST(UsageFiles, AreReadAsTheyWereWrittenAndOfAnOlderShimTellNothing) {
  const Used used{7 * kOneS, 900, 12'345, 1500};
  std::string error;
  Used read;
  ASSERT_TRUE(ParseUsage(FormatUsage(used), &read, &error)) << error;
  EXPECT_EQ(read.ran_ns, used.ran_ns);
  EXPECT_EQ(read.memory_peak_bytes, used.memory_peak_bytes);
  EXPECT_EQ(read.cpu_us, used.cpu_us);
  EXPECT_EQ(read.cpus_most_milli, used.cpus_most_milli);
  Exits exits, back;
  exits.used = used;
  ASSERT_TRUE(ParseExits(FormatExits(exits), &back, &error)) << error;
  EXPECT_EQ(back.used.cpu_us, used.cpu_us);
  exits.used = Used();
  EXPECT_EQ(FormatExits(exits).find("cpu_us"), std::string::npos);
  ASSERT_TRUE(ParseExits(FormatExits(exits), &back, &error)) << error;
  EXPECT_EQ(back.used.ran_ns, 0);
  EXPECT_EQ(back.used.cpu_us, -1);
  EXPECT_FALSE(ParseUsage("muster-shim-usage version=1\n", &read, &error)) << "half of it";
}

}  // namespace
}  // namespace muster::shim
