// Keys of a trainer that exclude each other.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "common/spec/trainer_schema.h"

namespace muster {

// Refuses what muster-trainer refuses at its start, whatever its ranks and devices are: so nobody
// waits for devices with it. `trainer`: the map of a task, at `path`; what the schema says of it is
// checked elsewhere.
void CheckTrainerKeys(const nlohmann::json& trainer, const std::string& path,
                      const EmitProblem& emit);

// The key by which a config.json's content says how many experts a layer has; "" where it says
// nothing.
std::string KeyOfExperts(const nlohmann::json& model);

}  // namespace muster
