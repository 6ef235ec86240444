#!/usr/bin/env python3
"""Row `fuzzers`: bench/fuzz.sh over every target.

    fuzzers.py [--quick]

--quick: the targets as they were built with the tests, which mutate their corpora without looking at branches, 20,000 runs each.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from figures import figure

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(os.environ.get("MUSTER_BIN_DIR", ROOT / "build/release/bin")).resolve()
RUNS = 10_000_000


def quick(targets: list[str]) -> list[dict]:
    results = []
    for target in targets:
        done = subprocess.run([BIN.parent / "tests" / f"fuzz_{target}", "--runs", "20000", ROOT / "tests/fuzz/corpus" / target], capture_output=True, text=True)
        results.append({"target": target, "runs": 20_000, "peak_rss_mb": 0, "crashed": done.returncode != 0})
        print(f"{target}: {done.stdout.strip() or done.stderr[-500:]}", flush=True)
    return results


def long() -> list[dict]:
    results = []
    with subprocess.Popen([ROOT / "bench/fuzz.sh", "--runs", str(RUNS)], stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            results.append(json.loads(line))
    return results


def main() -> int:
    targets = sorted(path.name for path in (ROOT / "tests/fuzz/corpus").iterdir())
    results = quick(targets) if "--quick" in sys.argv else long()
    fewest = min((result["runs"] for result in results), default=0)
    crashed = [result["target"] for result in results if result["crashed"]]
    ok = figure("fuzz targets", len(results), "", len(targets), len(results) == len(targets))
    ok &= figure("fewest executions of one", fewest, "", "≥ 10,000,000" if "--quick" not in sys.argv else "-", "--quick" in sys.argv or fewest >= RUNS)
    ok &= figure("targets that crashed, leaked, hung or held more than 1 GiB", len(crashed), "", "0", not crashed)
    figure("most memory that one held", max((result["peak_rss_mb"] for result in results), default=0), "MB", "≤ 1024", True)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
