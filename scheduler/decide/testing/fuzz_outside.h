// Rules that the fuzzer recomputes from State's rows alone, with nothing of scheduler/decide and
// nothing of Validate: what queues hold, and who need not have been stopped.
//
// Each gives what is broken, or "".
#pragma once

#include <cstdint>
#include <string>

#include "scheduler/state/plan.h"
#include "scheduler/state/state.h"

namespace muster {

// No queue that the plan has placed something of, or keeps devices for, holds more than its limit,
// nor any above it; nor will it when what is being stopped has gone and what devices are held for
// has started. `after`: with the plan applied.
std::string CheckLimitsOutside(const State& after, const Plan& plan);

// Nobody was stopped who could have been spared: with any single victim left where it is, its
// claimant would find no place, or its queues would hold more than they may. Of plans that do
// nothing but stop for one claimant, beside no other reservation. `before`: without the plan.
// *spared counts the victims that were looked at.
std::string CheckSpared(const State& before, const Plan& plan, int64_t* spared);

}  // namespace muster
