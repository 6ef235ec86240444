// RoPE in a config.json: rope_parameters in newer files (of Gemma 3 a map for each type of layer),
// rope_theta beside rope_scaling in older ones; Phi-3's share of a head that is rotated.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "trainer/model/config.h"
#include "trainer/model/config_reader.h"
#include "trainer/model/families.h"

namespace muster::trainer {

// Reads it into `config`, whose heads must be known. Problems are added under `path`.
void ParseRope(ConfigReader& r, const FamilyFields& family, const std::string& path,
               ModelConfig& config, Problems& problems);
// Adds the fields to a config.json that is written, for readers of both kinds of files.
void AddRope(const ModelConfig& config, const FamilyFields& family, nlohmann::ordered_json& out);
// Adds them to the schema's properties.
void AddRopeSchema(nlohmann::ordered_json& properties);

}  // namespace muster::trainer
