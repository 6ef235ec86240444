#include "trainer/model/config.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "trainer/model/config_reader.h"
#include "trainer/model/experts_config.h"
#include "trainer/model/families.h"
#include "trainer/model/rope_config.h"

namespace muster::trainer {
namespace {

using nlohmann::json;

std::string FamilyNames(const char* FamilyFields::*name) {
  std::string names;
  for (const FamilyFields& family : kFamilies)
    absl::StrAppend(&names, names.empty() ? "" : ", ", family.*name);
  return names;
}

}  // namespace

std::string ToText(const Problems& problems) {
  std::string text;
  for (const Problem& problem : problems)
    absl::StrAppend(&text, "  ", problem.path, ": ", problem.text, "\n");
  return text;
}

absl::StatusOr<json> ParseJson(const std::string& text, const std::string& path) {
  try {
    return json::parse(text);
  } catch (const json::parse_error& e) {
    const size_t at = std::min(text.size(), e.byte > 0 ? e.byte - 1 : 0);
    const size_t line_begin = at == 0 ? std::string::npos : text.rfind('\n', at - 1);
    const size_t line =
        1 + static_cast<size_t>(
                std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
    // The library's own words for what it wants, without its numbers.
    std::string what = e.what();
    if (const size_t colon = what.find(": "); colon != std::string::npos) what.erase(0, colon + 2);
    return absl::InvalidArgumentError(absl::StrCat(
        path, ":", line, ":", at - (line_begin == std::string::npos ? 0 : line_begin + 1) + 1,
        ": not JSON: ", what));
  }
}

std::string DidYouMean(const std::string& name, const std::vector<std::string>& known) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : known) {
    std::vector<size_t> row(candidate.size() + 1);
    for (size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= name.size(); ++i) {
      size_t diagonal = row[0];
      row[0] = i;
      for (size_t j = 1; j < row.size(); ++j) {
        const size_t above = row[j];
        row[j] =
            std::min({above + 1, row[j - 1] + 1, diagonal + (name[i - 1] != candidate[j - 1])});
        diagonal = above;
      }
    }
    if (row.back() < best_distance) best_distance = row.back(), best = candidate;
  }
  return best.empty() ? "" : absl::StrCat(" Did you mean ", best, "?");
}

std::vector<std::string> ModelConfig::DifferencesFrom(const ModelConfig& o) const {
  std::vector<std::string> found;
  const auto compare = [&](const char* name, const auto& mine, const auto& other) {
    if (mine != other)
      found.push_back(absl::StrCat(name, " is ", json(mine).dump(), ", not ", json(other).dump()));
  };
  compare("model_type", family, o.family);
  compare("vocab_size", vocab_size, o.vocab_size);
  compare("hidden_size", hidden_size, o.hidden_size);
  compare("intermediate_size", intermediate_size, o.intermediate_size);
  compare("num_hidden_layers", num_layers, o.num_layers);
  compare("num_attention_heads", num_heads, o.num_heads);
  compare("num_key_value_heads", num_kv_heads, o.num_kv_heads);
  compare("head_dim", head_dim, o.head_dim);
  compare("rms_norm_eps", rms_norm_eps, o.rms_norm_eps);
  compare("rope_theta", rope_theta, o.rope_theta);
  compare("rope_local_base_freq", local_rope_theta, o.local_rope_theta);
  compare("partial_rotary_factor", partial_rotary_factor, o.partial_rotary_factor);
  if (rope != o.rope) found.emplace_back("the scaling of RoPE differs");
  compare("query_pre_attn_scalar", query_pre_attn_scalar, o.query_pre_attn_scalar);
  compare("attn_logit_softcapping", attention_softcap, o.attention_softcap);
  compare("final_logit_softcapping", final_softcap, o.final_softcap);
  compare("tie_word_embeddings", tie_word_embeddings, o.tie_word_embeddings);
  if (score != o.score)
    found.push_back(score ? "head is a score, not of tokens" : "head is of tokens, not a score");
  if (qkv_bias != o.qkv_bias || out_bias != o.out_bias || mlp_bias != o.mlp_bias)
    found.emplace_back("other linears have biases");
  if (family == o.family) compare("the norms of q and k", qk_norm, o.qk_norm);
  bool windows = false;
  for (int64_t layer = 0; num_layers == o.num_layers && layer < num_layers; ++layer)
    windows |= Window(layer) != o.Window(layer);
  if (windows) found.emplace_back("the sliding windows differ");
  compare("the number of experts", experts.count, o.experts.count);
  if (experts.count > 0 && o.experts.count > 0) {
    compare("num_experts_per_tok", experts.per_token, o.experts.per_token);
    compare("the width of an expert", experts.width, o.experts.width);
    compare("norm_topk_prob", experts.normalise, o.experts.normalise);
    compare("n_group", experts.groups, o.experts.groups);
    compare("topk_group", experts.top_groups, o.experts.top_groups);
    compare("routed_scaling_factor", experts.scale, o.experts.scale);
    compare("n_shared_experts", experts.shared, o.experts.shared);
    if (num_layers == o.num_layers && experts.sparse_layers != o.experts.sparse_layers)
      found.emplace_back("other layers have experts");
  }
  return found;
}

