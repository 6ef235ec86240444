// When tasks are expected to end, for questions that need no model of all the rest.
#pragma once

#include <cstdint>

#include "scheduler/state/state.h"

namespace muster {

// Of the attempt that runs, at State's time: from its progress, else from history, else its time
// limit; 0 = unknown, or it doesn't run.
int64_t ExpectedEndOf(const State& state, const TaskRef& task);

}  // namespace muster
