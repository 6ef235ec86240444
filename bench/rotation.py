#!/usr/bin/env python3
"""Row `rotation`: the authority is replaced again and again, with certificates of seconds, while jobs run and calls come.

    rotation.py [--quick]

Two hosts on machines of their own (network namespaces), a gang over both that runs throughout, its log followed, and calls over a user's
login and over the agents' streams meanwhile. 1,000 rotations; --quick: 8.
"""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "deploy" / "local"), str(ROOT / "tests" / "system")]

from figures import BIN, figure, none, say_failed
from local_system import Failed, LocalSystem, kill_all, system_folder, wait_for
from namespaces import machines, why_not
from network_system import NetworkSystem
from small_system import submit, task, wait_ended

HOSTS = ["h01", "h02"]
COUNTING = """\
name: counting
queue: research
workers: 2
resources: {{gpus: 1, gpu_types: [cpu-slot]}}
run: |
  n=0
  while [ ! -e {folder}/enough ]; do n=$((n + 1)); echo "$RANK $n"; sleep 0.1; done
"""


class Calls(threading.Thread):
    """Calls over a login until it is told to end; counts those that fail."""

    def __init__(self, net: NetworkSystem, environment: dict):
        super().__init__()
        self.net, self.environment = net, environment
        self.made, self.failed, self.enough = 0, [], False

    def run(self):
        command = self.net.machines.on("h01", [self.net.system.bin_dir / "muster", "jobs"])
        while not self.enough:
            done = subprocess.run(
                [str(word) for word in command],
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=60,
            )
            self.made += 1
            if done.returncode != 0:
                self.failed.append(done.stderr.strip())
            time.sleep(0.2)


def log_in(net: NetworkSystem) -> dict:
    """The environment of a user who has logged in on h01, and asks whether to renew with each call."""
    name = net.system.json("access", "check", "/")["user"]
    line = net.system.run(["user", "invite", name]).stdout.split()[1:]
    home = net.system.folder / "home"
    home.mkdir()
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(home)}
    command = net.machines.on("h01", [net.system.bin_dir / "muster", *line])
    subprocess.run([str(word) for word in command], env=environment, check=True, timeout=60)
    return environment


def lost_lines(log: str) -> int:
    """Numbers that a rank wrote and the log hasn't, between its first and its last."""
    seen: dict[str, list[int]] = {}
    for line in log.splitlines():
        words = line.split()
        if len(words) >= 2 and words[-1].isdigit() and words[-2].isdigit():
            seen.setdefault(words[-2], []).append(int(words[-1]))
    return sum(max(n) - min(n) + 1 - len(set(n)) for n in seen.values() if n)


def measure(net: NetworkSystem, rotations: int) -> dict:
    system = net.system
    net.start_musterd(HOSTS, host_life="4s")
    for host in HOSTS:
        net.join(host)
    environment = log_in(net)
    identity = next((system.folder / "home").rglob("*.identity"))
    number = submit(system, COUNTING.format(folder=system.folder))
    wait_for("it to run", lambda: system.job(number)["state"] == "RUNNING", 30)
    calls = Calls(net, environment)
    calls.start()
    began, took = time.monotonic(), []
    for _ in range(rotations):
        at = time.monotonic()
        for step in ("prepare", "sign", "drop"):

            def done(step=step):
                os.utime(identity, (0, 0))  # the login asks with its next call, not in ten minutes
                return system.run(["ca", "rotate", step], check=False).returncode == 0

            wait_for(f"rotation: {step}", done, 60, 0.1)
        took.append(time.monotonic() - at)
    calls.enough = True
    calls.join()
    log = system.run(["logs", str(number)]).stdout
    (system.folder / "enough").touch()
    job = wait_ended(system, number, 60)
    return {
        "rotations": len(took),
        "seconds": time.monotonic() - began,
        "calls": calls.made,
        "failed": calls.failed,
        "attempts": len(task(job)["attempts"]),
        "state": job["state"],
        "lines": len(log.splitlines()),
        "ranks": len({line.split()[-2] for line in log.splitlines() if len(line.split()) >= 2}),
        "lost": lost_lines(log),
    }


def main() -> int:
    if why_not():
        return say_failed(Failed(why_not()))
    rotations = 8 if "--quick" in sys.argv else 1000
    with system_folder() as folder, machines(["m", *HOSTS]) as made:
        system = LocalSystem(folder, BIN)
        try:
            found = measure(NetworkSystem(system, made), rotations)
        except Failed as error:
            return say_failed(error)
        finally:
            kill_all(folder)
    print("\n".join(found["failed"][:5]))
    ok = figure("rotations", found["rotations"], "", rotations, found["rotations"] == rotations)
    ok &= none("failed calls", len(found["failed"]), f"of {found['calls']}")
    stopped = found["attempts"] - 1 + (found["state"] != "SUCCEEDED")
    ok &= none("stopped attempts", stopped)
    whole = found["lost"] == 0 and found["ranks"] == 2 and found["lines"] > 10
    ok &= figure("lost lines", found["lost"], f"of {found['lines']}", 0, whole)
    figure("a rotation", round(found["seconds"] / found["rotations"], 2), "s", "-", True)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
