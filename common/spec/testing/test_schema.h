// A schema of the form that `muster-trainer --schema` publishes, for tests.
#pragma once

namespace muster {

inline constexpr char kTestTrainerSchema[] = R"({
  "type": "object",
  "additionalProperties": false,
  "required": ["data", "max_length", "global_batch_size", "max_steps", "learning_rate"],
  "properties": {
    "init": {"type": "string", "minLength": 1, "description": "Hugging Face directory."},
    "model": {"type": "object", "additionalProperties": false, "required": ["hidden_size"], "description": "Content of a config.json.",
      "properties": {
        "hidden_size": {"type": "integer", "minimum": 1, "maximum": 1000000000, "description": "Width of the model."},
        "head_dim": {"type": ["integer", "null"], "minimum": 1, "description": "Width of a head."},
        "hidden_act": {"type": ["string", "null"], "enum": ["silu", null], "description": "Activation."},
        "quantization_config": {"type": ["object", "null"], "enum": [null], "description": "Quantised weights can't be trained; give the unquantised model."},
        "rope_scaling": {"type": ["object", "null"], "additionalProperties": false, "description": "Rotary embeddings.",
          "properties": {"factor": {"type": ["number", "null"], "exclusiveMinimum": 0, "description": "By how much."}}},
        "bos_token_id": {"description": "A token, or several."},
        "model_type": {}, "vocab_size": {}, "intermediate_size": {}, "num_hidden_layers": {}, "num_attention_heads": {}, "num_key_value_heads": {},
        "max_position_embeddings": {}, "tie_word_embeddings": {}}},
    "data": {"type": "string", "minLength": 1, "description": "Directory of token shards."},
    "max_length": {"type": "integer", "minimum": 1, "maximum": 16777216, "description": "Tokens per sequence."},
    "global_batch_size": {"type": "integer", "minimum": 1, "maximum": 16777216, "description": "Sequences per step."},
    "max_steps": {"type": "integer", "minimum": 1, "maximum": 1000000000, "description": "Optimizer steps."},
    "learning_rate": {"type": "number", "exclusiveMinimum": 0, "maximum": 1000, "description": "Peak learning rate."},
    "warmup_steps": {"type": "number", "default": 0, "minimum": 0, "maximum": 1e9, "description": "Linear warm-up."},
    "dtype": {"type": "string", "default": "fp32", "enum": ["fp32", "bf16"], "description": "Type of weights."},
    "deterministic": {"type": ["boolean", "string"], "pattern": "^elastic$", "default": false, "description": "Refuse kernels that may differ from run to run."},
    "packing": {"type": "string", "description": "Several documents in a row."},
    "dpo": {"type": "object", "description": "Preferences."},
    "parallel": {"type": ["object", "string"], "pattern": "^auto$", "additionalProperties": false, "description": "Layout.",
      "properties": {"tp": {"type": "integer", "minimum": 1, "description": "Slices."}}},
    "eval_interval": {"type": "integer", "minimum": 1, "description": "Steps."},
    "export": {"type": "string", "minLength": 1, "description": "Hugging Face directory."}
  },
  "oneOf": [{"required": ["init"]}, {"required": ["model"]}],
  "x-muster-hints": {
    "per_device_train_batch_size": "the batch is global, so that it survives a resize; use global_batch_size",
    "gradient_accumulation_steps": "follows from global_batch_size, micro_batch_size and the number of ranks; leave it out",
    "lr": "use learning_rate"
  }
})";

}  // namespace muster
