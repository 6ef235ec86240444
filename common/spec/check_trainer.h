// What is checked of a task's trainer: beside its schema.
#pragma once

#include <nlohmann/json.hpp>

#include "common/spec/spec.h"
#include "common/spec/trainer_schema.h"

namespace muster {

// Whether a task's ranks can share out the model as it says, which takes the number of workers, and
// whether its keys go together.
// `trainer`: the map of `task`, at `path`; what the schema says of it is checked elsewhere. A model
// that `init` names is on the hosts: the trainer checks that one at its start. `task` has what
// FillPlacement fills in: by that it will grow.
void CheckTrainerLayout(const nlohmann::json& trainer, const pb::TaskSpec& task,
                        const std::string& path, const EmitProblem& emit);

// That directories are named where only those will do.
void CheckTrainerPaths(const nlohmann::json& trainer, const std::string& path,
                       const EmitProblem& emit);

}  // namespace muster
