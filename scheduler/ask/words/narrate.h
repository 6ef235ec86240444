// What happened to a job from one State to the next, as sentences for people. Pure.
#pragma once

#include <string>
#include <vector>

#include "muster/v1/record.pb.h"
#include "scheduler/state/state.h"

namespace muster {

// Oldest first. `before` is null for a job that wasn't there. Of `events` (the step's) only what
// State doesn't keep is used.
std::vector<std::string> Narrate(const State& before_state, const JobRow* before,
                                 const State& state, const JobRow& job,
                                 const std::vector<pb::Event>& events);

}  // namespace muster
