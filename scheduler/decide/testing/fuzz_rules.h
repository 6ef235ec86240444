// Rules of reservations and claims that the fuzzer asserts of each plan before it is applied:
// written from docs/scheduling.md §2 and §4, as far as they hold by the decisions 016, 024 and 037.
// They share the model with Decide, and none of its rules.
//
// Each gives what is broken, or "". `model` is the state's, with its entitled set.
#pragma once

#include <cstdint>
#include <string>

#include "scheduler/decide/model/model.h"
#include "scheduler/state/options.h"
#include "scheduler/state/plan.h"
#include "scheduler/state/state.h"

namespace muster {

// What starts on devices that are kept for another task from some time on has ended by then, or can
// be stopped by then for it. *lent counts those starts.
std::string CheckReserved(const State& state, int64_t now_ns, const SchedulingOptions& options,
                          const Model& model, const Plan& plan, int64_t* lent);

// Claims stop no more than four times what they ask for, and outside the guarantees nobody whose
// level is lower than theirs will be. *judged counts the victims whose level was compared: those of
// plans that do nothing else, so that what is used is known.
std::string CheckClaims(const State& state, int64_t now_ns, const SchedulingOptions& options,
                        const Model& model, const Plan& plan, int64_t* judged);

// The gang of an attempt; nullptr if it is no unit.
const Gang* GangOf(const Model& model, const State& state, const pb::AttemptKey& key);

}  // namespace muster