int64_t ModelConfig::NumSparseLayers() const {
  return experts.count == 0
             ? 0
             : std::count(experts.sparse_layers.begin(), experts.sparse_layers.end(), true);
}

namespace {

// From a third of the parameters up to all, in double, where nothing overflows.
double RoughParameters(const ModelConfig& c) {
  const auto of = [](int64_t size) { return static_cast<double>(size); };
  const double mlp = of(c.intermediate_size) + of(c.experts.count) * of(c.experts.width) +
                     of(c.experts.shared_width);
  return of(c.hidden_size) *
         (of(c.vocab_size) +
          of(c.num_layers) * (of(c.num_heads + c.num_kv_heads) * of(c.head_dim) + mlp));
}

// Where a token meets `experts` of a layer's experts.
int64_t ParametersWith(const ModelConfig& c, int64_t experts) {
  const int64_t attention = c.hidden_size * c.head_dim * (2 * c.num_heads + 2 * c.num_kv_heads);
  int64_t layer = attention + 2 * c.hidden_size;
  if (c.qkv_bias) layer += c.head_dim * (c.num_heads + 2 * c.num_kv_heads);
  if (c.out_bias) layer += c.hidden_size;
  if (c.qk_norm) layer += 2 * c.head_dim;
  if (c.post_norms) layer += 2 * c.hidden_size;
  int64_t dense = 3 * c.hidden_size * c.intermediate_size;
  if (c.mlp_bias) dense += 2 * c.intermediate_size + c.hidden_size;
  const int64_t sparse = c.hidden_size * c.experts.count +
                         3 * c.hidden_size * (experts * c.experts.width + c.experts.shared_width);
  const int64_t sparse_layers = c.NumSparseLayers();
  return c.num_layers * layer + sparse_layers * sparse + (c.num_layers - sparse_layers) * dense +
         c.hidden_size + (c.score ? c.hidden_size : 0) +
         c.vocab_size * c.hidden_size * (c.tie_word_embeddings || c.score ? 1 : 2);
}

}  // namespace

int64_t ModelConfig::NumParameters() const { return ParametersWith(*this, experts.count); }
int64_t ModelConfig::NumActiveParameters() const {
  return ParametersWith(*this, experts.per_token);
}

