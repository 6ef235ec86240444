// The fault simulator over many seeds: nothing that may never happen happens, everything ends when
// the faults stop, and a seed replays.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/quiet_log.h"
#include "sim/faults/command.h"
#include "sim/faults/run.h"
#include "sim/random.h"

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
  EXPECT_NE(faults::Run(Small(), 1, DrawFaults(Small(), 1)).digest,
            faults::Run(Small(), 2, DrawFaults(Small(), 2)).digest);
}

// What so few seeds never meet, or only once or twice, so that any change of the code can take it
// away. bench/sim_seeds.py wants it of ten thousand.
constexpr const char* kTooRare[] = {
    "a fenced task replaced while its machine sleeps",
    "agents refused for good",
    "ends with an export that could not be published",
    "exports published again",
    "exports published by an order from before a restore",
    "fences put off by a scheduler whose store was cloned",
    "fenced tasks started after half of their fence",
    "jobs that others' ends kept from starting",
    "placed beside a Lost attempt that its host has not answered Gone for",
    "replaced what a restored store didn't know, unheard",
    "shims killed before the claim",
    "shims that came after their fence",
    "shims that came too late",
    "started after a restore that doesn't know it",
    "started late after Lost",
    "stops that lost the claim",
};

TEST_F(FaultsTest, AHundredAndFiftySeedsBreakNoContract) {
  Counters counters;
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    Config config = Small();
    if (seed % 50 == 0) config = Config();
    const RunResult result = faults::Run(config, seed, DrawFaults(config, seed));
    counters.Add(result.counters);
    ASSERT_TRUE(result.violations.empty())
        << "seed " << seed << ": " << absl::StrJoin(result.violations, "\n");
  }
  for (size_t i = 0; i < kCounterNames.size(); ++i) {
    const std::string name = kCounterNames[i];
    if (std::find(std::begin(kTooRare), std::end(kTooRare), name) == std::end(kTooRare))
      EXPECT_GT(counters.at(i), 0) << name;
  }
}

// The code has been mended until the seeds above pass. These are other ones at each run, or those
// from $MUSTER_SEED on.
TEST_F(FaultsTest, FiftySeedsThatNobodyHasSeenBreakNoContract) {
  const char* const given = ::getenv("MUSTER_SEED");
  uint64_t first = std::random_device()();
  if (given != nullptr) {
    ASSERT_TRUE(absl::SimpleAtoi(given, &first)) << "MUSTER_SEED=" << given;
  }
  std::printf("seeds from %llu on; again: MUSTER_SEED=%llu\n",
              static_cast<unsigned long long>(first), static_cast<unsigned long long>(first));
  for (uint64_t seed = first; seed < first + 50; ++seed) {
    const RunResult result = faults::Run(Small(), seed, DrawFaults(Small(), seed));
    ASSERT_TRUE(result.violations.empty())
        << "MUSTER_SEED=" << seed << ": " << absl::StrJoin(result.violations, "\n");
  }
}

// Of ten thousand seeds at this size the one in which a host that had answered lost its state
// directory, and was then served by the original of a cloned store again: the checker held both
// attempts against it.
TEST_F(FaultsTest, TheSeedThatFailedBreaksNoContract) {
  // As they were drawn for it.
  const std::vector<Fault> faults = {
      {31467147062, FaultKind::kMassCut, 80, 10342678278, 72},
      {51152869859, FaultKind::kKillShim, 80, 23502465721, 0},
      {78921629180, FaultKind::kClone, 55, 24277517288, 0},
      {97684227857, FaultKind::kLaunchFails, 63, 21826245579, 0},
      {134126221145, FaultKind::kRestore, 97, 87749032736, 0},
      {135305800768, FaultKind::kOldStreams, 75, 130699148517, 66505735119},
      {148649669334, FaultKind::kClone, 97, 64216347740, 0},
      {152669947246, FaultKind::kLoseState, 86, 15628419327, 0}};
  const RunResult result = faults::Run(Config(), 5838, faults);
  EXPECT_TRUE(result.violations.empty()) << absl::StrJoin(result.violations, "\n");
  Counters counters = result.counters;
  EXPECT_GT(counters[Counter("replaced what a restored store didn't know, unheard")], 0);
}

