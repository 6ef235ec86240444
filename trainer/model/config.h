// The shape of a Llama-like model (Llama 2 and 3, Mistral, Qwen2 and 2.5, Qwen3, Phi-3 and 4), of a
// Gemma 2 or 3 or of one with experts in place of its MLPs (Mixtral, Qwen3-MoE, dots1), read from
// and written as the content of a Hugging Face config.json. Both key generations are understood
// (rope_theta and rope_parameters, torch_dtype and dtype); a missing field means what transformers
// means by it. What can't be trained faithfully (another architecture, dropout, other activations)
// is refused with the field and a remedy.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"

namespace muster::trainer {

// Something wrong in a user's configuration: the key's path and what would be right.
struct Problem {
  std::string path;
  std::string text;
};
using Problems = std::vector<Problem>;

// "path: text" lines.
std::string ToText(const Problems& problems);

// Reads JSON. Where `text`, of the file `path`, isn't JSON the error says so with file, line and
// column.
absl::StatusOr<nlohmann::json> ParseJson(const std::string& text, const std::string& path);

// ", did you mean X?" for the closest of `known`, or "".
std::string DidYouMean(const std::string& name, const std::vector<std::string>& known);

struct RopeScaling {
  std::string type = "default";  // default, linear, llama3, yarn or longrope
  double factor = 1;
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  int64_t original_max_position_embeddings = 0;      // llama3, yarn, longrope
  // yarn:
  double beta_fast = 32, beta_slow = 1;
  double attention_factor = 0;  // and longrope: 0: from factor, of yarn also from the two below
  double mscale = 0, mscale_all_dim = 0;  // 0: not given
  bool truncate = true;
  // longrope: what each frequency is divided by, in rows of up to the original length, and in
  // longer ones.
  std::vector<double> short_factor = {}, long_factor = {};

  // What cos and sin are multiplied by.
  double AttentionFactor() const;
  bool operator==(const RopeScaling&) const = default;
};

// Several MLPs in a layer, of which a router chooses some for each token.
struct ExpertsConfig {
  int64_t count = 0;  // 0: one MLP in each layer, without a router
  int64_t per_token = 0;
  int64_t width = 0;                // of each
  bool normalise = true;            // the weights of those that were chosen are made to sum up to 1
  std::vector<bool> sparse_layers;  // a flag a layer: whether it has experts
  // DeepSeek's routing (RouterRule in trainer/ops/experts.h): its groups, and what weights are
  // multiplied by.
  bool sigmoid = false;
  int64_t groups = 1, top_groups = 1;
  double scale = 1;
  int64_t shared = 0;        // experts that every token meets, as one MLP
  int64_t shared_width = 0;  // of that
  // The auxiliary loss that balances them (trainer/model/balance.h): whether config.json asks for
  // it, and its coefficient.
  bool output_router_logits = false;
  double aux_loss_coef = 0.001;
  // As given, for the export.
  int64_t decoder_sparse_step = 1;
  std::vector<int64_t> mlp_only_layers;
};

// Of an MLP's gate.
enum class Activation { kSilu, kGeluTanh };

struct ModelConfig {
  std::string family = "llama";  // model_type (families.h)
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;
  double rope_theta = 10000;
  RopeScaling rope;
  double local_rope_theta = 0;       // of layers with a window, unscaled; 0: as in the others
  double partial_rotary_factor = 1;  // share of a head that is rotated: its first elements
  bool tie_word_embeddings = false;
  bool score = false;  // its head is a score of a document (ForSequenceClassification, one label)
  bool qkv_bias = false, out_bias = false, mlp_bias = false;
  bool qk_norm = false;  // heads of q and k are normed before they are rotated
  // Gemma's: a norm's weight counts from 1; what attention and the MLP give is normed before it is
  // added; embeddings are multiplied by the root of hidden_size.
  bool norms_from_one = false, post_norms = false, scaled_embeddings = false;
  Activation activation = Activation::kSilu;
  int64_t query_pre_attn_scalar = 0;  // scores are divided by its root; 0: by that of head_dim
  double attention_softcap = 0, final_softcap = 0;  // of scores and logits; 0: none
  int64_t sliding_window =
      0;  // tokens a token sees, itself among them, in the layers below; 0: there is no window
  std::vector<bool> sliding_layers;  // a flag a layer; empty: no layer has a window
  ExpertsConfig experts;
  nlohmann::json token_ids =
      nlohmann::json::object();  // bos_token_id, eos_token_id, pad_token_id as given

  // What makes it another model than `other`, "hidden_size is 64, not 128": other weights or
  // another function. Empty if only token ids and the initialisation differ.
  std::vector<std::string> DifferencesFrom(const ModelConfig& other) const;
  bool SameModel(const ModelConfig& other) const { return DifferencesFrom(other).empty(); }
  // The window of a layer; 0: none.
  int64_t Window(int64_t layer) const {
    return sliding_layers.empty() || !sliding_layers[layer] ? 0 : sliding_window;
  }
  // Elements of a head that are rotated.
  int64_t RotaryDim() const {
    return static_cast<int64_t>(static_cast<double>(head_dim) * partial_rotary_factor);
  }
  bool HasExperts(int64_t layer) const { return experts.count > 0 && experts.sparse_layers[layer]; }
  int64_t NumSparseLayers() const;
  int64_t NumParameters() const;
  // Of these, those that a token meets: of the experts, the chosen ones'.
  int64_t NumActiveParameters() const;
};

// Reads config.json's content. Problems are added under `path` ("model" or "init/config.json"); the
// result is only meaningful when none was. `strict`: unknown keys are problems too (for a map that
// a user wrote); otherwise they are listed in `ignored`, if given.
ModelConfig ParseModelConfig(const nlohmann::json& value, const std::string& path, bool strict,
                             Problems& problems, std::vector<std::string>* ignored = nullptr);

// JSON Schema of what ParseModelConfig takes: its keys, their types and ranges. What holds between
// keys it can't say.
nlohmann::ordered_json ModelSchema();

// config.json's content; `dtype` is "float32" or "bfloat16".
nlohmann::ordered_json ToHuggingFace(const ModelConfig& config, const std::string& dtype);

}  // namespace muster::trainer
