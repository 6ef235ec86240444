"""Models with random weights as Hugging Face directories, of Llama's kind, by torch alone: a machine that is lent for minutes may have
neither transformers nor safetensors."""

import ctypes
import json
import math
from pathlib import Path

import torch

STDDEV = 0.02


def shapes(config: dict) -> dict[str, list[int]]:
    """Of each parameter of a Llama without biases."""
    width, inner = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim", width // config["num_attention_heads"])
    queries = head * config["num_attention_heads"]
    keys = head * config["num_key_value_heads"]
    of_layer = {
        "input_layernorm": [width],
        "self_attn.q_proj": [queries, width],
        "self_attn.k_proj": [keys, width],
        "self_attn.v_proj": [keys, width],
        "self_attn.o_proj": [width, queries],
        "post_attention_layernorm": [width],
        "mlp.gate_proj": [inner, width],
        "mlp.up_proj": [inner, width],
        "mlp.down_proj": [width, inner],
    }
    vocabulary = [config["vocab_size"], width]
    found = {"model.embed_tokens.weight": vocabulary, "model.norm.weight": [width]}
    for layer in range(config["num_hidden_layers"]):
        found |= {f"model.layers.{layer}.{name}.weight": of for name, of in of_layer.items()}
    return found if config["tie_word_embeddings"] else found | {"lm_head.weight": vocabulary}


def header_of(parameters: dict[str, list[int]], dtype: torch.dtype) -> bytes:
    """What a safetensors file begins with."""
    name = {torch.bfloat16: "BF16", torch.float32: "F32"}[dtype]
    header: dict[str, dict] = {"__metadata__": {"format": "pt"}}
    end = 0
    for parameter, shape in parameters.items():
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        header[parameter] = {"dtype": name, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write(folder: Path, config: dict, dtype: torch.dtype, device: str = "cpu") -> Path:
    """Drawn on `device`: 8 billion numbers take the host minutes. One parameter is in memory at a time."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    parameters = shapes(config)
    torch.manual_seed(7)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(header_of(parameters, dtype))
        for name, shape in parameters.items():
            drawn = torch.ones(shape, dtype=dtype, device=device)
            if "norm" not in name:
                drawn.normal_(0, STDDEV)
            host = drawn.cpu()
            file.write((ctypes.c_char * host.nbytes).from_address(host.data_ptr()))
    return folder
