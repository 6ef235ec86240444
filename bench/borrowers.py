"""Independent workers on borrowed slots, killed and preempted: for the rows whose jobs have to bear that."""

import os
import random
import signal
from pathlib import Path

from local_system import LocalSystem, job_processes, wait_for

WORKERS = 4
QUEUES = """\
queues:
  - {name: research, quota: {cpu-slot: {guarantee: 0}}, submit: ['*']}
  - {name: prod, quota: {cpu-slot: {guarantee: 4}}, submit: ['*']}
"""
OTHER = (
    "queue: prod\nresources: {gpus: 1, gpu_types: [cpu-slot]}\ngrace: 1s\nrun: exec sleep 3600\n"
)


def submit(system: LocalSystem, text: str) -> str:
    """The job's number."""
    path: Path = system.folder / "job.yaml"
    path.write_text(text)
    return system.run(["submit", path, "-y", "--detach", "-o", "name"]).stdout.strip()


def working(system: LocalSystem) -> list[int]:
    """The workers' processes."""
    return [
        pid
        for pid, environment in job_processes(system.folder).items()
        if "MUSTER_ARRAY_INDEX" in environment
    ]


def kill_one(system: LocalSystem, dice: random.Random) -> None:
    while True:
        pids = wait_for("a worker", lambda: working(system), 60, 0.02)
        try:
            os.kill(dice.choice(pids), signal.SIGKILL)
            return
        except ProcessLookupError:
            continue


def preempt(system: LocalSystem) -> None:
    """Two of them, for as long as others need to start."""
    others = [submit(system, OTHER) for _ in range(2)]
    for other in others:
        wait_for("the other", lambda o=other: system.job(o)["state"] == "RUNNING", 60, 0.05)
    for other in others:
        system.run(["cancel", other])
