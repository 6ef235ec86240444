#include "trainer/loop/config.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"

namespace muster::trainer {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// One key of the map. The member's type decides the JSON type.
struct Key {
  const char* name;
  std::variant<std::string TrainConfig::*, int64_t TrainConfig::*, double TrainConfig::*, bool TrainConfig::*, std::optional<json> TrainConfig::*>
      member;
  const char* description;
  bool required = false;
  double minimum = -std::numeric_limits<double>::infinity();
  double maximum = std::numeric_limits<double>::infinity();
  bool above_minimum = false;  // minimum itself is not allowed
  std::vector<std::string> values = {};
};

const std::vector<Key>& Keys() {
  using C = TrainConfig;
  static const std::vector<Key> keys = {
      {"init", &C::init, "Hugging Face directory (config.json and safetensors) whose weights training starts from. Exactly one of init and model."},
      {"model", &C::model, "Content of a Hugging Face config.json (LlamaForCausalLM): weights are drawn from scratch. Exactly one of init and model."},
      {"data", &C::data, "Directory of token shards made by `muster-trainer prepare`; relative to the job's directory.", true},
      {"max_length", &C::max_length, "Tokens per sequence.", true, 1, 1 << 24},
      {"global_batch_size", &C::global_batch_size, "Sequences per optimizer step over all ranks, whatever their number.", true, 1, 1 << 24},
      {"micro_batch_size", &C::micro_batch_size, "Sequences per rank and forward pass; 0: as many as make about 8192 tokens, at most the rank's share.", false, 0, 1 << 24},
      {"max_steps", &C::max_steps, "Optimizer steps.", true, 1, 1e9},
      {"learning_rate", &C::learning_rate, "Peak learning rate.", true, 0, 1e3, true},
      {"lr_scheduler_type", &C::lr_scheduler_type, "Course of the learning rate after the warm-up, as in transformers.", false, 0, 0, false, {"cosine", "linear", "constant"}},
      {"warmup_steps", &C::warmup_steps, "Linear warm-up: from 1 on a number of steps, below 1 a share of max_steps.", false, 0, 1e9},
      {"min_lr_ratio", &C::min_lr_ratio, "Where cosine and linear end, as a share of learning_rate.", false, 0, 1},
      {"weight_decay", &C::weight_decay, "AdamW's decoupled weight decay; norms are left out, as in transformers.", false, 0, 1e3},
      {"adam_beta1", &C::adam_beta1, "AdamW's beta1.", false, 0, 0.999999},
      {"adam_beta2", &C::adam_beta2, "AdamW's beta2.", false, 0, 0.999999999},
      {"adam_epsilon", &C::adam_epsilon, "AdamW's epsilon.", false, 0, 1, true},
      {"max_grad_norm", &C::max_grad_norm, "Gradients are clipped to this norm over the whole model; 0: never.", false, 0, 1e9},
      {"seed", &C::seed, "Seed of initialisation and data order.", false, 0, 9007199254740991.0},
      {"zero_stage", &C::zero_stage, "0: every rank keeps the whole optimizer state; 1: each rank keeps its share (ZeRO-1).", false, 0, 1},
      {"dtype", &C::dtype, "Type of weights and activations; masters and optimizer state are always fp32.", false, 0, 0, false, {"fp32", "bf16"}},
      {"export", &C::export_dir, "Hugging Face directory that is written after the last step; relative to the job's directory."},
      {"deterministic", &C::deterministic, "Refuse kernels whose result may differ from run to run."},
      {"log_interval", &C::log_interval, "Steps between progress lines.", false, 1, 1e9},
      {"save_steps", &C::save_steps, "Steps between checkpoints, beside those that the job's checkpoint.interval asks for; 0: off.", false, 0, 1e9},
      {"threads", &C::threads, "CPU threads per rank; 0: cores / ranks on the host.", false, 0, 4096},
  };
  return keys;
}

const std::vector<std::pair<std::string, std::string>>& Hints() {
  static const std::vector<std::pair<std::string, std::string>> hints = {
      {"per_device_train_batch_size", "the batch is global, so that it survives a resize; use global_batch_size"},
      {"train_batch_size", "the batch is global, so that it survives a resize; use global_batch_size"},
      {"batch_size", "use global_batch_size (sequences a step, over all ranks)"},
      {"gradient_accumulation_steps", "follows from global_batch_size, micro_batch_size and the number of ranks; leave it out"},
      {"num_train_epochs", "training is measured in steps; use max_steps"},
      {"epochs", "training is measured in steps; use max_steps"},
      {"steps", "use max_steps"},
      {"lr", "use learning_rate"},
      {"lr_scheduler", "use lr_scheduler_type"},
      {"warmup_ratio", "use warmup_steps with a value below 1 (a share of max_steps)"},
      {"max_seq_length", "use max_length"},
      {"max_seq_len", "use max_length"},
      {"seq_len", "use max_length"},
      {"sequence_length", "use max_length"},
      {"model_name_or_path", "use init (a Hugging Face directory)"},
      {"pretrained", "use init (a Hugging Face directory)"},
      {"output_dir", "use export for the final model; checkpoints go where the job's checkpoint.storage says"},
      {"save_strategy", "use save_steps, or the job's checkpoint.interval"},
      {"save_total_limit", "use the job's checkpoint.keep"},
      {"resume_from_checkpoint", "Muster resumes from the newest valid checkpoint by itself; leave it out"},
      {"logging_steps", "use log_interval"},
      {"bf16", "use dtype: bf16"},
      {"fp16", "fp16 is not supported; use dtype: bf16"},
      {"optim", "AdamW is the optimizer; leave it out"},
      {"adam_beta", "use adam_beta1 and adam_beta2"},
      {"beta1", "use adam_beta1"},
      {"beta2", "use adam_beta2"},
      {"eps", "use adam_epsilon"},
      {"gradient_clipping", "use max_grad_norm"},
      {"clip_grad_norm", "use max_grad_norm"},
      {"dataset", "use data (a directory made by `muster-trainer prepare`)"},
      {"train_file", "use data (a directory made by `muster-trainer prepare`)"},
      {"deepspeed", "use zero_stage"},
      {"fsdp", "use zero_stage"},
      {"num_workers", "ranks come from the job's workers and processes_per_worker"},
  };
  return hints;
}

std::string NumberText(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15) return absl::StrCat(static_cast<int64_t>(value));
  return json(value).dump();
}

