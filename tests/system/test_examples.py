"""The examples run as they are; `muster up` needs nothing but itself."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from local_system import LocalSystem, job_processes, kill_all, wait_for
from small_system import submit_trainer, wait_ended

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "deploy" / "examples"


def from_a_copy(system, name: str, text: str) -> int:
    """The example of this name, with this text, beside its program in a directory of the test's own."""
    place = system.folder / "examples"
    shutil.copytree(EXAMPLES, place, ignore=shutil.ignore_patterns("__pycache__"))
    (place / name).write_text("queue: research\n" + text)
    return system.submit(place / name)["number"]


def test_the_hello_example(system):
    number = system.submit(EXAMPLES / "hello.yaml", "--queue", "research")["number"]
    assert wait_ended(system, number)["state"] == "SUCCEEDED"
    assert "Hello from" in system.run(["logs", number]).stdout


def test_the_sweep_example(system):
    number = system.submit(EXAMPLES / "sweep.yaml", "--queue", "research")["number"]
    ended = wait_ended(system, number)
    assert ended["state"] == "SUCCEEDED" and ended["array"]["succeeded"] == 4
    assert "lr 3e-4, seed 1: run 2 of 4" in system.run(["logs", f"{number}_2"]).stdout


def test_the_example_of_preferences(system, bin_dir):
    if not os.access(bin_dir / "muster-trainer", os.X_OK):
        pytest.skip(f"{bin_dir} has no muster-trainer")
    number = submit_trainer(system, EXAMPLES / "dpo.yaml", "--queue", "research")
    job = wait_ended(system, number, 600)
    said = system.run(["logs", number]).stdout
    assert job["state"] == "SUCCEEDED", said
    prefer = job["tasks"][2]
    assert int(prefer["progress"]["step"]) == 40 and "rewards/accuracies=1 " in said
    assert (Path(job["directory"]) / "prefers" / "config.json").exists()


def test_a_plain_torch_distributed_script_runs_unchanged_on_two_workers(system):
    python = os.environ.get("MUSTER_PYTHON", "")
    if not python:
        pytest.skip("MUSTER_PYTHON names no Python with torch")
    text = (EXAMPLES / "ddp.yaml").read_text().replace("python3", python)
    number = from_a_copy(system, "ddp.yaml", text)
    job = wait_ended(system, number, 120)
    said = system.run(["logs", number]).stdout
    assert job["state"] == "SUCCEEDED", said
    assert "starts at step 0 of 200 with 2 ranks" in said and "saved step 200 of 200" in said
    assert (Path(job["directory"]) / "ddp.pt").exists()
    hosts = {part["host"] for part in job["tasks"][0]["attempts"][-1]["placements"]}
    assert hosts and all(job["tasks"][0]["attempts"][-1]["declared"] for _ in hosts)


def test_a_trainer_of_transformers_goes_on_after_it_was_killed(system):
    python = os.environ.get("MUSTER_PYTHON", "")
    if not python:
        pytest.skip("MUSTER_PYTHON names no Python with torch")
    text = (
        (EXAMPLES / "hf_trainer.yaml")
        .read_text()
        .replace("python3", python)
        .replace("interval: 10m", "interval: 200ms")
        .replace("--steps 200", "--steps 600")
    )
    text += f"env: {{PYTHONPATH: {EXAMPLES.parent.parent / 'python'}}}\n"
    number = from_a_copy(system, "hf_trainer.yaml", text)

    def checkpoint():
        return system.job(number)["tasks"][0].get("checkpoints")

    wait_for("its first checkpoint", checkpoint, 300)
    (rank,) = job_processes(system.folder)
    os.kill(rank, signal.SIGKILL)
    job = wait_ended(system, number, 300)
    assert job["state"] == "SUCCEEDED", system.run(["logs", number]).stdout
    last = job["tasks"][0]["attempts"][-1]
    assert last["number"] > 1 and int(last["resumed_step"]) > 0
    assert int(job["tasks"][0]["progress"]["step"]) > int(last["resumed_step"])


