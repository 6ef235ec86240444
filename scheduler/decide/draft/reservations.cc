#include "scheduler/decide/draft/reservations.h"

#include <algorithm>

#include "scheduler/decide/model/precedence.h"

namespace muster {

void Reservations::Add(PlannedReservation reservation) {
  by_pool_[reservation.place.pool].push_back(std::move(reservation));
  ++size_;
}

const PlannedReservation* Reservations::Of(int32_t gang, int32_t pool) const {
  const auto found = std::find_if(
      by_pool_[pool].begin(), by_pool_[pool].end(),
      [&](const PlannedReservation& reservation) { return reservation.place.gang == gang; });
  return found == by_pool_[pool].end() ? nullptr : &*found;
}

// It lends to work that ends before its start; and, unless it drains, to what is outside S and may
// be stopped for it by then.
bool Reservations::Lends(const PlannedReservation& to, const Gang& gang, int64_t end_ns,
                         const QueueUse& use) const {
  if (to.start_ns == 0) return false;
  if (end_ns != 0 && end_ns <= to.start_ns) return true;
  const Gang& claimant = in_.gang(to.place.gang);
  if (to.draining || gang.entitled || !MayTake(in_, claimant, gang)) return false;
  const int64_t demand = claimant.worker_milli * to.place.workers;
  const int64_t takes = gang.unit_milli();
  const int64_t most =
      4 * (gang.gpus == claimant.gpus ? demand : claimant.host_cpus_milli * to.place.workers);
  if (takes > most) return false;
  if (in_.now_ns + ProtectedFor(in_, claimant, gang) + GraceOf(*gang.spec) > to.start_ns)
    return false;
  return LevelAllows(in_, claimant, to.place.pool, demand, gang, use, takes);
}

uint64_t Reservations::WhichLend(const Gang& gang, int32_t pool, int64_t end_ns,
                                 const QueueUse& use) const {
  uint64_t which = 1;  // so that their number tells, too
  EachMet(pool, [&](const PlannedReservation& reservation) {
    which = 3 * which + (Lends(reservation, gang, end_ns, use) ? 1 : 0);
  });
  return which;
}

void Reservations::ChangeRests(const Gang& gang, int32_t pool, const HostSlices& slices,
                               int64_t end_ns, int64_t sign, const QueueUse& use) {
  const auto change = [&](PlannedReservation& reservation) {
    for (auto& [host, rest] : reservation.rest) {
      for (const HostSlice& part : slices) {
        if (part.host != host) continue;
        const Demand demand = WorkerDemand(*gang.spec, in_.state.host(host).inventory);
        rest.cpus_milli -= sign * part.workers * demand.cpus_milli;
        rest.memory_bytes -= sign * part.workers * demand.memory_bytes;
        rest.disk_bytes -= sign * part.workers * demand.disk_bytes;
        for (size_t d = 0; d < part.devices.size(); ++d) {
          // What runs may have a device that the host no longer tells of.
          if (part.devices[d] >= static_cast<int32_t>(rest.device_milli.size())) continue;
          rest.device_milli[part.devices[d]] -=
              sign * (d < part.device_milli.size() ? part.device_milli[d] : 1000);
        }
      }
    }
  };
  EachPoolMet(pool, [&](int32_t met) {
    for (PlannedReservation& reservation : by_pool_[met]) {
      if (!Lends(reservation, gang, end_ns, use)) change(reservation);
    }
  });
}

}  // namespace muster
