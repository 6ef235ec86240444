#!/usr/bin/env python3
"""Row `sim-seeds`: the fault simulator (sim/faults) over many seeds.

    sim_seeds.py [--quick]

Speed: 20 virtual minutes, 100 hosts, 200 jobs, by CPU time, as the machine has other work. Violations: 10,000 seeds, those of the small
system of tests/mutants/config, where a seed takes a fraction of a second, and every hundredth with the full system.
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
SEEDS, LARGE = 10_000, 100


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


def main() -> int:
    quick = "--quick" in sys.argv
    large = run(1, 3 if quick else LARGE, None)
    speed = large["virtual_s"] / large["cpu_s"]
    small = run(1, 50 if quick else SEEDS - LARGE, ROOT / "tests/mutants/config")
    counters = {name: large["counters"].get(name, 0) + small["counters"].get(name, 0) for name in {**large["counters"], **small["counters"]}}
    for name, count in sorted(counters.items()):
        print(f"{count:>12,}  {name}")
    for size, totals in (("full", large), ("small", small)):
        if totals["failed"]:
            print(f"the first of {totals['failed']} seeds of the {size} system that broke a rule: {totals['first_failed']}")
    seeds = large["seeds"] + small["seeds"]
    failed = large["failed"] + small["failed"]
    ok = figure("20 virtual minutes, 100 hosts, 200 jobs, against CPU time", round(speed), "x", "≥ 500", speed >= 500)
    ok &= figure("seeds", seeds, "", "≥ 10,000" if not quick else "-", quick or seeds >= SEEDS)
    ok &= figure("seeds with a violation", failed, "", "0", failed == 0)
    first = run(7, 1, None)["digest"]
    ok &= figure("the same seed twice gives the same digest", int(first == run(7, 1, None)["digest"]), "", "1", first == run(7, 1, None)["digest"])
    figure("wall time of all seeds", round(large["real_s"] + small["real_s"]), "s", "-", True)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