std::string RangeText(const Key& key) {
  const bool low = std::isfinite(key.minimum), high = std::isfinite(key.maximum);
  if (key.above_minimum) return absl::StrCat("above ", NumberText(key.minimum), " and at most ", NumberText(key.maximum));
  if (low && high) return absl::StrCat("from ", NumberText(key.minimum), " to ", NumberText(key.maximum));
  return low ? absl::StrCat("at least ", NumberText(key.minimum)) : "a number";
}

bool InRange(const Key& key, double value) {
  return std::isfinite(value) && (key.above_minimum ? value > key.minimum : value >= key.minimum) && value <= key.maximum;
}

// Assigns `value` to the key's member, or says why not.
void Assign(const Key& key, const json& value, TrainConfig& config, Problems& problems) {
  const std::string path = absl::StrCat("trainer.", key.name);
  const auto bad = [&](const std::string& wanted) { problems.push_back({path, absl::StrCat("must be ", wanted, "; got ", value.dump())}); };
  if (const auto* member = std::get_if<std::string TrainConfig::*>(&key.member)) {
    if (!value.is_string()) return bad("text");
    const std::string text = value.get<std::string>();
    if (!key.values.empty() && std::find(key.values.begin(), key.values.end(), text) == key.values.end()) {
      std::string wanted = "one of";
      for (const std::string& allowed : key.values) absl::StrAppend(&wanted, " ", allowed);
      return bad(wanted);
    }
    if (text.empty() || text.find('\0') != std::string::npos) return bad("text that isn't empty");
    config.*(*member) = text;
  } else if (const auto* member = std::get_if<int64_t TrainConfig::*>(&key.member)) {
    // 100.0 is a whole number too: YAML and JSON writers differ there.
    if (!value.is_number() || value.get<double>() != std::floor(value.get<double>()) || !InRange(key, value.get<double>())) {
      return bad("a whole number " + RangeText(key));
    }
    config.*(*member) = value.get<int64_t>();
  } else if (const auto* member = std::get_if<double TrainConfig::*>(&key.member)) {
    if (!value.is_number() || !InRange(key, value.get<double>())) return bad("a number " + RangeText(key));
    config.*(*member) = value.get<double>();
  } else if (const auto* member = std::get_if<bool TrainConfig::*>(&key.member)) {
    if (!value.is_boolean()) return bad("true or false");
    config.*(*member) = value.get<bool>();
  } else if (const auto* member = std::get_if<std::optional<json> TrainConfig::*>(&key.member)) {
    if (!value.is_object()) return bad("a map with the content of a config.json");
    config.*(*member) = value;
  }
}

}  // namespace

