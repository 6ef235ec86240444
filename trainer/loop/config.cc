#include "trainer/loop/config.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/objects/object_place.h"
#include "trainer/loop/config_keys.h"
#include "trainer/loop/sizes.h"

namespace muster::trainer {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

std::string NumberText(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15)
    return absl::StrCat(static_cast<int64_t>(value));
  return json(value).dump();
}

std::string RangeText(const Key& key) {
  const bool low = std::isfinite(key.minimum), high = std::isfinite(key.maximum);
  if (key.above_minimum)
    return absl::StrCat("above ", NumberText(key.minimum), " and at most ",
                        NumberText(key.maximum));
  if (low && high)
    return absl::StrCat("from ", NumberText(key.minimum), " to ", NumberText(key.maximum));
  return low ? absl::StrCat("at least ", NumberText(key.minimum)) : "a number";
}

bool InRange(const Key& key, double value) {
  return std::isfinite(value) && (key.above_minimum ? value > key.minimum : value >= key.minimum) &&
         value <= key.maximum;
}

// Assigns `value` to the key's member, or says why not.
void Assign(const Key& key, const json& value, TrainConfig& config, Problems& problems) {
  const std::string path = absl::StrCat("trainer.", key.name);
  const auto bad = [&](const std::string& wanted) {
    problems.push_back({path, absl::StrCat("must be ", wanted, "; got ", value.dump())});
  };
  if (const auto* member = std::get_if<std::string TrainConfig::*>(&key.member)) {
    if (!value.is_string()) return bad("text");
    const std::string text = value.get<std::string>();
    if (!key.values.empty() &&
        std::find(key.values.begin(), key.values.end(), text) == key.values.end()) {
      std::string wanted = "one of";
      for (const std::string& allowed : key.values) absl::StrAppend(&wanted, " ", allowed);
      return bad(wanted);
    }
    if (text.empty() || text.find('\0') != std::string::npos) return bad("text that isn't empty");
    config.*(*member) = text;
  } else if (const auto* member = std::get_if<int64_t TrainConfig::*>(&key.member)) {
    // 100.0 is a whole number too: YAML and JSON writers differ there.
    if (!value.is_number() || value.get<double>() != std::floor(value.get<double>()) ||
        !InRange(key, value.get<double>())) {
      return bad("a whole number " + RangeText(key));
    }
    config.*(*member) = value.get<int64_t>();
  } else if (const auto* member = std::get_if<double TrainConfig::*>(&key.member)) {
    if (!value.is_number() || !InRange(key, value.get<double>()))
      return bad("a number " + RangeText(key));
    config.*(*member) = value.get<double>();
  } else if (const auto* member = std::get_if<bool TrainConfig::*>(&key.member)) {
    if (!value.is_boolean()) return bad("true or false");
    config.*(*member) = value.get<bool>();
  } else if (const auto* member = std::get_if<Determinism TrainConfig::*>(&key.member)) {
    if (!value.is_boolean() && value != "elastic") return bad("true, false or elastic");
    config.*(*member) = value == "elastic" ? Determinism::kElastic
                        : value            ? Determinism::kYes
                                           : Determinism::kNo;
  } else if (const auto* member = std::get_if<std::optional<json> TrainConfig::*>(&key.member)) {
    if (!value.is_object()) return bad("a map with the content of a config.json");
    config.*(*member) = value;
  } else if (const auto* member = std::get_if<LoraConfig TrainConfig::*>(&key.member)) {
    config.*(*member) = ParseLora(value, path, problems);
  } else if (const auto* member = std::get_if<DpoConfig TrainConfig::*>(&key.member)) {
    config.*(*member) = ParseDpo(value, path, problems);
  } else if (const auto* member = std::get_if<RewardConfig TrainConfig::*>(&key.member)) {
    config.*(*member) = ParseReward(value, path, problems);
  } else if (const auto* member = std::get_if<ParallelConfig TrainConfig::*>(&key.member)) {
    config.*(*member) = ParseParallel(value, path, problems);
  } else if (const auto* member = std::get_if<QuantizeConfig TrainConfig::*>(&key.member)) {
    config.*(*member) = ParseQuantize(value, path, problems);
  } else if (const auto* member =
                 std::get_if<std::vector<MixturePart> TrainConfig::*>(&key.member)) {
    if (!value.is_array() || value.empty()) return bad("a list of maps with data and weight");
    for (size_t i = 0; i < value.size(); ++i) {
      const json& part = value[i];
      const std::string at = absl::StrCat(path, "[", i, "]");
      if (!part.is_object() || part.size() != 2 || !part.contains("data") ||
          !part.contains("weight")) {
        problems.push_back(
            {at, absl::StrCat("must be a map with data and weight; got ", part.dump())});
      } else if (!part["data"].is_string() || part["data"].get_ref<const std::string&>().empty()) {
        problems.push_back(
            {at + ".data", absl::StrCat("must be a directory; got ", part["data"].dump())});
      } else if (!part["weight"].is_number() || !(part["weight"].get<double>() > 0) ||
                 !std::isfinite(part["weight"].get<double>())) {
        problems.push_back({at + ".weight",
                            absl::StrCat("must be a number above 0; got ", part["weight"].dump())});
      } else {
        (config.*(*member))
            .push_back({part["data"].get<std::string>(), part["weight"].get<double>()});
      }
    }
  }
}

}  // namespace

