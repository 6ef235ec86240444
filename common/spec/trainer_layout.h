// Whether a task's ranks can share out the model as its trainer: says. What the schema of trainer:
// can't say, as it takes the number of workers.
#pragma once

#include <nlohmann/json.hpp>

#include "common/spec/spec.h"
#include "common/spec/trainer_schema.h"

namespace muster {

// `trainer`: the map of `task`, at `path`; what the schema says of it is checked elsewhere. A model
// that `init` names is on the hosts: the trainer checks that one at its start.
void CheckTrainerLayout(const nlohmann::json& trainer, const pb::TaskSpec& task,
                        const std::string& path, const EmitProblem& emit);

}  // namespace muster
