// Jobs on another one's devices: which the fuzzer submits, and the rules that it asserts from
// outside, by what specs name and rows say.
#pragma once

#include <string>

#include "scheduler/decide/testing/dice.h"
#include "scheduler/state/plan.h"
#include "scheduler/state/state.h"

namespace muster {

// On a job of one task that may have ended meanwhile; at times on one that there isn't. False: it
// found none.
bool PutOnHolder(const State& state, Dice* dice, pb::JobSubmitted* e);

// The acts of the plan that are of jobs on devices of their own.
Plan WithoutHosted(const State& state, const Plan& plan);

// After a plan: each of them runs within what its holder's attempt has, together with those beside
// it, or is being stopped; queues hold what others hold; what has no holder any more ends. "" or
// what broke.
std::string CheckHosted(const State& state);
// Where nothing moves any more, none waits for which there is room.
std::string CheckHostedSettled(const State& state);

}  // namespace muster
