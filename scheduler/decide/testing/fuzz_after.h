// What the fuzzer asserts of a State once a plan has been applied to it. Each gives what is broken,
// or "".
#pragma once

#include <string>

#include "scheduler/state/plan.h"
#include "scheduler/state/state.h"

namespace muster {

// Every stop for a claim leaves its claimant with devices that are its own, and what shrinks with
// those that it goes on with.
std::string CheckClaimantsPlaces(const State& state, const Plan& plan);

// The ledger books each device's time once, and no device is used twice.
std::string CheckSums(const State& state);

// An attempt has all its workers, and no fewer than its task's least number.
std::string CheckWholeGangs(const State& state);

}  // namespace muster
