#include "trainer/model/experts_config.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace muster::trainer {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

using Names = std::set<std::string>;

const Names& FieldsOf(ExpertFields fields) {
  static const Names kMixtral = {"num_local_experts",    "num_experts",
                                 "num_experts_per_tok",  "output_router_logits",
                                 "router_aux_loss_coef", "router_jitter_noise"};
  static const Names kQwen = {
      "num_local_experts",    "num_experts",          "num_experts_per_tok",
      "output_router_logits", "router_aux_loss_coef", "moe_intermediate_size",
      "norm_topk_prob",       "decoder_sparse_step",  "mlp_only_layers"};
  static const Names kDeepSeek = {"n_routed_experts",
                                  "num_local_experts",
                                  "num_experts_per_tok",
                                  "output_router_logits",
                                  "moe_intermediate_size",
                                  "norm_topk_prob",
                                  "n_shared_experts",
                                  "n_group",
                                  "topk_group",
                                  "routed_scaling_factor",
                                  "first_k_dense_replace",
                                  "scoring_func",
                                  "topk_method",
                                  "moe_layer_freq"};
  return fields == ExpertFields::kMixtral ? kMixtral
         : fields == ExpertFields::kQwen  ? kQwen
                                          : kDeepSeek;
}

// What fields of routers and experts are called, here and elsewhere.
constexpr const char* kParts[] = {"expert",  "rout",         "moe",         "topk_group",
                                  "n_group", "scoring_func", "topk_method", "norm_topk",
                                  "e_score", "dense_replace"};

bool IsOfRouter(const std::string& name) {
  return std::any_of(std::begin(kParts), std::end(kParts),
                     [&](const char* part) { return absl::StrContains(name, part); });
}

// What `value` has that the family doesn't.
void CheckOthers(ConfigReader& r, const json& value, const FamilyFields& family, bool strict,
                 std::vector<std::string>* ignored) {
  const bool has_experts = family.experts.block != nullptr;
  const Names none, &own = has_experts ? FieldsOf(family.experts.fields) : none;
  const Names &mixtral = FieldsOf(ExpertFields::kMixtral), &qwen = FieldsOf(ExpertFields::kQwen),
              &deepseek = FieldsOf(ExpertFields::kDeepSeek);
  for (const auto& [name, given] : value.items()) {
    if (given.is_null() || own.contains(name)) continue;
    // What transformers passes over in such a model.
    const bool harmless = mixtral.contains(name) || qwen.contains(name);
    // Of a map that a user wrote every unknown field is a problem anyway.
    if (has_experts && !harmless && IsOfRouter(name) && !strict) {
      r.Bad(name, absl::StrCat("is no field of a ", family.model_type,
                               "'s router or experts that can be trained, so the model would be "
                               "another; remove it if it changes nothing.",
                               DidYouMean(name, {own.begin(), own.end()})));
    } else if (harmless || deepseek.contains(name)) {
      if (strict)
        r.Bad(name,
              absl::StrCat("has no meaning for model_type ", family.model_type, "; remove it"));
      else if (ignored != nullptr)
        ignored->push_back(name);
    }
  }
}

// DeepSeek's: the first layers have an MLP.
void ParseFirstDense(ConfigReader& r, ModelConfig& config) {
  const json& first = r.At("first_k_dense_replace");
  if (first.is_null()) return;
  if (!first.is_number_integer() || first.get<int64_t>() < 0 ||
      first.get<int64_t>() >= config.num_layers) {
    r.Bad("first_k_dense_replace",
          absl::StrCat("must be a whole number from 0 to ", config.num_layers - 1,
                       ", so that a layer with experts is left; got ", first.dump()));
    return;
  }
  std::fill_n(config.experts.sparse_layers.begin(), first.get<int64_t>(), false);
}

