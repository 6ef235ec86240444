// The `trainer:` map of a job: one table of keys drives the parser, the checks and the published
// JSON Schema.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "trainer/loop/parallel_config.h"
#include "trainer/model/config.h"
#include "trainer/model/dpo_config.h"
#include "trainer/model/lora_config.h"
#include "trainer/model/quantize_config.h"
#include "trainer/model/reward_config.h"

namespace muster::trainer {

// One of several inputs of a mixture.
struct MixturePart {
  std::string data;
  double weight = 0;
};

// kYes: the same ranks have the same bits each time. kElastic: so have any number of ranks.
enum class Determinism { kNo, kYes, kElastic };

inline constexpr int64_t kMostProfiledSteps = 1000;  // that profile_steps may ask for

struct TrainConfig {
  std::string init;                     // Hugging Face directory; empty when `model` is given
  std::optional<nlohmann::json> model;  // config.json content for weights from scratch
  std::string data;                     // directory of token shards; empty when `mixture` is given
  std::vector<MixturePart> mixture;     // several, with weights
  std::string packing = "wrapped";      // trainer/data/packing.h has the kinds
  bool document_mask = false;           // for packing: wrapped
  int64_t max_row_length = 0;           // for packing: balanced; 0: 5/4 of max_length
  int64_t max_length = 0;               // tokens per sequence
  int64_t global_batch_size = 0;        // sequences per step, over all ranks
  int64_t micro_batch_size = 0;         // sequences per rank and forward; 0: chosen
  int64_t max_steps = 0;
  double learning_rate = 0;
  std::string lr_scheduler_type = "cosine";
  double warmup_steps = 0;  // >= 1: steps; < 1: share of max_steps
  double min_lr_ratio = 0;
  double weight_decay = 0;
  double adam_beta1 = 0.9, adam_beta2 = 0.999, adam_epsilon = 1e-8;
  double max_grad_norm = 1.0;  // 0: no clipping
  int64_t seed = 42;
  int64_t zero_stage = 1;
  int64_t shard_size = 0;  // ranks that share one copy of what zero_stage shards; 0: all
  ParallelConfig parallel;
  std::string memory_per_rank;  // with parallel: auto, "80GiB"; empty: the device's
  std::string dtype = "fp32";
  std::string masters = "fp32";         // or split
  std::string moments = "fp32";         // or bf16, int8
  std::string gradient_dtype = "fp32";  // or bf16
  std::string matmul = "dtype";         // or fp8: of the layers' linears
  std::string recompute = "none";       // or pointwise, keep_attention, full
  std::string offload = "none";         // or optimizer, parameters
  double z_loss = 0;
  std::string router_aux_loss = "auto";  // or none, sequence, batch
  double router_aux_loss_coef = 0;       // 0: the model's
  double router_bias_speed = 0;          // 0: routers' biases are frozen
  double decay_steps = 0;                // >= 1: steps; < 1: share of max_steps
  std::string decay_type = "cosine";
  double spike_factor = 0;  // 0: off
  int64_t skip_limit = 0;
  bool poison = false;
  bool reference_ops = false;
  QuantizeConfig quantize;
  LoraConfig lora;         // rank 0: everything is trained
  DpoConfig dpo;           // on: data is pairs, and each row is one
  RewardConfig reward;     // the same
  std::string export_dir;  // key `export`; empty: none
  bool cuda_graphs = false;
  Determinism deterministic = Determinism::kNo;
  int64_t log_interval = 1;
  int64_t profile_steps = 0;  // 0: no profile
  double peak_tflops = 0;     // of one rank's device, for MFU; 0: from the table
  std::string checkpoints;    // s3://BUCKET/PREFIX; empty: where the job's checkpoints go
  int64_t save_steps = 0;     // 0: off
  bool save_in_background = true;
  bool warm_restart = false;
  int64_t eval_interval = 0;   // 0: off
  int64_t eval_sequences = 0;  // 0: all
  std::string eval_data;       // empty: the data's own validation split
  double step_timeout_s = 300;
  int64_t threads = 0;  // 0: cores / LOCAL_WORLD_SIZE

  std::chrono::milliseconds StepTimeout() const {
    return std::chrono::milliseconds(static_cast<int64_t>(step_timeout_s * 1000));
  }
  int64_t WarmupSteps() const;
  int64_t DecaySteps() const;
  // The inputs with their weights: the mixture, or `data` alone.
  std::vector<MixturePart> Parts() const;
  // Whether a row is a pair.
  bool OfPairs() const { return dpo.on() || reward.on(); }
  // How documents become rows: `packing`, or pairs.
  std::string RowKind() const { return OfPairs() ? "pairs" : packing; }
  // Tokens of the longest row.
  int64_t RowLength() const {
    return dpo.on()                ? 2 * (max_length - 1)
           : reward.on()           ? 2 * max_length
           : packing == "balanced" ? max_row_length
                                   : max_length;
  }
};

// JSON Schema (draft 2020-12) of the map, with "x-muster-hints" for names that users of other tools
// try.
nlohmann::ordered_json TrainConfigSchema();

// What of a layout (parallel, shard_size, zero_stage, recompute, micro_batch_size) doesn't go with
// itself or with other keys, whatever the model and the ranks.
void CheckLayoutKeys(const TrainConfig& config, Problems& problems);
// False where masters, moments, offload, quantize, shard_size or zero_stage are such that the file
// is refused for them: what ParseTrainConfig says of whole files, and CheckLayoutKeys doesn't.
bool GoTogether(const TrainConfig& config);

// What is wrong with a GPU of this compute capability (89: 8.9) for the configuration.
void CheckGpu(const TrainConfig& config, int capability, Problems& problems);

// What is wrong with the configuration for this model and this many ranks.
// `gpu_kernels`: whether this program has kernels for them.
void CheckLayout(const TrainConfig& config, const ModelConfig& model, int ranks, bool gpus,
                 bool gpu_kernels, Problems& problems);

// Reads the map; adds every problem it finds ("trainer.KEY"), the cross-field ones included. No
// file is touched.
TrainConfig ParseTrainConfig(const nlohmann::json& value, Problems& problems);

// "learning_rate: 0.0001 -> 5e-05" for each key whose value, given or default, isn't the same in
// two such maps.
std::vector<std::string> ChangedFields(const nlohmann::json& before, const nlohmann::json& now);

// Sequences per rank and forward when the user gave none: as many as make about 8,192 tokens, at
// most `share`; few enough to fill a pipeline twice.
int64_t ChooseMicroBatchSize(const TrainConfig& config, int64_t share);

}  // namespace muster::trainer