// Stores are cloned while hosts can't write, whose agents then die and find to the original again.
// They may not have answered the copy; and what is placed there for them waits until what the
// original has started meanwhile is gone.
TEST_F(FaultsTest, HostsThatCantRememberACloneAreServedByItsOriginalAndBreakNoContract) {
  Counters counters;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Config config = Small();
    config.sqlite = config.long_leases = 0;
    sim::Random random(seed);
    std::vector<Fault> faults;
    for (const int64_t clone_ns : {30 * kSecond, 110 * kSecond, 190 * kSecond}) {
      faults.push_back({clone_ns, FaultKind::kClone, 0, kMinute, 0});
      for (int32_t host = 0; host < config.hosts; ++host) {
        if (random.OneIn(2)) continue;
        faults.push_back({clone_ns - kSecond, FaultKind::kDiskFull, host, 30 * kSecond, 0});
        faults.push_back({clone_ns + random.Between(1, 10) * kSecond, FaultKind::kAgentAway, host,
                          random.Between(1, 3) * kSecond, 0});
      }
    }
    const RunResult result = faults::Run(config, seed, faults);
    counters.Add(result.counters);
    ASSERT_TRUE(result.violations.empty())
        << "seed " << seed << ": " << absl::StrJoin(result.violations, "\n");
  }
  EXPECT_GT(counters[Counter("welcomes that an agent could not keep the epoch of")], 0);
  EXPECT_GT(counters[Counter("replaced what a restored store didn't know, unheard")], 0);
}

// The scheduler's clock is set forward by a little less than two leases, again and again: that
// counts as silence (decision 045), and nobody's hang_timeout is so short that it is a hang.
TEST_F(FaultsTest, AClockThatIsSetForwardByLessThanTwoLeasesMakesNoHang) {
  Counters counters;
  for (uint64_t seed = 3; seed <= 90; seed += 3) {
    const Config config = Small();
    const int64_t lease_ns = ForSeed(config, seed).lease_ns;
    ASSERT_GT(lease_ns, config.lease_ns);
    std::vector<Fault> faults;
    for (int64_t at_ns = kMinute; at_ns < config.duration_ns; at_ns += kMinute)
      faults.push_back({at_ns, FaultKind::kSchedulerClock, 0, kSecond, 2 * lease_ns - kSecond});
    const RunResult result = faults::Run(config, seed, faults);
    counters.Add(result.counters);
    ASSERT_TRUE(result.violations.empty())
        << "seed " << seed << ": " << absl::StrJoin(result.violations, "\n");
  }
  EXPECT_GT(counters[Counter("attempts that hung")], 0) << "those that hang are found";
}

// ---- a run that fails ----

// Jobs that end long before the faults stop, if there are none, and hardly any time for what is
// left then.
Config Impatient() {
  Config config = Small();
  config.hosts = 3;
  config.jobs = 4;
  config.faults = 12;
  config.sqlite = 0;
  config.duration_ns = 2 * kMinute;
  config.patience_ns = 2 * kSecond;
  config.work_ns = 5 * kSecond;
  return config;
}

bool Fails(uint64_t seed, const std::vector<Fault>& faults) {
  return !faults::Run(Impatient(), seed, faults).violations.empty();
}

// The first seed that fails, and only because of its faults.
uint64_t SeedThatFails() {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    if (Fails(seed, DrawFaults(Impatient(), seed)) && !Fails(seed, {})) return seed;
  }
  ADD_FAILURE() << "no such seed";
  return 0;
}

