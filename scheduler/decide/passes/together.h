// Tasks that start together: what the passes ask of a group, and where it finds places
// (docs/scheduling.md §4, Together).
//
// A group that waits is placed whole, by its leader. Once it runs, a task of it that failed or lost
// a host starts again by itself, beside the others. Inside of scheduler/decide.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "scheduler/decide/draft/draft.h"
#include "scheduler/decide/model/inputs.h"
#include "scheduler/decide/model/together.h"

namespace muster {

// It starts with others or not at all: it has some, and none of them goes on running.
bool StartsWithOthers(const Inputs& in, const Draft& draft, const Gang& gang);
// What stops with the gang when that is stopped for a claim: what runs of its group, ascending.
std::vector<int32_t> RunningOf(const Inputs& in, const Draft& draft, int32_t gang);
// Of one whose group runs: the pool is where that is.
bool IsBesideOthers(const Inputs& in, const Gang& gang, int32_t pool);
// Nothing of the group runs any more, and all of it wants to start.
bool AllReady(const Inputs& in, const Gang& gang);
// The same, and none of them is on a host that can't be reached.
bool AllWait(const Inputs& in, const Gang& gang);
// Of all of them: until when one waits after a failure; when the last one ends if they start now,
// 0: unknown; one was stopped for a claim in this round.
int64_t BackoffOfGroup(const Inputs& in, const Gang& gang);
int64_t EndOfGroup(const Inputs& in, const Gang& gang);
int64_t WaitingSince(const Inputs& in, const Gang& gang);  // of the one that waits the longest
bool EvictedInRound(const Inputs& in, const Gang& gang);

// All of the leader's group in this pool, and in the CPUs beside it. The least that each wants.
using Places = std::vector<PlannedPlace>;
bool GroupWithinLimits(const Inputs& in, const Gang& leader, int32_t pool, Capacity* capacity,
                       Draft* draft);
std::optional<Places> PlaceGroup(const Inputs& in, const Gang& leader, int32_t pool,
                                 Capacity* capacity, Draft* draft);
// The same beside what is reserved (Draft::FindPlace).
std::optional<Places> FindPlaces(const Inputs& in, const Gang& leader, int32_t pool,
                                 Capacity* capacity, bool stops_others, Draft* draft);

}  // namespace muster
