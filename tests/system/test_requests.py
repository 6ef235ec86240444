"""`muster checkpoints now`: a running program is asked for a checkpoint, by a file of its attempt."""

import subprocess
import sys
from pathlib import Path

from small_system import let_go, submit, submit_waiting, wait_ended, wait_started

PYTHON = Path(__file__).resolve().parent.parent.parent / "python"
PROGRAM = """\
import os, time
import muster_runtime as muster

step, stop = 0, False
open("{folder}/saver.marks", "a").write(f"0 {{os.environ['MUSTER_ATTEMPT']}} 1\\n")
while not stop and not os.path.exists("{folder}/saver.go"):
    time.sleep(0.02)
    step += 1
    muster.report(step)
    stop, save = muster.decide()
    if save:
        path = muster.checkpoint_directory() + f"/{{step}}"
        open(path, "w").write(str(step))
        muster.checkpoint(path, step)
"""
JOB = """\
name: saver
queue: research
resources: {{gpus: 1, gpu_types: [cpu-slot]}}
checkpoint: {{interval: 0s}}
env: {{PYTHONPATH: "{python}"}}
run: exec {interpreter} {folder}/saver.py
"""


def now(system, number, *flags) -> subprocess.CompletedProcess:
    words = [system.bin_dir / "muster", "checkpoints", "now", str(number), *flags]
    return subprocess.run(
        words, capture_output=True, text=True, timeout=120, env=system.environment()
    )


def test_a_running_program_saves_when_it_is_asked(system):
    folder = system.folder
    (folder / "saver.py").write_text(PROGRAM.format(folder=folder))
    number = submit(
        system, JOB.format(python=PYTHON, interpreter=sys.executable, folder=folder), "saver"
    )
    wait_started(system, "saver", 1)
    paths = []
    for _ in range(2):
        done = now(system, number)
        assert done.returncode == 0, done.stderr
        told = system.job(number)["tasks"][0]["checkpoints"][-1]
        assert done.stdout == f"Job {number} has saved step {told['step']}: {told['path']}\n"
        assert Path(told["path"]).read_text() == str(told["step"])
        paths.append(told["path"])
    assert len(set(paths)) == 2, "each request is a checkpoint of its own"
    let_go(system, "saver")
    assert wait_ended(system, number)["state"] == "SUCCEEDED"
    over = now(system, number)
    assert over.returncode != 0 and f"job {number} is not running" in over.stderr


def test_a_program_that_never_looks_is_asked_in_vain(system):
    number = submit_waiting(system, "deaf")
    wait_started(system, "deaf", 1)
    done = now(system, number, "--timeout", "1s")
    assert done.returncode == 124
    assert "asked job" in done.stderr and "waits up to 1s" in done.stderr
    assert "has not taken the request within 1s" in done.stderr and "muster_runtime" in done.stderr
    assert not list((system.folder / "storage").rglob("requests/save"))
    bad = now(system, number, "--task", "other")
    assert bad.returncode == 3 and "job 1 has no task other; it has main" in bad.stderr
    assert now(system, number, "--timeout", "soon").returncode == 2
    let_go(system, "deaf")
    wait_ended(system, number)
