// Rules of arrays that the fuzzer asserts from outside: of each event, and of the state.
#pragma once

#include <string>

#include "scheduler/decide/testing/dice.h"
#include "scheduler/state/plan.h"
#include "scheduler/state/state.h"

namespace muster {

// Makes the job an array or independent workers; returns its members.
int32_t MakeArray(Dice* dice, pb::JobSubmitted* job);

// What was told, cancelled, stopped or placed of one member changed no other that has processes.
// "" or what broke.
std::string CheckOthersUntouched(const State& before, const State& after, const pb::Event& event);

// Its priority; what independent workers have above their least number stands behind all others.
int32_t UrgencyOf(const JobRow& job);

// Whose turn it is, what is counted, and what has ended.
std::string CheckArrays(const State& state);

}  // namespace muster
