"""track and notify: what a job reports reaches trackers whole and once, whatever becomes of the job, the exporter and the tracker."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from local_system import wait_for
from small_system import ENDED, submit
from test_examples import muster_up

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "exporter" / "tests"))

from stand_in_mlflow import StandIn

# Steps of 20 ms; a checkpoint each 25th step, and when it is stopped; the loss depends on the step alone. Where a file NAME.hold-STEP
# stands, it waits at that step until the file is gone.
TRAINING = """\
import json, os, signal, socket, sys, time
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
held = lambda step: os.path.exists(sys.argv[0][:-3] + f".hold-{{step}}") and not stopped
channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
tell = lambda **line: channel.sendto(json.dumps(line).encode(), os.environ["MUSTER_PROGRESS_SOCKET"])
step = 0
for path in filter(None, os.environ["MUSTER_RESUME_FROM"].split(",")):
    step = int(open(path).read())
    tell(loaded={{"step": step, "path": path}})
    break
def save():
    path = os.environ["MUSTER_CHECKPOINT_DIR"] + f"/step-{{step}}"
    open(path, "w").write(str(step))
    tell(checkpoint={{"step": step, "path": path}})
while step < {steps}:
    if {crash} and step == 30 and os.environ["MUSTER_ATTEMPT"] == "1":
        os._exit(3)
    time.sleep(0.02)
    while held(step):
        time.sleep(0.02)
    step += 1
    tell(step=step, total_steps={steps}, loss=1 / step, grad_norm=step * 0.5)
    if stopped:
        save()
        os._exit(0)
    if step % 25 == 0:
        save()
