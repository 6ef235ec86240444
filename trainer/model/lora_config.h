// LoRA (Hu et al., arXiv 2106.09685): beside a frozen linear y = x·wᵀ stands a trained low-rank
// branch,
// scale · drop(x)·Aᵀ·Bᵀ with A [rank, in] and B [out, rank]. What of it a user says, and which of a
// model's linears it is for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "trainer/model/config.h"

namespace muster::trainer {

struct LoraConfig {
  int64_t rank = 0;  // 0: no LoRA, everything is trained
  double alpha = 0;
  double dropout = 0;
  std::vector<std::string> target_modules;

  bool on() const { return rank > 0; }
  double Scale() const { return alpha / static_cast<double>(rank); }
};

// The `lora:` map. Adds every problem under `path`.
LoraConfig ParseLora(const nlohmann::json& value, const std::string& path, Problems& problems);
// Its JSON Schema.
nlohmann::ordered_json LoraSchema();

// A linear of the model: "model.layers.3.self_attn.q_proj", y [T, out] = x [T, in]·wᵀ.
struct LinearModule {
  std::string name;
  int64_t in = 0, out = 0;
  // Where ranks share it out: the dimension of its weight, [out, in], that slices are of, and how
  // many equal parts of that stay whole (heads).
  int sliced_dim = 0;
  int64_t units = 0;
};
// Those of layer `layer`, in the order of its segments. Experts and routers aren't among them, as
// for peft they are no linears.
std::vector<LinearModule> LayerLinears(const ModelConfig& model, int64_t layer);
// The output projection, "lm_head"; none where it is the embedding's table, as an adapter couldn't
// be merged into that.
std::vector<LinearModule> HeadLinears(const ModelConfig& model);

// Whether a pattern means this module, as peft has it: a last part of its name ("q_proj",
// "self_attn.q_proj"), or a regular expression of the whole name; and "all-linear", all but the
// output projection.
bool MatchesModule(const std::string& pattern, const std::string& module);

// The names of all modules that config.target_modules means; patterns that mean none are added to
// `problems` under `path`.
std::vector<std::string> TargetModules(const ModelConfig& model, const LoraConfig& config,
                                       const std::string& path, Problems& problems);

}  // namespace muster::trainer
