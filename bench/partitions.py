#!/usr/bin/env python3
"""Row `partitions`: five real agents, each behind a relay of its own, cut off in every way, shorter and longer than the lease.

    partitions.py [--quick]

On the host that is cut off run three tasks, one for each `when_unreachable`; they tell every 50 ms that they live, so that what ran when is
known. Then 60 % of the agents vanish together. --quick: three of the cuts.
"""

import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "deploy" / "demo"), str(ROOT / "tests" / "system")]

from figures import figure, say_failed  # noqa: E402
from local_system import Failed, LocalSystem, system_folder, wait_for  # noqa: E402
from relay import CLIENT, DOWN, SERVER, UP, Relay  # noqa: E402
from small_system import configure, submit, task, wait_ended  # noqa: E402

BIN = Path(os.environ.get("MUSTER_BIN_DIR", ROOT / "build/release/bin")).resolve()
HOSTS = [f"h0{i}" for i in range(1, 6)]
LEASE_S, FENCE_AFTER_S, GRACE_S, KILL_S = 4, 10, 1, 5
FENCED_S = FENCE_AFTER_S + GRACE_S + KILL_S + 1    # what the scheduler waits for a fence, with its tick
SCHEDULING = f"grow_interval: 1s, min_runtime: 0s, lease: {LEASE_S}s, heartbeat: 1s, restart_backoff: 200ms"
RULES = ("replace", "wait", "fence")
CUTS = {
    "client side": lambda relay: relay.break_off(CLIENT),
    "server side": lambda relay: relay.break_off(SERVER),
    "both ways": lambda relay: relay.hold(UP, DOWN),
    "from the host": lambda relay: relay.hold(UP),
    "to the host": lambda relay: relay.hold(DOWN),
    "slow": lambda relay: relay.slow(0.2),
}
QUICK = (("both ways", "short"), ("to the host", "long"), ("slow", "long"))


def job(system: LocalSystem, name: str, rule: str) -> str:
    """Says `attempt pid time` every 50 ms until it is let go."""
    more = f"fence_after: {FENCE_AFTER_S}s\n" if rule == "fence" else ""
    return f"""\
name: {name}
queue: default
resources: {{gpus: 1, gpu_types: [cpu-slot]}}
when_unreachable: {rule}
grace: {GRACE_S}s
{more}run: |
  trap 'exit 0' TERM
  while [ ! -e {system.folder}/{name}.go ]; do
    echo "$MUSTER_ATTEMPT $$ ${{EPOCHREALTIME}}" >> {system.folder}/{name}.lives
    read -r -t 0.05 <> <(:) || true
  done
"""


def lives(system: LocalSystem, name: str) -> dict[int, tuple[float, float, set[int]]]:
    """{attempt: (first, last word, pids)}"""
    found: dict[int, tuple[float, float, set[int]]] = {}
    path = system.folder / f"{name}.lives"
    for line in path.read_text().splitlines() if path.exists() else []:
        words = line.split()
        if len(words) != 3:
            continue
        attempt, at = int(words[0]), float(words[2])
        first, _, pids = found.get(attempt, (at, at, set()))
        found[attempt] = (first, at, pids | {int(words[1])})
    return found


def overlap(attempts: dict[int, tuple[float, float, set[int]]]) -> bool:
    ordered = sorted(attempts.values())
    return any(later[0] <= earlier[1] for earlier, later in zip(ordered, ordered[1:])) or any(len(pids) > 1 for _, _, pids in ordered)


class Fleet:
    def __init__(self, folder: Path):
        self.system = LocalSystem(folder, BIN)
        configure(self.system, "queues: [{name: default, submit: ['*']}]\n", hosts=HOSTS, slots=4, scheduling=SCHEDULING)
        self.system.start_musterd()
        self.relays = {host: Relay(folder / f"{host}.sock", self.system.socket) for host in HOSTS}
        direct = self.system.server
        for host in HOSTS:
            self.system.server = f"unix://{folder}/{host}.sock"
            self.system.start_agent("lab", host)
        self.system.server = direct
        self.system.wait_hosts_up({f"lab/{host}" for host in HOSTS})

    def start_on(self, hosts: list[str], jobs: dict[str, str]) -> dict[str, str]:
        """{name: rule} as jobs whose processes run on these hosts alone: {name: number}."""
        others = [f"lab/{other}" for other in HOSTS if other not in hosts]
        for other in others:
            self.system.run(["host", "drain", other])
        numbers = {name: submit(self.system, job(self.system, name, rule), name) for name, rule in jobs.items()}
        for name in jobs:
            wait_for(f"{name} to run", lambda: lives(self.system, name), 20)
        for other in others:
            self.system.run(["host", "resume", other])
        return numbers

    def state(self, host: str) -> str:
        return next(h["state"] for h in self.system.hosts() if h["name"] == f"lab/{host}")

    def newest(self, name: str) -> int:
        return max(lives(self.system, name))

    def speaks(self, name: str) -> None:
        """Its newest attempt goes on now."""
        before = lives(self.system, name)[self.newest(name)][1]
        wait_for(f"{name} to go on", lambda: lives(self.system, name)[self.newest(name)][1] > before, 10)

    def finish(self, numbers: dict[str, str]) -> list[str]:
        """Lets them end; what did not succeed."""
        for name in numbers:
            (self.system.folder / f"{name}.go").touch()
        return [name for name, number in numbers.items() if wait_ended(self.system, number, 60)["state"] != "SUCCEEDED"]


