"""Row `gpu`: where a GPU is, the trainer's speed and memory there against transformers, compiled, with fused AdamW.

    bench_gpu.py [--quick]        MUSTER_TRAINER_BIN names the binary

Without a GPU nothing is measured, and nothing is estimated.
"""

import sys
import tempfile
from pathlib import Path

import gpu
import harness

LENGTH, BATCH, STEPS = 1024, 8, 12
FULL = {
    "dtype": "bf16",
    "masters": "split",
    "moments": "bf16",
}  # 7 billion parameters with AdamW in the memory of one H200
CASES = {  # name: (model, settings, tokens of a row, rows)
    "7B": (gpu.QWEN_7B, FULL, LENGTH, BATCH),
    "7B, CUDA graphs": (gpu.QWEN_7B, FULL | {"cuda_graphs": True}, LENGTH, BATCH),
    "7B, recompute": (gpu.QWEN_7B, FULL | {"recompute": "full"}, LENGTH, BATCH),
    "7B, offload optimizer": (
        gpu.QWEN_7B,
        {"dtype": "bf16", "offload": "optimizer"},
        LENGTH,
        BATCH,
    ),
    "7B, offload parameters": (
        gpu.QWEN_7B,
        {"dtype": "bf16", "zero_stage": 3, "offload": "parameters", "recompute": "full"},
        LENGTH,
        BATCH,
    ),
}


def measure(
    trainer_bin: str,
    tokens: Path,
    folder: Path,
    model: dict,
    settings: dict,
    length: int,
    batch: int,
) -> dict[str, float]:
    """Medians of tokens a second and mfu_causal, and the peak in GiB."""
    given = {"init": model} if isinstance(model, str) else {"model": model}
    config = (
        given
        | {
            "data": str(tokens),
            "max_length": length,
            "global_batch_size": batch,
            "micro_batch_size": batch,
            "max_steps": STEPS,
            "learning_rate": 1e-5,
        }
        | settings
    )
    with harness.Gang(trainer_bin, config, 1, folder, checkpoints=False) as gang:
        gang.finish()
    middle = lambda name: sorted(list(gang.metric(name).values())[2:])[(STEPS - 2) // 2]  # noqa: E731
    return {
        "rate": middle("tokens_per_s"),
        "mfu": middle("mfu_causal"),
        "gib": max(gang.metric("memory_peak_bytes").values()) / 2**30,
    }


def main() -> int:
    name = gpu.name()
    if not name:
        print("no GPU here: nothing was measured")
        return 0
    trainer_bin, quick = harness.trainer_binary(), "--quick" in sys.argv[1:]
    print(f"machine: {name}, {harness.machine()}")
    figures = []
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as scratch:
        folder = Path(scratch)
        tokens = harness.make_tokens(folder / "tokens")
        cases = {"7B": CASES["7B"]} if quick else CASES
        found = {
            case: measure(trainer_bin, tokens, folder / case.replace(" ", "_"), *what)
            for case, what in cases.items()
        }
        theirs, their_peak = gpu.transformers_tokens_per_s(gpu.QWEN_7B, LENGTH, BATCH, STEPS)
        again = measure(trainer_bin, tokens, folder / "again", *CASES["7B"])
        best = max(found["7B"]["rate"], again["rate"])
        figures.append(
            harness.figure(
                "gpu.7B",
                round(best / theirs, 3),
                "x transformers",
                1.15,
                at_most=False,
                peer=f"ours {best:.0f}, transformers {theirs:.0f} tokens/s, {their_peak / 2**30:.1f} GiB",
            )
        )
        figures.append(
            harness.figure(
                "gpu.7B mfu_causal",
                round(max(found["7B"]["mfu"], again["mfu"]), 4),
                "of the peak",
                0.6,
                at_most=False,
            )
        )
        print(f"{'case':<26} {'tokens/s':>10} {'mfu_causal':>11} {'peak GiB':>9}")
        for case, one in found.items():
            print(f"{case:<26} {one['rate']:>10.0f} {one['mfu']:>11.4f} {one['gib']:>9.1f}")
        if not quick:
            init = folder / "llama8b"
            write_model(init, gpu.LLAMA_8B)
            lora = measure(
                trainer_bin,
                tokens,
                folder / "lora",
                str(init),
                {"dtype": "bf16", "lora": {"rank": 16}, "recompute": "full"},
                4096,
                2,
            )
            figures.append(
                harness.figure(
                    "gpu.LoRA 8B at 4k",
                    round(lora["rate"]),
                    "tokens/s",
                    14_000,
                    at_most=False,
                    peer=f"{lora['gib']:.1f} GiB",
                )
            )
    return harness.report(figures)


def write_model(folder: Path, config: dict) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.set_default_dtype(torch.bfloat16)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(**config)).save_pretrained(folder)


if __name__ == "__main__":
    sys.exit(main())
