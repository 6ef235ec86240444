// Jobs that come after others: which the fuzzer submits, and the rules that it asserts from
// outside, by what the specs name, not by what State keeps of it.
#pragma once

#include <string>

#include "scheduler/decide/testing/dice.h"
#include "scheduler/state/plan.h"
#include "scheduler/state/state.h"

namespace muster {

// Behind one or two jobs that may still end as they have to; at times behind one that there isn't
// yet, or itself, which no submission may name: then it never starts.
void PlaceBehind(const State& state, Dice* dice, pb::JobSubmitted* e);

// What the event placed comes after nothing that goes on, or that didn't end as it had to; `before`
// is the State that it was applied to. "" or what broke.
std::string CheckPlacedAfter(const State& before, const pb::Event& event);

// Whoever waits, waits for somebody; whoever waits for what failed has ended.
std::string CheckSuccessors(const State& state);

}  // namespace muster
