// Gangs whose sizes are multiples of a number of workers: which the fuzzer submits, and the rule
// that it asserts from outside, by what specs say and events and rows have.
#pragma once

#include <cstdint>
#include <string>

#include "scheduler/decide/testing/dice.h"
#include "scheduler/state/plan.h"
#include "scheduler/state/state.h"

namespace muster {

struct Multiples {
  int64_t tasks = 0;                 // that were submitted
  int64_t starts = 0;                // of these with more workers than they have at least
  int64_t growths = 0, shrinks = 0;  // to another size
};

// Some elastic tasks of the job get multiple_of, and sizes that are multiples; returns how many do.
int64_t DrawMultiples(Dice* dice, pb::JobSpec* spec);

// Before a plan is applied: whatever it starts, resizes or keeps devices for has a whole multiple,
// and so has what State says of what ran and comes back. "" or what broke.
std::string CheckMultiples(const State& state, const Plan& plan, Multiples* seen);

}  // namespace muster
