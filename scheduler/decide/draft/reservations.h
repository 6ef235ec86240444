// Devices that units of S will get when what runs there ends, and who may use them until then
// (docs/scheduling.md, reservations).
//
// Inside of scheduler/decide.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "scheduler/decide/model/inputs.h"
#include "scheduler/decide/model/queue_use.h"
#include "scheduler/decide/place/free_map.h"

namespace muster {

// A place that the plan gives a gang.
struct PlannedPlace {
  int32_t gang = 0;
  int32_t pool = 0;
  int32_t workers = 0;
  HostSlices slices;
};

struct PlannedReservation {
  PlannedPlace place;
  int64_t start_ns = 0;   // 0: unknown
  bool draining = false;  // nothing on its hosts may end after its start
  // What its hosts have beside it from start_ns on.
  std::vector<std::pair<HostId, HostFree>> rest;
};

class Reservations {
 public:
  explicit Reservations(const Inputs& in) : in_(in), by_pool_(in.model.pools.size()) {}

  void Add(PlannedReservation reservation);
  size_t size() const { return size_; }
  const std::vector<PlannedReservation>& In(int32_t pool) const { return by_pool_[pool]; }
  // nullptr: the gang has none in the pool.
  const PlannedReservation* Of(int32_t gang, int32_t pool) const;

  // Calls f(reservation) for each that what starts in the pool may meet: of the pool and, for work
  // without devices, of its cluster's devices.
  template <typename F>
  void EachMet(int32_t pool, F f) const {
    EachPoolMet(pool, [&](int32_t met) {
      for (const PlannedReservation& reservation : by_pool_[met]) f(reservation);
    });
  }

  // The gang may use what is reserved if it is expected to end at end_ns (0: never). `use`: what
  // queues hold now.
  bool Lends(const PlannedReservation& to, const Gang& gang, int64_t end_ns,
             const QueueUse& use) const;
  // Which of those that it meets lend to it, as a number.
  uint64_t WhichLend(const Gang& gang, int32_t pool, int64_t end_ns, const QueueUse& use) const;

  // The gang takes these slices (sign 1) or gives them back (-1): reservations that don't lend to
  // it leave so much less beside them.
  void ChangeRests(const Gang& gang, int32_t pool, const HostSlices& slices, int64_t end_ns,
                   int64_t sign, const QueueUse& use);

 private:
  template <typename F>
  void EachPoolMet(int32_t pool, F f) const {
    const std::vector<Pool>& pools = in_.model.pools;
    f(pool);
    if (pools[pool].flavour != in_.model.cpu) return;
    const auto same_cluster = [&](int32_t p) {
      return p >= 0 && p < static_cast<int32_t>(pools.size()) &&
             pools[p].cluster == pools[pool].cluster;
    };
    for (int32_t p = pool - 1; same_cluster(p); --p) f(p);  // pools of a cluster lie together
    for (int32_t p = pool + 1; same_cluster(p); ++p) f(p);
  }

  const Inputs& in_;
  std::vector<std::vector<PlannedReservation>> by_pool_;  // in order of acceptance
  size_t size_ = 0;
};

}  // namespace muster
