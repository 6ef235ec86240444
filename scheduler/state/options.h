// Settings of the scheduler's decisions: `scheduling:` of musterd.yaml, defaults as
// docs/scheduling.md has them.
#pragma once

#include <cstdint>

#include "common/base/units.h"

namespace muster {

// How one-host slices choose their host (scheduler/decide/place/score.h).
enum class PlacementPolicy { kV, kFgd, kBestFit };

struct SchedulingOptions {
  PlacementPolicy placement = PlacementPolicy::kV;
  int64_t grow_interval_ns =
      10 * kMinute;  // least time from an elastic gang's start or growth to its next growth
  int64_t starve_after_ns = 30 * kMinute;  // a reservation within a guarantee, or without a known
                                           // start, drains its hosts after so long
  int64_t min_runtime_ns =
      5 * kMinute;  // reclaim leaves units alone for so long, where the queue says nothing
  int64_t spill_cost_ns =
      60 * kSecond;  // gain in expected start that opening the next cluster must exceed
  int64_t lease_ns = 45 * kSecond;         // for mass loss (contract 11)
  int64_t restart_cost_ns = 10 * kSecond;  // what a resize costs a gang; growth must gain more
  int64_t restart_backoff_ns =
      1 * kSecond;  // the engine writes it into StepStarted; doubles with each failure
  int32_t estimates =
      64;  // expected starts that a decision works out for what waits without a reservation
  // Parts of docs/scheduling.md §2 that rounds end without: only muster-sim leaves them out, to
  // measure what they bring (decision 016).
  bool levels =
      true;  // outside the guaranteed class who borrows is stopped only for who borrows less
  bool draining = true;  // reservations that starve, or would stop too many, drain their hosts
};

}  // namespace muster
