// When the agent tries again to reach its scheduler.
#include "agent/reconcile/retry.h"

#include <gtest/gtest.h>

#include <vector>

#include "common/base/units.h"

namespace muster::agent {
namespace {

TEST(Retry, IsAQuarterOfTheTimeThatTheSchedulerHasBeenAwayAndSlowerWhileItRefuses) {
  struct Try {
    int64_t at_ms;
    bool spoke, refused;
    int64_t wait_ms;
  };
  const std::vector<Try> lives[] = {
      {{0, false, false, 20},
       {80, false, false, 20},
       {1'000, false, false, 250},
       {8'000, false, false, 2'000},
       {3'600'000, false, false, 2'000}},
      // Away, met and gone again: counted from when it spoke.
      {{5'000, true, false, 20},
       {5'400, false, false, 100},
       {6'000, true, false, 20},
       {7'000, false, false, 250}},
      // A refusal, however long nobody was there before it, is first met again soon, then more and
      // more slowly.
      {{3'600'000, false, true, 20},
       {3'600'020, false, true, 20},
       {3'600'100, false, true, 100},
       {3'605'000, false, true, 5'000},
       {3'700'000, false, true, 10'000}},
      // In a row only.
      {{1'000, false, true, 20},
       {3'000, false, true, 2'000},
       {4'000, false, false, 1'000},
       {8'000, false, true, 20}},
  };
  for (const std::vector<Try>& life : lives) {
    Retry retry(0);
    for (const Try& t : life)
      EXPECT_EQ(retry.After(t.at_ms * kMillisecond, t.spoke, t.refused), t.wait_ms * kMillisecond)
          << t.at_ms;
  }
}

}  // namespace
}  // namespace muster::agent
