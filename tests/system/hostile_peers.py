"""What a hostile peer does to musterd's doors, from a machine of its own: with a host's certificate, with a user's, and without one.

The row and the tests share it. musterd serves several users; `ann` is honest and calls all the while, h01 is an honest host; `bob`
and h02 are the attacker's.
"""

import json
import os
import re
import subprocess
import threading
from pathlib import Path

from local_system import Failed, LocalSystem, wait_for
from namespaces import Machines
from network_system import NetworkSystem

HOSTS = ["h01", "h02"]
MORE_ADDRESSES = 60  # of the attacker's machine
NICE = ["nice", "-n", "19"]  # the attacker has a machine of its own, in truth
FLOODS = (
    "rapid-reset",
    "rapid-reset-streams",
    "rapid-reset-calls",
    "continuation",
    "empty-continuation",
    "settings",
    "ping",
    "hpack-bomb",
    "table-sizes",
    "open-streams",
    "half-messages",
    "slow-reader",
    "empty-data",
    "priority",
    "windows",
    "rubbish",
)


def resident_kib(pid: int, field: str) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(rf"(?m)^{field}:\s*(\d+)", text).group(1))


class Siege:
    """A musterd in its state of peace, and what is done to it."""

    def __init__(self, system: LocalSystem, machines: Machines):
        self.net, self.system, self.machines = NetworkSystem(system, machines), system, machines
        self.sources = self.machines.more_addresses("x", MORE_ADDRESSES)

    def begin(self) -> None:
        self.net.start_musterd(HOSTS, single_user=False)
        self.net.join("h01")
        self.net.identity_of_host("h02")
        for user in ("ann", "bob"):
            self.net.log_in(user, "h01")

    @property
    def pid(self) -> int:
        return self.system.processes["musterd"].pid  # ip became musterd by exec

    def identity(self, who: str) -> Path:
        if who == "host":
            return self.system.folder / "agents" / "lab-h02" / "identity"
        return self.system.folder / "homes" / who / ".config" / "muster" / "default.identity"

    def door(self, join: bool = False) -> str:
        return f"{self.machines.addresses['m']}:{7421 if join else 7420}"

    def hostile(self, scene: str, *options, who: str = "", join: bool = False) -> subprocess.Popen:
        """`who`: whose certificate it has; empty: none."""
        words = [*NICE, self.system.bin_dir / "hostile_peer", scene, self.door(join), *options]
        if who:
            words += ["--identity", self.identity(who)]
        return subprocess.Popen(
            [str(word) for word in self.machines.on("x", words)], stdout=subprocess.PIPE, text=True
        )

    def result(self, process: subprocess.Popen, timeout_s: float = 3600) -> dict:
        out, _ = process.communicate(timeout=timeout_s)
        if process.returncode != 0:
            raise Failed(f"the attacker's program ended with {process.returncode}: {out}")
        return json.loads(out)

    def attack(self, scene: str, *options, **more) -> dict:
        return self.result(self.hostile(scene, *options, **more))

    def calls(self, seconds: float, *options) -> dict:
        """How long ann's calls take."""
        command = [
            self.system.bin_dir / "call_often",
            self.identity("ann"),
            "--seconds",
            max(1, int(seconds)),
            *options,
        ]
        done = subprocess.run(
            [str(word) for word in self.machines.on("h01", command)],
            stdout=subprocess.PIPE,
            text=True,
            timeout=seconds + 60,
        )
        return json.loads(done.stdout)

    # ---- musterd's memory ----

    def settle(self) -> int:
        """KiB once nobody is connected but the honest; what comes from here on is counted from there."""
        wait_for("connections to end", lambda: self.connections() <= 4, 60, 0.2)
        (Path("/proc") / str(self.pid) / "clear_refs").write_text("5")
        return resident_kib(self.pid, "VmRSS")

    def peak_kib(self) -> int:
        return resident_kib(self.pid, "VmHWM")

    def connections(self) -> int:
        """Sockets of musterd's, of which each connection on the network has two."""
        folder = f"/proc/{self.pid}/fd"
        count = 0
        for name in os.listdir(folder):
            try:
                count += os.readlink(f"{folder}/{name}").startswith("socket:")
            except OSError:
                pass  # closed meanwhile
        return count // 2 - 4

    def alive(self) -> bool:
        return self.system.processes["musterd"].poll() is None

    # ---- what a scene costs ----

    def measured(self, scene: str, seconds: int, *options, **more) -> dict:
        """The attack, what it got, and what it cost musterd and ann."""
        before_kib = self.settle()
        process = self.hostile(scene, "--seconds", seconds, *options, **more)
        calls = self.calls(seconds)
        found = self.result(process)
        found["calls"] = calls
        found["alive"] = self.alive()
        if found["alive"]:
            found["grown_mib"] = round((self.peak_kib() - before_kib) / 1024, 1)
            found["up"] = self.net.state("h01") == "HOST_UP"
        return found

    def back_after_s(self) -> float:
        """musterd is killed in the midst of an attack and started again: until ann's next call succeeds."""
        process = self.system.processes["musterd"]
        process.kill()
        process.wait(20)
        answer: dict = {}
        calling = threading.Thread(target=lambda: answer.update(self.calls(20, "--until-served")))
        calling.start()
        self.net.begin_musterd()
        calling.join()
        if answer["served_ms"] < 0:
            raise Failed("nobody was served after musterd's start")
        return answer["served_ms"] / 1000
