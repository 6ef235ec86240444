"""How much memory a training run takes, in the shapes of the prototype: ours as it reports it, transformers' as it is
measured here, and what `estimate` said before."""

import json
import resource
import subprocess
import sys
from pathlib import Path

from harness import Gang, clean_environment

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 8192,
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}
LENGTH, BATCH, THREADS = 256, 8, 2


def config(tokens: Path, **more) -> dict:
    return (
        ({} if "init" in more else {"model": MODEL})
        | {
            "data": str(tokens),
            "max_length": LENGTH,
            "global_batch_size": BATCH,
            "micro_batch_size": BATCH,
            "max_steps": 6,
            "learning_rate": 1e-4,
            "lr_scheduler_type": "constant",
            "threads": THREADS,
        }
        | more
    )


def make_init(folder: Path) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    if not folder.exists():
        LlamaForCausalLM(LlamaConfig(**MODEL)).save_pretrained(folder)
    return folder


def largest_gathered() -> int:
    """Bytes of two layers and the larger of head and embedding, in fp32: what ZeRO-3 may hold gathered."""
    d, f, v = MODEL["hidden_size"], MODEL["intermediate_size"], MODEL["vocab_size"]
    return 4 * (2 * (4 * d * d + 3 * d * f + 2 * d) + v * d + d)


def estimate(trainer_bin: str, config_file: Path, ranks: int) -> dict:
    said = subprocess.run(
        [trainer_bin, "estimate", "--config", config_file, "--ranks", str(ranks), "--json", "true"],
        check=True,
        capture_output=True,
        text=True,
        env=clean_environment(),
    )
    return json.loads(said.stdout)


def measure(
    trainer_bin: str, tokens: Path, folder: Path, ranks: int = 1, **more
) -> tuple[int, int, dict[str, int]]:
    """(peak bytes of rank 0, what `estimate` said of it, and by class of the stage that needs the most)."""
    settings = config(tokens, **more)
    with Gang(trainer_bin, settings, ranks, folder) as gang:
        gang.finish()
    peak = max(event["memory_peak_bytes"] for event in gang.events if "memory_peak_bytes" in event)
    said = estimate(trainer_bin, folder / "trainer.json", ranks)
    return (
        peak,
        said.get("stages", [said])[0]["memory_bytes"],
        {one["class"]: one["bytes"] for one in said["memory"]},
    )


def measure_stages(
    trainer_bin: str, tokens: Path, folder: Path, ranks: int, **more
) -> list[tuple[int, int]]:
    """(peak bytes of the rank with the most, what `estimate` said) of each stage; ranks of a stage are neighbours."""
    settings = config(tokens, **more)
    with Gang(trainer_bin, settings, ranks, folder) as gang:
        gang.wait_for_step(settings["max_steps"] - 1)  # all ranks are still needed
        peaks = gang.peak_bytes()
        gang.finish()
    said = estimate(trainer_bin, folder / "trainer.json", ranks)
    stages = said.get("stages", [said])
    in_stage = ranks // len(stages)
    return [
        (max(peaks[s * in_stage : (s + 1) * in_stage]), one["memory_bytes"])
        for s, one in enumerate(stages)
    ]


def transformers_peak(dtype: str) -> int:
    """Peak bytes of the same training by transformers in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, dtype], check=True, capture_output=True, text=True
    )
    return int(done.stdout)


def _transformers(dtype: str) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**MODEL))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for _ in range(6):
        ids = torch.randint(0, MODEL["vocab_size"], (BATCH, LENGTH + 1))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bf16"):
            logits = model(input_ids=ids[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


if __name__ == "__main__":
    _transformers(sys.argv[1])
