#!/usr/bin/env python3
"""Row `partitions`: five real agents, each behind a relay of its own, cut off in every way, shorter and longer than the lease.

    partitions.py [--quick] [--unix | --tls]

On the host that is cut off run three tasks, one for each `when_unreachable` (tests/system/cuts.py). Then 60 % of the agents vanish together,
with tasks of `replace` and `wait` alone: what is fenced ends when its fence has passed, whatever became of the other hosts.

Twice, at the same time, as most of it is waiting: one user over a Unix socket; and over mutual TLS, with agents that have joined on machines of
their own (network namespaces) and three users of two teams, whose jobs run as they (tests/system/teams_over_tls.py). --quick: two of the
cuts. --unix, --tls: one of both.
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "deploy" / "local"), str(ROOT / "tests" / "system")]

from cuts import CUTS, LEASE_S, Fleet, attempts_of, lives, partition
from figures import BIN, figure, forms, none, of_form, say_failed
from local_system import Failed, LocalSystem, system_folder, wait_for
from relay import DOWN, UP
from teams_over_tls import FORM, FleetOverTls, teams_over_tls

HOSTS = [f"h0{i}" for i in range(1, 6)]
KEPT = ("replace", "wait")  # through a mass loss, however long
QUICK = (("both ways", "short"), ("to the host", "long"))


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


def cut_off(fleet: Fleet, form: str, quick: bool) -> dict:
    cells = QUICK if quick else [(cut, length) for cut in CUTS for length in ("short", "long")]
    wrong = [
        f"{cut}, {length}: {what}"
        for index, (cut, length) in enumerate(cells)
        for what in partition(fleet, cut, length, f"{form}-{index}")
    ]
    return {"cells": len(cells), "wrong": wrong, "evicted": mass_loss(fleet)}


def measure(form: str, quick: bool) -> dict:
    if form == "unix":
        with (
            system_folder() as folder,
            closing(Fleet(LocalSystem(folder, BIN), HOSTS)) as fleet,
        ):
            found = cut_off(fleet, form, quick)
            fleet.system.stop()
            return found
    with (
        teams_over_tls(BIN, HOSTS, "127.0.0.1") as system,
        closing(FleetOverTls(system, HOSTS)) as fleet,
    ):
        found = cut_off(fleet, form, quick) | {"lost": system.lost()}
        system.stop()
        return found


def tell(found: dict, quick: bool) -> bool:
    lost = found.get("lost")
    print("\n".join([*found["wrong"], *(lost or [])]))
    ok = figure(
        "cuts of a host with a task of each when_unreachable",
        found["cells"],
        "",
        "12" if not quick else "-",
        quick or found["cells"] == 12,
    )
    ok &= none(
        "things that should not have been: two attempts at once, work lost or kept wrongly",
        len(found["wrong"]),
    )
    ok &= none(
        "tasks of `replace` and `wait` evicted when 60 % of the agents vanish together",
        found["evicted"],
        "of 12",
    )
    return ok if lost is None else ok & none("hosts, users and proofs that did not last", len(lost))


def main() -> int:
    quick, asked = "--quick" in sys.argv, forms()
    try:
        with ThreadPoolExecutor(len(asked)) as threads:
            all_found = dict(zip(asked, threads.map(lambda form: measure(form, quick), asked)))
        ok = True
        for form, found in all_found.items():
            with of_form(FORM if form == "tls" else ""):
                ok &= tell(found, quick)
        return 0 if ok else 1
    except Failed as error:
        return say_failed(error)


if __name__ == "__main__":
    sys.exit(main())
