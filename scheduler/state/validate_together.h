// What a plan may never do with tasks that start together. Private to Validate.
#pragma once

#include "absl/status/status.h"
#include "scheduler/state/state.h"

namespace muster {

// `before` and `after` the whole plan, one event of which is this. What is placed starts with all
// of its group, or beside what goes on running of it, in one cluster.
absl::Status CheckPlacedTogether(const State& before, const State& after,
                                 const pb::AttemptPlaced& e);
// What is stopped for a claim takes along all that runs of its group.
absl::Status CheckStoppedTogether(const State& after, const pb::AttemptStopping& e);

}  // namespace muster
