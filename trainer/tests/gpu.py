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
QWEN_3B = QWEN_7B | {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
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


def _asked(what: str) -> str:
    """Of the first GPU, by nvidia-smi; "" where there is none."""
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
        )
    except OSError:
        return ""
    return (
        done.stdout.splitlines()[0].strip() if done.returncode == 0 and done.stdout.strip() else ""
    )


def name() -> str:
    """Of the first GPU; "" where there is none."""
    return _asked("name")


def memory_gib() -> float:
    return float(_asked("memory.total")) / 1024


def compute_capability() -> float:
    """Of the first GPU."""
    return float(_asked("compute_cap"))


def transformers_tokens_per_s(
    model: dict, length: int, rows: int, steps: int, limit_s: float
) -> tuple[float, int, int]:
    """(tokens a second, peak bytes, rows) of bf16 training with torch.compile, fused AdamW and Liger's loss; zeros where it fails. In a
    process of its own, which may run out of memory; its stderr is shown."""
    command = [sys.executable, __file__, json.dumps([model, length, rows, steps])]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        print(f"transformers with {rows} rows: not at its end after {limit_s:.0f} s", flush=True)
        return 0.0, 0, 0
    if done.returncode != 0:
        print(f"transformers with {rows} rows: exit code {done.returncode}", flush=True)
        return 0.0, 0, 0
    rate, peak = done.stdout.split()[-2:]
    print(f"transformers with {rows} rows: {float(rate):.0f} tokens/s", flush=True)
    return float(rate), int(peak), rows


def _linear_cross_entropy(net):
    """Mean cross-entropy of hidden states: Liger's kernel, or its method where that isn't installed: logits and their gradients
    in the forward pass, some rows at a time, so that they are never there for all."""
    import torch

    try:
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

        loss = LigerFusedLinearCrossEntropyLoss()
        return lambda hidden, targets: loss(net.lm_head.weight, hidden, targets)
    except ImportError:
        pass

    @torch.compile
    def of_rows(hidden, weight, targets, count):
        logits = (hidden @ weight.t()).float()
        log_p = torch.log_softmax(logits, 1)
        loss = -log_p.gather(1, targets[:, None]).sum() / count
        is_target = torch.arange(logits.shape[1], device=targets.device) == targets[:, None]
        return loss, ((log_p.exp() - is_target.float()) / count).to(hidden.dtype)

    class Loss(torch.autograd.Function):
        @staticmethod
        def forward(ctx, hidden, weight, targets):
            rows = 1024  # as Liger has it: about tokens x width / vocabulary
            d_hidden, d_weight = torch.empty_like(hidden), torch.zeros_like(weight)
            total = 0.0
            for at in range(0, len(hidden), rows):
                part = hidden[at : at + rows]
                loss, d_logits = of_rows(part, weight, targets[at : at + rows], len(hidden))
                total = total + loss
                torch.mm(d_logits, weight, out=d_hidden[at : at + rows])
                d_weight.addmm_(d_logits.t(), part)
            ctx.save_for_backward(d_hidden, d_weight)
            return total

        @staticmethod
        def backward(ctx, d_loss):
            d_hidden, d_weight = ctx.saved_tensors
            return d_hidden.mul_(d_loss), d_weight.mul_(d_loss), None

    return lambda hidden, targets: Loss.apply(hidden, net.lm_head.weight, targets)


def _transformers(model: dict, length: int, batch: int, steps: int) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(**model)
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        net = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-5, fused=True)
    body, loss_of = torch.compile(net.model), _linear_cross_entropy(net)
    times = []
    for _ in range(steps):
        ids = torch.randint(0, config.vocab_size, (batch, length + 1), device="cuda")
        torch.cuda.synchronize()
        began = time.monotonic()
        hidden = body(input_ids=ids[:, :-1], use_cache=False).last_hidden_state.flatten(0, 1)
        loss_of(hidden, ids[:, 1:].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        times.append(time.monotonic() - began)
    print(batch * length / sorted(times)[len(times) // 2], torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    _transformers(*json.loads(sys.argv[1]))
