#!/usr/bin/env python3
"""Row `sim-seeds`: the fault simulator (sim/faults) over many seeds.

    sim_seeds.py [--quick | --all-large] [--seed N]

Speed: 20 virtual minutes, 100 hosts, 200 jobs, by CPU time, as the machine has other work. Violations: 10,000 seeds, a hundred of them of
that size, the others of the small system of tests/mutants/config, where a seed takes a tenth of a second; --all-large runs all at the full size,
which takes about five hours of a core: a run that was ended goes on where it was, as long as muster-sim is the same. Rare events: each that
the simulator has a name for has to happen in one of the seeds.

Jobs are of three users, whose keys have the same names; in some seeds one of the clusters is one user's. Nothing of it is over TLS: certificates
and OpenSSL know no virtual clock. `partitions` and `kill-*` have several users and TLS.

The seeds are other ones at each run, counted from a first one that is drawn and printed: those that somebody has looked at have been mended
against. --seed N runs those from N on again.
"""

import concurrent.futures
import hashlib
import json
import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

from figures import BIN, ROOT, at_least, figure, none

SIM = BIN / "muster-sim"
SMALL = ROOT / "tests/mutants/config"
SEEDS, LARGE = 10_000, 100
AT_ONCE, LARGE_AT_ONCE = 500, 50  # seeds between two words of how far it is


def run(first: int, seeds: int, config: Path | None) -> dict:
    words = [
        SIM,
        "--seed",
        str(first),
        "--seeds",
        str(seeds),
        "--json",
        "--no-shrink",
        *(["--config", config] if config else []),
    ]
    done = subprocess.run(words, capture_output=True, text=True)
    if not done.stdout.strip():
        sys.exit(f"{SIM}: {done.stderr[-500:]} (exit {done.returncode})")
    return json.loads(done.stdout.splitlines()[-1])


def kept_parts() -> tuple[Path, dict]:
    """What an earlier --all-large of this same program has run, by the first seed of each part: hours of work go on where they ended."""
    program = hashlib.sha256(SIM.read_bytes()).hexdigest()
    file = ROOT / "build" / "sim-seeds.json"
    kept = json.loads(file.read_text()) if file.exists() else {}
    return file, kept if kept.get("program") == program else {"program": program, "parts": {}}


def run_all(base: int, size: str, seeds: int, config: Path | None, keep: bool = False) -> dict:
    """So many seeds from `base` on, as many parts at a time as there are cores; a line of how far it is after each, for whoever waits."""
    totals = {"counters": {}, "seeds": 0, "failed": 0, "first_failed": 0, "virtual_s": 0}
    at_once = AT_ONCE if config else LARGE_AT_ONCE
    file, kept = kept_parts() if keep else (None, {"parts": {}})
    kept["base"] = base
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    kept_s, kept_cpu_s = kept.get("wall_s", 0), kept.get("cpu_s", 0)

    def used() -> tuple[float, float]:
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        return (
            kept_s + time.monotonic() - began,
            kept_cpu_s + now.ru_utime + now.ru_stime - before.ru_utime - before.ru_stime,
        )

    def part(first: int) -> tuple[int, dict]:
        done = kept["parts"].get(str(first))
        return first, done or run(first, min(at_once, base + seeds - first), config)

    pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count())
    try:
        for future in concurrent.futures.as_completed(
            [pool.submit(part, first) for first in range(base, base + seeds, at_once)]
        ):
            first, done = future.result()
            if done["failed"] and (
                not totals["failed"] or done["first_failed"] < totals["first_failed"]
            ):
                totals["first_failed"] = done["first_failed"]
            for name in ("seeds", "failed", "virtual_s"):
                totals[name] += done[name]
            for name, count in done["counters"].items():
                totals["counters"][name] = totals["counters"].get(name, 0) + count
            if keep:
                kept["parts"][str(first)] = done
                kept["wall_s"], kept["cpu_s"] = used()
                file.with_suffix(".part").write_text(json.dumps(kept))
                file.with_suffix(".part").replace(file)
            print(
                f"{totals['seeds']:,} of {seeds:,} seeds of the {size} system, {totals['failed']} failed, {used()[0]:.0f} s",
                file=sys.stderr,
                flush=True,
            )
    finally:
        pool.shutdown(cancel_futures=True)
    if file:
        file.unlink()  # it is done: the next one begins anew
    totals["real_s"], totals["cpu_s"] = used()
    return totals


def first_seed(keep: bool) -> int:
    """The one that was asked for, or that of the run that goes on, or any."""
    if "--seed" in sys.argv:
        return int(sys.argv[sys.argv.index("--seed") + 1])
    kept = kept_parts()[1] if keep else {}
    return kept.get("base", random.SystemRandom().randrange(1, 1 << 48))


def small_size() -> str:
    values = dict(
        line.split(": ") for line in SMALL.read_text().splitlines() if not line.startswith("#")
    )
    return f"{values['hosts']} hosts, {values['jobs']} jobs, {values['duration']}"


def main() -> int:
    quick, all_large = "--quick" in sys.argv, "--all-large" in sys.argv
    base = first_seed(all_large and not quick)
    print(f"seeds from {base} on; again: --seed {base}", flush=True)
    large = run_all(
        base,
        "full",
        3 if quick else SEEDS if all_large else LARGE,
        None,
        keep=all_large and not quick,
    )
    small = run_all(base, "small", 50 if quick else 0 if all_large else SEEDS - LARGE, SMALL)
    speed = large["virtual_s"] / large["cpu_s"]
    counters = {
        name: count + small["counters"].get(name, 0) for name, count in large["counters"].items()
    }
    for name, count in counters.items():
        print(f"{count:>12,}  {name}")
    for size, totals in (("full", large), ("small", small)):
        if totals["failed"]:
            print(
                f"the first of {totals['failed']} seeds of the {size} system that broke a rule: {totals['first_failed']}"
            )
    never = [name for name, count in counters.items() if count == 0]
    failed = large["failed"] + small["failed"]

    def seeds(of: str, totals: dict, wanted: int) -> bool:
        return figure(
            f"seeds of {of}",
            totals["seeds"],
            "",
            f"≥ {wanted:,}" if wanted else "-",
            totals["seeds"] >= wanted,
        )

    ok = at_least(
        "20 virtual minutes, 100 hosts, 200 jobs, against CPU time", speed, "x", 500, places=0
    )
    ok &= seeds(
        "the row's size (100 hosts, 200 jobs, 20m)",
        large,
        0 if quick else SEEDS if all_large else LARGE,
    )
    ok &= seeds(
        f"the small system ({small_size()})", small, 0 if quick or all_large else SEEDS - LARGE
    )
    ok &= none("seeds with a violation", failed)
    ok &= figure(
        "rare events that never happened" + (f" ({'; '.join(never)})" if never else ""),
        len(never),
        f"of {len(counters)}",
        "-" if quick else "0",
        quick or not never,
    )
    first = run(7, 1, None)["digest"]
    again = run(7, 1, None)["digest"]
    ok &= figure(
        "the same seed twice gives the same digest", int(first == again), "", "1", first == again
    )
    figure("wall time of all seeds", round(large["real_s"] + small["real_s"]), "s", "-", True)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