namespace {

// Of Gemma each so many-th layer has none, where `listed` doesn't say which.
void TakeGemmaWindows(ConfigReader& r, const FamilyFields& family, int64_t window,
                      std::vector<bool> listed, ModelConfig& config) {
  const int64_t every = family.gemma.local_rope
                            ? r.Size("sliding_window_pattern", family.gemma.full_every)
                            : family.gemma.full_every;
  for (int64_t layer = static_cast<int64_t>(listed.size()); layer < config.num_layers; ++layer)
    listed.push_back((layer + 1) % every != 0);
  if (window == 0)
    r.Bad("sliding_window", absl::StrCat("is null, which transformers' ", family.model_type,
                                         " can't do; give the tokens that a token sees in layers "
                                         "with a window"));
  config.sliding_window = window;
  config.sliding_layers = std::move(listed);
}

// Which layers have a window, as transformers reads it.
void ParseWindows(ConfigReader& r, const json& value, const FamilyFields& family,
                  ModelConfig& config) {
  // Llama has no such field; Mistral's is for all layers; Qwen's are for layers from
  // max_window_layers on, or those named.
  const bool known = family.sliding_window != 0;
  if (!known) {
    if (r.Has("sliding_window"))
      r.Bad("sliding_window",
            absl::StrCat("has no meaning for model_type ", family.model_type, "; remove it"));
    return;
  }
  const int64_t window =
      value.contains("sliding_window") && !r.Has("sliding_window")
          ? 0
          : r.Size("sliding_window", std::max<int64_t>(0, family.sliding_window));
  const json& types = r.At("layer_types");
  std::vector<bool> listed;
  if (!types.is_null()) {
    const bool sized = types.is_array() && static_cast<int64_t>(types.size()) == config.num_layers;
    const bool named = sized && std::all_of(types.begin(), types.end(), [](const json& t) {
                         return t == "full_attention" || t == "sliding_attention";
                       });
    if (!named)
      r.Bad("layer_types",
            absl::StrCat(
                "must be a list of full_attention or sliding_attention, one for each of the ",
                config.num_layers, " layers; got ", types.dump()));
    for (const json& type : named ? types : json::array())
      listed.push_back(type == "sliding_attention");
  }
  if (family.is_gemma()) return TakeGemmaWindows(r, family, window, listed, config);
  if (!family.windows_by_layer) {
    const bool on = !family.window_switch || r.Bool("use_sliding_window", false);
    config.sliding_window = on ? window : 0;
    if (config.sliding_window > 0) config.sliding_layers.assign(config.num_layers, true);
    if (!listed.empty() && config.sliding_window > 0 && listed != config.sliding_layers)
      r.Bad("layer_types", "contradicts sliding_window, which this model_type has for all layers");
    return;
  }
  const bool on = (!family.window_switch || r.Bool("use_sliding_window", false)) && window > 0;
  const json& first = r.At("max_window_layers");
  if (!first.is_null() && (!first.is_number_integer() || first.get<int64_t>() < 0))
    r.Bad("max_window_layers", absl::StrCat("must be a whole number from 0; got ", first.dump()));
  if (!on) {
    if (std::find(listed.begin(), listed.end(), true) != listed.end())
      r.Bad("layer_types",
            absl::StrCat("names sliding_attention, but ",
                         family.window_switch ? "use_sliding_window is false or " : "",
                         "sliding_window is null"));
    return;
  }
  config.sliding_window = window;
  if (listed.empty()) {
    const int64_t from =
        first.is_number_integer() ? first.get<int64_t>() : family.max_window_layers;
    for (int64_t layer = 0; layer < config.num_layers; ++layer) listed.push_back(layer >= from);
  }
  if (std::find(listed.begin(), listed.end(), true) != listed.end()) config.sliding_layers = listed;
}

// The biases of the linears, and q/k norms.
void ParseExtras(ConfigReader& r, const FamilyFields& family, ModelConfig& config) {
  config.qk_norm = family.qk_norm;
  const bool attention = r.Bool("attention_bias", family.qkv_bias), mlp = r.Bool("mlp_bias", false);
  config.qkv_bias = family.qkv_bias;
  if (family.has_attention_bias)
    config.qkv_bias = config.out_bias = attention;
  else if (attention != family.qkv_bias)
    r.Bad("attention_bias",
          absl::StrCat("contradicts model_type ", family.model_type, ", whose q, k and v have ",
                       family.qkv_bias ? "biases" : "none", "; remove it"));
  if (family.has_mlp_bias)
    config.mlp_bias = mlp;
  else if (mlp)
    r.Bad("mlp_bias",
          absl::StrCat("has no meaning for model_type ", family.model_type, "; remove it"));
}

void ParseActivation(ConfigReader& r, const FamilyFields& family, ModelConfig& config) {
  const char* known = family.is_gemma() ? "gelu_pytorch_tanh" : "silu";
  if (family.is_gemma()) config.activation = Activation::kGeluTanh;
  for (const char* key : {"hidden_act", "hidden_activation"}) {
    if (const json& act = r.At(key); !act.is_null() && act != known)
      r.Bad(key, absl::StrCat(act.dump(), " can't be trained; only \"", known, "\" can"));
  }
}

// What Gemma's models have that others haven't.
void ParseGemma(ConfigReader& r, const json& value, const FamilyFields& family,
                ModelConfig& config) {
  const auto refuse = [&](const char* key) {
    if (r.Has(key))
      r.Bad(key, absl::StrCat("has no meaning for model_type ", family.model_type, "; remove it"));
  };
  if (!family.gemma.local_rope) refuse("rope_local_base_freq");
  if (!family.gemma.local_rope && r.At("sliding_window_pattern") != family.gemma.full_every)
    refuse("sliding_window_pattern");
  if (!family.is_gemma()) {
    for (const char* key : {"query_pre_attn_scalar", "attn_logit_softcapping",
                            "final_logit_softcapping", "use_bidirectional_attention"})
      refuse(key);
    return;
  }
  config.norms_from_one = config.post_norms = config.scaled_embeddings = true;
  constexpr int64_t kScalar = 256;
  config.query_pre_attn_scalar = r.Size("query_pre_attn_scalar", kScalar);
  const auto cap = [&](const char* key, double otherwise) {  // null: none
    return value.contains(key) && !r.Has(key) ? 0 : r.Positive(key, otherwise);
  };
  config.final_softcap = cap("final_logit_softcapping", family.gemma.final_cap);
  config.attention_softcap = cap("attn_logit_softcapping", family.gemma.attention_cap);
  if (family.gemma.attention_cap == 0 && config.attention_softcap > 0)
    r.Bad("attn_logit_softcapping",
          absl::StrCat("has no effect in transformers' ", family.model_type, "; remove it"));
  if (r.Bool("use_bidirectional_attention", false))
    r.Bad("use_bidirectional_attention",
          "true is a model whose tokens see later ones, which can't be trained; use false");
  if (config.hidden_size % config.num_heads != 0)
    r.Bad("hidden_size",
          absl::StrCat(config.hidden_size, " is no multiple of num_attention_heads, ",
                       config.num_heads, ", as transformers wants it of ", family.model_type));
}

bool NamesScoreClass(const json& names, const FamilyFields& family) {
  return family.has_score_class && names == json::array({ScoreArchitecture(family)});
}

// Whether the class is the family's for sequence classification; complains of more than one label.
bool ParseScore(ConfigReader& r, const FamilyFields& family) {
  const json& labels = r.At("id2label");
  const json& count = r.At("num_labels");
  if (!NamesScoreClass(r.At("architectures"), family)) return false;
  const bool one = count.is_null() ? labels.is_object() && labels.size() == 1 : count == 1;
  if (!one)
    r.Bad("id2label",
          "a model for sequence classification needs one label here, its reward; save "
          "it with num_labels=1");
  return true;
}

// The family that model_type and architectures name; complains where they name none that can be
// trained, or two.
const FamilyFields& ParseFamily(ConfigReader& r, bool strict) {
  const json& type = r.At("model_type");
  const json& names = r.At("architectures");
  const FamilyFields* family = nullptr;
  for (const FamilyFields& one : kFamilies) {
    if (type.is_null() ? names == json::array({one.architecture}) || NamesScoreClass(names, one)
                       : type == one.model_type)
      family = &one;
  }
  if (type.is_null() && names.is_null()) {
    if (!strict)
      r.Bad("model_type",
            absl::StrCat("is missing; can be trained: ", FamilyNames(&FamilyFields::model_type)));
    return kFamilies[0];
  }
  if (family == nullptr) {
    if (type == "gemma3")
      r.Bad("model_type",
            "\"gemma3\" is of text and images; its text part can be trained: load it in "
            "transformers, and save its language_model as a Gemma3ForCausalLM, whose model_type "
            "is gemma3_text (docs/trainer.md, Phi and Gemma)");
    else if (!type.is_null())
      r.Bad("model_type", absl::StrCat(type.dump(), " can't be trained; can be: ",
                                       FamilyNames(&FamilyFields::model_type)));
    else
      r.Bad("architectures", absl::StrCat(names.dump(), " can't be trained; can be: ",
                                          FamilyNames(&FamilyFields::architecture)));
    return kFamilies[0];
  }
  if (!names.is_null() && names != json::array({family->architecture}) &&
      !NamesScoreClass(names, *family)) {
    r.Bad("architectures",
          absl::StrCat(names.dump(), " can't be trained with model_type ", family->model_type,
                       "; [\"", family->architecture, "\"] can"));
  }
  return *family;
}

void ParseHeads(ConfigReader& r, const FamilyFields& family, ModelConfig& config) {
  if (config.num_heads % config.num_kv_heads != 0) {
    r.Bad("num_key_value_heads",
          absl::StrCat(config.num_kv_heads, " doesn't divide num_attention_heads, ",
                       config.num_heads));
  }
  if (r.Has("head_dim") || family.head_dim > 0) {
    config.head_dim = r.Size("head_dim", std::max<int64_t>(1, family.head_dim));
  } else if (config.hidden_size % config.num_heads != 0) {
    r.Bad("hidden_size",
          absl::StrCat(config.hidden_size, " is no multiple of num_attention_heads, ",
                       config.num_heads, "; or give head_dim"));
  } else {
    config.head_dim = config.hidden_size / config.num_heads;
  }
  if (config.head_dim % 2 != 0)
    r.Bad("head_dim",
          absl::StrCat(config.head_dim, " is odd; rotary embeddings need an even head_dim"));
}

void RefuseUntrainable(ConfigReader& r) {
  for (const char* key : {"attention_dropout", "resid_pdrop", "embd_pdrop"}) {
    const json& dropout = r.At(key);
    if (!dropout.is_null() && !(dropout.is_number() && dropout.get<double>() == 0))
      r.Bad(key, absl::StrCat(dropout.dump(), " can't be trained; use 0"));
  }
  if (const json& tp = r.At("pretraining_tp"); !tp.is_null() && tp != 1)
    r.Bad("pretraining_tp", "only 1 is supported");
  if (r.Has("quantization_config"))
    r.Bad("quantization_config",
          "quantised weights can't be trained; give the unquantised model, or for adapters beside "
          "bitsandbytes' NF4 add lora and quantize: {type: nf4}");
  const json& old_dtype = r.At("torch_dtype");
  const json& new_dtype = r.At("dtype");
  if (!old_dtype.is_null() && !new_dtype.is_null() && old_dtype != new_dtype)
    r.Bad("torch_dtype", "contradicts dtype; keep one");
}

void ParseTokenIds(ConfigReader& r, ModelConfig& config) {
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    const json& id = r.At(key);
    if (id.is_null()) continue;
    const json ids = id.is_array() ? id : json::array({id});
    for (const json& one : ids) {
      if (!one.is_number_integer() || one.get<int64_t>() < -1 ||
          one.get<int64_t>() >= config.vocab_size) {
        r.Bad(key,
              absl::StrCat(one.dump(), " is no token id below vocab_size, ", config.vocab_size));
      }
    }
    config.token_ids[key] = id;
  }
}

