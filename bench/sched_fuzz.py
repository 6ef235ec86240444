#!/usr/bin/env python3
"""Rows `sched-fuzz`, `ledger` and `determinism`: random systems under the real State, Apply, Decide and Validate.

    sched_fuzz.py rules|ledger|determinism [--quick]

Runs bin/sched-fuzz (scheduler/decide/testing/fuzz.h says what a case is and what is checked after each step).
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from figures import BIN, ROOT, at_most, figure

TREES, STEPS, EVENTS = 200_000, 10_000_000, 1_000_000


def fuzz(*words, binary=BIN / "sched-fuzz", env=None):
    """Totals of a run; violations are passed on."""
    run = subprocess.run([binary, *map(str, words)], capture_output=True, text=True, env=env)
    for line in run.stdout.splitlines():
        if not line.startswith("{"):
            print(line, flush=True)
    totals = [line for line in run.stdout.splitlines() if line.startswith("{")]
    if not totals:
        sys.exit(f"{binary}: {run.stderr.strip()[-500:]} (exit {run.returncode})")
    return json.loads(totals[-1])


def rules(quick: bool) -> bool:
    totals = fuzz(
        1, 10**9 if quick else TREES, "--violations=20", *(["--seconds=40"] if quick else [])
    )
    trees, steps = (1000, 30_000) if quick else (TREES, STEPS)
    ratio = totals["evicted_milli"] / max(1, totals["requested_milli"])
    print(
        f"{totals['starts']:,} starts, {totals['backfills']:,} backfilled, {totals['evictions']:,} evicted whole, {totals['shrinks']:,} shrunk, {totals['moves']:,} moved, "
        f"{totals['growths']:,} grown, {totals['spills']:,} spilled, {totals['lost']:,} lost, {totals['reservations']:,} reservations told; "
        f"{totals['entitled_waiting']} of {totals['entitled']} units of S without a place when settled; {totals['seconds']} s"
    )
    ok = figure(
        "random trees",
        totals["trees"],
        "",
        f"≥ {trees:,}",
        totals["trees"] >= trees,
        peer="144,624 cases (our prototype)",
    )
    ok &= figure("steps", totals["steps"], "", f"≥ {steps:,}", totals["steps"] >= steps)
    ok &= figure(
        "rule violations, livelocks among them",
        totals["violations"],
        "",
        "0",
        totals["violations"] == 0,
        peer="livelocks in Kueue, KAI, Volcano, YARN issues",
    )
    ok &= at_most("evicted / requested", ratio, "", 1.5, "1.17 (our prototype)", places=3)
    ok &= figure(
        "decisions until it settles, most",
        totals["steps_to_settle_max"],
        "",
        "-",
        True,
        peer="19 (our prototype)",
    )
    tests = subprocess.run(
        [BIN.parent / "tests" / "rounds_test", "--gtest_filter=Defects.*"],
        capture_output=True,
        text=True,
    )
    passed = tests.stdout.count("[       OK ]")
    return ok & figure(
        "Peloton's defects that don't come back",
        passed,
        "of 8",
        "8",
        passed == 8 and tests.returncode == 0,
    )


def ledger(quick: bool) -> bool:
    totals = fuzz(10**9, 2 * 10**9, *(["--seconds=40"] if quick else [f"--steps={STEPS}"]))
    steps = 30_000 if quick else STEPS
    return figure(
        "steps after which the ledger's classes sum to capacity, in all and host by host",
        totals["steps"],
        "",
        f"≥ {steps:,}, all of them",
        totals["violations"] == 0 and totals["steps"] >= steps,
    )


def clang_build() -> Path | None:
    """bin/sched-fuzz built by clang in build/clang; None where there is no clang."""
    names = [
        name for name in ("clang++", "clang++-19", "clang++-16", "clang++-14") if shutil.which(name)
    ]
    if not names:
        return None
    folder = ROOT / "build" / "clang"
    cache = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    subprocess.run(
        [
            "cmake",
            "-G",
            "Ninja",
            "-S",
            ROOT,
            "-B",
            folder,
            "-DMUSTER_TRAINER=OFF",
            "-DMUSTER_DAEMONS=OFF",
            "-DCMAKE_BUILD_TYPE=None",
            "-DCMAKE_CXX_FLAGS=-O2 -g1",
            f"-DCMAKE_CXX_COMPILER={names[0]}",
            *cache,
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    subprocess.run(
        ["ninja", "-C", folder, "-j1", "sched-fuzz"], check=True, stdout=subprocess.DEVNULL
    )
    return folder / "bin" / "sched-fuzz"


def determinism(quick: bool) -> bool:
    events = 30_000 if quick else EVENTS
    words = (1, 10**9, f"--events={events}")
    base = fuzz(*words)
    ok = figure("events of the run", base["events"], "", f"≥ {events:,}", base["events"] >= events)
    # A new process has another address space, and so other seeds of absl's and protobuf's hashes. malloc fills what it hands out.
    other = fuzz(
        *words,
        env=dict(os.environ, MALLOC_PERTURB_="165", MALLOC_ARENA_MAX="1", GLIBCXX_TUNABLES=""),
    )
    ok &= figure(
        "same plans in a second process: addresses and hash seeds differ",
        other["digest"],
        "",
        base["digest"],
        other["digest"] == base["digest"],
    )
    if (
        shutil.which("setarch")
        and subprocess.run(["setarch", "-R", "true"], capture_output=True).returncode == 0
    ):
        fixed = subprocess.run(
            ["setarch", "-R", BIN / "sched-fuzz", *map(str, words)], capture_output=True, text=True
        )
        digest = (
            json.loads(fixed.stdout.splitlines()[-1])["digest"]
            if fixed.returncode == 0
            else f"exit {fixed.returncode}"
        )
        ok &= figure(
            "same plans without address randomisation",
            digest,
            "",
            base["digest"],
            digest == base["digest"],
        )
    if not quick:
        clang = clang_build()
        if clang is None:
            print("no clang here (`deploy/setup.sh --fuzz` installs one): not compared")
            return figure("same plans built by clang", "not compared", "", base["digest"], False)
        digest = fuzz(*words, binary=clang)["digest"]
        ok &= figure(
            "same plans built by clang", digest, "", base["digest"], digest == base["digest"]
        )
    return ok


if __name__ == "__main__":
    began = time.monotonic()
    fine = {"rules": rules, "ledger": ledger, "determinism": determinism}[sys.argv[1]](
        "--quick" in sys.argv
    )
    print(f"{time.monotonic() - began:.0f} s")
    sys.exit(0 if fine else 1)
