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
  std::variant<std::string TrainConfig::*, int64_t TrainConfig::*, double TrainConfig::*,
               bool TrainConfig::*, std::optional<json> TrainConfig::*,
               std::vector<MixturePart> TrainConfig::*, LoraConfig TrainConfig::*>
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
      {"init", &C::init,
       "Hugging Face directory (config.json and safetensors) whose weights training starts from. "
       "Exactly one of init and model."},
      {"model", &C::model,
       "Content of a Hugging Face config.json (Llama, Mistral, Qwen2 or Qwen3): weights are drawn "
       "from scratch. Exactly one of init and model."},
      {"data", &C::data,
       "Directory of token shards made by `muster-trainer prepare`; relative to the job's "
       "directory. Exactly one of data and mixture."},
      {"mixture", &C::mixture,
       "Several such directories with weights: each gives its share of the sequences of every "
       "batch. Exactly one of data and mixture."},
      {"packing",
       &C::packing,
       "How documents become sequences. wrapped: one stream, cut every max_length tokens; bfd: "
       "whole documents, best fit decreasing; none: one document each; balanced: whole documents "
       "in sequences of like work instead of like length (WLB-LLM). But for wrapped, attention "
       "stays within a document.",
       false,
       0,
       0,
       false,
       {"wrapped", "bfd", "none", "balanced"}},
      {"document_mask", &C::document_mask,
       "With packing: wrapped, attention and positions begin anew in each document, as the other "
       "packings always have it."},
      {"max_row_length", &C::max_row_length,
       "With packing: balanced, the most tokens of a sequence (memory bounds it); 0: a quarter "
       "more than max_length.",
       false, 0, 1 << 25},
      {"max_length", &C::max_length, "Tokens per sequence.", true, 1, 1 << 24},
      {"global_batch_size", &C::global_batch_size,
       "Sequences per optimizer step over all ranks, whatever their number.", true, 1, 1 << 24},
      {"micro_batch_size", &C::micro_batch_size,
       "Sequences per rank and forward pass; 0: as many as make about 8192 tokens, at most the "
       "rank's share.",
       false, 0, 1 << 24},
      {"max_steps", &C::max_steps, "Optimizer steps.", true, 1, 1e9},
      {"learning_rate", &C::learning_rate, "Peak learning rate.", true, 0, 1e3, true},
      {"lr_scheduler_type",
       &C::lr_scheduler_type,
       "Course of the learning rate after the warm-up, as in transformers.",
       false,
       0,
       0,
       false,
       {"cosine", "linear", "constant", "warmup_stable_decay"}},
      {"decay_steps", &C::decay_steps,
       "With lr_scheduler_type: warmup_stable_decay, how long the decay at the end takes: from 1 "
       "on a number of steps, below 1 a share of max_steps.",
       false, 0, 1e9},
      {"decay_type",
       &C::decay_type,
       "With lr_scheduler_type: warmup_stable_decay, the decay's course.",
       false,
       0,
       0,
       false,
       {"cosine", "linear", "1-sqrt"}},
      {"warmup_steps", &C::warmup_steps,
       "Linear warm-up: from 1 on a number of steps, below 1 a share of max_steps.", false, 0, 1e9},
      {"min_lr_ratio", &C::min_lr_ratio,
       "Where cosine, linear and warmup_stable_decay end, as a share of learning_rate.", false, 0,
       1},
      {"weight_decay", &C::weight_decay,
       "AdamW's decoupled weight decay; norms are left out, as in transformers.", false, 0, 1e3},
      {"adam_beta1", &C::adam_beta1, "AdamW's beta1.", false, 0, 0.999999},
      {"adam_beta2", &C::adam_beta2, "AdamW's beta2.", false, 0, 0.999999999},
      {"adam_epsilon", &C::adam_epsilon, "AdamW's epsilon.", false, 0, 1, true},
      {"max_grad_norm", &C::max_grad_norm,
       "Gradients are clipped to this norm over the whole model; 0: never.", false, 0, 1e9},
      {"z_loss", &C::z_loss,
       "Weight of the mean square of the logits' log-sum-exp, which is added to what is minimised "
       "(PaLM took 1e-4); progress lines have it as z_loss, beside loss.",
       false, 0, 1},
      {"spike_factor", &C::spike_factor,
       "A step whose loss is more than this many times the mean of the last 32 counts as bad; 0: "
       "only one that isn't finite.",
       false, 0, 1e6},
      {"skip_limit", &C::skip_limit,
       "Bad steps in a row that are skipped (reported, no update) before the run stops; 0: the "
       "first one stops it.",
       false, 0, 1e9},
      {"seed", &C::seed, "Seed of initialisation and data order.", false, 0, 9007199254740991.0},
      {"zero_stage", &C::zero_stage,
       "What is shared out over the ranks instead of whole on each (ZeRO): 0 nothing; 1 optimizer "
       "state; 2 gradients as well, summed after each micro-batch; 3 weights as well, gathered a "
       "block ahead of their use.",
       false, 0, 3},
      {"shard_size", &C::shard_size,
       "Hybrid sharding: the number of ranks that share one copy of what zero_stage shards, such "
       "as those of a host; the other groups hold copies. It must divide the number of ranks. 0: "
       "all share one.",
       false, 0, 1 << 20},
      {"dtype",
       &C::dtype,
       "Type of weights and activations; masters and sums are fp32 unless masters, moments or "
       "gradient_dtype say otherwise.",
       false,
       0,
       0,
       false,
       {"fp32", "bf16"}},
      {"masters",
       &C::masters,
       "With dtype: bf16, how the exact weights are kept. split: as the bf16 weight and 16 bits "
       "more, the same numbers in 2 bytes a parameter less.",
       false,
       0,
       0,
       false,
       {"fp32", "split"}},
      {"moments",
       &C::moments,
       "Type of AdamW's moments. bf16: 4 bytes a parameter less, rounded stochastically.",
       false,
       0,
       0,
       false,
       {"fp32", "bf16"}},
      {"gradient_dtype",
       &C::gradient_dtype,
       "With dtype: bf16, type of the sum of a step's gradients; ranks are summed in fp32 all the "
       "same.",
       false,
       0,
       0,
       false,
       {"fp32", "bf16"}},
      {"recompute",
       &C::recompute,
       "What of the activations is computed again in the backward pass instead of kept: nothing; "
       "all but attention; all but each layer's input. The numbers don't change.",
       false,
       0,
       0,
       false,
       {"none", "keep_attention", "full"}},
      {"offload",
       &C::offload,
       "What is kept in the host's memory instead of the GPU's: nothing; optimizer: masters and "
       "moments, updated there; parameters: with zero_stage: 3, the weights as well. The numbers "
       "don't change.",
       false,
       0,
       0,
       false,
       {"none", "optimizer", "parameters"}},
      {"lora", &C::lora,
       "Train low-rank adapters beside frozen weights (needs init): rank, alpha, dropout, "
       "target_modules. The export has them merged, and in adapter/ for peft."},
      {"export", &C::export_dir,
       "Hugging Face directory that is written after the last step; relative to the job's "
       "directory."},
      {"cuda_graphs", &C::cuda_graphs,
       "On GPUs, layers are recorded as CUDA graphs and started whole, where micro-batches are of "
       "one shape. The numbers don't change, but for rounding where documents are packed."},
      {"deterministic", &C::deterministic,
       "Refuse kernels whose result may differ from run to run."},
      {"reference_ops", &C::reference_ops,
       "Compute with ATen's plain operations instead of our kernels and, on GPUs, FlashAttention: "
       "slower, to tell whether those are at fault."},
      {"poison", &C::poison,
       "For tests: memory that sharded weights and gradients have left is filled with NaN."},
      {"log_interval", &C::log_interval, "Steps between progress lines.", false, 1, 1e9},
      {"profile_steps", &C::profile_steps,
       "Steps, after the first two, of which every rank writes a Chrome trace to profile/ in the "
       "job's directory (chrome://tracing, Perfetto); 0: none.",
       false, 0, 1000},
      {"peak_tflops", &C::peak_tflops,
       "Peak of one rank's device in TFLOP/s, dense, in the dtype of the products: what MFU is a "
       "share of; 0: looked up by the GPU's name, and no MFU where that is unknown.",
       false, 0, 1e6},
      {"checkpoints", &C::checkpoints,
       "s3://BUCKET/PREFIX: checkpoints go to this object store instead of the job's "
       "checkpoint.storage, below PREFIX/JOB/TASK/ATTEMPT."},
      {"save_steps", &C::save_steps,
       "Steps between checkpoints, beside those that the job's checkpoint.interval asks for; 0: "
       "off.",
       false, 0, 1e9},
      {"save_in_background", &C::save_in_background,
       "Checkpoints are copied to memory and written beside training; false: training waits until "
       "they are on disk."},
      {"eval_interval", &C::eval_interval,
       "Steps between evaluations on the validation split, also after the last step; 0: off.",
       false, 0, 1e9},
      {"eval_sequences", &C::eval_sequences,
       "Sequences of the validation split that an evaluation takes; 0: all.", false, 0, 1e9},
      {"eval_data", &C::eval_data,
       "Directory of token shards to evaluate on, instead of the validation split of data "
       "(`prepare --validation-share`)."},
      {"step_timeout_s", &C::step_timeout_s,
       "Seconds that ranks wait for each other once the first step is done; when one has stopped, "
       "the others end with failure after that.",
       false, 1, 86400},
      {"threads", &C::threads, "CPU threads per rank; 0: cores / ranks on the host.", false, 0,
       4096},
  };
  return keys;
}

