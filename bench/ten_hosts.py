#!/usr/bin/env python3
"""Row `ten-hosts`: ten machines join by one line each; a gang trains over all ten; two clusters of five, three users in two teams.

    ten_hosts.py [--quick] [--demo]

The machines are namespaces (network, mounts, processes, hostname). Ten in one cluster run torch.distributed over Gloo. Then two clusters of five,
whose agents run jobs as their owners: a gang over four hosts, teams that don't see each other's jobs, a host that dies, one that is cut off, a
rotation of the authority, a musterd that moves to another address. --quick: the gang trains on four of the ten.
--demo: in words, as `deploy/demo.sh --hosts 10` shows it.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "deploy" / "local"), str(ROOT / "tests" / "system")]

from figures import BIN, figure, say_failed
from local_system import Failed, LocalSystem, kill_all, system_folder
from namespaces import machines, why_not
from ten_hosts import TEAMS, TenHosts

DEMO = "--demo" in sys.argv
HOSTS = [f"h{number:02}" for number in range(1, 11)]
JOIN_S = 5


def tell(what: str, value, unit: str, bar: str, holds: bool) -> bool:
    if not DEMO:
        return figure(what, value, unit, bar, holds)
    print(f"{'ok   ' if holds else 'FAILS'}  {what}: {value} {unit} ({bar})", flush=True)
    return holds


def fleet(clusters: dict[str, list[str]], single_user: bool, scenes: Callable) -> bool:
    names = ["m", "m2", *(host for hosts in clusters.values() for host in hosts)]
    # Not below /tmp: agents of several users want their state elsewhere.
    with system_folder("/srv") as folder, machines(names) as made:
        system = LocalSystem(folder, BIN)
        try:
            net = TenHosts(system, made, clusters, single_user)
            net.start()
            longest = max(net.join(host) for host in net.hosts)
            what = f"longest join of {len(net.hosts)} hosts in {len(clusters)} cluster(s)"
            ok = tell(what, round(longest, 2), "s", f"<= {JOIN_S}", longest <= JOIN_S)
            return scenes(net) and ok
        finally:
            kill_all(folder)


def scene(what: str, run: Callable[[], None]) -> bool:
    """It holds, or it says why not."""
    began = time.monotonic()
    try:
        run()
        return tell(what, round(time.monotonic() - began, 1), "s", "it holds", True)
    except (AssertionError, Failed) as error:
        print(f"{what}: {error}")
        return tell(what, "no", "", "it holds", False)


def teams(net: TenHosts) -> bool:
    for user, team in TEAMS.items():
        net.log_in(user, "h01", team)
    if DEMO:
        print(
            "Hosts, as musterd sees them:\n" + net.system.run(["host", "list"]).stdout, flush=True
        )
    held = [
        scene("a gang over four hosts, as its owner", lambda: net.gang_meets("ann", 4)),
        scene("two teams that are apart", net.teams_are_apart),
        scene("a host dies; its gang goes on elsewhere", net.dying_host),
        scene("a host is cut off and comes back", lambda: net.cut_host("h07")),
        scene("the authority is replaced while a job runs", lambda: net.runs_on(net.rotates)),
        scene("musterd moves while a job runs", lambda: net.runs_on(net.moves)),
    ]
    return all(held)


def main() -> int:
    if why_not():
        return say_failed(Failed(why_not()))
    python = os.environ.get("MUSTER_PYTHON", sys.executable)
    many = 4 if "--quick" in sys.argv else 10
    try:
        held = [
            fleet(
                {"lab": HOSTS[:many]},
                True,
                lambda net: scene(
                    f"a gang trains over {many} hosts", lambda: net.gang_trains(python, many)
                ),
            ),
            fleet({"east": HOSTS[:5], "west": HOSTS[5:]}, False, teams),
        ]
    except Failed as error:
        return say_failed(error)
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
