#include "trainer/model/rope_config.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace muster::trainer {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using Named = std::pair<const char*, const char*>;

constexpr char kShare[] = "partial_rotary_factor";
constexpr char kOriginal[] = "original_max_position_embeddings";
constexpr int64_t kPhiOriginal = 4096;

bool Lengthens(const std::string& type) {
  return type == "llama3" || type == "yarn" || type == "longrope";
}

// The share of a head that is rotated, if it is given.
void ParseShare(ConfigReader& reader, const FamilyFields& family, ModelConfig& config) {
  const json& share = reader.At(kShare);
  if (share.is_null()) return;
  if (!family.joined_linears) {
    if (share != 1)
      reader.Bad(kShare, absl::StrCat(share.dump(), " can't be trained; whole heads are rotated"));
    return;
  }
  if (!share.is_number() || !(share.get<double>() > 0) || share.get<double>() > 1)
    return reader.Bad(kShare,
                      absl::StrCat("must be a number above 0, at most 1; got ", share.dump()));
  config.partial_rotary_factor = share.get<double>();
  const int64_t rotated = config.RotaryDim();
  if (config.head_dim > 0 && (rotated < 2 || rotated % 2 != 0))
    reader.Bad(kShare, absl::StrCat("means ", rotated, " of a head's ", config.head_dim,
                                    " elements; rotary embeddings need an even number"));
}

// LongRoPE's factors, one for each pair of elements that is rotated.
std::vector<double> ParseFactors(ConfigReader& reader, const char* key, int64_t count) {
  const json& given = reader.At(key);
  const bool good =
      given.is_array() && static_cast<int64_t>(given.size()) == count &&
      std::all_of(given.begin(), given.end(), [](const json& one) {
        return one.is_number() && one.get<double>() > 0 && std::isfinite(one.get<double>());
      });
  if (good) return given.get<std::vector<double>>();
  reader.Bad(key, absl::StrCat(
                      "must be a list of ", count,
                      " numbers above 0, one for each pair of a head's elements that is "
                      "rotated; got ",
                      given.is_array() ? absl::StrCat("a list of ", given.size()) : given.dump()));
  return {};
}

void ParseYarn(ConfigReader& reader, RopeScaling& rope) {
  rope.beta_fast = reader.Positive("beta_fast", 32);
  rope.beta_slow = reader.Positive("beta_slow", 1);
  rope.attention_factor = reader.Positive("attention_factor", 0);
  rope.mscale = reader.Positive("mscale", 0);
  rope.mscale_all_dim = reader.Positive("mscale_all_dim", 0);
  rope.truncate = reader.Bool("truncate", true);
  if (rope.factor < 1)
    reader.Bad("factor",
               absl::StrCat(rope.factor, " is below 1; YaRN lengthens the context by it"));
  if (rope.beta_fast < rope.beta_slow) reader.Bad("beta_fast", "must be at least beta_slow");
}