"""
JOB = """\
name: {name}
queue: research
resources: {{gpus: 1, gpu_types: [cpu-slot]}}
checkpoint: {{keep: 5}}
{more}run: exec python3 {folder}/{name}.py
"""


@pytest.fixture
def server():
    made = StandIn()
    yield made
    made.mode = "well"
    made.stop()


class Exporter:
    def __init__(self, system):
        self.system, self.process, self.starts = system, None, 0
        self.data = system.folder / "exporter"

    def start(self, more: str = "") -> None:
        config = self.system.folder / "etc" / "exporter.toml"
        config.write_text(f'data_dir = "{self.data}"\npoll_s = 0.3\n{more}')
        self.starts += 1
        self.process = self.system.spawn(
            f"exporter-{self.starts}", [ROOT / "exporter" / "muster-exporter", "--config", config]
        )

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def exporter(system):
    made = Exporter(system)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.kill()


def train(system, name: str, more: str, steps: int = 100, crash: bool = False) -> int:
    (system.folder / f"{name}.py").write_text(TRAINING.format(steps=steps, crash=crash))
    return submit(system, JOB.format(name=name, more=more, folder=system.folder), name)


def undisturbed(steps: int) -> dict:
    losses = {("loss", step): 1 / step for step in range(1, steps + 1)}
    return losses | {("grad_norm", step): step * 0.5 for step in range(1, steps + 1)}


def await_end(system, number, state="SUCCEEDED") -> None:
    wait_for("its end", lambda: system.job(number)["state"] in ENDED, 60)
    assert system.job(number)["state"] == state, system.job(number)


def await_status(server, status: str) -> None:
    wait_for("its run's end", lambda: [run["status"] for run in server.active()] == [status], 30)


def test_a_job_that_fails_is_moved_and_goes_on_is_one_run_with_each_point_once(
    system, server, exporter
):
    exporter.start()
    steps = (40, 80)
    holds = [system.folder / f"moved.hold-{step}" for step in steps]
    for hold in holds:
        hold.touch()
    number = train(system, "moved", f"track: {{mlflow: {server.url}}}\n", 150, crash=True)
    for step, hold in zip(steps, holds, strict=True):
        wait_for(
            "its steps until then, with two points each",
            lambda s=step: len(server.active() and server.points() or ()) == 2 * s,
            60,
        )
        host = system.job(number)["tasks"][0]["attempts"][-1]["placements"][0]["host"]
        system.run(["host", "drain", f"lab/{host}", "-y"])
        wait_for(
            "it to be elsewhere",
            lambda h=host: (
                system.job(number)["tasks"][0]["attempts"][-1]["placements"][0]["host"] != h
            ),
            30,
        )
        hold.unlink()
        system.run(["host", "resume", f"lab/{host}"])
    await_end(system, number)
    await_status(server, "FINISHED")
    assert len(system.job(number)["tasks"][0]["attempts"]) >= 4
    assert server.points() == undisturbed(150)
    assert len(server.runs) == 1


def test_an_arrays_members_are_a_run_each_and_take_turns_with_one_reader(system, server, exporter):
    exporter.start("readers = 1\n")
    sweep = "sweep: {lr: [1e-4, 2e-4, 3e-4]}\n"
    number = train(system, "members", f"{sweep}track: {{mlflow: {server.url}}}\n", 20)
    wait_for(
        "its members' runs",
        lambda: sorted(run["status"] for run in server.active()) == ["FINISHED"] * 3,
        60,
    )
    assert {run["tags"]["muster.job"] for run in server.active()} == {
        f"{number}_{member}" for member in range(3)
    }
    assert {run["params"]["lr"] for run in server.active()} == {"1e-4", "2e-4", "3e-4"}
    for run in server.active():
        told = {(metric["key"], metric["step"]): metric["value"] for metric in run["metrics"]}
        assert told == undisturbed(20) and len(run["metrics"]) == 40


def test_an_exporter_that_is_killed_and_a_tracker_that_hangs_lose_nothing(system, server, exporter):
    exporter.start()
    number = train(system, "killed", f"track: {{mlflow: {server.url}}}\n", 200)
    for more in (30, 70):
        wait_for("points", lambda m=more: server.active() and len(server.points()) > m, 30)
        exporter.kill()
        exporter.start()
    server.mode = "hang"
    await_end(system, number)
    assert server.active()[0]["status"] == "RUNNING"
    exporter.kill()
    server.mode = "well"
    exporter.start()
    await_status(server, "FINISHED")
    assert server.points() == undisturbed(200)


def test_reports_go_on_from_a_place_and_are_no_output(system):
    number = train(system, "read", "track: {tensorboard: true}\n", 20)
    await_end(system, number)
    assert system.run(["logs", number], check=False).stdout == ""
    reports = [
        json.loads(line) for line in system.run(["logs", number, "--reports"]).stdout.splitlines()
    ]
    assert [report["step"] for report in reports] == list(range(1, 21))
    chunk = json.loads(system.run(["logs", number, "--reports", "-o", "jsonl"]).stdout)
    words = ["--reports", "--task", "main", "--attempt", "1", "--from", chunk["next_offset"]]
    assert system.run(["logs", number, *words]).stdout == ""
    halves = (words[:1] + words[-2:], words[:3] + words[-2:], words[:1] + words[3:])
    for half in halves:  # a place without its task or attempt
        assert system.run(["logs", number, *half], check=False).returncode == 2, half
    untracked = train(system, "untracked", "", 5)
    await_end(system, untracked)
    assert system.run(["logs", untracked, "--reports"], check=False).stdout == ""


def test_its_end_is_told_at_least_once_and_in_order_by_a_webhook_that_was_away(
    system, server, exporter
):
    server.mode = "refuse"
    mails = system.folder / "mails"
    program = system.folder / "sendmail"
    program.write_text(f'#!/bin/sh\necho "$@" >> {mails}.words\nexec cat >> {mails}\n')
    program.chmod(0o755)
    exporter.start(f'[mail]\nsendmail = "{program}"\nsender = "muster@example.org"\n')
    notify = f"notify: {{webhook: '{server.url}/room?k=1', mail: ann@example.org, on: [failed]}}\n"
    well = train(system, "well", notify, 3)
    await_end(system, well)
    failing = [train(system, f"bad{i}", notify + "max_restarts: 0\n", 31, True) for i in range(2)]
    for number in failing:
        await_end(system, number, "FAILED")
    wait_for("mails", lambda: mails.exists() and mails.read_text().count("Subject: ") == 2, 30)
    assert "-- ann@example.org" in Path(f"{mails}.words").read_text()
    exporter.kill()
    server.mode = "well"
    exporter.start()
    wait_for("calls", lambda: len({post["id"] for post in server.posts}) == 2, 40)
    ends = [system.job(number)["end_ns"] for number in failing]
    expected = [str(number) for _, number in sorted(zip(ends, failing, strict=True))]
    assert [post["id"] for post in server.posts] == expected
    assert all(post["state"] == "FAILED" and "failed" in post["text"] for post in server.posts)


def test_up_runs_an_exporter_that_finds_its_server_by_itself(folder, bin_dir, server):
    config = folder / "exporter.toml"
    config.write_text(f'data_dir = "{folder}/exporter"\npoll_s = 0.3\n')
    with muster_up(folder, bin_dir, "--exporter", str(config)) as muster:
        (folder / "up.py").write_text(TRAINING.format(steps=10, crash=False))
        file = folder / "up.yaml"
        file.write_text(
            f"run: exec python3 {folder}/up.py\ntrack: {{mlflow: {server.url}, tensorboard: runs}}\n"
        )
        assert muster("submit", str(file), "-y", "--detach").returncode == 0
        await_status(server, "FINISHED")
        assert server.points() == undisturbed(10)
    files = list((folder / "exporter" / "tensorboard").glob("*/runs/up-1/events.out.tfevents.*"))
    assert len(files) == 1 and files[0].stat().st_size > 500
    assert muster("up", "--exporter", "/nowhere").returncode == 2


def test_only_what_the_operator_allows_is_reached_for_jobs_of_others(system, server, exporter):
    exporter.start('user = "somebody-else"\n')
    refused = f"track: {{mlflow: {server.url}}}\nnotify: {{webhook: '{server.url}/room'}}\n"
    number = train(system, "refused", refused, 5)
    await_end(system, number)
    log = system.folder / "logs" / "exporter-1.log"
    wait_for("both refusals", lambda: log.read_text().count("not among allowed_hosts") == 2, 20)
    assert server.calls == 0
    exporter.process.terminate()
    assert exporter.process.wait(20) == 0
    exporter.start(f'user = "somebody-else"\nallowed_hosts = ["{server.url}"]\n')
    number = train(system, "allowed", refused, 5)
    await_status(server, "FINISHED")
    assert server.points() == undisturbed(5)
    status = subprocess.run(
        [ROOT / "exporter" / "muster-exporter", "--status"]
        + ["--config", system.folder / "etc" / "exporter.toml"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert status.stdout == "", "nothing is left"