const std::vector<std::pair<std::string, std::string>>& Hints() {
  static const std::vector<std::pair<std::string, std::string>> hints = {
      {"per_device_train_batch_size",
       "the batch is global, so that it survives a resize; use global_batch_size"},
      {"train_batch_size",
       "the batch is global, so that it survives a resize; use global_batch_size"},
      {"batch_size", "use global_batch_size (sequences a step, over all ranks)"},
      {"gradient_accumulation_steps",
       "follows from global_batch_size, micro_batch_size and the number of ranks; leave it out"},
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
      {"output_dir",
       "use export for the final model; checkpoints go where the job's checkpoint.storage says"},
      {"save_strategy", "use save_steps, or the job's checkpoint.interval"},
      {"save_total_limit", "use the job's checkpoint.keep"},
      {"resume_from_checkpoint",
       "Muster resumes from the newest valid checkpoint by itself; leave it out"},
      {"logging_steps", "use log_interval"},
      {"profile", "use profile_steps"},
      {"bf16", "use dtype: bf16"},
      {"fp16", "fp16 is not supported; use dtype: bf16"},
      {"optim", "AdamW is the optimizer; leave it out"},
      {"adam_beta", "use adam_beta1 and adam_beta2"},
      {"beta1", "use adam_beta1"},
      {"beta2", "use adam_beta2"},
      {"eps", "use adam_epsilon"},
      {"gradient_clipping", "use max_grad_norm"},
      {"clip_grad_norm", "use max_grad_norm"},
      {"eval_steps", "use eval_interval"},
      {"eval_dataset", "use eval_data"},
      {"eval_strategy", "use eval_interval"},
      {"packing_strategy", "use packing"},
      {"sample_packing", "use packing: bfd"},
      {"datasets", "use mixture (a list of {data, weight})"},
      {"dataset", "use data (a directory made by `muster-trainer prepare`)"},
      {"train_file", "use data (a directory made by `muster-trainer prepare`)"},
      {"peft_config", "use lora"},
      {"lora_r", "use lora: {rank: …}"},
      {"lora_rank", "use lora: {rank: …}"},
      {"lora_alpha", "use lora: {alpha: …}"},
      {"lora_dropout", "use lora: {dropout: …}"},
      {"deepspeed", "use zero_stage"},
      {"fsdp", "use zero_stage"},
      {"async_save", "use save_in_background"},
      {"ddp_timeout", "use step_timeout_s"},
      {"sharding_strategy",
       "use zero_stage (3 shards everything), with shard_size for hybrid sharding"},
      {"gradient_checkpointing", "use recompute: full"},
      {"activation_checkpointing", "use recompute: full"},
      {"cpu_offload", "use offload: optimizer, or with zero_stage: 3 offload: parameters"},
      {"num_decay_steps", "use decay_steps"},
      {"num_workers", "ranks come from the job's workers and processes_per_worker"},
  };
  return hints;
}

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
  } else if (const auto* member = std::get_if<std::optional<json> TrainConfig::*>(&key.member)) {
    if (!value.is_object()) return bad("a map with the content of a config.json");
    config.*(*member) = value;
  } else if (const auto* member = std::get_if<LoraConfig TrainConfig::*>(&key.member)) {
    config.*(*member) = ParseLora(value, path, problems);
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
    } else if (std::holds_alternative<LoraConfig TrainConfig::*>(key.member)) {
      p = LoraSchema();
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

TrainConfig ParseTrainConfig(const json& value, Problems& problems) {
  TrainConfig config;
  if (!value.is_object()) {
    problems.push_back({"trainer", "must be a map"});
    return config;
  }
  std::vector<std::string> names;
  for (const Key& key : Keys()) names.push_back(key.name);
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
  if (!config.checkpoints.empty() &&
      (!config.checkpoints.starts_with("s3://") || config.checkpoints.size() < 6 ||
       config.checkpoints[5] == '/')) {
    problems.push_back(
        {"trainer.checkpoints", absl::StrCat("must be s3://BUCKET/PREFIX; got ", config.checkpoints,
                                             ". A directory is the job's checkpoint.storage")});
  }
  const auto only_with = [&](const char* name, bool fits, const char* what) {
    if (value.contains(name) && !fits)
      problems.push_back(
          {absl::StrCat("trainer.", name), absl::StrCat("is for ", what, "; leave it out")});
  };
  only_with("document_mask", config.packing == "wrapped",
            "packing: wrapped (the others never attend across documents)");
  only_with("max_row_length", config.packing == "balanced", "packing: balanced");
  only_with("eval_sequences", config.eval_interval > 0, "evaluations (eval_interval)");
  const bool wsd = config.lr_scheduler_type == "warmup_stable_decay";
  only_with("decay_steps", wsd, "lr_scheduler_type: warmup_stable_decay");
  only_with("decay_type", wsd, "lr_scheduler_type: warmup_stable_decay");
  only_with("shard_size", config.zero_stage > 0, "zero_stage 1 to 3 (0 shards nothing)");
  only_with("masters", config.masters == "fp32" || config.dtype == "bf16",
            "dtype: bf16 (fp32 weights are the masters)");
  only_with("gradient_dtype", config.gradient_dtype == "fp32" || config.dtype == "bf16",
            "dtype: bf16");
  if (config.offload != "none" && config.masters == "split") {
    problems.push_back({"trainer.masters",
                        "split saves memory beside the weights, and offload moves the masters away "
                        "from there; leave one of the two out"});
  }
  if (config.offload == "parameters" && config.zero_stage != 3) {
    problems.push_back({"trainer.offload",
                        "parameters come block by block, as zero_stage: 3 has them; set that, or "
                        "use offload: optimizer"});
  }
  if (wsd && !value.contains("decay_steps")) {
    problems.push_back({"trainer.decay_steps",
                        "is missing: warmup_stable_decay needs to know how long the decay takes, "
                        "such as 0.1 (a share of max_steps)"});
  }
  if (config.lora.on() && value.contains("model")) {
    problems.push_back(
        {"trainer.lora", "adapters stand beside trained weights; give init instead of model"});
  }
  only_with("eval_data", config.eval_interval > 0, "evaluations (eval_interval)");
  if (config.packing == "balanced" && config.mixture.size() > 1) {
    problems.push_back({"trainer.packing",
                        "balanced puts the documents of one directory together; prepare the inputs "
                        "into one, or use bfd"});
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
  if (wsd && config.max_steps > 0 &&
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
  return config;
}

void CheckLayout(const TrainConfig& config, int ranks, bool gpus, bool gpu_kernels,
                 Problems& problems) {
  if (config.shard_size > 1 && ranks == 1) {
    problems.push_back(
        {"trainer.shard_size",
         absl::StrCat("needs ", config.shard_size,
                      " ranks, or a multiple of them, and this run has one; leave it out")});
  } else if (config.shard_size > 0 && ranks % config.shard_size != 0) {
    std::string divisors;
    for (int n = 1; n <= ranks; ++n) {
      if (ranks % n == 0) absl::StrAppend(&divisors, divisors.empty() ? "" : ", ", n);
    }
    problems.push_back(
        {"trainer.shard_size",
         absl::StrCat(config.shard_size, " doesn't divide the ", ranks, " ranks; use one of ",
                      divisors, ", or leave it out: all ranks share one copy")});
  }
  if (gpus && config.offload == "none" && (!gpu_kernels || config.reference_ops)) {
    const char* remedy =
        gpu_kernels ? "leave out reference_ops"
                    : "build with nvcc (deploy/setup.sh), use offload: optimizer, or leave it out";
    if (config.masters == "split")
      problems.push_back(
          {"trainer.masters", absl::StrCat("split needs our own kernels on GPUs; ", remedy)});
    if (config.moments == "bf16")
      problems.push_back(
          {"trainer.moments", absl::StrCat("bf16 needs our own kernels on GPUs; ", remedy)});
  }
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
  const int64_t wanted = config.micro_batch_size > 0
                             ? config.micro_batch_size
                             : std::max<int64_t>(1, 8192 / config.max_length);
  return std::max<int64_t>(1, std::min(wanted, share));
}

}  // namespace muster::trainer
