#include "trainer/model/experts_config.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace muster::trainer {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// Of all families with experts; and of those that say more than Mixtral.
constexpr const char* kFields[] = {"num_local_experts", "num_experts", "num_experts_per_tok",
                                   "output_router_logits", "router_aux_loss_coef"};
constexpr const char* kQwenFields[] = {"moe_intermediate_size", "norm_topk_prob",
                                       "decoder_sparse_step", "mlp_only_layers"};
constexpr const char* kMixtralFields[] = {"router_jitter_noise"};

// What fields of routers and experts are called, here and elsewhere.
constexpr const char* kParts[] = {"expert",  "rout",         "moe",         "topk_group",
                                  "n_group", "scoring_func", "topk_method", "norm_topk"};

template <size_t n>
bool Has(const char* const (&names)[n], const std::string& name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

bool IsOfExperts(const std::string& name) {
  return Has(kFields, name) || Has(kQwenFields, name) || Has(kMixtralFields, name);
}

bool IsQwen(const FamilyFields& family) {
  return family.experts.block != nullptr && family.experts.up == kQwenWords.up;
}

bool Knows(const FamilyFields& family, const std::string& name) {
  if (family.experts.block == nullptr) return false;
  return Has(kFields, name) ||
         (IsQwen(family) ? Has(kQwenFields, name) : Has(kMixtralFields, name));
}

// What `value` has that the family doesn't.
void CheckOthers(ConfigReader& r, const json& value, const FamilyFields& family, bool strict,
                 std::vector<std::string>* ignored) {
  std::vector<std::string> known(std::begin(kFields), std::end(kFields));
  known.insert(known.end(), std::begin(kQwenFields), std::end(kQwenFields));
  for (const auto& [name, given] : value.items()) {
    if (given.is_null() || Knows(family, name)) continue;
    if (IsOfExperts(name)) {
      if (strict)
        r.Bad(name,
              absl::StrCat("has no meaning for model_type ", family.model_type, "; remove it"));
      else if (ignored != nullptr)
        ignored->push_back(name);
      continue;
    }
    const bool of_router = std::any_of(std::begin(kParts), std::end(kParts), [&](const char* part) {
      return absl::StrContains(name, part);
    });
    // Of a map that a user wrote every unknown field is a problem anyway.
    if (family.experts.block == nullptr || !of_router || strict) continue;
    r.Bad(name, absl::StrCat("is no field of a ", family.model_type,
                             "'s router or experts that can be trained, so the model would be "
                             "another; remove it if it changes nothing.",
                             DidYouMean(name, known)));
  }
}

void ParseSparseLayers(ConfigReader& r, const FamilyFields& family, ModelConfig& config) {
  ExpertsConfig& experts = config.experts;
  experts.sparse_layers.assign(config.num_layers, true);
  if (!IsQwen(family)) return;
  experts.decoder_sparse_step = r.Size("decoder_sparse_step", 1);
  const json& dense = r.At("mlp_only_layers");
  const bool listed =
      dense.is_array() && std::all_of(dense.begin(), dense.end(), [&](const json& l) {
        return l.is_number_integer() && l.get<int64_t>() >= 0 &&
               l.get<int64_t>() < config.num_layers;
      });
  if (!dense.is_null() && !listed)
    r.Bad("mlp_only_layers", absl::StrCat("must be a list of layers from 0 to ",
                                          config.num_layers - 1, "; got ", dense.dump()));
  if (listed) experts.mlp_only_layers = dense.get<std::vector<int64_t>>();
  for (int64_t layer = 0; layer < config.num_layers; ++layer)
    experts.sparse_layers[layer] = (layer + 1) % experts.decoder_sparse_step == 0;
  for (const int64_t layer : experts.mlp_only_layers) experts.sparse_layers[layer] = false;
  if (config.NumSparseLayers() == 0)
    r.Bad(listed && !dense.empty() ? "mlp_only_layers" : "decoder_sparse_step",
          "leaves no layer with experts; use model_type qwen3 for a model without them");
}

}  // namespace

