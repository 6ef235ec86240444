"""muster sandbox: up within seconds, every command has something to show, what explain says holds, and nothing stays."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from local_system import Failed, LocalSystem, wait_for

READY_WITHIN_S = 10


@pytest.fixture
def sandbox(folder, bin_dir):
    """(system, seconds until ready); the system's commands talk to the sandbox."""
    system = LocalSystem(folder, bin_dir)
    environment = system.environment() | {"XDG_RUNTIME_DIR": str(folder)}
    began = time.monotonic()
    process = subprocess.Popen(
        [str(bin_dir / "muster"), "sandbox"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        cwd=folder,
        start_new_session=True,
    )
    shown = ""
    while "Ctrl+C ends it" not in shown:
        line = process.stdout.readline()
        assert line, f"the sandbox ended: {shown}"
        shown += line
    took_s = time.monotonic() - began
    system.server = re.search(r"MUSTER_SERVER=(\S+)", shown).group(1)
    yield system, took_s, shown
    process.send_signal(signal.SIGINT)
    assert process.wait(15) == 0
    assert not Path(system.server.removeprefix("unix://")).parent.exists(), "its directory is gone"


def test_it_is_ready_in_ten_seconds_with_four_clusters_and_work(sandbox):
    system, took_s, shown = sandbox
    assert took_s < READY_WITHIN_S * float(os.environ.get("MUSTER_TIME_SCALE", "1")), (
        f"{took_s:.1f} s"
    )
    assert "4 clusters, 544 hosts, 4096 GPUs" in shown
    top = system.json("top", "--by", "cluster")
    assert sum(int(total["total_milli"]) for total in top["totals"]) == 4096 * 1000
    assert int(top["running_jobs"]) > 50 and int(top["waiting_jobs"]) > 0
    assert sum(int(total["used_milli"]) for total in top["totals"]) > 2048 * 1000, (
        "more than half is in use"
    )
    jobs = system.json("jobs")["jobs"]
    assert any(int(job["tasks"][0]["progress"]["step"]) > 0 for job in jobs), (
        "they have made progress"
    )
    ledger = system.json("ledger", "--by", "queue")
    assert (
        sum(int(entry["device_us"]) for entry in ledger["entries"])
        == int(ledger["capacity_device_us"])
        > 0
    )
    assert ledger["rows"]


def test_a_job_runs_its_course_and_can_be_followed(sandbox):
    system, _, _ = sandbox
    # Of its queue's guarantee: a borrower waits where all are in use.
    done = system.run(
        ["run", "--queue", "platform", "--gpus", "1", "--gpu-type", "l40s-48g", "--", "sleep", "1"],
        check=False,
        timeout_s=180,
    )
    assert done.returncode == 0, done.stderr
    assert "a real host would start 1 x: sleep 1" in done.stdout


def test_what_explain_says_would_help_helps(sandbox):
    system, _, _ = sandbox

    def helped():
        """(waiting job, what it could do itself to start at once)"""
        for job in system.json("jobs", "--state", "waiting", "--limit", "60")["jobs"]:
            explained = system.json("explain", job["number"])
            for one in explained["relaxations"]:
                if (
                    one["own"]
                    and int(one["start_ns"]) <= int(explained["now_ns"])
                    and not one["takes_from"]
                ):
                    return job["number"], one
        return None

    def changed_job_starts():
        """One such job, changed as told. Others live here, too: what was free may be theirs by the time it is submitted."""
        number, relaxation = wait_for(
            "a job that a change of its own would start at once", helped, 60, 1
        )
        spec = relaxation["spec"]
        system.run(["cancel", number])
        resources = spec["tasks"][0]["resources"]
        path = system.folder / "changed.yaml"
        path.write_text(f"""\
name: changed
queue: {spec["queue"]}
priority: {max(int(spec["priority"]), 100)}
clusters: [{", ".join(spec["clusters"])}]
workers: {{min: {spec["tasks"][0]["workers"]["min"]}, max: {spec["tasks"][0]["workers"]["max"]}}}
resources: {{gpus: {int(resources["gpus_milli"]) / 1000:g}, gpu_types: [{", ".join(resources["gpu_types"])}]}}
run: sleep 30
""")
        changed = system.submit(path)["number"]
        try:
            wait_for(
                f"the changed job to be placed ({relaxation['change']})",
                lambda: system.job(changed)["tasks"][0]["attempts"],
                10,
            )
        except Failed:
            return False
        return True

    assert any(changed_job_starts() for _ in range(4)), (
        "four jobs were changed as explain says, and none was placed within 10 s"
    )
