"""Scoring: independent workers share rows out by files, and nobody has to be alive throughout."""

import json
import os
import re
import signal
import sys
from pathlib import Path

from local_system import job_processes, wait_for
from small_system import wait_ended

PYTHON = Path(__file__).resolve().parent.parent.parent / "python"
JOB = """\
name: score
queue: research
independent_workers: {{min: 1, max: 2}}
resources: {{cpus: 0.1}}
env: {{PYTHONPATH: "{python}:{python}/tests", SHOUT_S: "0.05"}}
run: >
  exec {interpreter} -m muster_score --input {folder}/in.jsonl --output {folder}/out --engine score_engines:Shout
  --batch-size 5 --shard-rows 20 --lease 5
"""


def write_rows(folder: Path, rows: int) -> None:
    with (folder / "in.jsonl").open("w") as file:
        file.writelines(f'{{"id": {i}, "prompt": "p{i}"}}\n' for i in range(rows))


def scored(folder: Path) -> list[dict]:
    lines = []
    for part in sorted((folder / "out").glob("part-*")):
        lines += [json.loads(line) for line in part.read_text().splitlines()]
    return lines


def test_muster_score_makes_the_job(system):
    folder, rows = system.folder, 100
    write_rows(folder, rows)
    # fmt: off
    words = ["score", "-", folder / "in*.jsonl", folder / "out", "--engine", "score_engines:Shout", "--python", sys.executable,
             "--workers", 2, "--cpus", 0.1, "--queue", "research", "--env", f"PYTHONPATH={PYTHON}:{PYTHON}/tests",
             "-y", "--detach", "-o", "name", "--", "--batch-size", 5, "--shard-rows", 20, "--lease", 5]
    # fmt: on
    number = system.run(words).stdout.strip()
    ended = wait_ended(system, number, 60)
    assert ended["state"] == "SUCCEEDED", ended
    assert [line["answer"] for line in scored(folder)] == [f"P{i}" for i in range(rows)]


def test_what_nobody_can_score_ends_at_once_and_says_why(system):
    folder = system.folder
    write_rows(folder, 10)
    # fmt: off
    words = ["score", "-", folder / "in*.jsonl", folder / "out", "--engine", "no_such_module:Engine", "--python", sys.executable,
             "--workers", 2, "--cpus", 0.1, "--queue", "research", "--env", f"PYTHONPATH={PYTHON}", "-y", "--detach", "-o", "name"]
    # fmt: on
    number = system.run(words).stdout.strip()
    ended = wait_ended(system, number, 60)
    assert ended["state"] == "FAILED", ended
    assert "No module named 'no_such_module'" in ended["detail"], ended
    members = system.json("jobs", number, "--tasks")["jobs"]
    assert all(len(member["tasks"][0].get("attempts", [])) <= 1 for member in members), members


def test_rows_that_could_not_be_scored_are_told(system):
    folder = system.folder
    prompts = ["ok", "bad", *["ok"] * 8]
    lines = [json.dumps({"id": i, "prompt": prompt}) for i, prompt in enumerate(prompts)]
    (folder / "in.jsonl").write_text("".join(line + "\n" for line in lines))
    # fmt: off
    words = ["score", "-", folder / "in*.jsonl", folder / "out", "--engine", "score_engines:Shout", "--python", sys.executable,
             "--workers", 1, "--cpus", 0.1, "--queue", "research", "--env", f"PYTHONPATH={PYTHON}:{PYTHON}/tests", "-y"]
    # fmt: on
    done = system.run(words)
    said = " ".join((done.stdout + done.stderr).split())
    assert "1 of 10 rows could not be scored" in said, said
    number = re.search(r"Job (\d+)", said)[1]
    assert "1 of 10 rows could not be scored" in system.run(["show", number]).stdout


def test_rows_are_scored_once_though_a_worker_is_killed(system):
    folder, rows = system.folder, 400
    write_rows(folder, rows)
    (folder / "score.yaml").write_text(
        JOB.format(python=PYTHON, interpreter=sys.executable, folder=folder)
    )
    words = ["submit", folder / "score.yaml", "-y", "--detach", "-o", "name"]
    number = system.run(words).stdout.strip()
    wait_for("a part", lambda: list((folder / "out").glob("part-*")), 30)
    pid = next(pid for pid, env in job_processes(folder).items() if "MUSTER_ARRAY_INDEX" in env)
    os.kill(pid, signal.SIGKILL)
    ended = wait_ended(system, number, 60)
    assert ended["state"] == "SUCCEEDED", ended
    assert [line["id"] for line in scored(folder)] == list(range(rows))
    told = [
        m["tasks"][0].get("progress", {}) for m in system.json("jobs", number, "--tasks")["jobs"]
    ]
    assert any(int(one.get("step", 0)) == rows for one in told), told
