#!/usr/bin/env python3
"""Row `revocation`: how long a revoked host's stream, a revoked user's stream and calls, those of a program that logged in with a token,
once that is revoked, a revoked join token and a dropped authority still count.

    revocation.py [--quick]

On machines of their own (network namespaces). Ten times each; --quick: twice.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "deploy" / "local"), str(ROOT / "tests" / "system")]

from figures import BIN, figure, say_failed
from local_system import Failed, LocalSystem, kill_all, system_folder, wait_for
from namespaces import machines, why_not
from network_system import NetworkSystem
from small_system import submit_waiting

BAR_S = 5


class Revocations:
    def __init__(self, net: NetworkSystem):
        self.net, self.system = net, net.system
        self.name = self.system.json("access", "check", "/")["user"]

    def muster(self, *words) -> list[str]:
        """A command of the user's, on h02."""
        return [
            str(w) for w in self.net.machines.on("h02", [self.system.bin_dir / "muster", *words])
        ]

    def environment(self) -> dict:
        return {"PATH": "/usr/bin:/bin", "HOME": str(self.system.folder / "home")}

    def works(self, *words) -> bool:
        done = subprocess.run(
            self.muster(*words), env=self.environment(), capture_output=True, timeout=60
        )
        return done.returncode == 0

    def invite(self) -> list[str]:
        return self.system.run(["user", "invite", self.name]).stdout.split()[1:]

    def log_in(self, line: list[str]) -> None:
        if not self.works(*line):
            raise Failed("the login failed")

    def host(self) -> float:
        """The agent's stream: from the command's end until the host is heard no more."""
        self.net.join("h02")
        self.system.run(["host", "revoke", "lab/h02"])
        took = self.net.wait_state("h02", "HOST_SILENT", 30)
        process = self.system.processes.pop("agent-lab-h02")
        process.kill()
        process.wait(10)
        (self.system.folder / "agents" / "lab-h02" / "identity").unlink()
        return took

    def user(self, number: int) -> float:
        self.log_in(self.invite())
        return self.until_out(number, ["user", "revoke", self.name])

    def program(self, number: int) -> float:
        """What logged in with a token of scopes, once that is revoked; its owner goes on."""
        self.invite()  # tokens are for users of the network
        made = self.system.json("token", "create", "--scope", "view:/")
        words = ["login", made["join_address"], "--token", made["token"], "--ca"]
        self.log_in([*words, made["fingerprint"]])
        return self.until_out(number, ["token", "revoke", made["id"]])

    def until_out(self, number: int, revoke: list[str]) -> float:
        """A stream that follows a job, and calls: from the command's end until both have ended."""
        watching = subprocess.Popen(
            self.muster("wait", str(number)),
            env=self.environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_for("the calls to work", lambda: self.works("jobs"), 20)
        if watching.poll() is not None:
            raise Failed("the stream ended before anything was revoked")
        self.system.run(revoke)
        began = time.monotonic()
        wait_for("the calls to be refused", lambda: not self.works("jobs"), 30)
        wait_for("the stream to end", lambda: watching.poll() is not None, 30)
        return time.monotonic() - began

    def token(self) -> float:
        made = self.system.json("host", "token", "new", "lab/h02")
        self.system.run(["host", "token", "revoke", made["id"]])
        words = ["join", made["join_address"], "--token", made["token"], "--ca"]
        command = self.net.agent_command("h02", [*words, made["fingerprint"], "--only"])
        began = time.monotonic()
        done = subprocess.run([str(w) for w in command], capture_output=True, timeout=60)
        if done.returncode == 0:
            raise Failed("a revoked token bought a certificate")
        return time.monotonic() - began

    def authority(self) -> float:
        """A host that was left behind, once the old authority is dropped."""
        self.net.join("h02")
        os.kill(self.agent_pid(), 19)  # SIGSTOP: it follows nothing, and its stream stays open
        for step in ("prepare", "sign", "drop"):
            self.system.run(["ca", "rotate", step, "--force"])
        began = time.monotonic()
        path = self.system.folder / "logs" / "musterd.log"
        wait_for(
            "its connections to be ended",
            lambda: "authority that signed" in path.read_text(errors="replace").split("drop")[-1],
            30,
        )
        took = time.monotonic() - began
        os.kill(self.agent_pid(), 18)
        self.system.processes["agent-lab-h02"].kill()
        self.system.processes.pop("agent-lab-h02").wait(10)
        (self.system.folder / "agents" / "lab-h02" / "identity").unlink()
        self.net.wait_state("h02", "HOST_SILENT", 30)  # so that the next one's coming can be seen
        return took

    def agent_pid(self) -> int:
        return self.system.processes["agent-lab-h02"].pid  # ip became the agent by exec


def main() -> int:
    if why_not():
        return say_failed(Failed(why_not()))
    times = 2 if "--quick" in sys.argv else 10
    longest = dict.fromkeys(("host", "user", "program", "token", "authority"), 0.0)
    with system_folder() as folder, machines(["m", "h01", "h02"]) as made:
        system = LocalSystem(folder, BIN)
        (folder / "home").mkdir()
        try:
            net = NetworkSystem(system, made)
            net.start_musterd(["h01", "h02"])
            net.join("h01")
            found = Revocations(net)
            number = submit_waiting(system, "waits")
            for _ in range(times):
                longest["host"] = max(longest["host"], found.host())
                longest["user"] = max(longest["user"], found.user(number))
                longest["program"] = max(longest["program"], found.program(number))
                longest["token"] = max(longest["token"], found.token())
                longest["authority"] = max(longest["authority"], found.authority())
        except Failed as error:
            return say_failed(error)
        finally:
            kill_all(folder)
    ok = True
    names = {"token": "join token", "program": "program with a revoked login token"}
    for what, seconds in longest.items():
        ok &= figure(
            f"{names.get(what, what)}: longest until nothing counts",
            round(seconds, 2),
            "s",
            BAR_S,
            seconds <= BAR_S,
        )
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
