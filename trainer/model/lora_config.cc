#include "trainer/model/lora_config.h"

#include <algorithm>
#include <cmath>
#include <regex>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "trainer/model/experts_config.h"
#include "trainer/model/families.h"

namespace muster::trainer {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int64_t kRankMax = 1 << 16;

bool IsRegex(const std::string& pattern) {
  try {
    const std::regex compiled(pattern, std::regex::ECMAScript);
    return true;
  } catch (const std::regex_error&) {
    return false;
  }
}

}  // namespace

LoraConfig ParseLora(const json& value, const std::string& path, Problems& problems) {
  LoraConfig config;
  if (!value.is_object()) {
    problems.push_back({path, absl::StrCat("must be a map; got ", value.dump())});
    return config;
  }
  const auto bad = [&](const char* key, const std::string& wanted) {
    problems.push_back({absl::StrCat(path, ".", key),
                        absl::StrCat("must be ", wanted, "; got ", value[key].dump())});
  };
  static const std::vector<std::pair<std::string, std::string>> hints = {
      {"r", "use rank"},
      {"lora_alpha", "use alpha"},
      {"lora_dropout", "use dropout"},
      {"modules", "use target_modules"}};
  for (const auto& [name, given] : value.items()) {
    if (name == "rank" || name == "alpha" || name == "dropout" || name == "target_modules")
      continue;
    const auto hint =
        std::find_if(hints.begin(), hints.end(), [&](const auto& h) { return h.first == name; });
    problems.push_back({absl::StrCat(path, ".", name),
                        hint != hints.end()
                            ? hint->second
                            : "no such field." + DidYouMean(name, {"rank", "alpha", "dropout",
                                                                   "target_modules"})});
  }
  if (!value.contains("rank")) {
    problems.push_back({path + ".rank", "is missing: the rank of the adapters, such as 16"});
  } else if (!value["rank"].is_number() ||
             value["rank"].get<double>() != std::floor(value["rank"].get<double>()) ||
             value["rank"].get<double>() < 1 || value["rank"].get<double>() > kRankMax) {
    bad("rank", absl::StrCat("a whole number from 1 to ", kRankMax));
  } else {
    config.rank = value["rank"].get<int64_t>();
  }
  config.alpha = 2 * static_cast<double>(config.rank);
  if (value.contains("alpha")) {
    if (value["alpha"].is_number() && value["alpha"].get<double>() > 0 &&
        std::isfinite(value["alpha"].get<double>()))
      config.alpha = value["alpha"].get<double>();
    else
      bad("alpha", "a number above 0");
  }
  if (value.contains("dropout")) {
    if (value["dropout"].is_number() && value["dropout"].get<double>() >= 0 &&
        value["dropout"].get<double>() < 1)
      config.dropout = value["dropout"].get<double>();
    else
      bad("dropout", "a number from 0 to below 1");
  }
  config.target_modules = {"all-linear"};
  if (value.contains("target_modules")) {
    const json& patterns = value["target_modules"];
    const bool texts = patterns.is_array() && !patterns.empty() &&
                       std::all_of(patterns.begin(), patterns.end(), [](const json& p) {
                         return p.is_string() && !p.get_ref<const std::string&>().empty();
                       });
    if (texts)
      config.target_modules = patterns.get<std::vector<std::string>>();
    else
      bad("target_modules", "a list of names or patterns of linears, such as [q_proj, v_proj]");
    for (const std::string& pattern : config.target_modules) {
      if (!IsRegex(pattern))
        problems.push_back({path + ".target_modules",
                            absl::StrCat(pattern, " is neither a name nor a regular expression")});
    }
  }
  return config;
}

ordered_json LoraSchema() {
  ordered_json schema;
  schema["type"] = "object";
  schema["additionalProperties"] = false;
  schema["required"] = {"rank"};
  schema["properties"]["rank"] = {{"type", "integer"},
                                  {"minimum", 1},
                                  {"maximum", kRankMax},
                                  {"description", "Rank of the adapters."}};
  schema["properties"]["alpha"] = {
      {"type", "number"},
      {"exclusiveMinimum", 0},
      {"description", "Adapters are scaled by alpha / rank; by default 2 x rank."}};
  schema["properties"]["dropout"] = {
      {"type", "number"},
      {"minimum", 0},
      {"exclusiveMaximum", 1},
      {"default", 0},
      {"description", "Share of the adapters' inputs that is dropped."}};
  schema["properties"]["target_modules"] = {
      {"type", "array"},
      {"items", {{"type", "string"}, {"minLength", 1}}},
      {"description",
       "Linears that get an adapter: names such as q_proj, regular expressions of whole names, or "
       "all-linear (the default: all but lm_head)."}};
  schema["x-muster-hints"] = {
      {"r", "use rank"}, {"lora_alpha", "use alpha"}, {"lora_dropout", "use dropout"}};
  return schema;
}

