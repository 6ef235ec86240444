#include "trainer/model/quantize_config.h"

#include <vector>

#include "absl/strings/str_cat.h"

namespace muster::trainer {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr char kConfigKey[] = "quantization_config";

}  // namespace

QuantizeConfig ParseQuantize(const json& value, const std::string& path, Problems& problems) {
  QuantizeConfig config{true, true};
  if (!value.is_object()) {
    problems.push_back(
        {path, absl::StrCat("must be a map, such as {type: nf4}; got ", value.dump())});
    return config;
  }
  static const std::vector<std::pair<std::string, std::string>> hints = {
      {"bnb_4bit_quant_type", "use type"},
      {"bnb_4bit_use_double_quant", "use double"},
      {"load_in_4bit", "use type: nf4"},
      {"nested", "use double"},
      {"bits", "use type: nf4, which has 4"}};
  for (const auto& [name, given] : value.items()) {
    if (name == "type" || name == "double") continue;
    std::string told = "no such field." + DidYouMean(name, {"type", "double"});
    for (const auto& [other, hint] : hints) {
      if (other == name) told = hint;
    }
    problems.push_back({absl::StrCat(path, ".", name), told});
  }
  if (!value.contains("type"))
    problems.push_back({path + ".type", "is missing: nf4 is the one there is"});
  else if (value["type"] != "nf4")
    problems.push_back({path + ".type", absl::StrCat("must be nf4; got ", value["type"].dump())});
  if (value.contains("double")) {
    if (value["double"].is_boolean())
      config.nested = value["double"].get<bool>();
    else
      problems.push_back(
          {path + ".double", absl::StrCat("must be true or false; got ", value["double"].dump())});
  }
  return config;
}

ordered_json QuantizeSchema() {
  ordered_json schema;
  schema["type"] = "object";
  schema["additionalProperties"] = false;
  schema["required"] = {"type"};
  schema["properties"]["type"] = {
      {"type", "string"},
      {"enum", {"nf4"}},
      {"description", "4 bits a weight: the quantiles of a normal distribution, in blocks of 64."}};
  schema["properties"]["double"] = {
      {"type", "boolean"},
      {"default", true},
      {"description", "The blocks' scales are quantised, too: 0.4 bits a weight less."}};
  return schema;
}

json WithoutQuantization(json content, const QuantizeConfig& quantize, const std::string& path,
                         Problems& problems) {
  if (!quantize.on || !content.contains(kConfigKey) || !content[kConfigKey].is_object())
    return content;
  const json given = content[kConfigKey];
  if (given.value("quant_method", json()) != "bitsandbytes" ||
      given.value("bnb_4bit_quant_type", json()) != "nf4") {
    problems.push_back({absl::StrCat(path, ".", kConfigKey),
                        "is neither of bitsandbytes' NF4 nor missing; give the unquantised model, "
                        "which is quantised as it is read"});
  } else if (const json nested = given.value("bnb_4bit_use_double_quant", json(false));
             nested != quantize.nested) {
    problems.push_back({"trainer.quantize.double",
                        absl::StrCat("is ", quantize.nested ? "true" : "false", ", and in ", path,
                                     " bnb_4bit_use_double_quant is ", nested.dump(),
                                     "; use what the weights there are saved with")});
  }
  content.erase(kConfigKey);
  return content;
}

ordered_json QuantizationConfig(bool nested, bool score, const std::string& dtype) {
  ordered_json config;
  config["quant_method"] = "bitsandbytes";
  config["load_in_4bit"] = true;
  config["load_in_8bit"] = false;
  config["bnb_4bit_quant_type"] = "nf4";
  config["bnb_4bit_use_double_quant"] = nested;
  config["bnb_4bit_compute_dtype"] = dtype;
  config["bnb_4bit_quant_storage"] = "uint8";
  config["llm_int8_skip_modules"] = ordered_json::array({score ? "score" : "lm_head"});
  return config;
}

}  // namespace muster::trainer
