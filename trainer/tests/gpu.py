"""The machine's GPU, and what transformers does there."""

import json
import subprocess
import sys
import time

QWEN_7B = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "vocab_size": 152064,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "hidden_act": "silu",
    "use_sliding_window": False,
}
LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
    "hidden_act": "silu",
}


def name() -> str:
    """Of the first GPU; "" where there is none."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
        )
    except OSError:
        return ""
    return (
        done.stdout.splitlines()[0].strip() if done.returncode == 0 and done.stdout.strip() else ""
    )


def compute_capability() -> float:
    """Of the first GPU."""
    words = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    return float(subprocess.run(words, capture_output=True, text=True).stdout.splitlines()[0])


def transformers_tokens_per_s(
    model: dict, length: int, batch: int, steps: int
) -> tuple[float, int]:
    """(tokens a second, peak bytes) of bf16 training with torch.compile, fused AdamW and a chunked cross-entropy; in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, json.dumps([model, length, batch, steps])],
        check=True,
        capture_output=True,
        text=True,
    )
    rate, peak = done.stdout.split()[-2:]
    return float(rate), int(peak)


def _transformers(model: dict, length: int, batch: int, steps: int) -> None:
    import torch
    from torch.utils.checkpoint import checkpoint
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(**model)
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        net = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-5, fused=True)
    body = torch.compile(net.model)

    def part(hidden, targets):
        return torch.nn.functional.cross_entropy(
            net.lm_head(hidden).float(), targets, reduction="sum"
        )

    times = []
    for _ in range(steps):
        ids = torch.randint(0, config.vocab_size, (batch, length + 1), device="cuda")
        torch.cuda.synchronize()
        began = time.monotonic()
        hidden = body(input_ids=ids[:, :-1], use_cache=False).last_hidden_state.flatten(0, 1)
        targets = ids[:, 1:].flatten()
        chunks = zip(hidden.split(1024), targets.split(1024))
        loss = sum(checkpoint(part, h, t, use_reentrant=False) for h, t in chunks) / targets.numel()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        times.append(time.monotonic() - began)
    print(batch * length / sorted(times)[len(times) // 2], torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    _transformers(*json.loads(sys.argv[1]))