int64_t TrainConfig::WarmupSteps() const {
  if (warmup_steps >= 1) return static_cast<int64_t>(std::llround(warmup_steps));
  return static_cast<int64_t>(std::ceil(warmup_steps * static_cast<double>(max_steps)));
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
    } else {
      p["type"] = "object";
    }
    p["description"] = key.description;
    schema["properties"][key.name] = p;
    if (key.required) schema["required"].push_back(key.name);
  }
  ordered_json one_of = ordered_json::array();
  one_of.push_back({{"required", {"init"}}});
  one_of.push_back({{"required", {"model"}}});
  schema["oneOf"] = one_of;
  for (const auto& [name, hint] : Hints()) schema["x-muster-hints"][name] = hint;
  return schema;
}

TrainConfig ParseTrainConfig(const json& value, Problems& problems) {
  TrainConfig config;
  if (!value.is_object()) {
    problems.push_back({"trainer", "must be a map"});
    return config;
  }
  std::vector<std::string> names;
  for (const Key& key : Keys()) names.push_back(key.name);
  for (const auto& [name, given] : value.items()) {
    const auto key = std::find_if(Keys().begin(), Keys().end(), [&](const Key& k) { return k.name == name; });
    if (key != Keys().end()) {
      Assign(*key, given, config, problems);
      continue;
    }
    const auto hint = std::find_if(Hints().begin(), Hints().end(), [&](const auto& h) { return h.first == name; });
    problems.push_back({"trainer." + name, hint != Hints().end() ? hint->second : "no such field." + DidYouMean(name, names)});
  }
  for (const Key& key : Keys()) {
    if (key.required && !value.contains(key.name)) problems.push_back({absl::StrCat("trainer.", key.name), absl::StrCat("is missing. ", key.description)});
  }
  if (value.contains("init") == value.contains("model")) {
    problems.push_back({"trainer.init", value.contains("init") ? "init and model exclude each other; keep one"
                                                               : "give init (a Hugging Face directory) or model (a config.json's content)"});
  }
  if (config.max_steps > 0 && config.WarmupSteps() > config.max_steps) {
    problems.push_back({"trainer.warmup_steps", absl::StrCat(config.WarmupSteps(), " steps of warm-up are more than max_steps, ", config.max_steps)});
  }
  if (config.global_batch_size > 0 && config.micro_batch_size > config.global_batch_size) {
    problems.push_back({"trainer.micro_batch_size", absl::StrCat(config.micro_batch_size, " is above global_batch_size, ", config.global_batch_size)});
  }
  return config;
}

int64_t ChooseMicroBatchSize(const TrainConfig& config, int64_t share) {
  const int64_t wanted = config.micro_batch_size > 0 ? config.micro_batch_size : std::max<int64_t>(1, 8192 / config.max_length);
  return std::max<int64_t>(1, std::min(wanted, share));
}

}  // namespace muster::trainer
