// What may be done for one unit of S that has no place, the cheapest first; PlaceEntitled tries
// them in turn. Each tells whether the draft has something for the unit now.
//
// Inside of scheduler/decide.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "scheduler/decide/draft/draft.h"
#include "scheduler/decide/model/inputs.h"

namespace muster {

// Of a gang whose members may be lost, some of them: a place for it from what is free, is being
// given back, and its own. It starts there or holds it.
bool ReplaceLost(const Inputs& in, const Gang& gang, Draft* draft);

// Jobs on the gang's devices are still there: what it gives up isn't free.
bool HasHosted(const Inputs& in, const Gang& gang);

// What waits for the same as a claim and may be served by the same stops: devices (CPUs for work
// without) and CPUs beside devices, in thousandths.
struct Wanted {
  int64_t milli = 0, host_cpus_milli = 0;
};

struct ReclaimRequest {
  int32_t gang = 0;
  int32_t pool = 0;
  int32_t workers = 0;
  bool grows = false;      // it runs there already, with fewer
  bool takes_all = false;  // however many others have to stop
  bool together = false;   // for its whole group, which it leads
  Wanted wanted;           // by the gang and by what comes after it in its queue
};
enum class Reclaimed {
  kStopsOthers,  // what it needs is being given back, and held for it
  kTooMany,      // more would stop than it may ask for
  kNobody        // there is nobody whose stop would help
};
// Stops units that aren't entitled, so that the workers can start in the pool.
Reclaimed Reclaim(const Inputs& in, const ReclaimRequest& request, Draft* draft);

// What is stopped for a claim has at most so many times what it wants.
constexpr int64_t kMostStopped = 4;

// Whom a claim may stop. Growth workers go before whole gangs.
struct Victim {
  int32_t gang = 0;
  int32_t keeps = 0;          // workers that it goes on with; 0: none, it stops
  int64_t lost_milli_ns = 0;  // devices' time since its last checkpoint, in thousandths
  int64_t start_ns = 0;
};
// Whom the claim may stop, in that order, each beside those before it: growth first, then what
// loses the least. One of a group stands for all of it that runs.
std::vector<Victim> VictimsFor(const Inputs& in, const ReclaimRequest& request, Draft* draft);

// Moves tasks within the pool so that the overdue claimant starts on whole hosts there: they stop,
// and it holds its place.
bool Consolidate(const Inputs& in, const Gang& claimant, int32_t pool, Draft* draft);

// Where and when a gang could start by the expected ends of what runs.
struct LaterStart {
  int64_t start_ns = 0;                           // kUnbounded: only after ends that nobody knows
  std::vector<PlannedPlace> places;               // one, but of a group
  std::vector<std::pair<HostId, HostFree>> rest;  // what their hosts have beside them then
};
struct LaterStartRequest {
  int32_t pool = 0;
  int32_t workers = 0;
  int64_t not_before_ns = 0;
  // What the gang may stop later, once that has run for min_runtime, counts as ending then. Of a
  // waiting unit of S in its charged pool.
  bool takes = false;
  bool together = false;             // for its whole group, which it leads
  const HostSlices* told = nullptr;  // there and nowhere else
};
std::optional<LaterStart> FindLaterStart(const Inputs& in, const Gang& gang,
                                         const LaterStartRequest& request, Draft* draft);

// Reserves what a unit of S can have soonest. `stops_nobody`: it doesn't stop others for itself,
// they would be too many.
// `together`: for its whole group. `searches_left`: of this decision, for all reservations.
bool Reserve(const Inputs& in, const Gang& gang, int64_t not_before_ns, bool stops_nobody,
             bool together, int32_t* searches_left, Draft* draft);

}  // namespace muster
