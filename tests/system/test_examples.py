"""The examples run as they are; `muster up` needs nothing but itself."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from local_system import LocalSystem, kill_all, wait_for
from small_system import submit, wait_ended

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "deploy" / "examples"


def test_the_hello_example(system):
    number = system.submit(EXAMPLES / "hello.yaml", "--queue", "research")["number"]
    assert wait_ended(system, number)["state"] == "SUCCEEDED"
    assert "Hello from" in system.run(["logs", number]).stdout


def test_a_plain_torch_distributed_script_runs_unchanged_on_two_workers(system):
    python = os.environ.get("MUSTER_PYTHON", "")
    if not python:
        pytest.skip("MUSTER_PYTHON names no Python with torch")
    text = (EXAMPLES / "ddp.yaml").read_text().replace("/opt/muster/examples", str(EXAMPLES)).replace("python3", python)
    number = submit(system, "queue: research\n" + text, "ddp")
    job = wait_ended(system, number, 120)
    said = system.run(["logs", number]).stdout
    assert job["state"] == "SUCCEEDED", said
    assert "starts at step 0 of 200 with 2 ranks" in said and "saved step 200 of 200" in said
    assert (Path(job["directory"]) / "ddp.pt").exists()
    hosts = {part["host"] for part in job["tasks"][0]["attempts"][-1]["placements"]}
    assert hosts and all(job["tasks"][0]["attempts"][-1]["declared"] for _ in hosts)


def test_up_runs_a_job_without_any_file_and_leaves_nothing(folder, bin_dir):
    runtime = folder / "run"
    runtime.mkdir(mode=0o700)
    system = LocalSystem(folder, bin_dir)
    environment = system.environment() | {"XDG_RUNTIME_DIR": str(runtime), "HOME": str(folder)}
    for name in ("MUSTER_SERVER", "MUSTER_CONFIG"):
        environment.pop(name)

    def muster(*arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run([bin_dir / "muster", *arguments], capture_output=True, text=True, timeout=60, env=environment, stdin=subprocess.DEVNULL)

    with open(folder / "up.log", "wb") as log:
        up = subprocess.Popen([bin_dir / "muster", "up", "--data-dir", folder / "data"], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                              env=environment, start_new_session=True)
    try:
        wait_for("muster up to have a host", lambda: "HOST_UP" in muster("host", "list", "-o", "json").stdout, 20)
        done = muster("run", "--", "sh", "-c", "echo ran here")
        assert done.returncode == 0, done.stdout + done.stderr
        ran = muster("submit", str(EXAMPLES / "hello.yaml"), "-y")  # follows it to its end
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert "Hello from" in muster("logs", json.loads(muster("jobs", "--all", "-o", "json").stdout)["jobs"][0]["number"]).stdout
        assert muster("down", "--data-dir", str(folder / "data")).returncode == 0
        wait_for("muster up to end", lambda: up.poll() is not None, 20)
    finally:
        up.terminate()
        try:
            up.wait(15)
        finally:
            up.kill()
            kill_all(folder)