// `original`: the length before, where the map doesn't say it.
void ParseRopeMap(const json& map, const std::string& path, const FamilyFields& family,
                  int64_t original, ModelConfig& config, Problems& problems) {
  if (!map.is_object()) {
    problems.push_back({path, "must be a map such as {rope_type: default, rope_theta: 10000.0}"});
    return;
  }
  ConfigReader reader(map, path, problems);
  RopeScaling& rope = config.rope;
  if (reader.Has("rope_theta"))
    config.rope_theta = reader.Positive("rope_theta", config.rope_theta);
  const json& type = reader.Has("rope_type") ? reader.At("rope_type") : reader.At("type");
  reader.At("type");
  rope.type = type.is_null() ? "default" : type.is_string() ? type.get<std::string>() : type.dump();
  // What LongRoPE was called before.
  if (family.joined_linears && (rope.type == "su" || rope.type == "yarn")) rope.type = "longrope";
  ParseShare(reader, family, config);
  if (rope.type == "linear" || rope.type == "llama3" || rope.type == "yarn") {
    if (!reader.Has("factor"))
      reader.Bad("factor", absl::StrCat("is missing; rope_type ", rope.type, " needs it"));
    rope.factor = reader.Positive("factor", 1);
  }
  if (Lengthens(rope.type))
    rope.original_max_position_embeddings = reader.Size(kOriginal, original);
  // Its scale is divided by this one's logarithm.
  if (rope.type == "longrope" && rope.original_max_position_embeddings == 1)
    reader.Bad(kOriginal, "is 1; must be at least 2 for longrope");
  if (rope.type == "llama3") {
    rope.low_freq_factor = reader.Positive("low_freq_factor", 1);
    rope.high_freq_factor = reader.Positive("high_freq_factor", 4);
    if (rope.high_freq_factor <= rope.low_freq_factor)
      reader.Bad("high_freq_factor", "must be above low_freq_factor");
  } else if (rope.type == "yarn") {
    ParseYarn(reader, rope);
  } else if (rope.type == "longrope") {
    rope.factor =
        reader.Positive("factor", static_cast<double>(config.max_position_embeddings) /
                                      static_cast<double>(rope.original_max_position_embeddings));
    rope.attention_factor = reader.Positive("attention_factor", 0);
    rope.short_factor = ParseFactors(reader, "short_factor", config.RotaryDim() / 2);
    rope.long_factor = ParseFactors(reader, "long_factor", config.RotaryDim() / 2);
  }
  const bool known = rope.type == "default" || rope.type == "longrope" ||
                     (!family.joined_linears &&
                      (rope.type == "linear" || rope.type == "llama3" || rope.type == "yarn"));
  if (!known)
    reader.Bad("rope_type",
               absl::StrCat("\"", rope.type, "\" can't be trained; ",
                            family.joined_linears ? "default and longrope can"
                                                  : "default, linear, llama3, yarn and longrope "
                                                    "can"));
  for (const auto& [key, value] : map.items()) {
    if (!reader.used().contains(key) && !value.is_null())
      reader.Bad(key, "has no meaning for this rope_type; remove it");
  }
}

// Of Gemma 3's maps takes that of layers with a window; returns that of the others, or null.
const json& ParseLocalRope(ConfigReader& r, const json& maps, const std::string& path,
                           const FamilyFields& family, ModelConfig& config, Problems& problems) {
  static const json kNone;
  constexpr char kFull[] = "full_attention", kSliding[] = "sliding_attention";
  constexpr double kLocalTheta = 10000;
  const bool has_base = r.Has("rope_local_base_freq");
  config.local_rope_theta = r.Positive("rope_local_base_freq", kLocalTheta);
  if (maps.is_null()) return kNone;
  bool good = maps.is_object();
  for (const auto& [key, unused] : maps.items()) good = good && (key == kFull || key == kSliding);
  if (!good) {
    problems.push_back(
        {path, absl::StrCat("must be a map of full_attention and sliding_attention, each "
                            "such as {rope_type: default, rope_theta: 10000.0}; got ",
                            maps.dump())});
    return kNone;
  }
  if (maps.contains(kSliding) && !maps[kSliding].is_null()) {
    ModelConfig local = config;
    local.rope_theta = config.local_rope_theta;
    ParseRopeMap(maps[kSliding], absl::StrCat(path, ".", kSliding), family, 0, local, problems);
    if (local.rope.type != "default")
      problems.push_back({absl::StrCat(path, ".", kSliding),
                          absl::StrCat("rope_type ", local.rope.type,
                                       " can't be trained in layers with a window; use default")});
    if (has_base && local.rope_theta != config.local_rope_theta)
      r.Bad("rope_local_base_freq",
            "contradicts rope_parameters.sliding_attention.rope_theta; keep one");
    config.local_rope_theta = local.rope_theta;
  }
  return maps.contains(kFull) ? maps[kFull] : kNone;
}

}  // namespace