def test_a_search_for_a_ranking_model_has_trials(system):
    python = os.environ.get("MUSTER_PYTHON", "")
    if not python:
        pytest.skip("MUSTER_PYTHON names no Python with torch")
    study = system.folder / "study"
    text = (EXAMPLES / "rank_search.yaml").read_text().replace("python3", python)
    text = text.replace("--trials 96", "--trials 2").replace("--fill", "--fill --steps 5")
    text += f"env: {{PYTHONPATH: {EXAMPLES.parent.parent / 'python'}, STUDY: {study}}}\n"
    number = from_a_copy(system, "rank_search.yaml", text)
    job = wait_ended(system, number, 120)
    assert job["state"] == "SUCCEEDED", system.run(["logs", number]).stdout
    best = json.loads((study / "best.json").read_text())
    assert best["trials"] == 2 and best["failed"] == 0 and 0 < best["best"]["value"] < 3


@contextlib.contextmanager
def muster_up(folder: Path, bin_dir: Path, *flags: str):
    """A function that runs `muster ARGUMENTS` against a `muster up` of its own."""
    runtime = folder / "run"
    runtime.mkdir(mode=0o700)
    environment = LocalSystem(folder, bin_dir).environment() | {
        "XDG_RUNTIME_DIR": str(runtime),
        "HOME": str(folder),
    }
    for name in ("MUSTER_SERVER", "MUSTER_CONFIG"):
        environment.pop(name)

    def muster(*arguments: str, timeout_s: float = 60) -> subprocess.CompletedProcess:
        return subprocess.run(
            [bin_dir / "muster", *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=environment,
            stdin=subprocess.DEVNULL,
        )

    with open(folder / "up.log", "wb") as log:
        up = subprocess.Popen(
            [bin_dir / "muster", "up", "--data-dir", folder / "data", *flags],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
    try:
        wait_for(
            "muster up to have a host",
            lambda: "HOST_UP" in muster("host", "list", "-o", "json").stdout,
            20,
        )
        yield muster
        assert muster("down", "--data-dir", str(folder / "data")).returncode == 0
        wait_for("muster up to end", lambda: up.poll() is not None, 20)
    finally:
        up.terminate()
        try:
            up.wait(15)
        finally:
            up.kill()
            kill_all(folder)


def test_up_runs_a_job_without_any_file_and_leaves_nothing(folder, bin_dir):
    with muster_up(folder, bin_dir) as muster:
        done = muster("run", "--", "sh", "-c", "echo ran here")
        assert done.returncode == 0, done.stdout + done.stderr
        ran = muster("submit", str(EXAMPLES / "hello.yaml"), "-y")  # follows it to its end
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert (
            "Hello from"
            in muster(
                "logs",
                str(json.loads(muster("jobs", "--all", "-o", "json").stdout)["jobs"][0]["number"]),
            ).stdout
        )


def test_the_readmes_second_example_trains_on_the_slots_that_up_declares(folder, bin_dir):
    if not os.access(bin_dir / "muster-trainer", os.X_OK):
        pytest.skip(f"{bin_dir} has no muster-trainer")
    with muster_up(folder, bin_dir, "--slots", "4") as muster:
        host = json.loads(muster("host", "list", "-o", "json").stdout)["hosts"][0]
        assert len(host["inventory"]["devices"]) == 4 and host["inventory"]["declared"], host

        def submit():
            """Fewer steps than a reader would see, else as it stands in the README."""
            ran = muster(
                "submit",
                "--queue",
                "default",
                str(EXAMPLES / "tiny-llama.yaml"),
                "--set",
                "tasks[train].trainer.max_steps=12",
                "-y",
                timeout_s=180,
            )
            # A host asks its trainer for the schema when it has joined.
            return None if "Try again in some seconds" in ran.stderr else ran

        ran = wait_for("the host to tell the trainer's schema", submit, 60)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        job = json.loads(muster("show", "1", "-o", "json").stdout)
        assert (
            job["state"] == "SUCCEEDED"
            and [one["state"] for one in job["tasks"]] == ["TASK_SUCCEEDED"] * 2
        ), job
        assert (
            2 <= job["tasks"][1]["attempts"][-1]["workers"] <= 4
            and job["tasks"][1]["progress"]["step"] == 12
        )
        assert (Path(job["directory"]) / "model" / "config.json").exists(), (
            "the export is published"
        )
        shown = muster("show", "1").stdout
        assert "0% 0/" not in shown and "cpu-slot (declared)" in shown, shown
