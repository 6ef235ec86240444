// What Backfill and Spill ask about gangs that wait outside S.
//
// Inside of scheduler/decide.
#pragma once

#include <array>
#include <cstdint>
#include <tuple>
#include <vector>

#include "scheduler/decide/draft/draft.h"
#include "scheduler/decide/model/inputs.h"
#include "scheduler/decide/model/queue_use.h"

namespace muster {

// A waiting gang's place in line: queue by queue, in each by priority, then band, then the least
// run so far, then submission. What has waited for very long counts as never having run, so that it
// isn't passed over for ever (docs/decisions/041).
struct InLine {
  int32_t leaf = 0;
  int32_t minus_priority = 0;
  int32_t band = 0;
  int64_t ran_ns = 0, submit_ns = 0;
  int32_t gang = 0;
  bool operator<(const InLine& other) const {
    return std::tie(leaf, minus_priority, band, ran_ns, submit_ns, gang) <
           std::tie(other.leaf, other.minus_priority, other.band, other.ran_ns, other.submit_ns,
                    other.gang);
  }
};
InLine PlaceInLine(const Inputs& in, const Gang& gang);

// What pools have free, each asked once: some tens of thousands of gangs may ask for it.
class FreeByPool {
 public:
  FreeByPool(const Inputs& in, Capacity* capacity)
      : capacity_(capacity), milli_(in.model.pools.size(), {-1, -1}) {}
  int64_t Milli(int32_t pool, bool gpus) {
    int64_t& known = milli_[pool][gpus];
    if (known < 0) known = std::max<int64_t>(0, capacity_->FreeMilli(pool, gpus));
    return known;
  }

 private:
  Capacity* const capacity_;
  std::vector<std::array<int64_t, 2>> milli_;  // of CPUs and of devices; -1: not asked yet
};

// What units of S wait for, which starts outside S may not use up.
class WaitingClaims {
 public:
  // As the draft has them now.
  WaitingClaims(const Inputs& in, const Draft& draft);

  // With the gang in the pool, a limit would keep out a unit of S that waits below the same queue,
  // and that couldn't stop it. The gang is expected to end at end_ns (0: unknown).
  bool HinderedBy(const Gang& gang, int32_t pool, int64_t end_ns) const;
  // The gang starts in the pool.
  void AddUse(const Gang& gang, int32_t pool) { use_.Add(gang, pool, gang.min_workers); }

 private:
  bool HinderedBy(const Gang& gang, int32_t flavour, int64_t takes_milli, int64_t end_ns) const;
  bool MakesWay(const Gang& gang, int64_t end_ns, const Gang& claimant) const;

  const Inputs& in_;
  const Draft& draft_;
  QueueUse use_;  // what is used now, and what S waits for
};

// Tasks of a job share a directory: starting this one in the pool puts no sibling's charged cluster
// out of reach.
bool SiblingsReach(const Inputs& in, const Gang& gang, int32_t pool);

}  // namespace muster
