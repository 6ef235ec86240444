// What a Hugging Face config.json means in each family of models.
#pragma once

#include <cstdint>
#include <string>

namespace muster::trainer {

inline constexpr int64_t kSizeMax = 1'000'000'000;

// Which fields of a config.json say what of routers and experts.
enum class ExpertFields { kMixtral, kQwen, kDeepSeek };

// How a family names a layer's router and experts in files; `block` null: it has none.
struct ExpertWords {
  const char* block = nullptr;  // between the layer and "gate" or "experts"
  const char *gate = nullptr, *up = nullptr, *down = nullptr;
  ExpertFields fields = ExpertFields::kMixtral;
};
inline constexpr ExpertWords kMixtralWords = {"block_sparse_moe", "w1", "w3", "w2"};
inline constexpr ExpertWords kQwenWords = {"mlp", "gate_proj", "up_proj", "down_proj",
                                           ExpertFields::kQwen};
inline constexpr ExpertWords kDeepSeekWords = {"mlp", "gate_proj", "up_proj", "down_proj",
                                               ExpertFields::kDeepSeek};

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
  bool windows_by_layer;  // max_window_layers and layer_types are fields; otherwise sliding_window
                          // is for all
  bool window_switch;     // windows are there if use_sliding_window says so
  ExpertWords experts = {};
  double rms_norm_eps = 1e-6, rope_theta = 10000;
  int64_t max_window_layers = 28;
  bool has_score_class = true;  // transformers has one for sequence classification
};
inline constexpr FamilyFields kFamilies[] = {
    {"llama", "LlamaForCausalLM", 2048, 0, 0, false, true, true, false, false, false},
    {"mistral", "MistralForCausalLM", 131072, 0, 4096, false, false, false, false, false, false},
    {"qwen2", "Qwen2ForCausalLM", 32768, 0, 4096, true, false, false, false, true, true},
    {"qwen3", "Qwen3ForCausalLM", 32768, 128, 4096, false, true, false, true, true, true},
    {"mixtral", "MixtralForCausalLM", 131072, 0, -1, false, false, false, false, false, false,
     kMixtralWords, 1e-5, 1e6},
    {"qwen3_moe", "Qwen3MoeForCausalLM", 32768, 0, 4096, false, true, false, true, false, true,
     kQwenWords},
    {"dots1", "Dots1ForCausalLM", 2048, 0, 4096, false, true, false, true, true, false,
     kDeepSeekWords, 1e-6, 10000, 62, false},
};

// The family's class for sequence classification, if it has one.
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
