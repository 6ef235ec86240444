#!/usr/bin/env python3
"""Row `sim-seeds`: the fault simulator (sim/faults) over many seeds.

    sim_seeds.py [--quick | --all-large]

Speed: 20 virtual minutes, 100 hosts, 200 jobs, by CPU time, as the machine has other work. Violations: 10,000 seeds, a hundred of them of
that size, the others of the small system of tests/mutants/config, where a seed takes a tenth of a second; --all-large runs all at the full size,
which takes about four hours of a core. Rare events: each that the simulator has a name for has to happen in one of the seeds.
"""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

from figures import figure

ROOT = Path(__file__).resolve().parent.parent
SIM = Path(os.environ.get("MUSTER_BIN_DIR", ROOT / "build/release/bin")) / "muster-sim"
SMALL = ROOT / "tests/mutants/config"
SEEDS, LARGE = 10_000, 100
AT_ONCE = 500                # seeds between two words of how far it is


def run(first: int, seeds: int, config: Path | None) -> dict:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = [SIM, "--seed", str(first), "--seeds", str(seeds), "--json", "--no-shrink", *(["--config", config] if config else [])]
    done = subprocess.run(words, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if not done.stdout.strip():
        sys.exit(f"{SIM}: {done.stderr[-500:]} (exit {done.returncode})")
    totals = json.loads(done.stdout.splitlines()[-1])
    totals["cpu_s"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return totals


def run_all(size: str, seeds: int, config: Path | None) -> dict:
    """Seeds 1 to `seeds`; a line of how far it is after each AT_ONCE, for whoever waits."""
    all_totals = {"counters": {}, "seeds": 0, "failed": 0, "first_failed": 0, "virtual_s": 0, "real_s": 0, "cpu_s": 0}
    for first in range(1, seeds + 1, AT_ONCE):
        totals = run(first, min(AT_ONCE, seeds + 1 - first), config)
        if not all_totals["failed"]:
            all_totals["first_failed"] = totals["first_failed"]
        for name in ("seeds", "failed", "virtual_s", "real_s", "cpu_s"):
            all_totals[name] += totals[name]
        for name, count in totals["counters"].items():
            all_totals["counters"][name] = all_totals["counters"].get(name, 0) + count
        print(f"{all_totals['seeds']:,} of {seeds:,} seeds of the {size} system, {all_totals['failed']} failed, {all_totals['real_s']:.0f} s", file=sys.stderr, flush=True)
    return all_totals


def small_size() -> str:
    values = dict(line.split(": ") for line in SMALL.read_text().splitlines() if not line.startswith("#"))
    return f"{values['hosts']} hosts, {values['jobs']} jobs, {values['duration']}"


def main() -> int:
    quick, all_large = "--quick" in sys.argv, "--all-large" in sys.argv
    large = run_all("full", 3 if quick else SEEDS if all_large else LARGE, None)
    small = run_all("small", 50 if quick else 0 if all_large else SEEDS - LARGE, SMALL)
    speed = large["virtual_s"] / large["cpu_s"]
    counters = {name: count + small["counters"].get(name, 0) for name, count in large["counters"].items()}
    for name, count in counters.items():
        print(f"{count:>12,}  {name}")
    for size, totals in (("full", large), ("small", small)):
        if totals["failed"]:
            print(f"the first of {totals['failed']} seeds of the {size} system that broke a rule: {totals['first_failed']}")
    never = [name for name, count in counters.items() if count == 0]
    failed = large["failed"] + small["failed"]

    def seeds(of: str, totals: dict, wanted: int) -> bool:
        return figure(f"seeds of {of}", totals["seeds"], "", f"≥ {wanted:,}" if wanted else "-", totals["seeds"] >= wanted)

    ok = figure("20 virtual minutes, 100 hosts, 200 jobs, against CPU time", round(speed), "x", "≥ 500", speed >= 500)
    ok &= seeds("the row's size (100 hosts, 200 jobs, 20m)", large, 0 if quick else SEEDS if all_large else LARGE)
    ok &= seeds(f"the small system ({small_size()})", small, 0 if quick or all_large else SEEDS - LARGE)
    ok &= figure("seeds with a violation", failed, "", "0", failed == 0)
    ok &= figure("rare events that never happened" + (f" ({'; '.join(never)})" if never else ""), len(never), f"of {len(counters)}", "-" if quick else "0", quick or not never)
    first = run(7, 1, None)["digest"]
    again = run(7, 1, None)["digest"]
    ok &= figure("the same seed twice gives the same digest", int(first == again), "", "1", first == again)
    figure("wall time of all seeds", round(large["real_s"] + small["real_s"]), "s", "-", True)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