std::vector<LinearModule> LayerLinears(const ModelConfig& model, int64_t layer) {
  const int64_t d = model.hidden_size, f = model.intermediate_size;
  const int64_t q = model.num_heads * model.head_dim, kv = model.num_kv_heads * model.head_dim;
  const std::string prefix = absl::StrCat("model.layers.", layer, ".");
  const int64_t h = model.num_heads, hkv = model.num_kv_heads;
  if (FieldsOfFamily(model.family).joined_linears)
    return {{prefix + "self_attn.qkv_proj", d, q + 2 * kv, 0, h + 2 * hkv},
            {prefix + "self_attn.o_proj", q, d, 1, h},
            {prefix + "mlp.gate_up_proj", d, 2 * f, 0, 2 * f},
            {prefix + "mlp.down_proj", f, d, 1, f}};
  std::vector<LinearModule> linears = {{prefix + "self_attn.q_proj", d, q, 0, h},
                                       {prefix + "self_attn.k_proj", d, kv, 0, hkv},
                                       {prefix + "self_attn.v_proj", d, kv, 0, hkv},
                                       {prefix + "self_attn.o_proj", q, d, 1, h}};
  if (model.HasExperts(layer)) {
    const int64_t all = model.experts.shared_width;
    if (all == 0) return linears;
    const auto name = [&](const char* linear) { return SharedExpertsName(model, layer, linear); };
    linears.push_back({name("gate_proj"), d, all, 0, all});
    linears.push_back({name("up_proj"), d, all, 0, all});
    linears.push_back({name("down_proj"), all, d, 1, all});
    return linears;
  }
  linears.push_back({prefix + "mlp.gate_proj", d, f, 0, f});
  linears.push_back({prefix + "mlp.up_proj", d, f, 0, f});
  linears.push_back({prefix + "mlp.down_proj", f, d, 1, f});
  return linears;
}

std::vector<LinearModule> HeadLinears(const ModelConfig& model) {
  if (model.tie_word_embeddings || model.score) return {};
  return {{"lm_head", model.hidden_size, model.vocab_size, 0, model.vocab_size}};
}

bool MatchesModule(const std::string& pattern, const std::string& module) {
  if (pattern == "all-linear") return module != "lm_head";
  if (pattern == module || absl::EndsWith(module, "." + pattern)) return true;
  return IsRegex(pattern) && std::regex_match(module, std::regex(pattern, std::regex::ECMAScript));
}

std::vector<std::string> TargetModules(const ModelConfig& model, const LoraConfig& config,
                                       const std::string& path, Problems& problems) {
  std::vector<std::string> names;
  std::vector<bool> used(config.target_modules.size(), false);
  for (int64_t layer = 0; layer <= model.num_layers; ++layer) {
    for (const LinearModule& module :
         layer < model.num_layers ? LayerLinears(model, layer) : HeadLinears(model)) {
      bool wanted = false;
      for (size_t i = 0; i < used.size(); ++i) {
        if (!MatchesModule(config.target_modules[i], module.name)) continue;
        wanted = used[i] = true;
      }
      if (wanted) names.push_back(module.name);
    }
  }
  for (size_t i = 0; i < used.size(); ++i) {
    if (used[i]) continue;
    const std::string& pattern = config.target_modules[i];
    problems.push_back(
        {path + ".target_modules",
         model.tie_word_embeddings && MatchesModule(pattern, "lm_head")
             ? absl::StrCat(pattern,
                            " is this model's embedding, too (tie_word_embeddings), so that an "
                            "adapter couldn't be merged into it; leave it out")
             : absl::StrCat(
                   pattern, " means no linear that can have an adapter; there are ",
                   FieldsOfFamily(model.family).joined_linears
                       ? "qkv_proj, o_proj, gate_up_proj and down_proj"
                   : model.NumSparseLayers() == 0 || model.experts.shared > 0
                       ? "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj and down_proj"
                       : "q_proj, k_proj, v_proj, o_proj",
                   " in model.layers.0 to model.layers.", model.num_layers - 1,
                   model.tie_word_embeddings ? "" : ", and lm_head",
                   model.NumSparseLayers() > 0 ? "; experts and routers stay as they are" : "")});
  }
  return names;
}

}  // namespace muster::trainer