int64_t TrainConfig::WarmupSteps() const {
  if (warmup_steps >= 1) return static_cast<int64_t>(std::llround(warmup_steps));
  return static_cast<int64_t>(std::ceil(warmup_steps * static_cast<double>(max_steps)));
}

int64_t TrainConfig::DecaySteps() const {
  if (decay_steps >= 1) return static_cast<int64_t>(std::llround(decay_steps));
  return static_cast<int64_t>(std::ceil(decay_steps * static_cast<double>(max_steps)));
}

std::vector<MixturePart> TrainConfig::Parts() const {
  if (!mixture.empty()) return mixture;
  return data.empty() ? std::vector<MixturePart>{} : std::vector<MixturePart>{{data, 1}};
}

ordered_json TrainConfigSchema() {
  const TrainConfig defaults;
  ordered_json schema;
  schema["$schema"] = "https://json-schema.org/draft/2020-12/schema";
  schema["title"] = "trainer";
  schema["description"] = "What muster-trainer trains: the trainer: map of a job.";
  schema["type"] = "object";
  schema["additionalProperties"] = false;
  schema["required"] = ordered_json::array();
  schema["properties"] = ordered_json::object();
  for (const Key& key : Keys()) {
    ordered_json p;
    if (const auto* member = std::get_if<std::string TrainConfig::*>(&key.member)) {
      p["type"] = "string";
      if (!key.required && !(defaults.*(*member)).empty()) p["default"] = defaults.*(*member);
      if (!key.values.empty()) p["enum"] = key.values;
      if (key.values.empty()) p["minLength"] = 1;
    } else if (const auto* member = std::get_if<int64_t TrainConfig::*>(&key.member)) {
      p["type"] = "integer";
      if (!key.required) p["default"] = defaults.*(*member);
      p["minimum"] = static_cast<int64_t>(key.minimum);
      p["maximum"] = static_cast<int64_t>(key.maximum);
    } else if (const auto* member = std::get_if<double TrainConfig::*>(&key.member)) {
      p["type"] = "number";
      if (!key.required) p["default"] = defaults.*(*member);
      p[key.above_minimum ? "exclusiveMinimum" : "minimum"] = key.minimum;
      p["maximum"] = key.maximum;
    } else if (const auto* member = std::get_if<bool TrainConfig::*>(&key.member)) {
      p["type"] = "boolean";
      p["default"] = defaults.*(*member);
    } else if (std::holds_alternative<Determinism TrainConfig::*>(key.member)) {
      p["type"] = {"boolean", "string"};
      p["pattern"] = "^elastic$";
      p["default"] = false;
    } else if (std::holds_alternative<LoraConfig TrainConfig::*>(key.member)) {
      p = LoraSchema();
    } else if (std::holds_alternative<DpoConfig TrainConfig::*>(key.member)) {
      p = DpoSchema();
    } else if (std::holds_alternative<RewardConfig TrainConfig::*>(key.member)) {
      p = RewardSchema();
    } else if (std::holds_alternative<ParallelConfig TrainConfig::*>(key.member)) {
      p = ParallelSchema();
    } else if (std::holds_alternative<QuantizeConfig TrainConfig::*>(key.member)) {
      p = QuantizeSchema();
    } else if (std::holds_alternative<std::vector<MixturePart> TrainConfig::*>(key.member)) {
      p["type"] = "array";
      p["items"] = {
          {"type", "object"},
          {"additionalProperties", false},
          {"required", {"data", "weight"}},
          {"properties",
           {{"data",
             {{"type", "string"}, {"minLength", 1}, {"description", "Directory of token shards."}}},
            {"weight",
             {{"type", "number"},
              {"exclusiveMinimum", 0},
              {"description", "Its share, in proportion to the others'."}}}}}};
    } else {
      p = ModelSchema();
    }
    p["description"] = key.description;
    schema["properties"][key.name] = p;
    if (key.required) schema["required"].push_back(key.name);
  }
  ordered_json one_of = ordered_json::array();
  one_of.push_back({{"required", {"init"}}});
  one_of.push_back({{"required", {"model"}}});
  schema["oneOf"] = one_of;
  ordered_json data_of = ordered_json::array();
  data_of.push_back({{"required", {"data"}}});
  data_of.push_back({{"required", {"mixture"}}});
  schema["allOf"] = ordered_json::array({{{"oneOf", data_of}}});
  for (const auto& [name, hint] : Hints()) schema["x-muster-hints"][name] = hint;
  return schema;
}

