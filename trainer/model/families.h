// What a Hugging Face config.json means in each family of models.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

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

// What Gemma's families have that no other has; `full_every` 0: the family is none of them.
struct GemmaFields {
  int64_t full_every = 0;    // each so many-th layer has no window
  bool local_rope = false;   // layers with a window have RoPE of their own
  double attention_cap = 0;  // attn_logit_softcapping where it is left out
  double final_cap = 0;      // final_logit_softcapping where it is left out
};

// What transformers means by a field that a config.json of this family leaves out, and what it
// can't say at all.
struct FamilyFields {
  const char* model_type;
  const char* architecture;
  int64_t max_position_embeddings;
  int64_t head_dim = 0;        // 0: hidden_size / num_attention_heads
  int64_t sliding_window = 0;  // 0: none; -1: a field, but none where it is left out
  bool qkv_bias = false;       // where attention_bias isn't a field
  bool has_attention_bias = false, has_mlp_bias = false, qk_norm = false;
  bool windows_by_layer = false;  // max_window_layers and layer_types are fields; otherwise
                                  // sliding_window is for all
  bool window_switch = false;     // windows are there if use_sliding_window says so
  ExpertWords experts = {};
  double rms_norm_eps = 1e-6, rope_theta = 10000;
  int64_t max_window_layers = 28;
  bool has_score_class = true;  // transformers has one for sequence classification
  // Phi-3's: in files q, k and v are one matrix, and gate and up are; heads may be rotated in part.
  bool joined_linears = false;
  GemmaFields gemma = {};
  bool is_gemma() const { return gemma.full_every > 0; }
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
    {.model_type = "phi3",
     .architecture = "Phi3ForCausalLM",
     .max_position_embeddings = 4096,
     .sliding_window = -1,
     .rms_norm_eps = 1e-5,
     .joined_linears = true},
    {.model_type = "gemma2",
     .architecture = "Gemma2ForCausalLM",
     .max_position_embeddings = 8192,
     .head_dim = 256,
     .sliding_window = 4096,
     .has_attention_bias = true,
     .gemma = {.full_every = 2, .attention_cap = 50, .final_cap = 30}},
    {.model_type = "gemma3_text",
     .architecture = "Gemma3ForCausalLM",
     .max_position_embeddings = 131072,
     .head_dim = 256,
     .sliding_window = 4096,
     .has_attention_bias = true,
     .qk_norm = true,
     .rope_theta = 1e6,
     .gemma = {.full_every = 6, .local_rope = true}},
};

// Linears that Phi-3 has as one, in files and for adapters: their rows stand under each other.
struct JoinedLinears {
  const char* name;
  const char* parts[3];
};
inline constexpr JoinedLinears kJoinedLinears[] = {
    {"self_attn.qkv_proj", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}},
    {"mlp.gate_up_proj", {"mlp.gate_proj", "mlp.up_proj", nullptr}},
};

// "model.layers.0.mlp.gate_up_proj.weight" of "model.layers.0.mlp.up_proj.weight"; "" of what is no
// part of such a one.
inline std::string JoinedName(const std::string& weight) {
  for (const JoinedLinears& joined : kJoinedLinears) {
    for (const char* part : joined.parts) {
      const std::string end = std::string(part == nullptr ? "" : part) + ".weight";
      if (part != nullptr && weight.ends_with(end))
        return weight.substr(0, weight.size() - end.size()) + joined.name + ".weight";
    }
  }
  return "";
}

// The family's class for sequence classification, if it has one.
inline std::string ScoreArchitecture(const FamilyFields& family) {
  const std::string causal = family.architecture;
  if (family.model_type == std::string_view("gemma3_text"))  // that of gemma3 is another
    return "Gemma3TextForSequenceClassification";
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
