// What a Hugging Face config.json means in each family of models.
#pragma once

#include <cstdint>
#include <string>

namespace muster::trainer {

inline constexpr int64_t kSizeMax = 1'000'000'000;

// How a family names a layer's router and experts in files; `block` null: it has none.
struct ExpertWords {
  const char* block = nullptr;  // between the layer and "gate" or "experts"
  const char *gate = nullptr, *up = nullptr, *down = nullptr;
};
inline constexpr ExpertWords kMixtralWords = {"block_sparse_moe", "w1", "w3", "w2"};
inline constexpr ExpertWords kQwenWords = {"mlp", "gate_proj", "up_proj", "down_proj"};

// What transformers means by a field that a config.json of this family leaves out, and what it
// can't say at all.
struct FamilyFields {
  const char* model_type;
  const char* architecture;
  int64_t max_position_embeddings;
  int64_t head_dim;        // 0: hidden_size / num_attention_heads
  int64_t sliding_window;  // 0: none; -1: a field, but none where it is left out
  bool qkv_bias;           // where attention_bias isn't a field
  bool has_attention_bias, has_mlp_bias, qk_norm;
  bool windows_by_layer;  // use_sliding_window, max_window_layers and layer_types are fields;
                          // otherwise sliding_window is for all
  ExpertWords experts = {};
  bool window_switch = false;  // for all, if use_sliding_window says so
  double rms_norm_eps = 1e-6, rope_theta = 10000;
};
inline constexpr FamilyFields kFamilies[] = {
    {"llama", "LlamaForCausalLM", 2048, 0, 0, false, true, true, false, false},
    {"mistral", "MistralForCausalLM", 131072, 0, 4096, false, false, false, false, false},
    {"qwen2", "Qwen2ForCausalLM", 32768, 0, 4096, true, false, false, false, true},
    {"qwen3", "Qwen3ForCausalLM", 32768, 128, 4096, false, true, false, true, true},
    {"mixtral", "MixtralForCausalLM", 131072, 0, -1, false, false, false, false, false,
     kMixtralWords, false, 1e-5, 1e6},
    {"qwen3_moe", "Qwen3MoeForCausalLM", 32768, 0, 4096, false, true, false, true, false,
     kQwenWords, true},
};

// The family's class for sequence classification.
inline std::string ScoreArchitecture(const FamilyFields& family) {
  const std::string causal = family.architecture;
  return causal.substr(0, causal.find("ForCausalLM")) + "ForSequenceClassification";
}

// The first of them where none has the name.
inline const FamilyFields& FieldsOfFamily(const std::string& model_type) {
  for (const FamilyFields& family : kFamilies) {
    if (model_type == family.model_type) return family;
  }
  return kFamilies[0];
}

}  // namespace muster::trainer
