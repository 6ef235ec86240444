// Nobody was stopped who could have been spared, recomputed from State's rows and the plan alone,
// with nothing of scheduler/decide and nothing of Validate.
#pragma once

#include <cstdint>
#include <string>

#include "scheduler/state/plan.h"
#include "scheduler/state/state.h"

namespace muster {

struct Spared {
  int64_t victims = 0;        // that were looked at
  int64_t of_several = 0;     // of them those of plans with several claims
  int64_t steps = 0;          // that were made smaller, and might have been so by a step less
  int64_t by_later_ones = 0;  // those that only what was stopped for later claims has made needless
};

// What is broken, or "". Claims are served one after the other, so each of them counts on what was
// stopped for it and for those before it: with any single victim of its own left where it is, or
// with one step more of it if it is made smaller, and all others placed as the plan has it, its
// claimant would find no place, or its queues would hold more than they may. `before`: without the
// plan.
std::string CheckSpared(const State& before, const Plan& plan, Spared* spared);

}  // namespace muster
