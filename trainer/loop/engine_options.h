// The engine's options as the `trainer:` map means them.
#pragma once

#include <numeric>

#include "trainer/loop/config.h"
#include "trainer/parallel/engine.h"

namespace muster::trainer {

// The loss that balances a model's experts.
inline BalanceOptions BalanceOf(const TrainConfig& config, const ModelConfig& model) {
  const ExpertsConfig& experts = model.experts;
  const std::string& wanted = config.router_aux_loss;
  const bool by_row = wanted == "sequence" || (wanted == "auto" && experts.output_router_logits);
  BalanceOptions options;
  if (experts.count == 0 || experts.sigmoid) return options;
  options.kind = by_row              ? BalanceKind::kSequence
                 : wanted == "batch" ? BalanceKind::kBatch
                                     : BalanceKind::kNone;
  options.coefficient =
      config.router_aux_loss_coef > 0 ? config.router_aux_loss_coef : experts.aux_loss_coef;
  return options;
}

inline EngineOptions MakeEngineOptions(const TrainConfig& config, const ModelConfig& model) {
  EngineOptions options;
  options.max_length = config.max_length;
  options.flats.zero_stage = static_cast<int>(config.zero_stage);
  options.flats.dtype = config.dtype == "bf16" ? at::kBFloat16 : at::kFloat;
  // Micro-batches are added as ranks are: the result doesn't depend on which of the two they were.
  options.flats.separate_gradients = config.deterministic != Determinism::kNo;
  if (config.quantize.on)
    options.flats.quantisation =
        config.quantize.nested ? Quantisation::kNf4Nested : Quantisation::kNf4;
  options.flats.split_masters = config.masters == "split";
  options.flats.bf16_moments = config.moments == "bf16";
  options.flats.int8_moments = config.moments == "int8";
  options.flats.bf16_gradients = config.gradient_dtype == "bf16";
  options.flats.host_state = config.offload != "none";
  options.flats.host_weights = config.offload == "parameters";
  options.flats.poison = config.poison;
  options.recompute = config.recompute == "full"        ? RecomputeMode::kFull
                      : config.recompute == "none"      ? RecomputeMode::kNone
                      : config.recompute == "pointwise" ? RecomputeMode::kPointwise
                                                        : RecomputeMode::kKeepAttention;
  options.lora = config.lora;
  options.seed = static_cast<uint64_t>(config.seed);
  options.z_loss = config.z_loss;
  options.balance = BalanceOf(config, model);
  options.count_tokens = config.router_bias_speed > 0;
  options.dpo = config.dpo;
  options.fp8 = config.matmul == "fp8";
  options.reward = config.reward;
  options.pipeline = config.parallel.pipeline;
  options.chunks = static_cast<int>(config.parallel.Chunks());
  return options;
}

// Ranks of a unit (mesh.h) that take different rows.
inline int DpOfUnit(const TrainConfig& config) {
  const int64_t layer = config.parallel.tp * config.parallel.cp;
  return static_cast<int>(std::lcm(config.parallel.ep, layer) / layer);
}
// Parts of a step's sums, and the units of `dp` ranks with different rows that take them in turns:
// the others compute nothing. 0: each rank has a share.
inline int64_t TreeParts(const TrainConfig& config) {
  const int64_t rows = ChooseMicroBatchSize(config, config.global_batch_size) * DpOfUnit(config);
  return (config.global_batch_size + rows - 1) / rows;
}
inline int TreeUnitsOf(const TrainConfig& config, int dp) {
  return config.deterministic == Determinism::kElastic
             ? TreeUnits(TreeParts(config), dp / DpOfUnit(config))
             : 0;
}
// Of those `dp` ranks, the ones that compute; 0 as above.
inline int TreeRanksOf(const TrainConfig& config, int dp) {
  return TreeUnitsOf(config, dp) * DpOfUnit(config);
}
inline void SumAsTrees(const TrainConfig& config, int dp, FlatOptions* flats) {
  flats->tree_units = TreeUnitsOf(config, dp);
  if (flats->tree_units > 0) flats->tree_levels = TreeLevels(TreeParts(config) / flats->tree_units);
}

}  // namespace muster::trainer
