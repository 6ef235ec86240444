"""Tasks with `ray`, with a stand-in for Ray's program: bench/run.sh ray has the real one."""

import os
import sys
from pathlib import Path

from local_system import processes_of, wait_for
from small_system import wait_ended

PYTHON = Path(__file__).resolve().parent.parent.parent / "python"
sys.path.append(str(PYTHON / "tests"))

from stand_in_ray import install

JOB = """\
name: ray
queue: research
independent_workers: {{min: 2, max: 4}}
ray: {{}}
resources: {{gpus: 1, gpu_types: [cpu-slot]}}
grace: 10s
env: {{PATH: "{bin}:/usr/bin:/bin", PYTHONPATH: "{python}:{python}/tests"}}
run: [{interpreter}, {python}/tests/ray_program.py, {folder}/go]
"""
TAKER = "queue: prod\nworkers: 2\nresources: {gpus: 1, gpu_types: [cpu-slot]}\nrun: exec sleep 600"


def submitted(system, text: str) -> str:
    (system.folder / "job.yaml").write_text(text)
    words = ["submit", system.folder / "job.yaml", "-y", "--detach", "-o", "name"]
    return system.run(words).stdout.strip()


def cluster(system) -> str:
    paths = {"bin": install(system.folder), "python": PYTHON, "folder": system.folder}
    return submitted(system, JOB.format(interpreter=sys.executable, **paths))


def await_nodes(system, number: str, count: int) -> None:
    def so_many():
        said = system.run(["logs", f"{number}_0"], check=False).stdout
        return said.rstrip().endswith(f"nodes {count}")

    wait_for(f"{count} nodes", so_many, 40, 0.2)


def ray_processes(system) -> dict[int, str]:
    """Of Ray: the worker's index."""
    found = {}
    for pid in processes_of(system.folder):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text()
            environment = Path(f"/proc/{pid}/environ").read_text().split("\0")
        except OSError:
            continue  # it has just ended
        if "stand_in_ray.py" in words:
            index = next(w for w in environment if w.startswith("MUSTER_ARRAY_INDEX="))
            found[pid] = index.partition("=")[2]
    return found


def heads(system) -> list[int]:
    return [pid for pid, index in ray_processes(system).items() if index == "0"]


def temporary_of(pid: int) -> Path:
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return Path(next(w for w in words if w.startswith("--temp-dir=")).partition("=")[2])


def test_a_resize_adds_and_removes_nodes_and_the_head_keeps_its_process(system):
    number = cluster(system)
    await_nodes(system, number, 4)
    head = heads(system)
    taker = submitted(system, TAKER)
    await_nodes(system, number, 2)
    system.run(["cancel", taker, "-y"])
    await_nodes(system, number, 4)
    assert len(head) == 1 and heads(system) == head
    temporary = temporary_of(head[0])
    assert temporary.exists()
    (system.folder / "go").touch()
    assert wait_ended(system, number, 60)["state"] == "SUCCEEDED"
    jobs = system.folder / "storage" / "jobs"
    assert len(list(jobs.glob("*/ray/attempt-*/session_*/logs/raylet.out"))) >= 4
    assert not temporary.exists()


def test_a_head_that_dies_ends_the_job_and_its_cause_is_told(system):
    number = cluster(system)
    await_nodes(system, number, 4)
    os.kill(heads(system)[0], 9)
    assert wait_ended(system, number, 60)["state"] == "FAILED"
    attempts = system.job(f"{number}_0")["tasks"][0]["attempts"]
    assert len(attempts) == 1, "a head is not started again"
    assert "the head has ended: `ray start` ended with -9" in attempts[0]["detail"]
    wait_for("the end of its nodes", lambda: not ray_processes(system), 20)
