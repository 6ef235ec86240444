// Changes of a copy of State that no event makes: for questions ("what if it were smaller?"), never
// in the engine.
#pragma once

#include <cstdint>

#include "scheduler/state/state.h"

namespace muster {

// The job as if it had been submitted so, at the time when it was. It keeps its tasks: as many, by
// the same names, and none of them with an unfinished attempt. No effect otherwise.
void ReplaceSpec(State* state, uint64_t job, const pb::JobSpec& spec);

}  // namespace muster