namespace {

bool DecaysAtTheEnd(const TrainConfig& config) {
  return config.lr_scheduler_type == "warmup_stable_decay";
}

void ReadKeys(const json& value, TrainConfig& config, Problems& problems) {
  std::vector<std::string> names;
  for (const Key& key : Keys()) names.emplace_back(key.name);
  for (const auto& [name, given] : value.items()) {
    const auto key =
        std::find_if(Keys().begin(), Keys().end(), [&](const Key& k) { return k.name == name; });
    if (key != Keys().end()) {
      Assign(*key, given, config, problems);
      continue;
    }
    const auto hint = std::find_if(Hints().begin(), Hints().end(),
                                   [&](const auto& h) { return h.first == name; });
    problems.push_back({"trainer." + name, hint != Hints().end()
                                               ? hint->second
                                               : "no such field." + DidYouMean(name, names)});
  }
  for (const Key& key : Keys()) {
    if (key.required && !value.contains(key.name))
      problems.push_back(
          {absl::StrCat("trainer.", key.name), absl::StrCat("is missing. ", key.description)});
  }
}

// One of each pair is given, and says something.
void CheckSources(const json& value, const TrainConfig& config, Problems& problems) {
  if (value.contains("init") == value.contains("model")) {
    problems.push_back(
        {"trainer.init",
         value.contains("init")
             ? "init and model exclude each other; keep one"
             : "give init (a Hugging Face directory) or model (a config.json's content)"});
  }
  if (value.contains("data") == value.contains("mixture")) {
    problems.push_back({"trainer.data", value.contains("data")
                                            ? "data and mixture exclude each other; keep one"
                                            : "give data (a directory made by `muster-trainer "
                                              "prepare`) or mixture (several of them)"});
  }
  if (!config.checkpoints.empty()) {
    if (const std::string problem =
            WhyNoObjectPlace(config.checkpoints, ObjectPlace::kBucketOrPrefix);
        !problem.empty())
      problems.push_back({"trainer.checkpoints",
                          absl::StrCat(problem, ". A directory is the job's checkpoint.storage")});
  }
  if (config.export_dir.find("://") != std::string::npos) {
    if (const std::string problem = WhyNoObjectPlace(config.export_dir, ObjectPlace::kPrefix);
        !problem.empty())
      problems.push_back({"trainer.export", absl::StrCat(problem, ". Or give a directory")});
  }
}

// Refuses a key that says nothing without another one.
void OnlyWith(const json& value, const char* name, bool fits, const char* what,
              Problems& problems) {
  if (value.contains(name) && !fits)
    problems.push_back(
        {absl::StrCat("trainer.", name), absl::StrCat("is for ", what, "; leave it out")});
}

void CheckIdle(const json& value, const TrainConfig& config, Problems& problems) {
  const auto only_with = [&](const char* name, bool fits, const char* what) {
    OnlyWith(value, name, fits, what, problems);
  };
  only_with("document_mask", config.packing == "wrapped",
            "packing: wrapped (the others never attend across documents)");
  only_with("max_row_length", config.packing == "balanced", "packing: balanced");
  only_with("eval_sequences", config.eval_interval > 0, "evaluations (eval_interval)");
  const bool wsd = DecaysAtTheEnd(config);
  only_with("decay_steps", wsd, "lr_scheduler_type: warmup_stable_decay");
  only_with("decay_type", wsd, "lr_scheduler_type: warmup_stable_decay");
  only_with("shard_size", config.zero_stage > 0, "zero_stage 1 to 3 (0 shards nothing)");
  only_with("memory_per_rank", config.parallel.automatic, "parallel: auto");
  only_with("masters", config.masters == "fp32" || config.dtype == "bf16",
            "dtype: bf16 (fp32 weights are the masters)");
  only_with("gradient_dtype", config.gradient_dtype == "fp32" || config.dtype == "bf16",
            "dtype: bf16");
}

// What rows that are pairs don't go with: of dpo, or of reward.
void CheckPairs(const json& value, const TrainConfig& config, Problems& problems) {
  if (!config.OfPairs()) return;
  const std::string kind = config.dpo.on() ? "dpo" : "reward";
  const auto refuse = [&](const std::string& name, bool is_so, const std::string& why) {
    if (is_so) problems.push_back({"trainer." + name, why});
  };
  refuse("reward", config.dpo.on() && config.reward.on(),
         "dpo and reward exclude each other, as a model has one head; keep one");
  for (const char* name : {"packing", "document_mask", "max_row_length"})
    refuse(name, value.contains(name),
           absl::StrCat("with ", kind, " a row is a pair; leave it out"));
  refuse("mixture", value.contains("mixture"),
         absl::StrCat("is not supported yet with ", kind,
                      "; prepare the inputs into one directory and give data"));
  refuse("cuda_graphs", config.cuda_graphs,
         absl::StrCat("is not supported yet with ", kind, "; leave it out"));
  refuse("z_loss", config.z_loss > 0,
         absl::StrCat("is not supported yet with ", kind, "; leave it out"));
  refuse("max_length", config.max_length == 1,
         absl::StrCat("must be at least 2 with ", kind,
                      ": a token of the prompt and one of the answer"));
  refuse("dpo", config.dpo.on() && value.contains("model"),
         "the model that training starts from is the reference, too, and weights from scratch "
         "prefer nothing; give init instead of model");
  refuse("reward", config.reward.on() && value.contains("model"),
         "a reward model begins with a model that can read; give init instead of model");
  refuse("lora", config.reward.on() && config.lora.on(),
         "is not supported yet with reward, whose score would have to be trained beside adapters; "
         "leave it out");
}

void CheckQuantize(const TrainConfig& config, Problems& problems) {
  if (!config.quantize.on) return;
  if (!config.lora.on())
    problems.push_back({"trainer.quantize",
                        "is for weights that stay as they are; add lora: {rank: 16}, which trains "
                        "adapters beside them, or leave it out"});
  if (config.offload == "parameters")
    problems.push_back({"trainer.offload",
                        "parameters is not supported with quantize: what is gathered from the host "
                        "are whole weights; use zero_stage: 3 without it, or offload: optimizer"});
}

void CheckFp8(const TrainConfig& config, Problems& problems) {
  if (config.matmul != "fp8") return;
  if (config.quantize.on)
    problems.push_back({"trainer.matmul",
                        "fp8 doesn't go with quantize: NF4's weights have a scale for 64 of them, "
                        "and one for all would round them once more; leave one of the two out"});
}

// Sums of a step that are the same for any number of ranks.
void CheckElastic(const TrainConfig& config, Problems& problems) {
  if (config.deterministic != Determinism::kElastic) return;
  if (config.parallel.automatic)
    problems.push_back({"trainer.deterministic",
                        "elastic keeps one layout for all numbers of ranks, and parallel: auto "
                        "chooses another for each; name tp, pp, ep and cp, or use true"});
  if (config.moments == "int8" && config.zero_stage > 0)
    problems.push_back({"trainer.moments",
                        "int8 doesn't go with deterministic: elastic: blocks of 256 moments have a "
                        "scale, and each number of ranks cuts other blocks; use bf16, or "
                        "zero_stage: 0"});
  if (config.micro_batch_size == 0)
    problems.push_back({"trainer.micro_batch_size",
                        "is missing: deterministic: elastic sums micro-batches of one size, "
                        "whatever the number of ranks"});
  if (config.gradient_dtype == "bf16")
    problems.push_back({"trainer.gradient_dtype",
                        "bf16 doesn't go with deterministic: elastic, which sums in fp32; leave "
                        "it out"});
}

// What keys mean together.
void CheckTogether(const json& value, const TrainConfig& config, Problems& problems) {
  if (config.offload != "none" && config.masters == "split") {
    problems.push_back({"trainer.masters",
                        "split saves memory beside the weights, and offload moves the masters away "
                        "from there; leave one of the two out"});
  }
  if (config.offload != "none" && config.moments == "int8") {
    problems.push_back({"trainer.moments",
                        "int8 saves memory beside the weights, and offload moves the moments away "
                        "from there; use bf16, or leave one of the two out"});
  }
  if (DecaysAtTheEnd(config) && !value.contains("decay_steps")) {
    problems.push_back({"trainer.decay_steps",
                        "is missing: warmup_stable_decay needs to know how long the decay takes, "
                        "such as 0.1 (a share of max_steps)"});
  }
  const bool chooses_stage = config.parallel.automatic && !value.contains("zero_stage");
  if (!chooses_stage) CheckLayoutKeys(config, problems);
  if (config.parallel.automatic && config.router_aux_loss == "batch" &&
      config.micro_batch_size == 0) {
    problems.push_back({"trainer.micro_batch_size",
                        "is missing: router_aux_loss: batch is over all rows of a micro-batch, so "
                        "with parallel: auto each layout would train another model; name it, such "
                        "as micro_batch_size: 1, or use router_aux_loss: sequence"});
  }
  CheckQuantize(config, problems);
  CheckFp8(config, problems);
  CheckElastic(config, problems);
  if (config.lora.on() && value.contains("model")) {
    problems.push_back(
        {"trainer.lora", "adapters stand beside trained weights; give init instead of model"});
  }
  OnlyWith(value, "eval_data", config.eval_interval > 0, "evaluations (eval_interval)", problems);
  if (config.packing == "balanced" && config.mixture.size() > 1) {
    problems.push_back({"trainer.packing",
                        "balanced puts the documents of one directory together; prepare the inputs "
                        "into one, or use bfd"});
  }
}

// Numbers that bound each other; max_row_length as it is used.
void CheckNumbers(TrainConfig& config, Problems& problems) {
  constexpr int64_t kLeastMemory = 1 << 20;
  if (!config.memory_per_rank.empty() && ParseBytes(config.memory_per_rank) < kLeastMemory) {
    problems.push_back(
        {"trainer.memory_per_rank",
         absl::StrCat("must be a size such as 80GiB; got ", config.memory_per_rank)});
  }
  if (config.max_row_length != 0 && config.max_row_length < config.max_length) {
    problems.push_back(
        {"trainer.max_row_length",
         absl::StrCat(config.max_row_length, " is below max_length, ", config.max_length)});
  }
  if (config.max_row_length == 0) config.max_row_length = config.max_length + config.max_length / 4;
  if (config.max_steps > 0 && config.WarmupSteps() > config.max_steps) {
    problems.push_back(
        {"trainer.warmup_steps",
         absl::StrCat(config.WarmupSteps(), " steps of warm-up are more than max_steps, ",
                      config.max_steps)});
  }
  if (DecaysAtTheEnd(config) && config.max_steps > 0 &&
      config.WarmupSteps() + config.DecaySteps() > config.max_steps) {
    problems.push_back(
        {"trainer.decay_steps",
         absl::StrCat(config.DecaySteps(), " steps of decay and ", config.WarmupSteps(),
                      " of warm-up are more than max_steps, ", config.max_steps)});
  }
  if (config.global_batch_size > 0 && config.micro_batch_size > config.global_batch_size) {
    problems.push_back({"trainer.micro_batch_size",
                        absl::StrCat(config.micro_batch_size, " is above global_batch_size, ",
                                     config.global_batch_size)});
  }
}

}  // namespace

