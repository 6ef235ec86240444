"""Small models of every family that can be trained, as Hugging Face directories with old or new config keys."""

import json
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SHAPE = {
    "vocab_size": 259,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "hidden_act": "silu",
    "bos_token_id": 256,
    "eos_token_id": 257,
    "tie_word_embeddings": False,
}
# Windows and original lengths are below the 64 tokens of the tests' sequences, so that they change something.
FAMILIES = {
    "llama2": {
        "model_type": "llama",
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "llama3": {
        "model_type": "llama",
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "llama-biases": {
        "model_type": "llama",
        "attention_bias": True,
        "mlp_bias": True,
        "head_dim": 24,
    },
    "mistral": {
        "model_type": "mistral",
        "sliding_window": 24,
        "head_dim": 32,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    },
    "qwen2": {
        "model_type": "qwen2",
        "tie_word_embeddings": True,
        "use_sliding_window": True,
        "sliding_window": 20,
        "max_window_layers": 1,
    },
    "qwen2.5-yarn": {
        "model_type": "qwen2",
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1000000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "qwen3": {
        "model_type": "qwen3",
        "tie_word_embeddings": True,
        "head_dim": 32,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    },
    "qwen3-biases": {
        "model_type": "qwen3",
        "head_dim": 16,
        "attention_bias": True,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
    },
}
FAMILIES |= {
    "phi3": {
        "model_type": "phi3",
        "pad_token_id": 258,
        "sliding_window": 24,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
        },
    },
    "phi4-mini": {
        "model_type": "phi3",
        "pad_token_id": 258,
        "tie_word_embeddings": True,
        "original_max_position_embeddings": 32,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.75,
            "short_factor": [1.0, 1.1, 1.3, 1.5, 2.0, 2.5],
            "long_factor": [1.0, 1.5, 2.0, 3.0, 5.0, 8.0],
        },
    },
    "gemma3": {
        "model_type": "gemma3_text",
        "hidden_act": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
        "head_dim": 32,
        "query_pre_attn_scalar": 24,
        "sliding_window": 24,
        "sliding_window_pattern": 2,
        "final_logit_softcapping": 2.0,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 2.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    },
    "gemma2": {
        "model_type": "gemma2",
        "hidden_act": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
        "attention_bias": True,
        "head_dim": 32,
        "query_pre_attn_scalar": 8,
        "sliding_window": 24,
        "attn_logit_softcapping": 0.5,  # small, as a small model's scores are
        "final_logit_softcapping": 1.0,
    },
}
EXPERTS = {  # models with experts; of the second and the fourth, one layer without
    "mixtral": {
        "model_type": "mixtral",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 24,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    },
    "qwen3-moe": {
        "model_type": "qwen3_moe",
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 48,
        "norm_topk_prob": True,
        "mlp_only_layers": [1],
        "head_dim": 32,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    },
    "qwen3-moe-biases": {
        "model_type": "qwen3_moe",
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 40,
        "norm_topk_prob": False,
        "attention_bias": True,
        "tie_word_embeddings": True,
    },
    "dots1": {
        "model_type": "dots1",
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 40,
        "n_shared_experts": 2,
        "n_group": 4,
        "topk_group": 2,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 1,
        "sliding_window": 24,
        "max_window_layers": 1,
        "head_dim": 32,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    },
    "dots1-tied": {
        "model_type": "dots1",
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 48,
        "n_shared_experts": 1,
        "norm_topk_prob": False,
        "sliding_window": None,
        "tie_word_embeddings": True,
    },
}
ROUTER_BIAS = "e_score_correction_bias"  # of dots1, and no parameter of transformers
OLD_KEYS = {"llama3", "qwen2.5-yarn", "mistral", "phi4-mini"}  # written as transformers 4 did


def router_biases(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: one for name, one in model.named_buffers() if name.endswith(ROUTER_BIAS)}


def to_dtype(model: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """As transformers has a model in another type: routers' biases stay fp32."""
    kept = router_biases(model)
    model = model.to(dtype)
    for name, bias in kept.items():
        setattr(model.get_submodule(name.rpartition(".")[0]), ROUTER_BIAS, bias.float())
    return model


def with_factors(settings: dict) -> dict:
    """Of longrope as many as there are pairs of a head's dimensions that turn."""
    rope = settings.get("rope_parameters", {})
    if "short_factor" not in rope:
        return settings
    head = settings["hidden_size"] // settings["num_attention_heads"]
    pairs = int(head * rope["partial_rotary_factor"]) // 2
    fitting = {key: rope[key][:pairs] for key in ("short_factor", "long_factor")}
    return settings | {"rope_parameters": rope | fitting}


def make(
    folder: Path,
    name: str,
    dtype: torch.dtype = torch.float32,
    max_shard_size: str = "50GB",
    shape: dict | None = None,
    change=lambda model: None,
) -> Path:
    """A directory of the family with random weights: biases and norms too, which begin as zeros and ones, and routers'
    biases, about as far apart as scores are. `change` is called with the model."""
    torch.manual_seed(7)
    settings = with_factors(SHAPE | (FAMILIES | EXPERTS)[name] | (shape or {}))
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(settings.pop("model_type"), **settings)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
        for bias in router_biases(model).values():
            bias.normal_(std=0.02)
        change(model)
    to_dtype(model, dtype).save_pretrained(folder, max_shard_size=max_shard_size)
    if name in OLD_KEYS:
        config = json.loads((folder / "config.json").read_text())
        rope = config.pop("rope_parameters")
        config["rope_theta"] = rope.pop("rope_theta")
        config["rope_scaling"] = rope if rope["rope_type"] != "default" else None
        config["torch_dtype"] = config.pop("dtype")
        (folder / "config.json").write_text(json.dumps(config))
    return folder
