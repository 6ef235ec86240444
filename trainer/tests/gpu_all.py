"""Everything a lent GPU can show, in one command: the cases, several at a time, then the speed, within a time.

    gpu_all.py [--within SECONDS] [--most-gib N] OUT

    --most-gib N  lets the speed's runs take more of the GPU's memory than bench_gpu.py does by itself

OUT gets cases.log, bench.log, and a trace of one step with its kernels' times. What doesn't begin for want of time is said by name.
Exit 1 if a case failed or a bar was missed.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import bench_gpu
import gpu

TESTS = Path(__file__).resolve().parent
CASE_S = 90  # all but one of them took 18 s at most on an H200


def run(log: Path, program: str, *words: str) -> int:
    """Its exit code; its output comes here and into the file."""
    command = [sys.executable, TESTS / program, *words]
    with (
        open(log, "w") as file,
        subprocess.Popen(
            [str(word) for word in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process,
    ):
        for line in process.stdout:
            file.write(line)
            file.flush()
            print(line, end="", flush=True)
    return process.returncode


def most_gib(asked: float, memory_gib: float) -> float:
    """That a run may take: what any lent GPU has, unless more is asked for."""
    return asked or min(bench_gpu.MOST_GIB, memory_gib - 4)


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--within", type=float, default=float("inf"))
    options.add_argument("--most-gib", type=float, default=0)
    options.add_argument("out", type=Path)
    chosen = options.parse_args()
    if not gpu.name():
        print("no GPU here: nothing was measured")
        return 0
    began = time.monotonic()
    chosen.out.mkdir(parents=True, exist_ok=True)
    jobs = max(1, min(8, len(os.sched_getaffinity(0)) // 2))
    words = ["--jobs", jobs, "--limit", CASE_S, "--case", "gpu: "]
    failed = run(chosen.out / "cases.log", "gpu_cases.py", *words)
    left_s = chosen.within - (time.monotonic() - began)
    gib = most_gib(chosen.most_gib, gpu.memory_gib())
    words = ["--within", left_s, "--most-gib", gib, "--trace", chosen.out / "trace"]
    return run(chosen.out / "bench.log", "bench_gpu.py", *words) or failed


if __name__ == "__main__":
    sys.exit(main())