// What is wrong with all sizes together, each of which may be; "": nothing.
std::string WhyTooLarge(const ModelConfig& config) {
  if (config.num_layers * config.experts.count > kMostExperts)
    return absl::StrCat(config.experts.count, " experts in each of ", config.num_layers,
                        " layers (num_hidden_layers) are more than ", kMostExperts,
                        " in all, the most that can be trained");
  if (RoughParameters(config) > kMostParameters)
    return "its sizes (vocab_size, hidden_size, num_hidden_layers and their like) make a model of "
           "more than 10^15 parameters, the most that can be counted";
  return "";
}

// Fields that no family has: problems of a map that a user wrote, else listed.
void RefuseUnknown(const json& value, bool strict, const ModelConfig& config, ConfigReader& r,
                   std::vector<std::string>* ignored) {
  static const nlohmann::ordered_json kKnown = ModelSchema()["properties"];
  std::vector<std::string> known;
  for (const auto& [key, unused] : kKnown.items()) known.push_back(key);
  for (const auto& [key, unused] : value.items()) {
    if (kKnown.contains(key)) continue;
    if (strict) {
      r.Bad(key, absl::StrCat("no such field of a ", config.family, " config.json.",
                              DidYouMean(key, known)));
    } else if (ignored != nullptr) {
      ignored->push_back(key);
    }
  }
}

}  // namespace

