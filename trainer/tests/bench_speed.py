"""Row `trainer-speed`: tokens a second against transformers, and the AdamW kernel against ATen's.

    bench_speed.py [--quick]        MUSTER_TRAINER_BIN names the binary, beside which muster-bench-adamw lies

Ours and the peers take turns (A B C C B A), each in a process of its own; of each the fastest step counts, as others may use
the machine meanwhile.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import harness
import memory

STEPS = 12
PEERS = {"fp32": ("eager", "compile"), "bf16": ("autocast",)}
BARS = {"fp32": 1.1, "bf16": 1.4}


def ours(trainer_bin: str, tokens: Path, folder: Path, dtype: str) -> float:
    """Tokens a second of the fastest step."""
    with harness.Gang(
        trainer_bin, memory.config(tokens, max_steps=STEPS, dtype=dtype), 1, folder
    ) as gang:
        gang.finish()
    return memory.BATCH * memory.LENGTH / min(gang.metric("step_time_s").values())


def theirs(kind: str) -> float:
    done = subprocess.run(
        [sys.executable, __file__, "peer", kind], check=True, capture_output=True, text=True
    )
    return float(done.stdout.split()[-1])


def peer(kind: str) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(memory.THREADS)
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**memory.MODEL))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    forward = torch.compile(model) if kind == "compile" else model
    times = []
    for _ in range(STEPS):
        ids = torch.randint(0, memory.MODEL["vocab_size"], (memory.BATCH, memory.LENGTH + 1))
        began = time.monotonic()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=kind == "autocast"):
            logits = forward(input_ids=ids[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        times.append(time.monotonic() - began)
    print(memory.BATCH * memory.LENGTH / min(times))


def main() -> int:
    quick = "--quick" in sys.argv[1:]
    trainer_bin = harness.trainer_binary()
    print(f"machine: {harness.machine()}")
    kernel = json.loads(
        subprocess.run(
            [Path(trainer_bin).parent / "muster-bench-adamw"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    )
    print(f"adamw: {kernel}", flush=True)
    figures = [
        harness.figure(
            f"trainer-speed.adamw, {name}",
            round(kernel[name]["ours"] / kernel[name]["atens"], 3),
            "x ATen's fused kernel",
            1.1,
            at_most=False,
            peer=f"{kernel[name]['ours']:.3f} against {kernel[name]['atens']:.3f} {kernel['unit']}, {kernel['form']}",
        )
        for name in ("plain", "training")
    ]
    with tempfile.TemporaryDirectory(prefix="bench-speed-") as name:
        folder = Path(name)
        tokens = harness.make_tokens(folder / "tokens")
        for dtype in ("fp32",) if quick else ("fp32", "bf16"):
            kinds = ("eager",) if quick else PEERS[dtype]
            turns = ["ours", *kinds]
            best = dict.fromkeys(turns, 0.0)
            for number, turn in enumerate((turns + turns[::-1]) * (1 if quick else 2)):
                rate = (
                    ours(trainer_bin, tokens, folder / f"{dtype}{number}", dtype)
                    if turn == "ours"
                    else theirs(turn)
                )
                print(f"{dtype} {turn}: {rate:.0f} tokens/s", flush=True)
                best[turn] = max(best[turn], rate)
            peers = {kind: best[kind] for kind in kinds}
            figures.append(
                harness.figure(
                    f"trainer-speed.{dtype}",
                    round(best["ours"] / max(peers.values()), 3),
                    "x the better of " + ", ".join(kinds),
                    BARS[dtype],
                    at_most=False,
                    peer=", ".join(f"{kind} {rate:.0f}" for kind, rate in peers.items())
                    + f"; ours {best['ours']:.0f} tokens/s",
                )
            )
    return harness.report(figures)


if __name__ == "__main__":
    if sys.argv[1:2] == ["peer"]:
        peer(sys.argv[2])
    else:
        sys.exit(main())
