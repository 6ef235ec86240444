#!/usr/bin/env python3
"""Row `replay`: the journals of the demo and of simulated runs, decided again: the same plans and the same tables, bit for bit.

    replay.py [--quick]

The demo runs to its end and leaves its store; each of 100 seeds of the fault simulator runs on the real store, and its journal is verified
and decided again. --quick: a small system whose daemon is killed twice, in place of the demo, and 10 seeds.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "deploy" / "local"), str(ROOT / "tests" / "system")]

import small_system
from figures import BIN, figure, say_failed
from local_system import Failed, LocalSystem, kill_all, system_folder


def decided_again(folder: Path) -> tuple[int, int]:
    """(commits, plans) of the journal of the system in `folder`; (0, 0) if one differs or the tables do."""
    config = folder / "etc" / "musterd.yaml"
    for verb in ("verify", "replay"):
        done = subprocess.run(
            [BIN / "muster", "admin", verb, "--config", config], capture_output=True, text=True
        )
        print(f"muster admin {verb}: {done.stdout}{done.stderr}", end="", flush=True)
        if done.returncode != 0:
            return 0, 0
    found = re.search(r"(\d+) commits with \d+ events decided again: (\d+) plans", done.stdout)
    return int(found[1]), int(found[2])


def demo(folder: Path) -> None:
    """To its summary, and its store left there."""
    subprocess.run(
        [ROOT / "deploy/demo.sh", "--no-build", "--keep"],
        check=True,
        stdout=subprocess.DEVNULL,
        env=dict(os.environ, MUSTER_DEMO_DIR=str(folder), MUSTER_BIN_DIR=str(BIN)),
    )
    kill_all(folder)


def small(folder: Path) -> None:
    """Jobs of two queues, a gang, a failing job and a cancelled one over three starts of musterd."""
    system = LocalSystem(folder, BIN)
    small_system.start(system)
    numbers = []
    for index in range(12):
        options = {
            "queue": ("research", "prod")[index % 2],
            "workers": str(1 + index % 3),
            "exit_code": int(index % 5 == 4),
            "more": "max_restarts: 1\n",
        }
        numbers.append(small_system.submit_waiting(system, f"j{index}", **options))
        if index % 4 == 3:
            system.run(["cancel", numbers[-1]])
            system.processes["musterd"].kill()
            system.processes["musterd"].wait(10)
            system.start_musterd()
    for index in range(12):
        small_system.let_go(system, f"j{index}")
    for number in numbers:
        small_system.wait_ended(system, number, 60)
    system.stop()


def simulated(seeds: int) -> dict:
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as config:
        text = (ROOT / "tests/mutants/config").read_text()
        config.write(re.sub(r"(?m)^sqlite:.*\n", "", text) + "sqlite: 1\n")
        config.flush()
        done = subprocess.run(
            [
                BIN / "muster-sim",
                "--seed",
                "1",
                "--seeds",
                str(seeds),
                "--json",
                "--no-shrink",
                "--config",
                config.name,
            ],
            capture_output=True,
            text=True,
        )
    if not done.stdout.strip():
        sys.exit(f"muster-sim: {done.stderr[-500:]} (exit {done.returncode})")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    quick = "--quick" in sys.argv
    try:
        with system_folder() as folder:
            (small if quick else demo)(folder)
            commits, plans = decided_again(folder)
    except Failed as error:
        return say_failed(error)
    what = "a small system's" if quick else "the demo's"
    ok = figure(
        f"commits of {what} journal decided again the same, tables identical",
        commits,
        "",
        "> 0",
        commits > 0,
    )
    ok &= figure(f"plans in {what} journal", plans, "", "> 0", plans > 0)
    seeds = 10 if quick else 100
    totals = simulated(seeds)
    replayed = totals["counters"].get("commits replayed", 0)
    ok &= figure(
        "simulated runs whose journal decides the same again",
        totals["seeds"] - totals["failed"],
        f"of {seeds}",
        seeds,
        totals["seeds"] == seeds and totals["failed"] == 0 and replayed > 0,
    )
    figure("their commits", replayed, "", "-", True)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
