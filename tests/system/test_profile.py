"""`muster profile`: stacks and traces of a running job's Python, by py-spy beside its workers."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from small_system import let_go, submit, submit_waiting, wait_ended, wait_started

ENVIRONMENT = Path(os.environ.get("MUSTER_PYTHON", "/nowhere/python")).parent
PROGRAM = """\
import os, threading, time

def waits_for_a_lock(lock):
    lock.acquire()

def spins():
    while True:
        sum(range(1000))

open("{folder}/{name}.marks", "a").write(f"{{os.environ['RANK']}} 1 2\\n")
threading.Thread(target=spins, daemon=True, name="spinner").start()
lock = threading.Lock()
lock.acquire()
waits_for_a_lock(lock)
"""
JOB = """\
name: {name}
queue: research
workers: 2
resources: {{gpus: 1, gpu_types: [cpu-slot]}}
env: {{PATH: "{path}:/usr/bin:/bin"}}
run: exec python3 {folder}/{name}.py
"""

needs_py_spy = pytest.mark.skipif(
    not (ENVIRONMENT / "py-spy").exists(), reason="MUSTER_PYTHON names no environment with py-spy"
)


def profile(system, number, *flags) -> subprocess.CompletedProcess:
    return subprocess.run(
        [system.bin_dir / "muster", "profile", str(number), *flags],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=system.folder,
        env=system.environment(),
    )


@pytest.fixture
def hanging(system):
    values = {"name": "hangs", "folder": system.folder, "path": ENVIRONMENT}
    (system.folder / "hangs.py").write_text(PROGRAM.format(**values))
    number = submit(system, JOB.format(**values), "hangs")
    wait_started(system, "hangs", 2)
    return system, number


@needs_py_spy
def test_stacks_name_the_frame_that_each_thread_of_each_rank_is_in(hanging):
    system, number = hanging
    done = profile(system, number, "--stacks")
    assert done.returncode == 0, done.stderr
    ranks = done.stdout.split("rank ")[1:]
    assert [text[0] for text in ranks] == ["0", "1"]
    for text in ranks:
        lines = text.splitlines()
        main = next(i for i, line in enumerate(lines) if line.startswith("  MainThread"))
        assert lines[main].endswith("waits")
        assert lines[main + 1].split() == ["waits_for_a_lock", "hangs.py:4"]
        spinner = next(i for i, line in enumerate(lines) if line.startswith("  spinner"))
        assert spinner > main and lines[spinner].endswith("runs")
        assert "spins" in lines[spinner + 1]
    one = profile(system, number, "--stacks", "--rank", "1")
    assert one.returncode == 0 and one.stdout.startswith("rank 1\n") and "rank 0" not in one.stdout


@needs_py_spy
def test_a_trace_has_all_ranks_and_what_they_do(hanging):
    system, number = hanging
    done = profile(system, number, "--for", "1s")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"profile-{number}.json: ")
    events = json.loads((system.folder / f"profile-{number}.json").read_text())["traceEvents"]
    names = {event["args"]["name"][:6] for event in events if event["name"] == "process_name"}
    assert names == {"rank 0", "rank 1"}
    for pid in {event["pid"] for event in events}:
        seen = {event["name"].split(" ")[0] for event in events if event["pid"] == pid}
        assert {"spins", "waits_for_a_lock"} <= seen
    again = profile(system, number, "--for", "1s")
    assert again.stdout.startswith(f"profile-{number}-2.json: "), again.stderr


def test_what_is_no_python_or_does_not_run_is_told_as_such(system):
    number = submit_waiting(system, "plain", more='env: {PATH: "/usr/bin:/bin"}\n')
    wait_started(system, "plain", 1)
    without = profile(system, number, "--stacks")
    assert without.returncode != 0 and "pip install py-spy" in without.stderr
    bad = profile(system, number, "--for", "0s")
    assert bad.returncode == 2 and "--for 0s" in bad.stderr
    assert profile(system, number, "--steps", "0").returncode == 2
    let_go(system, "plain")
    wait_ended(system, number)
    over = profile(system, number)
    assert over.returncode != 0 and f"job {number} is not running" in over.stderr