TrainConfig ParseTrainConfig(const json& value, Problems& problems) {
  TrainConfig config;
  if (!value.is_object()) {
    problems.push_back({"trainer", "must be a map"});
    return config;
  }
  ReadKeys(value, config, problems);
  CheckSources(value, config, problems);
  CheckIdle(value, config, problems);
  CheckTogether(value, config, problems);
  CheckPairs(value, config, problems);
  CheckNumbers(config, problems);
  return config;
}

std::vector<std::string> ChangedFields(const json& before, const json& now) {
  constexpr size_t kLongestText = 60;
  const ordered_json schema = TrainConfigSchema();
  std::vector<std::string> changed;
  for (const auto& [key, property] : schema["properties"].items()) {
    const json otherwise = property.value("default", ordered_json());
    json was = before.value(key, otherwise), is = now.value(key, otherwise);
    for (json* map : {&was, &is}) {  // with the defaults of its own keys
      if (!map->is_object() || !property.contains("properties")) continue;
      for (const auto& [inner, of] : property["properties"].items()) {
        if (of.contains("default") && !map->contains(inner)) (*map)[inner] = of["default"];
      }
    }
    if (was == is) continue;
    const std::string from = was.is_null() ? "none" : was.dump(),
                      to = is.is_null() ? "none" : is.dump();
    changed.push_back(
        from.size() + to.size() > kLongestText ? key : absl::StrCat(key, ": ", from, " -> ", to));
  }
  return changed;
}

int64_t ChooseMicroBatchSize(const TrainConfig& config, int64_t share) {
  if (config.deterministic == Determinism::kElastic)
    return std::max<int64_t>(1, std::min(config.micro_batch_size, config.global_batch_size));
  if (config.micro_batch_size > 0)
    return std::max<int64_t>(1, std::min(config.micro_batch_size, share));
  const int64_t pp = config.parallel.pp;
  const int64_t most = pp == 1 ? share : share / (2 * pp);
  const int64_t length = config.OfPairs() ? config.RowLength() : config.max_length;
  return std::max<int64_t>(1, std::min(8192 * config.parallel.cp / length, most));
}

}  // namespace muster::trainer