ModelConfig ParseModelConfig(const json& value, const std::string& path, bool strict,
                             Problems& problems, std::vector<std::string>* ignored) {
  ModelConfig config;
  if (!value.is_object()) {
    problems.push_back({path, "must be a map with the content of a Hugging Face config.json"});
    return config;
  }
  ConfigReader r(value, path, problems);
  const FamilyFields& family = ParseFamily(r, strict);
  config.family = family.model_type;
  config.score = ParseScore(r, family);
  config.vocab_size = r.Size("vocab_size", 1, true);
  config.hidden_size = r.Size("hidden_size", 1, true);
  config.intermediate_size = r.Size("intermediate_size", 1, true);
  config.num_layers = r.Size("num_hidden_layers", 1, true);
  config.num_heads = r.Size("num_attention_heads", 1, true);
  config.num_kv_heads = r.Size("num_key_value_heads", config.num_heads);
  // The other families' transformers classes have a number of their own for it, which is hardly
  // what is meant.
  if (config.family != "llama" && config.family != "phi3" && !value.contains("num_key_value_heads"))
    r.Bad("num_key_value_heads", "is missing; the model's shape needs it");
  config.max_position_embeddings =
      r.Size("max_position_embeddings", family.max_position_embeddings);
  config.rms_norm_eps = r.Positive("rms_norm_eps", family.rms_norm_eps);
  config.initializer_range = r.Positive("initializer_range", 0.02);
  config.tie_word_embeddings = r.Bool("tie_word_embeddings", family.is_gemma());

  ParseHeads(r, family, config);
  ParseRope(r, family, path, config, problems);
  ParseActivation(r, family, config);
  ParseGemma(r, value, family, config);
  ParseExtras(r, family, config);
  ParseWindows(r, value, family, config);
  RefuseUntrainable(r);
  ParseExperts(r, value, family, strict, config, ignored);
  ParseTokenIds(r, config);
  RefuseUnknown(value, strict, config, r, ignored);
  if (const std::string why = WhyTooLarge(config); !why.empty()) {
    problems.push_back({path, why});
    return {};  // nobody lists its layers
  }
  return config;
}

}  // namespace muster::trainer