// The choice by groups, and which experts every token meets.
void ParseRouter(ConfigReader& r, ModelConfig& config) {
  ExpertsConfig& e = config.experts;
  e.sigmoid = true;
  e.groups = r.Size("n_group", 1);
  e.top_groups = r.Size("topk_group", 1);
  e.scale = r.Positive("routed_scaling_factor", 1);
  e.shared = r.Size("n_shared_experts", 1, true);
  e.shared_width = e.shared * e.width;
  constexpr int64_t kBest = 2;  // of a group's experts, by which it is judged
  if (e.count % e.groups != 0) {
    r.Bad("n_group", absl::StrCat(e.groups, " doesn't divide the ", e.count,
                                  " experts (n_routed_experts) into equal groups; give a divisor"));
  } else if (e.groups > 1 && e.count / e.groups < kBest) {
    r.Bad("n_group", absl::StrCat(e.groups, " groups of the ", e.count,
                                  " experts have one each, and a group is judged by its best two; "
                                  "give at most ",
                                  e.count / kBest));
  } else if (e.top_groups > e.groups) {
    r.Bad("topk_group", absl::StrCat(e.top_groups, " is above n_group, ", e.groups));
  } else if (e.per_token > e.top_groups * (e.count / e.groups)) {
    r.Bad("topk_group",
          absl::StrCat(e.top_groups, " of the groups have ", e.top_groups * (e.count / e.groups),
                       " experts, and a token meets ", e.per_token,
                       " (num_experts_per_tok); choose from more groups"));
  }
  // Not fields of transformers' class, but of the files that models come with; noaux_tc is what
  // DeepSeek calls this choice.
  for (const auto& [name, wanted] :
       {std::pair<const char*, json>("scoring_func", json::array({"sigmoid", "noaux_tc"})),
        std::pair<const char*, json>("topk_method", json::array({"noaux_tc"})),
        std::pair<const char*, json>("moe_layer_freq", json::array({1}))}) {
    const json& given = r.At(name);
    if (!given.is_null() && std::find(wanted.begin(), wanted.end(), given) == wanted.end())
      r.Bad(name, absl::StrCat(given.dump(), " can't be trained; ", wanted[0].dump(), " can"));
  }
}

void ParseSparseLayers(ConfigReader& r, const FamilyFields& family, ModelConfig& config) {
  ExpertsConfig& experts = config.experts;
  experts.sparse_layers.assign(config.num_layers, true);
  if (family.experts.fields == ExpertFields::kDeepSeek) ParseFirstDense(r, config);
  if (family.experts.fields != ExpertFields::kQwen) return;
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
  const bool deepseek = family.experts.fields == ExpertFields::kDeepSeek,
             qwen = family.experts.fields == ExpertFields::kQwen;
  // transformers 5 writes the one, files of Qwen and DeepSeek the other.
  const char* const own = deepseek ? "n_routed_experts" : "num_experts";
  const char* named = r.Has(own) && !r.Has("num_local_experts") ? own : "num_local_experts";
  experts.count = r.Size(named, 1, true);
  if (r.Has(own) && r.Has("num_local_experts") && r.At(own) != r.At("num_local_experts"))
    r.Bad(own, "contradicts num_local_experts; keep one");
  experts.per_token = r.Size("num_experts_per_tok", 1, true);
  if (experts.per_token > experts.count)
    r.Bad("num_experts_per_tok", absl::StrCat(experts.per_token, " is above ", named, ", ",
                                              experts.count, "; a token can't meet more"));
  experts.width =
      qwen || deepseek ? r.Size("moe_intermediate_size", 1, true) : config.intermediate_size;
  experts.normalise = (!qwen && !deepseek) || r.Bool("norm_topk_prob", false);
  if (deepseek) {  // which has no auxiliary loss, whatever output_router_logits says
    r.Bool("output_router_logits", false);
    ParseRouter(r, config);
    return ParseSparseLayers(r, family, config);
  }
  experts.output_router_logits = r.Bool("output_router_logits", false);
  if (const json& coefficient = r.At("router_aux_loss_coef"); !coefficient.is_null()) {
    if (coefficient.is_number() && coefficient.get<double>() >= 0)
      experts.aux_loss_coef = coefficient.get<double>();
    else
      r.Bad("router_aux_loss_coef",
            absl::StrCat("must be a number from 0; got ", coefficient.dump()));
  }
  if (const json& noise = r.At("router_jitter_noise");
      !qwen && !noise.is_null() && !(noise.is_number() && noise.get<double>() == 0))
    r.Bad("router_jitter_noise", absl::StrCat(noise.dump(), " can't be trained; use 0"));
  ParseSparseLayers(r, family, config);
}