TEST_F(FaultsTest, ShrinkLeavesTheFaultThatARunFailsOf) {
  uint64_t seed = 1;
  while (Fails(seed, {})) ++seed;
  std::vector<Fault> faults;
  for (int32_t i = 0; i < 9; ++i)
    faults.push_back({(i + 1) * kSecond, FaultKind::kReset, i % 3, kSecond, 0});
  ASSERT_FALSE(Fails(seed, faults));
  faults.insert(faults.begin() + 5, {kSecond / 2, FaultKind::kStoreFull, 0, Impatient().duration_ns,
                                     0});  // nobody is acknowledged before the end
  ASSERT_TRUE(Fails(seed, faults));
  const std::vector<Fault> fewer = Shrink(Impatient(), seed, faults, 100);
  ASSERT_EQ(fewer.size(), 1u);
  EXPECT_EQ(fewer[0].kind, FaultKind::kStoreFull);
  EXPECT_EQ(Shrink(Impatient(), seed, faults, 0).size(), faults.size()) << "no runs to find out";
}

struct Said {
  int code = 0;
  std::string out, err;
};

Said RunCommand(std::vector<std::string> words) {
  words.insert(words.begin(), "muster-sim");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  Said said;
  said.code = Main(static_cast<int>(argv.size()), argv.data());
  std::fflush(stdout);
  said.out = ::testing::internal::GetCapturedStdout();
  said.err = ::testing::internal::GetCapturedStderr();
  return said;
}

// Its line that begins with this, without that; empty: there is none.
std::string LineAfter(const std::string& text, const std::string& begin) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::StartsWith(line, begin)) return std::string(line.substr(begin.size()));
  }
  return "";
}

TEST_F(FaultsTest, AFailingRunIsToldWithFewerFaultsThatFailAgainWhenReplayed) {
  const uint64_t seed = SeedThatFails();
  const std::string config =
      absl::StrCat(::testing::TempDir(), "/faults-test-", ::getpid(), ".config");
  std::ofstream(config) << ConfigText(Impatient());
  const std::string all = absl::StrCat(seed);
  const Said said = RunCommand({"--seed", all, "--config", config});
  EXPECT_EQ(said.code, 1);
  EXPECT_TRUE(absl::StartsWith(said.err, absl::StrCat("seed ", seed, ", commit "))) << said.err;
  EXPECT_THAT(said.err, ::testing::HasSubstr("ms: liveness: "));
  size_t left = 0, drawn = 0;
  ASSERT_EQ(std::sscanf(LineAfter(said.err, "it fails with ").c_str(),
                        "%zu of its %zu faults:", &left, &drawn),
            2)
      << said.err;
  EXPECT_EQ(drawn, DrawFaults(Impatient(), seed).size());
  EXPECT_GT(left, 0u);
  EXPECT_LT(left, drawn);
  EXPECT_THAT(said.err, ::testing::HasSubstr("which says\nhosts: 3\n"));
  EXPECT_THAT(said.out, ::testing::HasSubstr("1 failed"));

  // muster-sim --seed N --only 1,2 --config FILE, which says
  std::vector<std::string> words = absl::StrSplit(LineAfter(said.err, "replay: muster-sim "), ' ');
  ASSERT_GT(words.size(), 6u) << said.err;
  words.resize(6);
  EXPECT_EQ(words[5], absl::StrCat(config, ","));
  words[5] = config;
  ASSERT_EQ(words[2], "--only");
  EXPECT_EQ(static_cast<size_t>(std::count(words[3].begin(), words[3].end(), ',')) + 1, left);
  words.emplace_back("--no-shrink");
  const Said again = RunCommand(words);
  EXPECT_EQ(again.code, 1);
  EXPECT_THAT(again.err, ::testing::HasSubstr(
                             absl::StrCat("it fails with ", left, " of its ", drawn, " faults:")));
  const std::string then = LineAfter(said.err, "  then: ");
  ASSERT_NE(then, "") << said.err;
  EXPECT_THAT(again.err, ::testing::HasSubstr(then));

  EXPECT_EQ(RunCommand({"--seed", all, "--config", config, "--only", "none"}).code, 0);
  const Said unknown = RunCommand({"--seed", all, "--config", config, "--only", "1000"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, ::testing::HasSubstr("there is no fault 1000"));
  std::filesystem::remove(config);
}

}  // namespace
}  // namespace muster::sim::faults
