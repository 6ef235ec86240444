// The scheduler's decision as a pure function: State goes in, a Plan comes out
// (docs/scheduling.md).
#pragma once

#include <cstdint>

#include "scheduler/state/options.h"
#include "scheduler/state/plan.h"
#include "scheduler/state/state.h"

namespace muster {

// Deterministic: the same State, now and options give the same plan, bit for bit, on every machine.
// `now_ns` is the journalled time of the step. The plan's events are to be applied to this very
// State. Thread-safe on distinct copies.
Plan Decide(const State& state, int64_t now_ns, const SchedulingOptions& options);

// The same for who keeps between decisions what they read (Decider). `now` and `later` have what
// State says is free, and have that again afterwards.
class FreeMap;
struct Inputs;
Plan RunPasses(const Inputs& in, FreeMap* now, FreeMap* later);

}  // namespace muster
