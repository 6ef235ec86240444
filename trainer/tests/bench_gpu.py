"""Row `gpu`: where a GPU is, the trainer's speed and memory there against transformers, compiled, with fused AdamW and Liger's loss.

    bench_gpu.py [--quick] [--list] [--case TEXT]... [--most-gib N] [--within S] [--trace FOLDER]
                                                                        MUSTER_TRAINER_BIN names the binary

    --case TEXT     only cases whose name has this text
    --most-gib N    leaves out what would take more of the GPU's memory by estimate; 75 if not given, which any lent GPU has
    --within S      begins no case that might not end in these seconds, and says which are left out
    --trace FOLDER  gets, of one step of ours, a trace, and how long each kernel took

A line is printed as each case ends. In a bundle (deploy/gpu-bundle.sh) it finds the programs beside itself. Without a GPU nothing is
measured, and nothing is estimated.
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import gpu
import gpu_cases
import harness

LENGTH, BATCH, STEPS = 1024, 8, 12
MOST_GIB, MOST_HOST_GIB = 75, 80  # of the GPU, and pinned of the host
QUIET_S = 300  # weights of 8 billion parameters are drawn, or read and copied, without a word
CASE_S = {"ours": 60, "theirs": 110, "adapters": 110}  # a guess of the most; ours took 50
SIZES = {"7B": gpu.QWEN_7B, "3B": gpu.QWEN_3B}  # the larger is taken if it has room
SWEPT = [8, 16, 4, 32]  # rows of the peer
FULL = {"dtype": "bf16", "masters": "split", "moments": "bf16"}
OFFLOADED = {"dtype": "bf16", "moments": "bf16", "recompute": "full"}
BESIDE = {  # of the size that is compared
    "CUDA graphs": FULL | {"cuda_graphs": True},
    "recompute": FULL | {"recompute": "full"},
    "int8 moments": FULL | {"moments": "int8"},
}
OF_7B = {
    "7B, all of it on the GPU": FULL | {"gradient_dtype": "bf16", "recompute": "full"},
    "7B, offload optimizer": OFFLOADED | {"offload": "optimizer"},
    "7B, offload parameters": OFFLOADED | {"offload": "parameters", "zero_stage": 3},
}
ADAPTERS = {  # of 8 billion parameters, rows of 4,096: (settings, least tokens a second)
    "LoRA 8B at 4k": ({}, 14_000),
    "QLoRA 8B at 4k": ({"quantize": {"type": "nf4"}}, None),
}


class Bench:
    def __init__(self, folder: Path, chosen: argparse.Namespace):
        self.trainer_bin, self.folder, self.chosen = harness.trainer_binary(), folder, chosen
        ready = os.environ.get("MUSTER_TOKENS")
        self.tokens = Path(ready) if ready else harness.make_tokens(folder / "tokens")
        self.most_gib = min(chosen.most_gib, gpu.memory_gib() - 2)
        self.holds, self.runs, self.began = True, 0, time.monotonic()

    def wants(self, case: str) -> bool:
        return not self.chosen.case or any(text in case for text in self.chosen.case)

    def has_time(self, case: str, kind: str = "ours") -> bool:
        passed_s = time.monotonic() - self.began
        if passed_s + CASE_S[kind] <= self.chosen.within:
            return True
        print(f"{case}: left out, {self.chosen.within - passed_s:.0f} s are left", flush=True)
        return False

    def config(self, model: dict | Path, settings: dict, length=LENGTH, batch=BATCH) -> dict:
        given = {"init": str(model)} if isinstance(model, Path) else {"model": model}
        batches = {"global_batch_size": batch, "micro_batch_size": batch}
        more = {"max_length": length, "max_steps": STEPS, "learning_rate": 1e-5} | batches
        return given | {"data": str(self.tokens)} | more | settings

    def has_room(self, case: str, config: dict) -> bool:
        """By estimate; says what it would take where it has none."""
        file = self.folder / "estimated.json"
        file.write_text(json.dumps(config))
        words = ["estimate", "--config", file, "--device", "h100-80g", "--json", "true"]
        said = subprocess.run([self.trainer_bin, *words], stdout=subprocess.PIPE, text=True)
        if said.returncode not in (0, 3):  # 3: it wouldn't fit 80 GB
            raise SystemExit(f"{case}: the estimate ended with exit code {said.returncode}")
        told = json.loads(said.stdout)
        on_host = sum(one["bytes"] for one in told["memory"] if one["on"] == "host") / 2**30
        on_gpu = told["memory_bytes"] / 2**30
        if on_gpu <= self.most_gib and on_host <= MOST_HOST_GIB:
            return True
        print(f"{case}: left out, {on_gpu:.1f} GiB, and {on_host:.1f} of the host", flush=True)
        return False

    def measure(self, case: str, config: dict) -> dict[str, float]:
        """Medians of tokens a second and mfu_causal, and the peak in GiB."""
        self.runs += 1
        where = self.folder / f"run{self.runs}"
        trace = self.chosen.trace if self.runs == 1 else None  # "again" has none
        if trace:
            config = config | {"profile_steps": 1}
        with harness.Gang(
            self.trainer_bin, config, 1, where, checkpoints=False, patience_s=QUIET_S
        ) as gang:
            gang.finish()
        middle = lambda name: sorted(list(gang.metric(name).values())[2:])[(STEPS - 2) // 2]  # noqa: E731
        rate, mfu = middle("tokens_per_s"), middle("mfu_causal")
        gib = max(gang.metric("memory_peak_bytes").values()) / 2**30
        print(f"{case:<28} {rate:>9.0f} tokens/s {mfu:>8.4f} mfu {gib:>6.1f} GiB", flush=True)
        if trace:
            try:
                keep_trace(where, trace)
            except (OSError, ValueError, KeyError) as error:
                print(f"the trace can't be kept: {error!r}", flush=True)
        return {"rate": rate, "mfu": mfu, "gib": gib}

    def tell(self, name: str, value: float, unit: str, bar: float | None, peer=None) -> None:
        one = harness.figure(f"gpu.{name}", value, unit, bar, at_most=False, peer=peer)
        print(json.dumps(one), flush=True)
        self.holds &= one["holds"]

    def compare(self) -> str:
        """With transformers; the size."""
        size = next(
            (
                one
                for one, model in SIZES.items()
                if self.has_room(f"{one}, compared", self.config(model, FULL))
            ),
            "",
        )
        if not size:
            raise SystemExit(f"no size has room in {self.most_gib:.0f} GiB")
        if not self.wants(f"{size}, compared") or not self.has_time(f"{size}, compared"):
            return size
        model, turns = SIZES[size], []
        turns.append(self.measure(f"{size}", self.config(model, FULL)))
        short = self.chosen.quick or self.chosen.within < sum(CASE_S.values()) * len(SWEPT)
        found = [
            gpu.transformers_tokens_per_s(model, LENGTH, rows, STEPS, 2 * CASE_S["theirs"])
            for rows in (SWEPT[:1] if short else SWEPT)
            if self.has_time(f"transformers with {rows} rows", "theirs")
        ]
        if self.has_time(f"{size} again"):
            turns.append(self.measure(f"{size} again", self.config(model, FULL)))
        best = max(one["rate"] for one in turns)
        theirs, peak, rows = max(found, default=(0.0, 0, 0))
        if theirs:
            told = f"ours {best:.0f}, transformers {theirs:.0f} tokens/s with {rows} rows, {peak / 2**30:.1f} GiB"
            self.tell(size, round(best / theirs, 3), "x transformers", 1.15, told)
        else:
            print("transformers trained with no number of rows; why stands above", flush=True)
            self.holds = False
        mfu = round(max(one["mfu"] for one in turns), 4)
        self.tell(f"{size} mfu_causal", mfu, "of the peak", 0.6)
        return size

    def settings_beside(self, size: str) -> None:
        cases = {f"{size}, {name}": (SIZES[size], one) for name, one in BESIDE.items()}
        cases |= {name: (gpu.QWEN_7B, one) for name, one in OF_7B.items()}
        for case, (model, settings) in cases.items():
            config = self.config(model, settings)
            if self.wants(case) and self.has_room(case, config) and self.has_time(case):
                found = self.measure(case, config)
                self.tell(case, round(found["rate"]), "tokens/s", None, f"{found['gib']:.1f} GiB")

    def adapters(self) -> None:
        init = self.folder / "llama8b"
        for case, (settings, least) in ADAPTERS.items():
            if not self.wants(case) or not self.has_time(case, "adapters"):
                continue
            if not init.exists():
                write_model(init)
            more = {"dtype": "bf16", "lora": {"rank": 16}, "recompute": "full"} | settings
            found = self.measure(case, self.config(init, more, length=4096, batch=2))
            self.tell(case, round(found["rate"]), "tokens/s", least, f"{found['gib']:.1f} GiB")


def keep_trace(run: Path, folder: Path) -> None:
    """The trace that the run wrote, packed; and its kernels' times in kernels.txt, the longest first."""
    (file,) = run.rglob("profile/*.json")
    events = json.loads(file.read_text())["traceEvents"]
    kernels: dict[str, list[float]] = {}
    for one in events:
        if one.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            kernels.setdefault(one["name"], []).append(one["dur"] / 1e3)
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        f"{sum(times):9.2f} ms {len(times):6d} times  {name[:200]}"
        for name, times in sorted(kernels.items(), key=lambda one: -sum(one[1]))
    ]
    (folder / "kernels.txt").write_text("\n".join(lines) + "\n")
    (folder / "trace.json.gz").write_bytes(gzip.compress(file.read_bytes(), 4))


