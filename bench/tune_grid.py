"""Measures the grid that row `tune` plays back: bench/tuning/grid.jsonl, a line a setting of the real muster-trainer on this CPU.

    nice tune_grid.py TOKENS OUT [--model NAME] [--repeat N] [--only N]

TOKENS: any text as shards of bytes by `muster-trainer prepare`; for the kept grid it was Python's asyncio. OUT goes on where it ended.

Two ranks with one thread each, STEPS steps. The figure is tokens a second of CPU time: what the kernel counts for all threads of both ranks, from the
end of step WARM to the end of the last step but one. The machine is shared, and CPU time tells far less of what others do than the clock does. Of
several turns at different times the best counts: what others do can only slow a run down. CPU time has no part that a rank waits, so waiting for the
other rank is free here, and it isn't on a machine where it leaves a device idle.
"""

import argparse
import itertools
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TRAINER = os.environ.get("MUSTER_TRAINER_BIN", "muster-trainer")
RANKS, STEPS, WARM, LIMIT_S = 2, 14, 2, 120
KNOBS = {
    "zero_stage": [0, 1, 2, 3],
    "micro_batch_size": [1, 2, 4, 8, 16, 32],
    "recompute": ["none", "pointwise", "keep_attention", "full"],
    "offload": ["none", "optimizer", "parameters"],
}
# hidden_size, layers, heads, keys' heads, intermediate_size, tokens a row, rows a step
MODELS = {
    "narrow": (64, 4, 4, 2, 192, 64, 64),
    "wide": (160, 2, 4, 4, 416, 64, 64),
    "deep": (48, 10, 4, 2, 128, 64, 64),
    "long": (64, 4, 4, 4, 160, 128, 64),
}
WHOLE = "narrow"  # of the others a sample is measured
SAMPLE = 40
KEPT = "activations kept"


def config(model: str, tokens: str) -> dict:
    hidden, layers, heads, keys, intermediate, length, rows = MODELS[model]
    shape = {
        "model_type": "llama",
        "vocab_size": 259,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": keys,
        "max_position_embeddings": length,
        "tie_word_embeddings": True,
    }
    return {
        "model": shape,
        "data": tokens,
        "max_length": length,
        "global_batch_size": rows,
        "max_steps": STEPS,
        "learning_rate": 1e-3,
        "threads": 1,
    }


def settings(model: str) -> list[dict]:
    """Weights in the host's memory go with stage 3 alone."""
    found = [dict(zip(KNOBS, values, strict=True)) for values in itertools.product(*KNOBS.values())]
    found = [one for one in found if one["offload"] != "parameters" or one["zero_stage"] == 3]
    random.Random(model).shuffle(
        found
    )  # so that what the machine does in between strikes all alike
    return found if model == WHOLE else found[:SAMPLE]


def cpu_ns(pid: int) -> int:
    """Of all its threads, those that have ended too: the clock of clock_getcpuclockid(3)."""
    return time.clock_gettime_ns((~pid << 3) | 2)


def start(path: Path, folder: Path) -> list[subprocess.Popen]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(RANKS):
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS}
        own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
        own |= {"MUSTER_CHECKPOINT_DIR": folder / "checkpoints", "OMP_NUM_THREADS": 1}
        environment = os.environ | {name: str(value) for name, value in own.items()}
        words = [TRAINER, "train", "--config", str(path)]
        ranks.append(
            subprocess.Popen(
                words,
                env=environment,
                cwd=folder,
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        )
    return ranks


def measure(whole: dict) -> dict:
    with tempfile.TemporaryDirectory(prefix="tune-") as name:
        folder = Path(name)
        path = folder / "config.json"
        path.write_text(json.dumps(whole))
        ranks = start(path, folder)
        at, peak = {}, 0
        try:
            for line in ranks[0].stdout:
                step = re.match(r"step=(\d+) ", line)
                if step and int(step[1]) in (WARM, STEPS - 1):
                    at[int(step[1])] = sum(cpu_ns(rank.pid) for rank in ranks)
                if found := re.search(r"memory_peak_mib=(\d+)", line):
                    peak = max(peak, int(found[1]))
            codes = [rank.wait(LIMIT_S) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    if any(codes) or len(at) < 2:
        raise RuntimeError(f"the trainer ended with {codes}: {whole}")
    tokens = whole["max_length"] * whole["global_batch_size"] * (STEPS - 1 - WARM)
    seconds = (at[STEPS - 1] - at[WARM]) / 1e9
    return {"tokens_per_cpu_s": round(tokens / seconds, 1), "memory_peak_mib": peak}


def estimate(whole: dict) -> dict:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(whole, file)
        file.flush()
        words = [
            TRAINER,
            "estimate",
            "--config",
            file.name,
            "--ranks",
            str(RANKS),
            "--json",
            "true",
        ]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    told["memory"] = [one for one in told["memory"] if one["class"] == KEPT]  # what the proxy reads
    return told


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("tokens")
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", action="append", choices=list(MODELS))
    parser.add_argument("--repeat", type=int, default=2, help="the best of so many counts")
    parser.add_argument("--only", type=int, help="settings a model")
    given = parser.parse_args()
    tokens = str(Path(given.tokens).resolve())
    known = set()
    if given.out.exists():
        for line in given.out.read_text().splitlines():
            found = json.loads(line)
            known.add((found["model"], json.dumps(found["setting"])))
    for model in given.model or MODELS:
        for setting in settings(model)[: given.only]:
            if (model, json.dumps(setting)) in known:
                continue
            whole = config(model, tokens) | setting
            began = time.monotonic()
            turns = [measure(whole) for _ in range(given.repeat)]
            line = {
                "model": model,
                "setting": setting,
                "turns": [turn["tokens_per_cpu_s"] for turn in turns],
                "memory_peak_mib": max(turn["memory_peak_mib"] for turn in turns),
                "estimate": estimate(whole),
            }
            with given.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(f"{time.monotonic() - began:.1f} s", line["turns"], setting, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