double RopeScaling::AttentionFactor() const {
  if (type != "yarn" && type != "longrope") return 1;
  if (attention_factor > 0) return attention_factor;
  if (type == "longrope")
    return factor <= 1
               ? 1
               : std::sqrt(1 + std::log(factor) /
                                   std::log(static_cast<double>(original_max_position_embeddings)));
  const auto scale = [&](double m) { return factor <= 1 ? 1.0 : 0.1 * m * std::log(factor) + 1.0; };
  return mscale > 0 && mscale_all_dim > 0 ? scale(mscale) / scale(mscale_all_dim) : scale(1);
}

void ParseRope(ConfigReader& r, const FamilyFields& family, const std::string& path,
               ModelConfig& config, Problems& problems) {
  const bool has_top_theta = r.Has("rope_theta");
  const double top_theta = r.Positive("rope_theta", family.rope_theta);
  config.rope_theta = top_theta;
  ParseShare(r, family, config);
  // The model's own comes first in transformers; Phi-3's has one where the file has none.
  const bool has_original = r.Has(kOriginal) || family.joined_linears;
  const int64_t original =
      r.Size(kOriginal, family.joined_linears ? kPhiOriginal : config.max_position_embeddings);
  std::string at = path + ".rope_parameters";
  const json& given = r.At("rope_parameters");
  const json& parameters =
      family.gemma.local_rope ? ParseLocalRope(r, given, at, family, config, problems) : given;
  if (family.gemma.local_rope) at += ".full_attention";
  const json& scaling = r.At("rope_scaling");
  if (!parameters.is_null()) {
    ParseRopeMap(parameters, at, family, original, config, problems);
    if (has_top_theta && config.rope_theta != top_theta)
      r.Bad("rope_theta", "contradicts rope_parameters.rope_theta; keep one");
    if (!scaling.is_null() && scaling != parameters) {
      ModelConfig other = config;
      Problems scratch;
      ParseRopeMap(scaling, path + ".rope_scaling", family, original, other, scratch);
      if (!scratch.empty() || !(other.rope == config.rope))
        r.Bad("rope_scaling", "contradicts rope_parameters; keep one");
    }
  } else if (!scaling.is_null()) {
    ParseRopeMap(scaling, path + ".rope_scaling", family, original, config, problems);
  }
  if (has_original && Lengthens(config.rope.type) &&
      config.rope.original_max_position_embeddings != original)
    r.Bad(kOriginal, absl::StrCat("is ", original, ", and that of rope_parameters ",
                                  config.rope.original_max_position_embeddings,
                                  "; give the same in both places"));
}

