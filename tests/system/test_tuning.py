"""Tuning: independent workers try settings, whose trials are files, and nobody has to be alive throughout."""

import json
import os
import signal
import sys
from pathlib import Path

from local_system import job_processes, wait_for
from small_system import wait_ended

PYTHON = Path(__file__).resolve().parent.parent.parent / "python"
sys.path.append(str(PYTHON / "tests"))

from tune_program import value_of

JOB = """\
name: tune
queue: research
independent_workers: {{min: 1, max: 2}}
resources: {{cpus: 0.1}}
env: {{PYTHONPATH: "{python}"}}
run: >
  exec {interpreter} -m muster_tune --study {folder}/study --knob x=0..1000000 --trials 8 --sampler random --lease 5
  --objective loss --direction minimize -- {interpreter} {python}/tests/tune_program.py {{x}} {folder}/log
"""


def worker_at_work(folder: Path) -> int | None:
    """One that has a process of its own: a trial's."""
    for pid in job_processes(folder):
        try:
            if Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                return pid
        except OSError:
            continue
    return None


def test_every_trial_has_one_result_though_a_worker_is_killed(system):
    folder = system.folder
    (folder / "tune.yaml").write_text(
        JOB.format(python=PYTHON, interpreter=sys.executable, folder=folder)
    )
    words = ["submit", folder / "tune.yaml", "-y", "--detach", "-o", "name"]
    number = system.run(words).stdout.strip()
    wait_for("a trial", (folder / "log").exists, 30)
    os.kill(
        wait_for("a worker with a trial in hand", lambda: worker_at_work(folder), 30),
        signal.SIGKILL,
    )
    ended = wait_ended(system, number, 60)
    assert ended["state"] == "SUCCEEDED", ended
    study = folder / "study"
    settings = [json.loads(p.read_text())["setting"] for p in sorted(study.glob("proposals/0*"))]
    found = [json.loads(path.read_text()) for path in sorted(study.glob("results/0*"))]
    assert len(found) == len(settings) == 8
    assert [one["value"] for one in found] == [value_of(setting["x"]) for setting in settings]
    best = json.loads((study / "best.json").read_text())["best"]["value"]
    assert best == min(one["value"] for one in found)
    attempts = (folder / "log").read_text().splitlines()
    # The killed worker's trial was begun again; it had written its line, or was killed before.
    assert len(attempts) in (8, 9) and {int(line.split()[0]) for line in attempts} == {
        setting["x"] for setting in settings
    }
    told = [
        m["tasks"][0].get("progress", {}) for m in system.json("jobs", number, "--tasks")["jobs"]
    ]
    assert any(int(one.get("step", 0)) == 8 for one in told), told
