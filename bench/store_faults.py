#!/usr/bin/env python3
"""Row `store-faults`: the store on a disk that fails at each call once; and a real musterd whose disk is full.

    store_faults.py [--quick]

The calls are those that SQLite makes of its files over two starts, fourteen commits and the upkeep between them. Each fails once in every
way it can (an error, half a write, no room), with and without the power going afterwards. The full disk is a tmpfs that is made small while
submissions are in flight, where one may be mounted, and a limit of the size of files: each has figures of its own. musterd has to end, and what
it acknowledged has to be there after a start with room.
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "deploy" / "local"), str(ROOT / "tests" / "system")]

import small_system
from figures import BIN, figure, none, say_failed
from full_disk import TMPFS, fill_and_recover, kinds
from local_system import Failed, LocalSystem, system_folder


def each_call() -> dict:
    done = subprocess.run(
        [BIN.parent / "tests" / "store_faults_test"], capture_output=True, text=True
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        sys.exit(
            f"store_faults_test: {done.stdout[-500:]} {done.stderr[-500:]} (exit {done.returncode})"
        )
    if done.returncode != 0:
        print(done.stdout[-3000:])
    return {**json.loads(lines[-1]), "passed": done.returncode == 0}


def full_disks(kind: str, rounds: int) -> bool:
    lost, acknowledged, went_on = 0, 0, 0
    for index in range(rounds):
        with system_folder() as folder:
            system = LocalSystem(folder, BIN)
            small_system.configure(system)
            # A tmpfs has to hold the log of the commits and all else; the limit is of each file.
            outcome = fill_and_recover(
                system, kind, room_bytes=8192 * index if kind == TMPFS else 8192 + 48_000 * index
            )
            system.stop()
        lost += len(outcome.lost)
        acknowledged += outcome.acknowledged
        went_on += not outcome.ended
    ok = none(
        f"full disks ({kind}) under a real musterd that it did not end at", went_on, f"of {rounds}"
    )
    return ok & figure(
        f"acknowledged submissions lost at them ({kind})",
        lost,
        f"of {acknowledged}",
        "0",
        lost == 0 and acknowledged > 0,
    )


def main() -> int:
    quick = "--quick" in sys.argv
    calls = each_call()
    ok = figure("calls of the store, each made to fail once", calls["calls"], "", "-", True)
    ok &= figure("faults, with and without loss of power", 2 * calls["faults"], "", "-", True)
    ok &= figure(
        "stores that went on after an error, lost what was acknowledged, or did not open again",
        calls["wrong"],
        "",
        "0",
        calls["passed"] and calls["wrong"] == 0,
    )
    try:
        for kind in kinds():
            ok &= full_disks(kind, rounds=1 if quick else 5)
    except Failed as error:
        return say_failed(error)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
