#!/usr/bin/env python3
"""Row `secrets`: secrets given to jobs in every way, and all that others may read searched for them.

    secrets_found.py [--quick]

On one host with jobs of two users (tests/system/planted_secrets.py). Then a breach is planted: the same value in a job's environment, which has to be found.
--quick: the same. Needs root.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "deploy" / "local"), str(ROOT / "tests" / "system")]

from figures import BIN, figure, none, say_failed
from local_system import Failed
from planted_secrets import planted

PROCESSES = 6  # that get one each


def main() -> int:
    if os.geteuid() != 0:
        return say_failed(Failed("needs root, to be several users"))
    try:
        with planted(BIN) as plants:
            proved, wrong, found = plants.all_ways()
            ways = len(plants.values)
        with planted(BIN) as plants:
            breach = plants.all_ways(unsealed="from_stdin")[2]
    except (Failed, AssertionError) as error:
        return say_failed(error)
    print("\n".join([*wrong, *found]))
    ok = figure(
        "processes that have the value they should",
        proved,
        f"of {PROCESSES}",
        PROCESSES,
        proved == PROCESSES and not wrong,
    )
    ok &= none("places where one was found", len(found), f"of {ways} values")
    print("the planted breach: " + (breach[0] if breach else "not found"))
    ok &= figure(
        "places where the planted breach was found", len(breach), "", "at least 1", bool(breach)
    )
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
