// Random systems under the real State, Apply, Decide and Validate, with the rules of
// docs/scheduling.md checked after each step.
//
// A case is a random queue tree over a random fleet, small enough that thousands run in a second.
// It lives through bursts of outside events (arrivals, ends, failures, lost hosts, drains, edited
// queues) and, between them, through quiet times in which nothing happens but what the scheduler
// does itself: then it must settle. Stops take 1 to 5 steps. The same seed gives the same case on
// every machine.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/fnv.h"
#include "scheduler/decide/testing/fuzz_blocks.h"
#include "scheduler/decide/testing/fuzz_multiples.h"
#include "scheduler/decide/testing/fuzz_spared.h"

namespace muster {

struct FuzzTotals {
  int64_t trees = 0;
  int64_t steps = 0;   // decisions, each validated, checked and applied
  int64_t events = 0;  // applied: from outside, of hosts, and of plans
  int64_t starts = 0, backfills = 0, evictions = 0, shrinks = 0, moves = 0, growths = 0, spills = 0,
          lost = 0;
  int64_t reservations = 0;  // told anew
  int64_t lent = 0;    // starts on devices that are kept for another task from some later time on
  int64_t judged = 0;  // victims whose queue's level was compared with their claimant's
  int64_t beside = 0;  // victims without devices, for claims with
  int64_t overtaken = 0;   // victims of what goes before them in their own queue, at one priority
  Spared spared;           // victims of whom it was asked whether they could have been spared
  int64_t stopping = 0;    // attempts that were being stopped, whose charge was recomputed
  int64_t members = 0;     // of arrays that were submitted
  int64_t successors = 0;  // jobs that came after one that had not ended
  int64_t timed = 0;       // jobs that waited for a time
  int64_t together = 0;    // jobs of which tasks start together
  int64_t hosted = 0;      // jobs on another one's devices
  Multiples multiples;     // of gangs that run in multiples of some workers only
  RankBlocks blocks;       // of gangs whose ranks stay together by blocks
  int64_t one_way = 0;     // starts outside a job's first cluster, where storages reach one way
  int64_t evicted_milli = 0, requested_milli = 0;
  int64_t steps_to_settle_max = 0;             // decisions with an effect in a quiet time
  int64_t settled = 0;                         // quiet times that ended
  int64_t entitled_waiting = 0, entitled = 0;  // units of S without and with a place, when settled
  uint64_t digest = kFnv1aBegin;               // over all plans' events, in order

  void Add(const FuzzTotals& other);
};

// Runs the case of the seed. Empty, or what broke, with the step. `trace` tells each event on
// stderr.
// Without `arrays` it submits none of them.
std::string RunFuzzCase(uint64_t seed, FuzzTotals* totals, bool trace = false, bool arrays = true);

}  // namespace muster