void AddRope(const ModelConfig& config, const FamilyFields& family, ordered_json& out) {
  ordered_json rope;
  const RopeScaling& given = config.rope;
  rope["rope_type"] = given.type;
  if (given.type == "longrope") {
    rope["short_factor"] = given.short_factor;
    rope["long_factor"] = given.long_factor;
    const double ratio = static_cast<double>(config.max_position_embeddings) /
                         static_cast<double>(given.original_max_position_embeddings);
    if (given.factor != ratio) rope["factor"] = given.factor;
    if (given.attention_factor > 0) rope["attention_factor"] = given.attention_factor;
  } else if (given.type != "default") {
    rope["factor"] = given.factor;
  }
  if (given.type == "llama3") {
    rope["low_freq_factor"] = given.low_freq_factor;
    rope["high_freq_factor"] = given.high_freq_factor;
  }
  if (given.type == "yarn") {
    rope["beta_fast"] = given.beta_fast;
    rope["beta_slow"] = given.beta_slow;
    if (given.attention_factor > 0) rope["attention_factor"] = given.attention_factor;
    if (given.mscale > 0) rope["mscale"] = given.mscale;
    if (given.mscale_all_dim > 0) rope["mscale_all_dim"] = given.mscale_all_dim;
    rope["truncate"] = given.truncate;
  }
  // Readers before transformers 5 look for rope_theta and rope_scaling, later ones for
  // rope_parameters.
  out["rope_theta"] = config.rope_theta;
  if (family.joined_linears) {
    out[kShare] = config.partial_rotary_factor;
    ordered_json old = rope;  // of which older readers want these keys alone
    old.erase("rope_type");
    old["type"] = given.type;
    out["rope_scaling"] = given.type == "default" ? ordered_json() : old;
    rope[kShare] = config.partial_rotary_factor;
  }
  if (given.original_max_position_embeddings > 0) {
    (family.joined_linears ? out : rope)[kOriginal] = given.original_max_position_embeddings;
  }
  if (!family.joined_linears) out["rope_scaling"] = given.type == "default" ? ordered_json() : rope;
  rope["rope_theta"] = config.rope_theta;
  if (!family.gemma.local_rope) {
    out["rope_parameters"] = rope;
    return;
  }
  out["rope_local_base_freq"] = config.local_rope_theta;
  out["rope_parameters"] = {
      {"full_attention", rope},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", config.local_rope_theta}}}};
}

namespace {

void Add(ordered_json& properties, const char* name, const char* type, const char* description,
         const ordered_json& more = ordered_json::object()) {
  properties[name]["type"] = {type, "null"};
  properties[name]["description"] = description;
  properties[name].update(more);
}

// Of rope_parameters and rope_scaling.
ordered_json RopeProperties() {
  ordered_json rope = ordered_json::object();
  const ordered_json above_zero = {{"exclusiveMinimum", 0}};
  Add(rope, "rope_theta", "number", "Base of the rotary embeddings.", above_zero);
  for (const char* name : {"rope_type", "type"})
    Add(rope, name, "string", "How the context is lengthened (su: longrope's former name, phi3).",
        {{"enum", {"default", "linear", "llama3", "yarn", "longrope", "su", nullptr}}});
  Add(rope, kOriginal, "integer", "The context before (llama3, yarn, longrope).",
      {{"minimum", 1}, {"maximum", kSizeMax}});
  for (const auto& [name, description] :
       {Named("factor", "By how much."), Named("low_freq_factor", "Of llama3."),
        Named("high_freq_factor", "Of llama3."), Named("beta_fast", "Of yarn."),
        Named("beta_slow", "Of yarn."), Named("attention_factor", "Of yarn and longrope."),
        Named("mscale", "Of yarn."), Named("mscale_all_dim", "Of yarn.")}) {
    Add(rope, name, "number", description, above_zero);
  }
  const ordered_json numbers = {{"items", {{"type", "number"}, {"exclusiveMinimum", 0}}}};
  Add(rope, "short_factor", "array", "Of longrope: for rows of up to the context before.", numbers);
  Add(rope, "long_factor", "array", "Of longrope: for longer rows.", numbers);
  Add(rope, "truncate", "boolean", "Of yarn.");
  Add(rope, kShare, "number", "Share of a head that is rotated (phi3; else 1).",
      {{"exclusiveMinimum", 0}, {"maximum", 1}});
  return rope;
}

}  // namespace

void AddRopeSchema(ordered_json& properties) {
  Add(properties, "rope_theta", "number",
      "Base of the rotary embeddings (mixtral and gemma3_text: 1e6).",
      {{"default", 10000}, {"exclusiveMinimum", 0}});
  Add(properties, "rope_local_base_freq", "number",
      "The same of layers with a window (gemma3_text: 10000).", {{"exclusiveMinimum", 0}});
  Add(properties, kShare, "number", "Share of a head that is rotated (phi3).",
      {{"exclusiveMinimum", 0}, {"maximum", 1}});
  Add(properties, kOriginal, "integer", "The context before longrope (phi3: 4096).",
      {{"minimum", 1}, {"maximum", kSizeMax}});
  ordered_json rope = RopeProperties();
  const ordered_json map = {{"additionalProperties", false}, {"properties", rope}};
  Add(properties, "rope_scaling", "object",
      "Rotary embeddings, such as {rope_type: default, rope_theta: 10000.0}.", map);
  for (const char* layers : {"full_attention", "sliding_attention"})
    Add(rope, layers, "object", "Those of layers without and with a window (gemma3_text).", map);
  Add(properties, "rope_parameters", "object",
      "Rotary embeddings, such as {rope_type: default, rope_theta: 10000.0}.",
      {{"additionalProperties", false}, {"properties", rope}});
}

}  // namespace muster::trainer
