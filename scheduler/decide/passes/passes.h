// The passes of a decision; decide.cc says in which order they run and why. Each reads the inputs
// and changes the draft by its verbs alone.
//
// Inside of scheduler/decide. S is the entitled set (entitle.h).
#pragma once

#include "scheduler/decide/draft/draft.h"
#include "scheduler/decide/model/inputs.h"
#include "scheduler/state/plan.h"

namespace muster {

// Stops what must stop although nobody claims its devices: cancelled, failed, too slow, drained,
// ...
void StopDue(const Inputs& in, Draft* draft);

// Ends tasks that were cancelled or failed and whose hosts can't be reached, where their rule
// allows to declare those lost; what else runs of their jobs stops.
void EndLost(const Inputs& in, Draft* draft);

// Lets units of S start in, or go on waiting for, the devices that are held for them.
void KeepHeld(const Inputs& in, Draft* draft);

// Gives each other waiting unit of S a place, in order of acceptance: free devices, devices that
// others are giving back, devices that others have to leave; else a reservation, if it is among the
// first.
void PlaceEntitled(const Inputs& in, Draft* draft);

// Gives elastic gangs that start in this plan more workers, where S grants them and they are free.
void ExtendStarts(const Inputs& in, Draft* draft);

// Restarts running elastic gangs with more workers, where S grants them and that pays.
void Grow(const Inputs& in, Draft* draft);

// Starts what is outside S on what nobody in S can use now.
void Backfill(const Inputs& in, Draft* draft);

// Opens further clusters to what would start sooner there.
void Spill(const Inputs& in, Draft* draft);

// Starts what runs on other jobs' devices, where those run and have room.
void StartHosted(const Inputs& in, Draft* draft);

// Why each waiting task waits, and when it is expected to start. For the finished draft.
Verdicts GiveVerdicts(const Inputs& in, Draft* draft);

}  // namespace muster
