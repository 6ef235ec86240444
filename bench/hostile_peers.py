#!/usr/bin/env python3
"""Row `hostile-peers`: CVEs of HTTP/2 and TLS replayed with a certificate and without one, mutated hellos, half handshakes, 10,000 connections.

    hostile_peers.py [--quick]

On machines of their own (network namespaces). Meanwhile an honest user calls 40 times a second from another machine, and an honest host is
connected. The attacker has as little of the processors as can be (nice 19), as in truth it has a machine of its own. 10^6 mutated
hellos; --quick: 5,000, and each flood for a second with one certificate instead of six with two and without.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "deploy" / "local"), str(ROOT / "tests" / "system")]

from figures import BIN, figure, quantile, say_failed
from hostile_peers import FLOODS, HOSTS, Siege
from local_system import Failed, LocalSystem, kill_all, system_folder
from namespaces import machines, why_not

MOST_MIB, MOST_SLOWER, BACK_S = 64, 2, 1
HELLOS_PER_S = 45 * 60  # what addresses may connect, less some


class Found:
    """Of all attacks, and of the peace before each: the machine may be busy with something else."""

    def __init__(self, siege: Siege, quick: bool):
        self.siege, self.quick = siege, quick
        self.attacks, self.peace_ms = [], []

    def attack(self, scene: str, seconds: int, *options, who: str = "") -> dict:
        self.peace_ms += self.siege.calls(1 if self.quick else seconds)["ms"]
        one = self.siege.measured(scene, seconds, *options, who=who)
        one["who"] = who or "nobody's certificate"
        calls = {key: value for key, value in one["calls"].items() if key != "ms"}
        print(one | {"calls": calls}, flush=True)
        self.attacks.append(one)
        if not one["alive"]:
            self.siege.net.begin_musterd()
        return one

    def floods(self) -> None:
        whose = ("host",) if self.quick else ("host", "bob", "")
        for i, scene in enumerate(FLOODS):
            # Another address each time: one that was cut off waits.
            source = ["--sources", self.siege.sources[i + 1]]
            for who in whose:
                self.attack(scene, 1 if self.quick else 6, *source, who=who)
        if self.quick:
            self.attack("rapid-reset", 1, "--sources", self.siege.sources[0])

    def held(self) -> None:
        """Connections that say nothing, half of a hello, a hello, and those that shook hands; from many addresses."""
        scenes = ("hold-silent", "hold-half", "hold-hello", "hold-open")
        for scene in scenes[1::2] if self.quick else scenes:
            options = ["--count", 1000 if self.quick else 10_000]
            options += ["--sources", ",".join(self.siege.sources)]
            who = "host" if scene == "hold-open" else ""
            self.attack(scene, 3 if self.quick else 15, *options, who=who)

    def hellos(self, count: int) -> dict:
        options = ["--count", count, "--sources", ",".join(self.siege.sources)]
        return self.attack("hellos", count // HELLOS_PER_S + 10, *options)


def tell(found: Found, said: dict, told: dict, back_s: float) -> bool:
    alive = [one for one in found.attacks if one["alive"]]
    strangers = [one for one in found.attacks if one["who"] == "nobody's certificate"]
    reached = sum(one.get("received", 0) + one.get("strange", 0) for one in strangers)
    grown = max((one["grown_mib"], f"{one['scene']}, {one['who']}") for one in alive)
    failed = sum(one["calls"]["failed"] for one in alive)
    peace_ms = quantile(found.peace_ms, 0.99)
    attacked_ms = quantile([ms for one in alive for ms in one["calls"]["ms"]], 0.99)
    worst = max((one["calls"]["p99_ms"], f"{one['scene']}, {one['who']}") for one in alive)
    silenced = [one["scene"] for one in alive if not one["up"]]
    ended = len(found.attacks) - len(alive)
    # fmt: off
    rows = [
        ("bytes of HTTP/2 that came back without a certificate", reached, "", 0, reached == 0),
        ("the same at the join door, where one is seen", told["received"], "", "> 0", told["received"] > 0),
        ("mutated hellos", said["said"], "", None, True),
        ("hellos that had no end in 3 s", said["unended"], "", 0, said["unended"] == 0),
        ("attacks", len(found.attacks), "", None, True),
        ("attacks that ended musterd", ended, "", 0, ended == 0),
        ("most memory more", grown[0], f"MiB ({grown[1]})", f"<= {MOST_MIB}", grown[0] <= MOST_MIB),
        ("calls of the honest that failed", failed, "", 0, failed == 0),
        ("attacks that silenced the honest host", len(silenced), "", 0, not silenced),
        ("p99 of an honest call in peace", round(peace_ms, 2), "ms", None, True),
        ("p99 of an honest call under attack", round(attacked_ms, 2), "ms", f"<= {MOST_SLOWER} times", attacked_ms <= MOST_SLOWER * peace_ms),
        ("p99 of the worst attack", round(worst[0], 2), f"ms ({worst[1]})", None, True),
        ("killed under attack: until it serves again", round(back_s, 2), "s", f"<= {BACK_S}", back_s <= BACK_S),
    ]
    # fmt: on
    return all([figure(*row) for row in rows])


def besiege(siege: Siege, quick: bool) -> bool:
    siege.begin()
    options = ["--seconds", 1, "--connections", 1, "--sources", siege.sources[-1]]
    told = siege.attack("windows", *options, join=True)
    found = Found(siege, quick)
    found.floods()
    found.held()
    said = found.hellos(5000 if quick else 1_000_000)
    back_s = 0.0
    for i in range(1 if quick else 10):
        source = ["--sources", siege.sources[20 + i]]
        attacker = siege.hostile("rapid-reset", "--seconds", 3, *source, who="host")
        back_s = max(back_s, siege.back_after_s())
        siege.result(attacker)
    return tell(found, said, told, back_s)


def main() -> int:
    if why_not():
        return say_failed(Failed(why_not()))
    # Not below /tmp: an agent that serves several users wants its state elsewhere.
    with system_folder("/srv") as folder, machines(["m", *HOSTS, "x"]) as made:
        try:
            system = LocalSystem(folder, BIN)
            ok = besiege(Siege(system, made), "--quick" in sys.argv)
        except Failed as error:
            return say_failed(error)
        finally:
            kill_all(folder)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
