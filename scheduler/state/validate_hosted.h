// The rules of placements on another job's devices (hosted.h).
#pragma once

#include "absl/status/status.h"
#include "scheduler/state/state.h"

namespace muster {

// The job has a holder, or the placement names none. FAILED_PRECONDITION says what is wrong.
absl::Status CheckPlacedOnHolder(const State& state, const JobRow& job, const pb::TaskSpec& spec,
                                 const pb::AttemptPlaced& e);

}  // namespace muster