def write_model(folder: Path) -> None:
    """Of 8 billion parameters. In a process of its own, whose memory is free afterwards."""
    words = "import gpu, pathlib, plain_models, sys, torch; "
    words += "plain_models.write(pathlib.Path(sys.argv[1]), gpu.LLAMA_8B, torch.bfloat16, 'cuda')"
    here = Path(__file__).resolve().parent
    subprocess.run([sys.executable, "-c", words, folder], cwd=here, check=True)


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--quick", action="store_true")
    options.add_argument("--list", action="store_true")
    options.add_argument("--case", action="append", default=[])
    options.add_argument("--most-gib", type=float, default=MOST_GIB)
    options.add_argument("--within", type=float, default=float("inf"))
    options.add_argument("--trace", type=Path)
    chosen = options.parse_args()
    if chosen.list:
        sizes = " or ".join(SIZES)
        print("\n".join([f"{sizes}, compared", *(f"{sizes}, {one}" for one in BESIDE)]))
        print("\n".join([*OF_7B, *ADAPTERS]))
        return 0
    name = gpu.name()
    if not name:
        print("no GPU here: nothing was measured")
        return 0
    if gpu_cases.BUNDLE:
        os.environ.update(gpu_cases.environment())
    print(f"machine: {name}, {harness.machine()}", flush=True)
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as scratch:
        bench = Bench(Path(scratch), chosen)
        size = bench.compare()
        if not chosen.quick:
            bench.settings_beside(size)
            bench.adapters()
    return 0 if bench.holds else 1


if __name__ == "__main__":
    sys.exit(main())
