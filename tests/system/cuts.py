"""Real agents, each behind a relay of its own, one of which is cut off while tasks of each `when_unreachable` run on its host.

The tasks tell every 50 ms that they live, so that what ran when is known.
"""

import time

from local_system import LocalSystem, wait_for
from relay import CLIENT, DOWN, SERVER, UP, Relay, unix_relay
from small_system import configure, submit, task, wait_ended

LEASE_S, FENCE_AFTER_S, GRACE_S, KILL_S = 4, 10, 1, 5
FENCED_S = (
    FENCE_AFTER_S + GRACE_S + KILL_S + 1
)  # what the scheduler waits for a fence, with its tick
SCHEDULING = (
    f"grow_interval: 1s, min_runtime: 0s, lease: {LEASE_S}s, heartbeat: 1s, restart_backoff: 200ms"
)
RULES = ("replace", "wait", "fence")
CUTS = {
    "client side": lambda relay: relay.break_off(CLIENT),
    "server side": lambda relay: relay.break_off(SERVER),
    "both ways": lambda relay: relay.hold(UP, DOWN),
    "from the host": lambda relay: relay.hold(UP),
    "to the host": lambda relay: relay.hold(DOWN),
    "slow": lambda relay: relay.slow(0.2),
}


def job(system: LocalSystem, name: str, rule: str) -> str:
    """Says `attempt process time` every 50 ms until it is let go; a process by its namespace and its number there."""
    more = f"fence_after: {FENCE_AFTER_S}s\n" if rule == "fence" else ""
    return f"""\
name: {name}
queue: default
resources: {{gpus: 1, gpu_types: [cpu-slot]}}
when_unreachable: {rule}
grace: {GRACE_S}s
{more}run: |
  trap 'exit 0' TERM
  process=$(readlink /proc/self/ns/pid):$$
  while [ ! -e {system.folder}/{name}.go ]; do
    echo "$MUSTER_ATTEMPT $process ${{EPOCHREALTIME}}" >> {system.folder}/{name}.lives
    read -r -t 0.05 <> <(:) || true
  done
"""


def lives(system: LocalSystem, name: str) -> dict[int, tuple[float, float, set[str]]]:
    """{attempt: (first, last word, processes)}"""
    found: dict[int, tuple[float, float, set[str]]] = {}
    path = system.folder / f"{name}.lives"
    for line in path.read_text().splitlines() if path.exists() else []:
        words = line.split()
        if len(words) != 3:
            continue
        attempt, at = int(words[0]), float(words[2])
        first, _, processes = found.get(attempt, (at, at, set()))
        found[attempt] = (first, at, processes | {words[1]})
    return found


def overlap(attempts: dict[int, tuple[float, float, set[str]]]) -> bool:
    ordered = sorted(attempts.values())
    return any(later[0] <= earlier[1] for earlier, later in zip(ordered, ordered[1:])) or any(
        len(processes) > 1 for _, _, processes in ordered
    )


class Fleet:
    def __init__(self, system: LocalSystem, hosts: list[str]):
        self.system, self.hosts = system, hosts
        configure(
            system,
            "queues: [{name: default, submit: ['*']}]\n",
            hosts=hosts,
            slots=4,
            scheduling=SCHEDULING,
        )
        system.start_musterd()
        self.relays = {host: self.begin(host) for host in hosts}
        system.wait_hosts_up({f"lab/{host}" for host in hosts})

    def begin(self, host: str) -> Relay:
        """Starts its agent, behind a relay of its own."""
        path, direct = self.system.folder / f"{host}.sock", self.system.server
        relay = unix_relay(path, self.system.socket)
        self.system.server = f"unix://{path}"
        self.system.start_agent("lab", host)
        self.system.server = direct
        return relay

    def close(self) -> None:
        for relay in self.relays.values():
            relay.close()

    def start_on(self, hosts: list[str], jobs: dict[str, str]) -> dict[str, str]:
        """{name: rule} as jobs whose processes run on these hosts alone: {name: number}."""
        others = [f"lab/{other}" for other in self.hosts if other not in hosts]
        for other in others:
            self.system.run(["host", "drain", other])
        numbers = {
            name: submit(self.system, job(self.system, name, rule), name)
            for name, rule in jobs.items()
        }
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
        wait_for(
            f"{name} to go on", lambda: lives(self.system, name)[self.newest(name)][1] > before, 10
        )

    def finish(self, numbers: dict[str, str]) -> list[str]:
        """Lets them end; what did not succeed."""
        for name in numbers:
            (self.system.folder / f"{name}.go").touch()
        return [
            name
            for name, number in numbers.items()
            if wait_ended(self.system, number, 60)["state"] != "SUCCEEDED"
        ]


def attempts_of(fleet: Fleet, number: str) -> int:
    return len(task(fleet.system.job(number))["attempts"])


def partition(fleet: Fleet, cut: str, length: str, tag: str, rules=RULES) -> list[str]:
    """One cell of the matrix, on h01: `short` or `long` is the lease's measure; what was wrong in it."""
    wrong = []
    jobs = {f"{tag}-{rule}": rule for rule in rules}
    numbers = fleet.start_on(["h01"], jobs)
    relay = fleet.relays["h01"]
    moves = length == "long" and cut != "slow"
    CUTS[cut](relay)
    began = time.time()
    if moves:
        # Lost only once it is, and `fence` only once its shim has ended it.
        for rule in ("replace", "fence"):
            if rule in rules:
                wait_for(
                    f"the replacement of `{rule}`",
                    lambda: fleet.newest(f"{tag}-{rule}") == 2,
                    3 * LEASE_S + 20 + (FENCED_S + 10 if rule == "fence" else 0),
                )
    else:
        wait_for(
            "the cut to last",
            lambda: time.time() > began + (0.5 * LEASE_S if length == "short" else 2 * LEASE_S),
            60,
        )
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
    print(f"{tag}: {cut}, {length} ({cut_s:.1f} s): {wrong or 'as it should be'}", flush=True)
    return wrong
