// What is kept of a plan that Validate refused (contract 20 of docs/contracts.md). Pure.
#pragma once

#include "scheduler/state/plan.h"
#include "scheduler/state/state.h"
#include "scheduler/state/validate.h"

namespace muster {

// Takes out of the plan what it wants of the job that the fault is about, and what others are
// stopped for on its behalf. Its waiting tasks are told so. False if the fault is about no job:
// then nothing of the plan can be kept.
bool DropOffender(const State& state, const PlanFault& fault, Plan* plan);

}  // namespace muster
