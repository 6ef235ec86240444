// What a config.json says of routers and experts.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "trainer/model/config.h"
#include "trainer/model/config_reader.h"
#include "trainer/model/families.h"

namespace muster::trainer {

// Reads the fields of `family`'s experts into config.experts. Fields of experts that the family
// doesn't have are problems where `strict`, as transformers would pass over them; fields of routers
// that nobody here knows are always problems of a family that has experts: they may change what the
// model computes.
void ParseExperts(ConfigReader& reader, const nlohmann::json& value, const FamilyFields& family,
                  bool strict, ModelConfig& config, std::vector<std::string>* ignored);

// Their JSON Schema, added to the properties of a config.json.
void AddExpertsSchema(nlohmann::ordered_json& properties);

// Adds them to a config.json's content.
void AddExperts(const ModelConfig& config, const FamilyFields& family, nlohmann::ordered_json& out);

// The names of the parameters of a layer's router and experts.
std::string RouterName(const ModelConfig& config, int64_t layer);
inline constexpr char kRouterBias[] = ".gate.e_score_correction_bias";  // ends with that
std::string RouterBiasName(const ModelConfig& config, int64_t layer);
// Without ".weight". `linear`: gate_proj, up_proj or down_proj.
std::string SharedExpertsName(const ModelConfig& config, int64_t layer, const char* linear);
enum class ExpertMatrix { kGate, kUp, kDown };
std::string ExpertName(const ModelConfig& config, int64_t layer, int64_t expert,
                       ExpertMatrix matrix);

}  // namespace muster::trainer
