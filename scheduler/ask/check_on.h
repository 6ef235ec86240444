// The job on whose devices another one is to run (`on`).
#pragma once

#include <string>
#include <vector>

#include "common/spec/spec.h"
#include "scheduler/state/state.h"

namespace muster {

// Why a job of `owner` can't run on the one that it names. Of others' jobs nothing is told.
std::vector<FieldProblem> CheckHolder(const State& state, const pb::JobSpec& spec,
                                      const std::string& owner);

}  // namespace muster
