// The subset of JSON Schema that muster-trainer publishes: type, enum, minimum, maximum,
// exclusiveMinimum, exclusiveMaximum, minLength, required, properties, additionalProperties, items,
// oneOf of required (several of them in allOf); and x-muster-hints: remedies for names that users
// of other tools try.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "common/spec/yaml_tree.h"

namespace muster {

// Parses JSON that may come from anywhere: at most `max_bytes` and kMaxYamlDepth levels. Discarded
// (is_discarded()) if bad.
nlohmann::json ParseBoundedJson(std::string_view text, size_t max_bytes);

// The one word that may stand in place of a map or of true and false, "auto" of pattern ^auto$; ""
// where there is none.
std::string WordInPlace(const nlohmann::json& schema);

// The YAML below trainer: as JSON. Plain scalars get the type that the schema gives their place
// ("2e-5" is a number, 123 may be text), or what YAML's core schema says where the schema is silent
// or absent. Quoted ones are text. Notes the places.
nlohmann::json TrainerJson(const YamlNode& node, const nlohmann::json* schema,
                           const std::string& path, Document& document);

// Every violation with its path ("trainer.max_steps"), and whether the field's name or its value is
// at fault.
using EmitProblem =
    std::function<void(const std::string& path, const std::string& message, Document::Where where)>;
void CheckAgainstSchema(const nlohmann::json& value, const nlohmann::json& schema,
                        const std::string& path, const EmitProblem& emit);

}  // namespace muster
