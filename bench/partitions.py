#!/usr/bin/env python3
"""Row `partitions`: five real agents, each behind a relay of its own, cut off in every way, shorter and longer than the lease.

    partitions.py [--quick]

On the host that is cut off run three tasks, one for each `when_unreachable` (tests/system/cuts.py). Then 60 % of the agents vanish together,
with tasks of `replace` and `wait` alone: what is fenced ends when its fence has passed, whatever became of the other hosts. --quick: three of
the cuts.
"""

import sys
import time
from contextlib import closing
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "deploy" / "local"), str(ROOT / "tests" / "system")]

from cuts import CUTS, LEASE_S, Fleet, attempts_of, lives, partition
from figures import BIN, figure, none, say_failed
from local_system import Failed, LocalSystem, system_folder, wait_for
from relay import DOWN, UP

HOSTS = [f"h0{i}" for i in range(1, 6)]
KEPT = ("replace", "wait")  # through a mass loss, however long
QUICK = (("both ways", "short"), ("to the host", "long"), ("slow", "long"))


def mass_loss(fleet: Fleet) -> int:
    """Three of five vanish for three leases: how many attempts were replaced or ended."""
    gone = HOSTS[:3]
    numbers = fleet.start_on(
        gone, {f"mass-{index}": KEPT[index % 2] for index in range(4 * len(gone))}
    )  # as many as fit
    before = {name: lives(fleet.system, name) for name in numbers}
    began = time.time()
    for host in gone:
        fleet.relays[host].hold(UP, DOWN)
    wait_for(
        "three leases to pass",
        lambda: time.time() > began + 3 * LEASE_S and fleet.state("h01") == "HOST_UNREACHABLE",
        60,
    )
    for host in gone:
        fleet.relays[host].heal()
    for host in gone:
        wait_for(f"{host} to be back", lambda: fleet.state(host) == "HOST_UP", 60)
    for name in numbers:
        fleet.speaks(name)
    evicted = sum(
        1
        for name, number in numbers.items()
        if attempts_of(fleet, number) != 1 or lives(fleet.system, name)[1][2] != before[name][1][2]
    )
    evicted += len(fleet.finish(numbers))
    return evicted


def measure(folder: Path, quick: bool) -> int:
    with closing(Fleet(LocalSystem(folder, BIN), HOSTS)) as fleet:
        cells = QUICK if quick else [(cut, length) for cut in CUTS for length in ("short", "long")]
        wrong = [
            f"{cut}, {length}: {what}"
            for index, (cut, length) in enumerate(cells)
            for what in partition(fleet, cut, length, f"p{index}")
        ]
        for what in wrong:
            print(what)
        ok = figure(
            "cuts of a host with a task of each when_unreachable",
            len(cells),
            "",
            "12" if not quick else "-",
            quick or len(cells) == 12,
        )
        ok &= none(
            "things that should not have been: two attempts at once, work lost or kept wrongly",
            len(wrong),
        )
        evicted = mass_loss(fleet)
        ok &= none(
            "tasks of `replace` and `wait` evicted when 60 % of the agents vanish together",
            evicted,
            "of 12",
        )
        fleet.system.stop()
        return 0 if ok else 1


def main() -> int:
    try:
        with system_folder() as folder:
            return measure(folder, "--quick" in sys.argv)
    except Failed as error:
        return say_failed(error)


if __name__ == "__main__":
    sys.exit(main())
