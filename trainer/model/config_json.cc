// What a config.json may hold, and one of our own models as a config.json.
#include <utility>

#include "trainer/model/config.h"
#include "trainer/model/experts_config.h"
#include "trainer/model/families.h"
#include "trainer/model/rope_config.h"

namespace muster::trainer {
namespace {

using nlohmann::ordered_json;
using Named = std::pair<const char*, const char*>;

// A null in a config.json means that the field isn't there, but for the sizes without which there
// is no model.
void Add(ordered_json& properties, const char* name, const char* type, const char* description,
         const ordered_json& more = ordered_json::object()) {
  ordered_json& p = properties[name];
  if (*type != '\0') p["type"] = {type, "null"};
  p["description"] = description;
  p.update(more);
}

ordered_json OneOf(ordered_json choices) {
  choices.push_back(nullptr);
  return ordered_json{{"enum", std::move(choices)}};
}

ordered_json SizeRange(const char* name = "") {
  return {{"minimum", 1}, {"maximum", SizeMax(name)}};
}

void AddGemmaSchema(ordered_json& properties) {
  Add(properties, "query_pre_attn_scalar", "integer",
      "Scores are divided by its root (gemma2 and gemma3_text: 256).", SizeRange());
  Add(properties, "attn_logit_softcapping", "number",
      "Cap c of scores s: c tanh(s / c) (gemma2: 50).", {{"exclusiveMinimum", 0}});
  Add(properties, "final_logit_softcapping", "number",
      "The same of logits (gemma2: 30; gemma3_text: none).", {{"exclusiveMinimum", 0}});
  Add(properties, "use_bidirectional_attention", "boolean", "Can't be trained.", OneOf({false}));
  Add(properties, "sliding_window_pattern", "integer",
      "Each so many-th layer has no window (gemma3_text: 6; gemma2 has always 2).", SizeRange());
}

void AddGemma(const ModelConfig& config, ordered_json& out) {
  out["hidden_activation"] = "gelu_pytorch_tanh";
  out["query_pre_attn_scalar"] = config.query_pre_attn_scalar;
  for (const auto& [key, cap] : {std::pair("attn_logit_softcapping", config.attention_softcap),
                                 std::pair("final_logit_softcapping", config.final_softcap)})
    out[key] = cap > 0 ? ordered_json(cap) : ordered_json();
  for (int64_t layer = 0; layer < config.num_layers; ++layer)
    out["layer_types"].push_back(config.Window(layer) > 0 ? "sliding_attention" : "full_attention");
}

void AddIgnored(ordered_json& properties) {
  for (const char* name : {"torch_dtype",
                           "dtype",
                           "_name_or_path",
                           "_commit_hash",
                           "transformers_version",
                           "use_cache",
                           "return_dict",
                           "output_attentions",
                           "output_hidden_states",
                           "id2label",
                           "label2id",
                           "is_encoder_decoder",
                           "chunk_size_feed_forward",
                           "problem_type",
                           "num_labels",
                           "_sliding_window_pattern",
                           "_attn_implementation",
                           "_attn_implementation_autoset",
                           "is_decoder",
                           "add_cross_attention",
                           "tie_encoder_decoder",
                           "cross_attention_hidden_size"}) {
    Add(properties, name, "", "Changes nothing in training.");
  }
}

}  // namespace

ordered_json ModelSchema() {
  ordered_json schema;
  schema["type"] = "object";
  schema["additionalProperties"] = false;
  schema["properties"] = ordered_json::object();
  ordered_json properties;
  ordered_json types = ordered_json::array();
  for (const FamilyFields& family : kFamilies) types.push_back(family.model_type);
  Add(properties, "model_type", "string",
      "The family; llama if neither this nor architectures is given.", OneOf(types));
  Add(properties, "architectures", "array",
      "The class's name in transformers, such as LlamaForCausalLM.",
      {{"items", {{"type", "string"}}}});
  for (const auto& [name, description] :
       {Named("vocab_size", "Tokens of the vocabulary."),
        Named("hidden_size", "Width of the model."),
        Named("intermediate_size", "Width of the MLP."), Named("num_hidden_layers", "Layers."),
        Named("num_attention_heads", "Heads of queries.")}) {
    Add(properties, name, "integer", description, SizeRange(name));
    properties[name]["type"] = "integer";
    schema["required"].push_back(name);
  }
  Add(properties, "num_key_value_heads", "integer",
      "Heads of keys and values; as many as of queries if left out (llama and phi3 alone).",
      SizeRange("num_key_value_heads"));
  Add(properties, "head_dim", "integer",
      "Width of a head; hidden_size / num_attention_heads if left out (qwen3: 128, gemma2 and "
      "gemma3_text: 256).",
      SizeRange("head_dim"));
  Add(properties, "max_position_embeddings", "integer",
      "The longest sequence that the model is meant for.", SizeRange());
  Add(properties, "rms_norm_eps", "number",
      "Added under the root of a norm (mixtral and phi3: 1e-5).",
      {{"default", 1e-6}, {"exclusiveMinimum", 0}});
  Add(properties, "initializer_range", "number",
      "Standard deviation of weights drawn from scratch.",
      {{"default", 0.02}, {"exclusiveMinimum", 0}});
  Add(properties, "tie_word_embeddings", "boolean",
      "The head's weights are the embeddings (by default false; gemma2 and gemma3_text: true).");
  Add(properties, "attention_bias", "boolean",
      "The linears of attention have biases (llama, qwen3, qwen3_moe, dots1, gemma2, "
      "gemma3_text).");
  Add(properties, "mlp_bias", "boolean", "The linears of the MLP have biases (llama).");
  for (const char* name : {"hidden_act", "hidden_activation"})
    Add(properties, name, "string",
        "The MLP's activation: silu, of gemma2 and gemma3_text gelu_pytorch_tanh.",
        OneOf({"silu", "gelu_pytorch_tanh"}));
  AddGemmaSchema(properties);
  for (const char* name : {"attention_dropout", "resid_pdrop", "embd_pdrop"})
    Add(properties, name, "number", "Can't be trained.", OneOf({0}));
  Add(properties, "pretraining_tp", "integer", "Slices of the linears in an old checkpoint.",
      OneOf({1}));
  Add(properties, "quantization_config", "object",
      "Quantised weights can't be trained; give the unquantised model.",
      OneOf(ordered_json::array()));
  Add(properties, "use_sliding_window", "boolean",
      "Some layers see sliding_window tokens (qwen2, qwen3; qwen3_moe: all; dots1 has no such "
      "switch).",
      {{"default", false}});
  Add(properties, "sliding_window", "integer",
      "Tokens that a token sees, itself among them (all but llama).", SizeRange());
  Add(properties, "max_window_layers", "integer",
      "Layers from this one on have the window (qwen2, qwen3, dots1).",
      {{"minimum", 0}, {"maximum", kSizeMax}});
  Add(properties, "layer_types", "array", "full_attention or sliding_attention for each layer.",
      {{"items", {{"type", "string"}, {"enum", {"full_attention", "sliding_attention"}}}}});
  AddRopeSchema(properties);
  for (const char* name : {"bos_token_id", "eos_token_id", "pad_token_id"})
    Add(properties, name, "", "A token's id, or a list of them; kept for the export.");
  AddExpertsSchema(properties);
  AddIgnored(properties);
  schema["properties"] = std::move(properties);
  return schema;
}

nlohmann::ordered_json ToHuggingFace(const ModelConfig& config, const std::string& dtype) {
  nlohmann::ordered_json out;
  const FamilyFields& family = FieldsOfFamily(config.family);
  out["architectures"] = {config.score ? ScoreArchitecture(family) : family.architecture};
  out["model_type"] = family.model_type;
  if (config.score) {
    out["id2label"] = {{"0", "LABEL_0"}};
    out["label2id"] = {{"LABEL_0", 0}};
  }
  out["vocab_size"] = config.vocab_size;
  out["hidden_size"] = config.hidden_size;
  out["intermediate_size"] = config.intermediate_size;
  out["num_hidden_layers"] = config.num_layers;
  out["num_attention_heads"] = config.num_heads;
  out["num_key_value_heads"] = config.num_kv_heads;
  out["head_dim"] = config.head_dim;
  out["hidden_act"] = family.is_gemma() ? "gelu_pytorch_tanh" : "silu";
  out["max_position_embeddings"] = config.max_position_embeddings;
  out["initializer_range"] = config.initializer_range;
  out["rms_norm_eps"] = config.rms_norm_eps;
  if (family.has_attention_bias) out["attention_bias"] = config.qkv_bias;
  out["attention_dropout"] = 0.0;
  if (family.has_mlp_bias) out["mlp_bias"] = config.mlp_bias;
  if (family.sliding_window != 0)
    out["sliding_window"] = config.sliding_window > 0
                                ? nlohmann::ordered_json(config.sliding_window)
                                : nlohmann::ordered_json();
  if (family.window_switch) out["use_sliding_window"] = config.sliding_window > 0;
  if (family.windows_by_layer) {
    int64_t full = 0;  // layers before the first with a window
    while (full < config.num_layers && config.Window(full) == 0) ++full;
    out["max_window_layers"] = full;
    for (int64_t layer = 0; layer < config.num_layers; ++layer)
      out["layer_types"].push_back(config.Window(layer) > 0 ? "sliding_attention"
                                                            : "full_attention");
  }
  if (family.is_gemma()) AddGemma(config, out);
  AddExperts(config, family, out);
  AddRope(config, family, out);
  out["tie_word_embeddings"] = config.tie_word_embeddings;
  for (const auto& [key, id] : config.token_ids.items()) out[key] = id;
  // What is left out is a token that a small vocabulary hasn't.
  if (family.joined_linears && !out.contains("pad_token_id")) out["pad_token_id"] = nullptr;
  out["dtype"] = dtype;
  out["torch_dtype"] = dtype;
  out["use_cache"] = true;
  return out;
}

}  // namespace muster::trainer
