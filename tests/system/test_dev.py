"""Environments to develop in: held while they are used, entered by their owner, released when idle, and back with their files."""

import json
import sys
import time
from pathlib import Path

import pytest
from dev_environments import opened
from local_system import CommandFailed, job_processes, wait_for
from small_system import let_go, submit, task, wait_ended

PYTHON = Path(__file__).resolve().parent.parent.parent / "python"
STAND_IN = PYTHON / "tests" / "stand_in_jupyter"


def up(system, *words: str, python: str = sys.executable) -> int:
    """Its job's number."""
    kernels = system.folder / "kernels.json"
    path = f"PYTHONPATH={PYTHON}:{STAND_IN}"
    given = ["--queue", "research", "--gpu-type", "cpu-slot", "--python", python]
    given += ["--env", path, "--env", f"STAND_IN_KERNELS={kernels}"]
    given += [] if "--gpus" in words else ["--gpus", "1"]
    return int(system.run(["dev", "up", *given, *words, "-o", "name"]).stdout)


def say_kernel(system, state: str) -> None:
    new = system.folder / "kernels.new"
    new.write_text(json.dumps([{"execution_state": state, "last_activity": "1"}]))
    new.rename(system.folder / "kernels.json")


def used_slots(system) -> int:
    return sum(
        attempt["state"] in ("TASK_RUNNING", "TASK_STOPPING")
        for job in json.loads(system.run(["jobs", "-o", "json"]).stdout).get("jobs", [])
        for attempt in task(job)["attempts"]
    )


def test_is_entered_with_its_token_alone_which_nobody_else_is_told(system):
    number = up(system)
    with opened(system) as way:
        assert way.ask("/api/status", way.token)[0] == 200
        assert way.ask(f"/api/status?token={way.token}")[0] == 200
        for token in (None, "", way.token[:-1], way.token + "x"):
            assert way.ask("/api/status", token)[0] == 403
        token = way.token
    told = [
        system.run(["logs", str(number)]).stdout,
        system.run(["show", str(number), "-o", "json"]).stdout,
    ]
    told += [path.read_text(errors="replace") for path in (system.folder / "logs").iterdir()]
    assert not any(token in text for text in told)
    for pid in job_processes(system.folder):
        assert token.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
        assert token.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_busy_kernel_without_a_browser_keeps_it_and_idle_it_is_released(system):
    say_kernel(system, "busy")
    number = up(system, "--idle", "2s")
    wait_for("it to run", lambda: task(system.job(number))["state"] == "TASK_RUNNING", 30)
    with opened(system):  # it serves
        pass
    time.sleep(6)  # three times as long: nothing happens that a condition could wait for
    assert task(system.job(number))["state"] == "TASK_RUNNING"
    say_kernel(system, "idle")
    ended = wait_ended(system, number, 30)
    assert ended["state"] == "SUCCEEDED"
    assert used_slots(system) == 0
    assert "idle: no busy kernel" in system.run(["logs", str(number)]).stdout


def test_a_job_on_its_devices_keeps_it_until_it_has_ended(system):
    number = up(system, "--idle", "2s")
    text = ON.format(name="keeps", holder=number, gpus="0", folder=system.folder)
    keeps = submit(system, text.replace("gpu_types: [cpu-slot], ", ""), "keeps")
    wait_for("it to run", (system.folder / "keeps.runs").exists, 30)
    with opened(system):  # it serves
        pass
    time.sleep(6)  # three times as long: nothing happens that a condition could wait for
    assert task(system.job(number))["state"] == "TASK_RUNNING"
    let_go(system, "keeps")
    assert wait_ended(system, keeps)["state"] == "SUCCEEDED"
    assert wait_ended(system, number, 30)["state"] == "SUCCEEDED"


def test_comes_back_with_its_files_and_another_token(system):
    number = up(system)
    with opened(system, "dev") as way:
        first = way.token
    directory = Path(system.job(number)["directory"]) / "work"
    (directory / "notebook.ipynb").write_text("{}")
    with pytest.raises(CommandFailed, match="there is environment dev"):
        up(system)
    system.run(["dev", "stop", "dev"])
    assert wait_ended(system, number)["state"] == "CANCELLED"
    again = int(system.run(["dev", "resume", "dev", "-o", "name"]).stdout)
    with opened(system, str(again)) as way:
        assert way.token != first
        assert way.ask("/api/status", first)[0] == 403
    says = system.run(["logs", str(again)]).stdout
    assert f"JupyterLab serves {directory}" in says
    assert (directory / "notebook.ipynb").exists()
    listed = json.loads(system.run(["dev", "list", "-a", "-o", "json"]).stdout)["jobs"]
    assert [int(job["number"]) for job in listed] == [again, number]


def test_without_jupyterlab_it_says_how_to_get_it(system):
    number = up(system, "--env", f"PYTHONPATH={PYTHON}", python="/usr/bin/python3")
    assert wait_ended(system, number)["state"] == "FAILED"
    assert "-m pip install jupyterlab" in system.run(["logs", str(number)]).stdout
    with pytest.raises(CommandFailed, match=f"muster logs {number}"):
        system.run(["dev", "open", str(number), "--no-browser"])


ON = """\
name: {name}
queue: research
on: "{holder}"
resources: {{gpus: {gpus}, gpu_types: [cpu-slot], cpus: 0.1, memory: 64MiB}}
run: |
  touch {folder}/{name}.runs
  while [ ! -e {folder}/{name}.go ]; do sleep 0.05; done
"""


def used_milli(system) -> int:
    queues = json.loads(system.run(["queue", "list", "-o", "json"]).stdout)["queues"]
    research = next(queue for queue in queues if queue["path"] == "research")
    return sum(int(use["used_milli"]) for use in research["use"] if use["flavour"] == "cpu-slot")


def test_jobs_run_on_an_environments_devices_and_are_charged_to_nobody(system):
    holder = up(system, "--gpus", "2")

    def on(name: str, gpus: str) -> int:
        text = ON.format(name=name, holder=holder, gpus=gpus, folder=system.folder)
        return submit(system, text, name)

    jobs = {name: on(name, gpus) for name, gpus in (("a", "1"), ("b", "0.5"), ("c", "0.5"))}
    wait_for(
        "three of them", lambda: all((system.folder / f"{name}.runs").exists() for name in jobs), 30
    )
    assert used_milli(system) == 2000
    waits = on("d", "1")
    verdict = task(system.job(waits))["verdict"]
    assert verdict["code"] == "V_HOLDER" and f"job {holder} has room" in verdict["text"], verdict
    let_go(system, "a")
    wait_for("the fourth", (system.folder / "d.runs").exists, 30)
    assert wait_ended(system, jobs["a"])["state"] == "SUCCEEDED"
    system.run(["dev", "stop", str(holder)])
    for number in (jobs["b"], jobs["c"], waits):
        ended = wait_ended(system, number)
        assert ended["state"] == "CANCELLED" and "on whose devices" in ended["detail"], ended
    wait_ended(system, holder)
    assert used_milli(system) == 0
    with pytest.raises(CommandFailed, match=f"job {holder} has ended"):
        on("late", "1")
