// A thousand random systems keep the rules; `bench/run.sh sched-fuzz` runs millions of steps of
// them.
#include "scheduler/decide/testing/fuzz.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kTrees = 200;  // for what reads or writes astray; what is decided is the same
#else
constexpr uint64_t kTrees = 1000;
#endif

TEST(Fuzz, RandomSystemsKeepTheRulesAndSettle) {
  FuzzTotals totals;
  for (uint64_t seed = 1; seed <= kTrees; ++seed) {
    const std::string error = RunFuzzCase(seed, &totals);
    ASSERT_EQ(error, "") << "seed " << seed << "; sched-fuzz --replay=" << seed;
  }
  std::printf(
      "%ld trees, %ld steps, %ld starts, %ld backfilled, %ld evicted, %ld shrunk, %ld grown, %ld "
      "reservations, %ld lent, %ld levels compared, %ld stopped beside devices\n",
      totals.trees, totals.steps, totals.starts, totals.backfills, totals.evictions, totals.shrinks,
      totals.growths, totals.reservations, totals.lent, totals.judged, totals.beside);
  if (kTrees < 1000) return;
  // Everything that is to be tried was tried.
  EXPECT_GT(totals.backfills, 100);
  EXPECT_GT(totals.evictions, 100);
  EXPECT_GT(totals.shrinks, 10);
  EXPECT_GT(totals.moves, 0);
  EXPECT_GT(totals.growths, 10);
  EXPECT_GT(totals.spills, 10);
  EXPECT_GT(totals.lost, 10);
  EXPECT_GT(totals.reservations, 100);
  EXPECT_GT(totals.lent, 0);
  EXPECT_GT(totals.judged, 50);
  EXPECT_GT(totals.beside, 10);
  EXPECT_GT(totals.overtaken, 10);
  EXPECT_GT(totals.spared.victims, 10);
  EXPECT_GT(totals.spared.of_several, 0);
  EXPECT_GT(totals.stopping, 100);
  EXPECT_GT(totals.members, 100);
  EXPECT_GT(totals.successors, 100);
  EXPECT_GT(totals.timed, 100);
  EXPECT_GT(totals.one_way, 0);
  EXPECT_GT(totals.multiples.tasks, 100);
  EXPECT_GT(totals.multiples.starts, 10);
  EXPECT_GT(totals.multiples.growths, 5);
  EXPECT_GT(totals.multiples.shrinks, 0);
  EXPECT_GT(totals.blocks.tasks, 100);
  EXPECT_GT(totals.blocks.spread, 20);
  EXPECT_GT(totals.blocks.wishes, 20);
  EXPECT_GT(totals.blocks.in_islands, 0);
  EXPECT_GT(totals.blocks.resizes, 2);
  EXPECT_LE(2 * totals.evicted_milli, 3 * totals.requested_milli);
}

// As long as the fuzzer draws what it does: 225625 left a victim behind for whose queue the
// claimant's level was too high. In 21141 a guaranteed claim moved a longer one of its
// queue aside within its min_runtime. In 501362 a gang was made smaller whose queue's limit
// wouldn't have let it come back. 602196 left a start out of the plan for which a claim had stopped
// another.
TEST(Fuzz, SeedsThatBrokeARuleKeepItNow) {
  for (const uint64_t seed :
       {uint64_t{225625}, uint64_t{21141}, uint64_t{501362}, uint64_t{602196}}) {
    FuzzTotals totals;
    EXPECT_EQ(RunFuzzCase(seed, &totals), "") << "sched-fuzz --replay=" << seed;
  }
}

TEST(Fuzz, TheSameSeedGivesTheSamePlans) {
  FuzzTotals a, b;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    RunFuzzCase(seed, &a);
    RunFuzzCase(seed, &b);
  }
  EXPECT_EQ(a.digest, b.digest);
  EXPECT_NE(a.digest, 0u);
}

}  // namespace
}  // namespace muster
