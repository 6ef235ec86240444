#!/usr/bin/env python3
"""Row `fuzzers`: bench/fuzz.sh over every target.

    fuzzers.py [--quick]

Executions are added up over runs in tests/fuzz/tally.json, each run beginning with the corpora that are kept: a run that was ended goes on
where it was, but for the slice that it was in, and a target that has enough is not run. One that crashed is not run either, and fails the row until its line is taken out. To begin anew: echo '{}' > tests/fuzz/tally.json

--quick: the targets as they were built with the tests, which mutate their corpora without looking at branches, 20,000 runs each.
"""

import itertools
import json
import os
import subprocess
import sys

from figures import BIN, ROOT, at_most, figure, none

TALLY = ROOT / "tests/fuzz/tally.json"
RUNS, SLICE_S = 10_000_000, 300
# Bytes, of every so many slices: most branches are a few bytes away from another input, and a short one takes a quarter of a long one's time.
LONG, SHORT, LONG_EVERY = 4096, 512, 8


def quick(targets: list[str]) -> list[dict]:
    results = []
    for target in targets:
        done = subprocess.run(
            [
                BIN.parent / "tests" / f"fuzz_{target}",
                "--runs",
                "20000",
                ROOT / "tests/fuzz/corpus" / target,
            ],
            capture_output=True,
            text=True,
        )
        results.append(
            {"target": target, "runs": 20_000, "peak_rss_mb": 0, "crashed": done.returncode != 0}
        )
        print(f"{target}: {done.stdout.strip() or done.stderr[-500:]}", flush=True)
    return results


def long(targets: list[str]) -> list[dict]:
    """Adds to what tests/fuzz/tally.json says was executed before, a slice at a time, until each target has RUNS or crashed."""
    tally = json.loads(TALLY.read_text())
    for number in itertools.count(1):
        short = sorted(
            (one.get("runs", 0), target)
            for target in targets
            if not (one := tally.get(target, {})).get("crashed")
        )
        short = [target for runs, target in short if runs < RUNS][: os.cpu_count()]
        if not short:
            return [{"target": target, "crashed": False, **tally[target]} for target in targets]
        left = RUNS - min(tally.get(target, {}).get("runs", 0) for target in short)
        limits = [
            "--runs",
            str(left),
            "--seconds",
            str(SLICE_S),
            "--max-len",
            str(SHORT if number % LONG_EVERY else LONG),
        ]
        run = subprocess.run(
            [ROOT / "bench/fuzz.sh", *limits, *short], stdout=subprocess.PIPE, text=True
        )
        if not run.stdout:
            sys.exit("bench/fuzz.sh said nothing; its reason is above")
        for line in run.stdout.splitlines():
            print(line, flush=True)
            result = json.loads(line)
            before = tally.get(result["target"], {"runs": 0, "peak_rss_mb": 0})
            tally[result["target"]] = {
                "runs": before["runs"] + result["runs"],
                "peak_rss_mb": max(before["peak_rss_mb"], result["peak_rss_mb"]),
                "crashed": result["crashed"],
            }
        TALLY.write_text(json.dumps(tally, indent=1, sort_keys=True) + "\n")


def main() -> int:
    targets = sorted(path.name for path in (ROOT / "tests/fuzz/corpus").iterdir())
    results = quick(targets) if "--quick" in sys.argv else long(targets)
    fewest = min((result["runs"] for result in results), default=0)
    crashed = [result["target"] for result in results if result["crashed"]]
    ok = figure("fuzz targets", len(results), "", len(targets), len(results) == len(targets))
    ok &= figure(
        "fewest executions of one",
        fewest,
        "",
        "≥ 10,000,000" if "--quick" not in sys.argv else "-",
        "--quick" in sys.argv or fewest >= RUNS,
    )
    ok &= none("targets that crashed, leaked, hung or held more than 1 GiB", len(crashed))
    peak_mb = max((result["peak_rss_mb"] for result in results), default=0)
    ok &= at_most("most memory that one held", peak_mb, "MB", 1024)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