def attempts_of(fleet: Fleet, number: str) -> int:
    return len(task(fleet.system.job(number))["attempts"])


def partition(fleet: Fleet, cut: str, length: str, tag: str) -> list[str]:
    """One cell of the matrix; what was wrong in it."""
    wrong = []
    jobs = {f"{tag}-{rule}": rule for rule in RULES}
    numbers = fleet.start_on(["h01"], jobs)
    relay = fleet.relays["h01"]
    moves = length == "long" and cut != "slow"
    CUTS[cut](relay)
    began = time.time()
    if moves:
        # Lost only once it is, and `fence` only once its shim has ended it.
        wait_for("the replacement of `replace`", lambda: fleet.newest(f"{tag}-replace") == 2, 3 * LEASE_S + 20)
        wait_for("the replacement of `fence`", lambda: fleet.newest(f"{tag}-fence") == 2, FENCED_S + 3 * LEASE_S + 30)
    else:
        wait_for("the cut to last", lambda: time.time() > began + (0.5 * LEASE_S if length == "short" else 2 * LEASE_S), 60)
    cut_s = time.time() - began
    relay.heal()
    wait_for("h01 to be back", lambda: fleet.state("h01") == "HOST_UP", 60)
    for name, rule in jobs.items():
        fleet.speaks(name)
        ran = lives(fleet.system, name)
        if rule != "replace" and overlap(ran):
            wrong.append(f"{rule}: two attempts at once: {ran}")
        wanted = 2 if moves and rule != "wait" else 1
        if len(ran) != wanted or attempts_of(fleet, numbers[name]) != wanted:
            wrong.append(f"{rule}: {len(ran)} attempts ran, {wanted} should have")
    wrong += [f"{name} did not succeed" for name in fleet.finish(numbers)]
    for name, rule in jobs.items():
        if rule != "replace" and overlap(lives(fleet.system, name)):
            wrong.append(f"{rule}: two attempts at once")
    print(f"{cut}, {length} ({cut_s:.1f} s): {wrong or 'as it should be'}", flush=True)
    return wrong


def mass_loss(fleet: Fleet) -> int:
    """Three of five vanish for three leases: how many attempts were replaced or ended."""
    gone = HOSTS[:3]
    numbers = fleet.start_on(gone, {f"mass-{index}": RULES[index % 2] for index in range(4 * len(gone))})    # as many as fit
    before = {name: lives(fleet.system, name) for name in numbers}
    began = time.time()
    for host in gone:
        fleet.relays[host].hold(UP, DOWN)
    wait_for("three leases to pass", lambda: time.time() > began + 3 * LEASE_S and fleet.state("h01") == "HOST_UNREACHABLE", 60)
    for host in gone:
        fleet.relays[host].heal()
    for host in gone:
        wait_for(f"{host} to be back", lambda: fleet.state(host) == "HOST_UP", 60)
    for name in numbers:
        fleet.speaks(name)
    evicted = sum(1 for name, number in numbers.items() if attempts_of(fleet, number) != 1 or lives(fleet.system, name)[1][2] != before[name][1][2])
    evicted += len(fleet.finish(numbers))
    return evicted


def measure(folder: Path, quick: bool) -> int:
    with ExitStack() as stack:
        fleet = Fleet(folder)
        for relay in fleet.relays.values():
            stack.callback(relay.close)
        cells = QUICK if quick else [(cut, length) for cut in CUTS for length in ("short", "long")]
        wrong = [f"{cut}, {length}: {what}" for index, (cut, length) in enumerate(cells) for what in partition(fleet, cut, length, f"p{index}")]
        for what in wrong:
            print(what)
        ok = figure("cuts of a host with a task of each when_unreachable", len(cells), "", "12" if not quick else "-", quick or len(cells) == 12)
        ok &= figure("things that should not have been: two attempts at once, work lost or kept wrongly", len(wrong), "", "0", not wrong)
        evicted = mass_loss(fleet)
        ok &= figure("tasks evicted when 60 % of the agents vanish together", evicted, "of 12", "0", evicted == 0)
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
