// Whether tasks that start together can ever do so: all of them at once in one cluster.
#pragma once

#include <cstdint>
#include <vector>

#include "common/spec/spec.h"
#include "scheduler/state/state.h"

namespace muster {

// Groups whose least size is above a limit on the way to the leaf, whatever there is.
std::vector<FieldProblem> CheckGroupLimits(const State& state, int32_t leaf,
                                           const pb::JobSpec& spec);

// Groups that no empty cluster of the job has room for: packed worker by worker, the largest first,
// each onto the first host that holds it. `required` of one task is its own matter.
std::vector<FieldProblem> CheckGroupSizes(const State& state, const pb::JobSpec& spec);

}  // namespace muster
