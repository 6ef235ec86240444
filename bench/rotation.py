#!/usr/bin/env python3
"""Row `rotation`: the authority is replaced again and again, with certificates of seconds, while jobs run and calls come.

    rotation.py [--quick]

Two hosts on machines of their own (network namespaces), a gang over both that runs throughout, and a user's login there: `muster logs -f` follows
the gang over it from before the first rotation until it ends, and other commands come over it and over the agents' streams meanwhile. 1,000
rotations; --quick: 8.
"""

import os
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

    def __init__(self, net: NetworkSystem, user: str):
        super().__init__()
        self.net, self.user = net, user
        self.made, self.failed, self.enough = 0, [], False

    def run(self):
        while not self.enough:
            done = self.net.muster(self.user, "h01", "jobs")
            self.made += 1
            if done.returncode != 0:
                self.failed.append(done.stderr.strip())
            time.sleep(0.2)


def counted(log: str) -> dict[str, list[int]]:
    """By rank, the numbers in the order of their lines, "[RANK] RANK NUMBER"."""
    seen: dict[str, list[int]] = {}
    for line in log.splitlines():
        words = line.split()
        if len(words) >= 2 and words[-1].isdigit() and words[-2].isdigit():
            seen.setdefault(words[-2], []).append(int(words[-1]))
    return seen


def rotate(system: LocalSystem, identity: Path) -> None:
    for step in ("prepare", "sign", "drop"):

        def done(step=step):
            os.utime(identity, (0, 0))  # the login asks with its next call, not in ten minutes
            return system.run(["ca", "rotate", step], check=False).returncode == 0

        wait_for(f"rotation: {step}", done, 60, 0.1)


def measure(net: NetworkSystem, rotations: int) -> dict:
    system = net.system
    net.start_musterd(HOSTS, host_life="4s")
    for host in HOSTS:
        net.join(host)
    number = submit(system, COUNTING.format(folder=system.folder))
    wait_for("it to run", lambda: system.job(number)["state"] == "RUNNING", 30)
    user = system.json("access", "check", "/")["user"]
    net.log_in(user, "h01")
    identity = next((system.folder / "homes").rglob("*.identity"))
    follower = net.begin(user, "h01", "followed", "logs", "-f", number)
    calls = Calls(net, user)
    calls.start()
    try:
        began = time.monotonic()
        for _ in range(rotations):
            rotate(system, identity)
        took = time.monotonic() - began
        (system.folder / "enough").touch()
        job = wait_ended(system, number, 60)
        follower.wait(60)
    finally:
        calls.enough = True
        calls.join()
        follower.kill()
    followed = counted((system.folder / "followed.out").read_text())
    kept = counted(system.run(["logs", str(number)]).stdout)
    return {
        "rotations": rotations,
        "seconds": took,
        "calls": calls.made,
        "failed": calls.failed,
        "attempts": len(task(job)["attempts"]),
        "state": job["state"],
        "follower": follower.returncode,
        "said": (system.folder / "followed.err").read_text().splitlines()[-5:],
        "lines": sum(len(numbers) for numbers in kept.values()),
        "ranks": len(kept),
        "lost": sum(
            len(set(range(1, max(numbers) + 1)) - set(followed.get(rank, [])))
            for rank, numbers in kept.items()
        ),
        "twice": sum(len(numbers) - len(set(numbers)) for numbers in followed.values()),
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
    ok &= none("lines that were followed twice", found["twice"])
    if found["follower"] != 0:
        print(f"the follower ended with {found['follower']}:", *found["said"], sep="\n")
        ok = False
    figure("a rotation", round(found["seconds"] / found["rotations"], 2), "s", "-", True)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
