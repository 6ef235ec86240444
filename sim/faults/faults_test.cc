// The fault simulator over many seeds: nothing that may never happen happens, everything ends when the faults stop, and a seed replays.
#include <gtest/gtest.h>

#include "absl/strings/str_join.h"
#include "common/base/quiet_log.h"
#include "sim/faults/run.h"

namespace muster::sim::faults {
namespace {

Config Small() {
  Config config;
  config.hosts = 8;
  config.jobs = 16;
  config.faults = 40;
  config.duration_ns = 5 * kMinute;
  config.work_ns = kMinute;
  return config;
}

class FaultsTest : public ::testing::Test {
 protected:
  void SetUp() override { SilenceLog(); }
};

TEST_F(FaultsTest, TheSameSeedGivesTheSameRunBitForBit) {
  for (const uint64_t seed : {1, 2, 3}) {
    const RunResult once = faults::Run(Small(), seed, DrawFaults(Small(), seed));
    const RunResult again = faults::Run(Small(), seed, DrawFaults(Small(), seed));
    EXPECT_EQ(once.digest, again.digest) << seed;
    EXPECT_EQ(once.counters, again.counters) << seed;
  }
  EXPECT_NE(faults::Run(Small(), 1, DrawFaults(Small(), 1)).digest, faults::Run(Small(), 2, DrawFaults(Small(), 2)).digest);
}

TEST_F(FaultsTest, AHundredAndFiftySeedsBreakNoContract) {
  Counters counters;
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    Config config = Small();
    if (seed % 50 == 0) config = Config();
    const RunResult result = faults::Run(config, seed, DrawFaults(config, seed));
    for (const auto& [name, count] : result.counters) counters[name] += count;
    ASSERT_TRUE(result.violations.empty()) << "seed " << seed << ": " << absl::StrJoin(result.violations, "\n");
  }
  for (const char* rare : {"schedulers killed before a commit", "schedulers killed after a commit", "commits that failed with effect", "takeovers",
                           "commits of a stale scheduler refused", "agents killed before a file was written", "agents killed after a file was written",
                           "shims killed", "reboots", "state directories lost", "lost", "mass cuts", "messages lost", "messages held up",
                           "submissions repeated", "cancels", "fenced", "lost by a fence", "backups restored", "commits replayed", "agents that stay away",
                           "commands of another session", "fenced tasks started after half of their fence", "killed processes that are there for longer", "directories that serve again",
                           "stops of a Lost attempt that runs, while others wait for devices"}) {
    EXPECT_GT(counters[rare], 0) << rare;
  }
}

}  // namespace
}  // namespace muster::sim::faults
