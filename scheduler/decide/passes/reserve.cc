// Reservations are worked out anew in each decision, in order of acceptance; State keeps what was
// told last (docs/decisions/016).
#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "scheduler/decide/passes/claims.h"
#include "scheduler/decide/passes/together.h"

namespace muster {
namespace {

// The first units of S in a pool get one; those behind them are served by later decisions.
constexpr size_t kReservationsPerPool = 4;
constexpr size_t kReservations = 64;

// The gang's reservation as State knows it, if a host of that is silent: no place would be found
// there now. Such a host is back soon, or unreachable; until then the reservation stands. Else it,
// and the hosts that were emptied for it, would be lent to others at every start of the scheduler.
// nullptr: none.
const Reservation* ToldOnSilentHosts(const Inputs& in, const Gang& gang) {
  const Reservation* told = gang.reserved ? gang.row->reservation.get() : nullptr;
  const Pool& pool = in.model.pools[gang.charge];
  if (told == nullptr || told->held || told->attempt != gang.row->next_attempt ||
      told->workers != gang.min_workers || told->cluster != pool.cluster)
    return nullptr;
  if (!told->flavour.empty() && told->flavour != in.model.flavours[pool.flavour]) return nullptr;
  const auto silent = [&](const HostSlice& part) {
    return in.state.host(part.host).state == pb::HOST_SILENT;
  };
  return std::any_of(told->parts.begin(), told->parts.end(), silent) ? told : nullptr;
}

// The place of what was told before, if there is one and it still holds, else a new one.
std::optional<LaterStart> KeepOrFind(const Inputs& in, const Gang& gang, LaterStartRequest request,
                                     const Reservation* told, bool* keeps, Draft* draft) {
  *keeps = false;
  if (told != nullptr) {
    request.told = &told->parts;
    std::optional<LaterStart> start = FindLaterStart(in, gang, request, draft);
    if (start.has_value()) {
      *keeps = true;
      // What it waits for may be silent, too.
      start->start_ns = told->start_ns == 0 ? kUnbounded : told->start_ns;
      return start;
    }
    request.told = nullptr;
  }
  return FindLaterStart(in, gang, request, draft);
}

// One reservation for each of the group; of a large group where there are no others.
bool MayReserveAll(const Inputs& in, const Gang& leader, const Reservations& others) {
  std::map<int32_t, size_t> more;  // by pool
  for (const int32_t g : GroupOf(in.model, in.IndexOf(leader)))
    ++more[PoolBeside(in.model, in.gang(g), leader.charge)];
  return std::all_of(more.begin(), more.end(), [&](const auto& pool) {
    const size_t there = pool.first < 0 ? 0 : others.In(pool.first).size();
    return there == 0 || there + pool.second <= kReservationsPerPool;
  });
}

// Of what hosts have left, those of the slices; each once.
std::vector<std::pair<HostId, HostFree>> RestOf(
    const HostSlices& slices, const std::vector<std::pair<HostId, HostFree>>& all) {
  std::vector<std::pair<HostId, HostFree>> rest;
  for (const HostSlice& part : slices) {
    rest.push_back(*std::find_if(all.begin(), all.end(),
                                 [&](const auto& one) { return one.first == part.host; }));
  }
  return rest;
}

}  // namespace

bool Reserve(const Inputs& in, const Gang& gang, int64_t not_before_ns, bool stops_nobody,
             bool together, int32_t* searches_left, Draft* draft) {
  const Reservations& others = draft->reservations();
  if (others.In(gang.charge).size() >= kReservationsPerPool || others.size() >= kReservations)
    return false;
  // What is lost and waits for the others keeps its devices until they start.
  if (together && (!AllWait(in, gang) || !MayReserveAll(in, gang, others))) return false;
  const Reservation* told = together ? nullptr : ToldOnSilentHosts(in, gang);
  const Search anywhen{
      .kind = Search::kStart, .pool = gang.charge, .shape = gang.shape, .leaf = gang.leaf};
  if (told == nullptr && draft->Failed(anywhen)) return false;
  const int64_t since_ns = together ? WaitingSince(in, gang) : gang.row->waiting_since_ns;
  const int64_t starves_ns = since_ns + in.options.starve_after_ns;
  const bool starves = starves_ns <= in.now_ns;
  // Whether its start is known depends on whom it may stop later, too.
  const Search at_known_time{.kind = Search::kStartAtKnownTime,
                             .guaranteed = gang.guaranteed,
                             .drains = stops_nobody,
                             .pool = gang.charge,
                             .shape = gang.shape,
                             .leaf = gang.leaf,
                             .priority = gang.priority,
                             .band = gang.band};
  // Else it drains its hosts until it starts, whenever that is.
  const bool needs_known_time = !in.options.draining || !(stops_nobody || starves);
  if (told == nullptr && needs_known_time && draft->Failed(at_known_time)) {
    if (!starves) draft->WakeAt(starves_ns);
    return false;
  }
  if (*searches_left == 0) return false;
  --*searches_left;
  bool keeps = false;
  std::optional<LaterStart> start = KeepOrFind(in, gang,
                                               {.pool = gang.charge,
                                                .workers = gang.min_workers,
                                                .not_before_ns = not_before_ns,
                                                .takes = !stops_nobody,
                                                .together = together},
                                               told, &keeps, draft);
  if (!start.has_value()) {
    draft->Remember(anywhen);
    return false;
  }
  if (!starves) draft->WakeAt(starves_ns);
  const bool known = start->start_ns != kUnbounded;
  if (!known && needs_known_time) {
    if (!keeps) draft->Remember(at_known_time);
    return false;
  }
  // A borrower that starves keeps an ordinary reservation, which lends to what can be stopped for
  // it (docs/decisions/016).
  const bool drains =
      in.options.draining && (stops_nobody || (starves && (gang.guaranteed || !known)));
  for (PlannedPlace& place : start->places) {
    std::vector<std::pair<HostId, HostFree>> rest = RestOf(place.slices, start->rest);
    draft->Reserve({std::move(place), known ? start->start_ns : 0, drains, std::move(rest)});
  }
  return true;
}

}  // namespace muster
