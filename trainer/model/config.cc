#include "trainer/model/config.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "trainer/model/config_reader.h"
#include "trainer/model/experts_config.h"
#include "trainer/model/families.h"

namespace muster::trainer {
namespace {

using nlohmann::json;

std::string FamilyNames(const char* FamilyFields::*name) {
  std::string names;
  for (const FamilyFields& family : kFamilies)
    absl::StrAppend(&names, names.empty() ? "" : ", ", family.*name);
  return names;
}

void ParseRopeMap(const json& map, const std::string& path, ModelConfig& config,
                  Problems& problems) {
  if (!map.is_object()) {
    problems.push_back({path, "must be a map such as {rope_type: default, rope_theta: 10000.0}"});
    return;
  }
  ConfigReader reader(map, path, problems);
  if (reader.Has("rope_theta"))
    config.rope_theta = reader.Positive("rope_theta", config.rope_theta);
  const json& type = reader.Has("rope_type") ? reader.At("rope_type") : reader.At("type");
  reader.At("type");
  config.rope.type = type.is_null()     ? "default"
                     : type.is_string() ? type.get<std::string>()
                                        : type.dump();
  if (config.rope.type == "linear" || config.rope.type == "llama3" || config.rope.type == "yarn") {
    if (!reader.Has("factor"))
      reader.Bad("factor", absl::StrCat("is missing; rope_type ", config.rope.type, " needs it"));
    config.rope.factor = reader.Positive("factor", 1);
  }
  if (config.rope.type == "llama3") {
    config.rope.low_freq_factor = reader.Positive("low_freq_factor", 1);
    config.rope.high_freq_factor = reader.Positive("high_freq_factor", 4);
    if (config.rope.high_freq_factor <= config.rope.low_freq_factor)
      reader.Bad("high_freq_factor", "must be above low_freq_factor");
  } else if (config.rope.type == "yarn") {
    config.rope.beta_fast = reader.Positive("beta_fast", 32);
    config.rope.beta_slow = reader.Positive("beta_slow", 1);
    config.rope.attention_factor = reader.Positive("attention_factor", 0);
    config.rope.mscale = reader.Positive("mscale", 0);
    config.rope.mscale_all_dim = reader.Positive("mscale_all_dim", 0);
    config.rope.truncate = reader.Bool("truncate", true);
    if (config.rope.factor < 1)
      reader.Bad("factor",
                 absl::StrCat(config.rope.factor, " is below 1; YaRN lengthens the context by it"));
    if (config.rope.beta_fast < config.rope.beta_slow)
      reader.Bad("beta_fast", "must be at least beta_slow");
  } else if (config.rope.type != "default" && config.rope.type != "linear") {
    reader.Bad("rope_type",
               absl::StrCat("\"", config.rope.type,
                            "\" can't be trained; default, linear, llama3 and yarn can"));
  }
  if (config.rope.type == "llama3" || config.rope.type == "yarn") {
    config.rope.original_max_position_embeddings =
        reader.Size("original_max_position_embeddings", config.max_position_embeddings);
  }
  if (const json& share = reader.At("partial_rotary_factor"); !share.is_null() && share != 1) {
    reader.Bad("partial_rotary_factor",
               absl::StrCat(share.dump(), " can't be trained; whole heads are rotated"));
  }
  for (const auto& [key, value] : map.items()) {
    if (!reader.used().contains(key) && !value.is_null())
      reader.Bad(key, "has no meaning for this rope_type; remove it");
  }
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

double RopeScaling::AttentionFactor() const {
  if (type != "yarn") return 1;
  if (attention_factor > 0) return attention_factor;
  const auto scale = [&](double m) { return factor <= 1 ? 1.0 : 0.1 * m * std::log(factor) + 1.0; };
  return mscale > 0 && mscale_all_dim > 0 ? scale(mscale) / scale(mscale_all_dim) : scale(1);
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
  if (rope != o.rope) found.emplace_back("the scaling of RoPE differs");
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

// Where a token meets `experts` of a layer's experts.
int64_t ParametersWith(const ModelConfig& c, int64_t experts) {
  const int64_t attention = c.hidden_size * c.head_dim * (2 * c.num_heads + 2 * c.num_kv_heads);
  int64_t layer = attention + 2 * c.hidden_size;
  if (c.qkv_bias) layer += c.head_dim * (c.num_heads + 2 * c.num_kv_heads);
  if (c.out_bias) layer += c.hidden_size;
  if (c.qk_norm) layer += 2 * c.head_dim;
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
    if (!type.is_null())
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

void ParseRope(ConfigReader& r, const std::string& path, ModelConfig& config, Problems& problems) {
  // Newer files hold rope_parameters (theta inside), older ones rope_theta beside rope_scaling.
  const bool has_top_theta = r.Has("rope_theta");
  config.rope_theta = FieldsOfFamily(config.family).rope_theta;
  const double top_theta = r.Positive("rope_theta", config.rope_theta);
  config.rope_theta = top_theta;
  const json& parameters = r.At("rope_parameters");
  const json& scaling = r.At("rope_scaling");
  if (!parameters.is_null()) {
    ParseRopeMap(parameters, path + ".rope_parameters", config, problems);
    if (has_top_theta && config.rope_theta != top_theta)
      r.Bad("rope_theta", "contradicts rope_parameters.rope_theta; keep one");
    if (!scaling.is_null() && scaling != parameters) {
      ModelConfig other = config;
      Problems scratch;
      ParseRopeMap(scaling, path + ".rope_scaling", other, scratch);
      if (!scratch.empty() || !(other.rope == config.rope))
        r.Bad("rope_scaling", "contradicts rope_parameters; keep one");
    }
  } else if (!scaling.is_null()) {
    ParseRopeMap(scaling, path + ".rope_scaling", config, problems);
  }
}

void RefuseUntrainable(ConfigReader& r) {
  if (const json& dropout = r.At("attention_dropout");
      !dropout.is_null() && !(dropout.is_number() && dropout.get<double>() == 0)) {
    r.Bad("attention_dropout", absl::StrCat(dropout.dump(), " can't be trained; use 0"));
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
  if (config.family != "llama" && !value.contains("num_key_value_heads"))
    r.Bad("num_key_value_heads", "is missing; the model's shape needs it");
  config.max_position_embeddings =
      r.Size("max_position_embeddings", family.max_position_embeddings);
  config.rms_norm_eps = r.Positive("rms_norm_eps", family.rms_norm_eps);
  config.initializer_range = r.Positive("initializer_range", 0.02);
  config.tie_word_embeddings = r.Bool("tie_word_embeddings", false);

  ParseHeads(r, family, config);
  ParseRope(r, path, config, problems);
  if (const json& act = r.At("hidden_act"); !act.is_null() && act != "silu") {
    r.Bad("hidden_act", absl::StrCat(act.dump(), " can't be trained; only \"silu\" can"));
  }
  ParseExtras(r, family, config);
  ParseWindows(r, value, family, config);
  RefuseUntrainable(r);
  ParseExperts(r, value, family, strict, config, ignored);
  ParseTokenIds(r, config);
  RefuseUnknown(value, strict, config, r, ignored);
  return config;
}

}  // namespace muster::trainer
