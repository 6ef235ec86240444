// Who goes first in a queue with `order: shortest`, among jobs of one priority (docs/scheduling.md
// §1). Pure.
//
// A job stands in a *band*: its expected device time, in powers of two; where nobody can expect
// that, the device time that it has had so far, as what ran for long is the likelier to run for
// long. Bands are worked out at ticks only, so that the entitled set stays as it is in between.
#pragma once

#include <cstdint>

#include "common/base/units.h"
#include "scheduler/state/state.h"

namespace muster {

inline constexpr int64_t kOrderTickNs = 5 * kMinute;

// Before all others: it has waited for the queue's max_wait, or is the queue's longest.
inline constexpr int32_t kFrontBand = 0;
// Up to so much device time is the first of the other bands; each further one is twice as long.
inline constexpr int32_t kFirstBand = 1;
inline constexpr int64_t kFirstBandMilliNs = 1000 * 10 * kMinute;

// What is left of a job, in thousandths of a device x time. Without devices a CPU counts as a
// sixteenth of one.
struct WorkLeft {
  __int128 milli_ns = 0;           // by what is expected, else what it has had so far
  __int128 expected_milli_ns = 0;  // of the tasks whose end can be expected
  int64_t longest_ns = 0;          // of these the longest, in time at its least size
};
WorkLeft WorkLeftOf(const JobRow& job, int64_t now_ns);

// How long the task of the job that waited the longest did so in all.
int64_t WaitedNs(const JobRow& job, int64_t now_ns);

// The band of so much. `before`: its band so far, which it keeps while it is within a fifth of it;
// kFrontBand: none.
int32_t BandOf(__int128 milli_ns, int32_t before);

}  // namespace muster