void AddExpertsSchema(ordered_json& properties) {
  const auto add = [&](const char* name, const char* type, const char* description,
                       const ordered_json& more = ordered_json::object()) {
    properties[name] = {{"type", {type, "null"}}, {"description", description}};
    properties[name].update(more);
  };
  const auto range = [](const char* name) {
    return ordered_json{{"minimum", 1}, {"maximum", SizeMax(name)}};
  };
  for (const char* name : {"num_local_experts", "num_experts"})
    add(name, "integer", "Experts in a layer, under either name (mixtral, qwen3_moe).",
        range(name));
  add("n_routed_experts", "integer", "Experts in a layer (dots1; or num_local_experts).",
      range("n_routed_experts"));
  add("num_experts_per_tok", "integer",
      "Experts that a token meets, the router's first choices (mixtral, qwen3_moe, dots1).",
      range("num_experts_per_tok"));
  add("moe_intermediate_size", "integer",
      "Width of an expert (qwen3_moe, dots1; mixtral's is intermediate_size).",
      range("moe_intermediate_size"));
  add("norm_topk_prob", "boolean",
      "The chosen experts' weights are made to sum up to 1 (qwen3_moe, dots1; mixtral's always "
      "are).",
      {{"default", false}});
  add("n_shared_experts", "integer",
      "Experts beside those that every token meets, as one MLP of their widths' sum (dots1).",
      range("n_shared_experts"));
  add("n_group", "integer", "Equal groups of experts, of which a token chooses some (dots1).",
      {{"minimum", 1}, {"maximum", kSizeMax}, {"default", 1}});
  add("topk_group", "integer", "How many groups a token's experts are chosen from (dots1).",
      {{"minimum", 1}, {"maximum", kSizeMax}, {"default", 1}});
  add("routed_scaling_factor", "number",
      "What the chosen experts' weights are multiplied by (dots1).",
      {{"exclusiveMinimum", 0}, {"default", 1}});
  add("first_k_dense_replace", "integer", "First layers with one MLP in place of experts (dots1).",
      {{"minimum", 0}, {"maximum", kSizeMax}, {"default", 0}});
  add("scoring_func", "string", "How experts are scored (dots1).",
      {{"enum", ordered_json::array({"sigmoid", "noaux_tc", nullptr})}});
  add("topk_method", "string", "How experts are chosen (dots1).",
      {{"enum", ordered_json::array({"noaux_tc", nullptr})}});
  add("moe_layer_freq", "integer", "Every how many layers there are experts (dots1).",
      {{"enum", ordered_json::array({1, nullptr})}});
  add("decoder_sparse_step", "integer", "Every how many layers there are experts (qwen3_moe).",
      {{"minimum", 1}, {"maximum", kSizeMax}, {"default", 1}});
  add("mlp_only_layers", "array", "Layers with one MLP in place of experts (qwen3_moe).",
      {{"items", {{"type", "integer"}, {"minimum", 0}}}});
  add("output_router_logits", "boolean",
      "In training, the auxiliary loss that balances experts (mixtral, qwen3_moe; dots1 has none).",
      {{"default", false}});
  add("router_aux_loss_coef", "number", "The coefficient of that loss (mixtral, qwen3_moe).",
      {{"default", 0.001}, {"minimum", 0}});
  add("router_jitter_noise", "number", "Can't be trained (mixtral).",
      {{"enum", ordered_json::array({0, nullptr})}});
}

void AddExperts(const ModelConfig& config, const FamilyFields& family, ordered_json& out) {
  if (family.experts.block == nullptr) return;
  const ExpertsConfig& experts = config.experts;
  out["num_experts_per_tok"] = experts.per_token;
  if (family.experts.fields == ExpertFields::kDeepSeek) {
    out["n_routed_experts"] = experts.count;
    out["moe_intermediate_size"] = experts.width;
    out["norm_topk_prob"] = experts.normalise;
    out["n_shared_experts"] = experts.shared;
    out["n_group"] = experts.groups;
    out["topk_group"] = experts.top_groups;
    out["routed_scaling_factor"] = experts.scale;
    out["first_k_dense_replace"] = config.num_layers - config.NumSparseLayers();
    return;
  }
  out["num_local_experts"] = experts.count;
  out["output_router_logits"] = experts.output_router_logits;
  out["router_aux_loss_coef"] = experts.aux_loss_coef;
  if (family.experts.fields == ExpertFields::kQwen) {
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

std::string RouterBiasName(const ModelConfig& config, int64_t layer) {
  const ExpertWords& words = FieldsOfFamily(config.family).experts;
  return absl::StrCat("model.layers.", layer, ".", words.block, kRouterBias);
}

std::string SharedExpertsName(const ModelConfig& config, int64_t layer, const char* linear) {
  const ExpertWords& words = FieldsOfFamily(config.family).experts;
  return absl::StrCat("model.layers.", layer, ".", words.block, ".shared_experts.", linear);
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
