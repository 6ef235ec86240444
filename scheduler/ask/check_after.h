// The jobs that a job file names in after and after_any.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/spec/spec.h"
#include "scheduler/state/state.h"

namespace muster {

// What a name means in a State, or says of the past; nullopt: there is no such job for the caller.
using FindNamed = std::function<std::optional<NamedJob>(const State& state, const std::string& id)>;

// What is wrong with the names: no such job, or one that can't succeed any more.
std::vector<FieldProblem> CheckAfter(const State& state, const pb::JobSpec& spec,
                                     const FindNamed& named);

}  // namespace muster
