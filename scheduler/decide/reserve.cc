// Reservations (SCHEDULING.md §4): when a unit of S could start by the expected ends of what runs,
// and what may use its devices until then. They are worked out anew in each round, in order of
// acceptance; State keeps what was told last (decision 016).
#include <algorithm>
#include <limits>

#include "scheduler/decide/round.h"

namespace muster {
namespace {

// The first units of S in a pool that get one; those behind them are served by the next rounds.
constexpr size_t kReservationsPerPool = 4;

}  // namespace

int64_t Round::EndIfStarted(const Gang& gang) const {
  const int64_t left_ns = gang.run_left_ns();
  return left_ns == kUnbounded ? 0 : now_ns_ + left_ns;
}

const std::vector<Round::End>& Round::EndsIn(int32_t pool) {
  std::optional<std::vector<End>>& known = ends_[pool];
  if (known.has_value()) return *known;
  std::vector<End>& ends = known.emplace();
  ends.reserve(m_.holding[pool].size());
  EachOf(m_.gangs, m_.holding[pool], [&](int32_t v) {
    const Gang& gang = m_.gangs[v];
    if (!gang.running()) return;
    const int64_t end_ns = ExpectedEnd(gang, now_ns_);
    ends.push_back({end_ns == 0 ? kUnbounded : std::max(end_ns, now_ns_), gang.place_ns, v,
                    gang.gpus, gang.worker_milli * gang.workers});
  });
  std::sort(ends.begin(), ends.end());
  return ends;
}

// Ends of running work are taken in turn until the gang fits. With `takes` (a waiting unit of S in
// its charged pool) what it may stop later, once that has run for min_runtime, counts as ending
// then.
std::optional<Round::Slot> Round::FindSlot(const Gang& gang, int32_t pool, int32_t workers,
                                           int64_t not_before_ns, bool takes,
                                           const HostSlices* told) {
  const int64_t demand = gang.worker_milli * workers;
  std::vector<End> ends;
  // What ends in a pool; what stands on its hosts without devices is no more of them, but may be in
  // the way.
  const auto add_ends = [&](int32_t in) {
    std::vector<std::pair<int32_t, int64_t>> stoppable;  // from when on; ascending
    const int64_t most = 4 * (in == pool ? demand : gang.host_cpus_milli * workers);
    if (takes) {
      EachOf(m_.gangs, m_.takeable[in], [&](int32_t v) {
        const Gang& other = m_.gangs[v];
        if (stopped_[v] || other.worker_milli * other.workers > most || !MayTake(gang, other))
          return;
        if (!LevelAllows(gang, pool, demand, other, use_future_)) return;
        stoppable.emplace_back(v, std::max(ProtectedUntil(other), now_ns_) + Grace(*other.spec));
      });
    }
    const auto before = static_cast<std::ptrdiff_t>(ends.size());
    ends.reserve(ends.size() + EndsIn(in).size());
    for (const End& known : EndsIn(in)) {
      if (stopped_[known.gang] || &m_.gangs[known.gang] == &gang) continue;
      ends.push_back(known);
      if (in != pool) ends.back().milli = 0;
      const auto at = std::lower_bound(stoppable.begin(), stoppable.end(),
                                       std::make_pair(known.gang, int64_t{0}));
      if (at != stoppable.end() && at->first == known.gang)
        ends.back().end_ns = std::min(known.end_ns, at->second);
    }
    if (!stoppable.empty()) std::sort(ends.begin() + before, ends.end());
    std::inplace_merge(ends.begin(), ends.begin() + before, ends.end());
  };
  add_ends(pool);
  if (const int32_t cpus = m_.CpusBeside(pool); cpus >= 0) add_ends(cpus);
  // By number it doesn't fit before so many of them.
  size_t least = 0;
  for (int64_t free_milli = gang.gpus && told == nullptr ? future_.FreeMilli(m_.pools[pool], true)
                                                         : demand;
       free_milli < demand; ++least) {
    if (least == ends.size()) return std::nullopt;
    free_milli += ends[least].milli;
  }

  Use use = use_future_;
  const size_t start_mark = future_.Mark();
  std::vector<size_t> marks;  // before each end that is applied
  // What the ends behind one begin with: an attempt and its parts lie apart.
  const auto fetch = [&](size_t i) {
    if (i + 8 < ends.size()) __builtin_prefetch(&m_.gangs[ends[i + 8].gang].current->parts);
    if (i + 4 >= ends.size()) return;
    const PartRow* part = m_.gangs[ends[i + 4].gang].current->parts.data();
    __builtin_prefetch(part);
    __builtin_prefetch(reinterpret_cast<const char*>(part) + 64);
  };
  const auto set_ends = [&](size_t count) {
    for (; marks.size() > count; marks.pop_back()) {
      const Gang& other = m_.gangs[ends[marks.size() - 1].gang];
      future_.UndoTo(marks.back());
      AddUse(&use, other, other.bound_pool, other.workers);
    }
    while (marks.size() < count) {
      fetch(marks.size());
      const Gang& other = m_.gangs[ends[marks.size()].gang];
      marks.push_back(future_.Mark());
      future_.Release(other.wants, *other.current);
      AddUse(&use, other, other.bound_pool, -other.workers);
    }
  };
  std::optional<Slot> slot;
  const auto fits = [&](size_t count) {
    set_ends(count);
    if (!WithinLimits(gang, pool, workers, use)) return false;
    const int64_t at_ns =
        std::max({now_ns_, not_before_ns, count == 0 ? 0 : ends[count - 1].end_ns});
    const size_t mark = future_.Mark();
    EachReservation(pool, [&](const Kept& earlier) {
      // Of one on devices beside it nothing is known but its rest: what ends there isn't in `ends`.
      if (earlier.pool == pool && earlier.start_ns != 0 && earlier.start_ns <= at_ns) {
        future_.Take(*m_.gangs[earlier.gang].spec, earlier.slices);
      } else {
        Block(&future_, earlier);
      }
    });
    std::optional<HostSlices> slices;
    if (told == nullptr) {
      slices = future_.Place(*gang.spec, workers, m_.pools[pool]);
    } else if (future_.Fits(*gang.spec, *told, /*silent_too=*/true)) {
      slices = *told;
    }
    if (slices.has_value()) {
      future_.Take(*gang.spec, *slices);
      slot.emplace();
      slot->start_ns = at_ns;
      for (const HostSlice& part : *slices)
        slot->rest.emplace_back(part.host, future_.Peek(part.host));
      slot->slices = std::move(*slices);
    }
    future_.UndoTo(mark);
    return slices.has_value();
  };
  // One end after the other while limits or what is whole say no; then by doubling and halving.
  const auto may_fit = [&](size_t count) {
    set_ends(count);
    return WithinLimits(gang, pool, workers, use) &&
           (told != nullptr || future_.AtMost(gang.wants, m_.pools[pool]) >= workers);
  };
  while (least < ends.size() && !may_fit(least)) ++least;
  // The newest slot is that of the fewest ends tried that let it fit.
  size_t low = least, high = least;  // it doesn't fit after `low` ends, it does after `high`
  bool found = fits(least);
  for (size_t more = 1; !found && low < ends.size(); more *= 2) {
    high = std::min(least + more, ends.size());
    found = fits(high);
    if (!found) low = high;
  }
  while (found && high > low + 1) {
    const size_t middle = low + (high - low) / 2;
    (fits(middle) ? high : low) = middle;
  }
  set_ends(0);
  future_.UndoTo(start_mark);
  return slot;
}

// The one case in which it matters what was told (decision 016): such a host is back soon, or
// unreachable. Until then its reservation, and the hosts that were emptied for it, would be lent to
// others at every start of the scheduler.
const Reservation* Round::ToldOnSilentHosts(const Gang& gang) const {
  const Reservation* told = gang.reserved ? gang.row->reservation.get() : nullptr;
  const Pool& pool = m_.pools[gang.charge];
  if (told == nullptr || told->held || told->attempt != gang.row->next_attempt ||
      told->workers != gang.min_workers)
    return nullptr;
  if (told->cluster != pool.cluster) return nullptr;
  if (!told->flavour.empty() && told->flavour != m_.flavours[pool.flavour]) return nullptr;
  const auto silent = [&](const HostSlice& part) {
    return s_.host(part.host).state == pb::HOST_SILENT;
  };
  return std::any_of(told->parts.begin(), told->parts.end(), silent) ? told : nullptr;
}

// True if the gang has a reservation now. `drain`: it doesn't stop others for itself, they would be
// too many.
bool Round::ReserveFrom(int32_t b, int64_t not_before_ns, bool drain) {
  const Gang& gang = m_.gangs[b];
  std::vector<Kept>& in_pool = reserved_[gang.charge];
  if (in_pool.size() >= kReservationsPerPool || reservations_left_ == 0) return false;
  const Reservation* told = ToldOnSilentHosts(gang);
  const std::array<int64_t, 4> key{kSlot, gang.charge, gang.shape, gang.leaf};
  if (told == nullptr && failed_.contains(key)) return false;
  const int64_t starves_ns = gang.row->waiting_since_ns + options_.starve_after_ns;
  const bool starves = starves_ns <= now_ns_;
  // Whether its start is known depends on whom it may stop later, too.
  const std::array<int64_t, 4> unknown_key{kUnknownSlot + kKinds * int64_t{gang.priority},
                                           gang.charge, int64_t{gang.leaf} << 32 | gang.shape,
                                           2 * int64_t{gang.guaranteed} + drain};
  const bool needs_start =
      !options_.draining ||
      !(drain || starves);  // else it drains its hosts until then, whenever that is
  if (told == nullptr && needs_start && failed_.contains(unknown_key)) {
    if (!starves) WakeAt(starves_ns);
    return false;
  }
  if (slots_left_ == 0) return false;
  --slots_left_;
  std::optional<Slot> slot;
  if (told != nullptr)
    slot = FindSlot(gang, gang.charge, gang.min_workers, not_before_ns, !drain, &told->parts);
  const bool keeps = slot.has_value();
  if (!keeps) slot = FindSlot(gang, gang.charge, gang.min_workers, not_before_ns, !drain);
  if (!slot.has_value()) {
    failed_.insert(key);
    return false;
  }
  if (keeps)
    slot->start_ns =
        told->start_ns == 0 ? kUnbounded : told->start_ns;  // what it waits for may be silent, too
  if (!starves) WakeAt(starves_ns);
  const bool known = slot->start_ns != kUnbounded;
  if (!known && needs_start) {
    if (!keeps) failed_.insert(unknown_key);
    return false;
  }
  --reservations_left_;
  // A borrower that starves keeps an ordinary reservation, which lends to what can be stopped for
  // it (decision 016).
  const bool drains = options_.draining && (drain || (starves && (gang.guaranteed || !known)));
  Kept reservation;
  reservation.gang = b;
  reservation.pool = gang.charge;
  reservation.workers = gang.min_workers;
  reservation.slices = std::move(slot->slices);
  reservation.start_ns = known ? slot->start_ns : 0;
  reservation.draining = drains;
  reservation.rest = std::move(slot->rest);
  in_pool.push_back(std::move(reservation));
  return true;
}

// To work that ends before it starts; and, unless it drains, to what is outside S and may be
// stopped for it by then.
bool Round::Lends(const Kept& to, const Gang& gang, int64_t end_ns) const {
  if (to.start_ns == 0) return false;
  if (end_ns != 0 && end_ns <= to.start_ns) return true;
  const Gang& claimant = m_.gangs[to.gang];
  if (to.draining || gang.entitled || !MayTake(claimant, gang)) return false;
  const int64_t demand = claimant.worker_milli * to.workers;
  const int64_t most =
      4 * (gang.gpus == claimant.gpus ? demand : claimant.host_cpus_milli * to.workers);
  if (gang.worker_milli * gang.min_workers > most) return false;
  const int64_t own_ns = gang.leaf < 0 ? 0 : s_.queues().nodes[gang.leaf].min_runtime_ns;
  const int64_t protected_ns = claimant.guaranteed ? 0
                               : own_ns != 0       ? own_ns
                                                   : options_.min_runtime_ns;
  if (now_ns_ + protected_ns + Grace(*gang.spec) > to.start_ns) return false;
  return LevelAllows(claimant, to.pool, demand, gang, use_now_,
                     gang.worker_milli * gang.min_workers);
}

void Round::Block(FreeMap* map, const Kept& reservation) const {
  for (const auto& [host, rest] : reservation.rest) {
    if (reservation.draining) {
      map->Close(host);
    } else {
      map->LimitHost(host, rest);
    }
  }
}

void Round::BlockUnlent(FreeMap* map, int32_t pool, const Gang& gang, int64_t end_ns, bool claims) {
  EachReservation(pool, [&](const Kept& reservation) {
    if (Lends(reservation, gang, end_ns)) return;
    if (claims) {
      for (const auto& [host, rest] : reservation.rest) map->LimitHost(host, rest);
    } else {
      Block(map, reservation);
    }
  });
}

void Round::ChangeRests(const Gang& gang, int32_t pool, const HostSlices& slices, int64_t end_ns,
                        int64_t sign) {
  EachReservation(pool, [&](Kept& reservation) {
    if (Lends(reservation, gang, end_ns)) return;
    for (auto& [host, rest] : reservation.rest) {
      for (const HostSlice& part : slices) {
        if (part.host != host) continue;
        const Demand demand = WorkerDemand(*gang.spec, s_.host(host).inventory);
        rest.cpus_milli -= sign * part.workers * demand.cpus_milli;
        rest.memory_bytes -= sign * part.workers * demand.memory_bytes;
        rest.disk_bytes -= sign * part.workers * demand.disk_bytes;
        for (size_t d = 0; d < part.devices.size(); ++d) {
          rest.device_milli[part.devices[d]] -=
              sign * (d < part.device_milli.size() ? part.device_milli[d] : 1000);
        }
      }
    }
  });
}

// By the expected ends of what runs in the pool; 0 = unknown, or this round has answered often
// enough.
int64_t Round::EarliestStart(int32_t b, int32_t pool) {
  const Gang& gang = m_.gangs[b];
  const bool takes = gang.entitled && gang.charge == pool;
  const std::tuple<int32_t, int32_t, int32_t> key{pool, 2 * gang.shape + takes, gang.leaf};
  if (const auto known = starts_.find(key); known != starts_.end()) return known->second;
  if (estimates_left_ == 0) return 0;
  --estimates_left_;
  const std::optional<Slot> slot = FindSlot(gang, pool, gang.min_workers, now_ns_, takes);
  const int64_t start_ns = slot.has_value() && slot->start_ns != kUnbounded ? slot->start_ns : 0;
  starts_.emplace(key, start_ns);
  return start_ns;
}

}  // namespace muster