void ParseExperts(ConfigReader& r, const json& value, const FamilyFields& family, bool strict,
                  ModelConfig& config, std::vector<std::string>* ignored) {
  CheckOthers(r, value, family, strict, ignored);
  if (family.experts.block == nullptr) return;
  ExpertsConfig& experts = config.experts;
  // transformers 5 writes the one, files of Qwen the other.
  const char* named =
      r.Has("num_experts") && !r.Has("num_local_experts") ? "num_experts" : "num_local_experts";
  experts.count = r.Size(named, 1, true);
  if (r.Has("num_experts") && r.Has("num_local_experts") &&
      r.At("num_experts") != r.At("num_local_experts"))
    r.Bad("num_experts", "contradicts num_local_experts; keep one");
  experts.per_token = r.Size("num_experts_per_tok", 1, true);
  if (experts.per_token > experts.count)
    r.Bad("num_experts_per_tok", absl::StrCat(experts.per_token, " is above ", named, ", ",
                                              experts.count, "; a token can't meet more"));
  experts.width =
      IsQwen(family) ? r.Size("moe_intermediate_size", 1, true) : config.intermediate_size;
  experts.normalise = !IsQwen(family) || r.Bool("norm_topk_prob", false);
  experts.output_router_logits = r.Bool("output_router_logits", false);
  if (const json& coefficient = r.At("router_aux_loss_coef"); !coefficient.is_null()) {
    if (coefficient.is_number() && coefficient.get<double>() >= 0)
      experts.aux_loss_coef = coefficient.get<double>();
    else
      r.Bad("router_aux_loss_coef",
            absl::StrCat("must be a number from 0; got ", coefficient.dump()));
  }
  if (const json& noise = r.At("router_jitter_noise");
      !IsQwen(family) && !noise.is_null() && !(noise.is_number() && noise.get<double>() == 0))
    r.Bad("router_jitter_noise", absl::StrCat(noise.dump(), " can't be trained; use 0"));
  ParseSparseLayers(r, family, config);
}

void AddExpertsSchema(ordered_json& properties) {
  const auto add = [&](const char* name, const char* type, const char* description,
                       const ordered_json& more = ordered_json::object()) {
    properties[name] = {{"type", {type, "null"}}, {"description", description}};
    properties[name].update(more);
  };
  const ordered_json size = {{"minimum", 1}, {"maximum", kSizeMax}};
  for (const char* name : {"num_local_experts", "num_experts"})
    add(name, "integer", "Experts in a layer, under either name (mixtral, qwen3_moe).", size);
  add("num_experts_per_tok", "integer",
      "Experts that a token meets, the router's first choices (mixtral, qwen3_moe).", size);
  add("moe_intermediate_size", "integer",
      "Width of an expert (qwen3_moe; mixtral's is intermediate_size).", size);
  add("norm_topk_prob", "boolean",
      "The chosen experts' weights are made to sum up to 1 (qwen3_moe; mixtral's always are).",
      {{"default", false}});
  add("decoder_sparse_step", "integer", "Every how many layers there are experts (qwen3_moe).",
      {{"minimum", 1}, {"maximum", kSizeMax}, {"default", 1}});
  add("mlp_only_layers", "array", "Layers with one MLP in place of experts (qwen3_moe).",
      {{"items", {{"type", "integer"}, {"minimum", 0}}}});
  add("output_router_logits", "boolean",
      "In training, the auxiliary loss that balances experts (mixtral, qwen3_moe).",
      {{"default", false}});
  add("router_aux_loss_coef", "number", "The coefficient of that loss (mixtral, qwen3_moe).",
      {{"default", 0.001}, {"minimum", 0}});
  add("router_jitter_noise", "number", "Can't be trained (mixtral).",
      {{"enum", ordered_json::array({0, nullptr})}});
}

void AddExperts(const ModelConfig& config, const FamilyFields& family, ordered_json& out) {
  if (family.experts.block == nullptr) return;
  const ExpertsConfig& experts = config.experts;
  out["num_local_experts"] = experts.count;
  out["num_experts_per_tok"] = experts.per_token;
  out["output_router_logits"] = experts.output_router_logits;
  out["router_aux_loss_coef"] = experts.aux_loss_coef;
  if (IsQwen(family)) {
    out["num_experts"] = experts.count;  // as readers before transformers 5 have it
    out["moe_intermediate_size"] = experts.width;
    out["norm_topk_prob"] = experts.normalise;
    out["decoder_sparse_step"] = experts.decoder_sparse_step;
    out["mlp_only_layers"] = experts.mlp_only_layers;
  } else {
    out["router_jitter_noise"] = 0.0;
  }
}

std::string RouterName(const ModelConfig& config, int64_t layer) {
  const ExpertWords& words = FieldsOfFamily(config.family).experts;
  return absl::StrCat("model.layers.", layer, ".", words.block, ".gate.weight");
}

std::string ExpertName(const ModelConfig& config, int64_t layer, int64_t expert,
                       ExpertMatrix matrix) {
  const ExpertWords& words = FieldsOfFamily(config.family).experts;
  const char* word = matrix == ExpertMatrix::kGate ? words.gate
                     : matrix == ExpertMatrix::kUp ? words.up
                                                   : words.down;
  return absl::StrCat("model.layers.", layer, ".", words.block, ".experts.", expert, ".", word,
                      ".weight");
}

}  // namespace muster::trainer
