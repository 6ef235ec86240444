"""A run of Weights & Biases, written whole when the job has ended: offline, by wandb in an environment of its own, then sent by `wandb sync`.

Written while it runs, what wandb has sent and what it hasn't would be known to wandb alone, and a value could not be taken back.
"""

import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

WRITE_LIMIT_S, SYNC_LIMIT_S = 600, 600

_PROGRAM = """
import json, sys
import wandb
told = json.load(sys.stdin)
run = wandb.init(mode="offline", dir=told["dir"], id=told["id"], name=told["name"], project=told["project"],
    entity=told["entity"] or None, config=told["config"], save_code=False,
    settings=wandb.Settings(x_disable_stats=True, console="off", disable_git=True, x_disable_machine_info=True))
for step, row in told["rows"]:
    run.log(row, step=step)
run.finish(exit_code=told["exit"])
print(run.dir)
"""


class Wandb:
    may_have_unsure = False  # it has nothing before its end
    _some = threading.BoundedSemaphore(4)  # runs at once

    def __init__(self, project: str, directory: Path, python: str, url: str, key: str):
        self._entity, _, self._project = ("/" + project).rpartition("/")
        self._entity = self._entity.strip("/")
        self._directory, self._python, self._url, self._key = directory, python, url, key

    def keeps_first(self, key: str) -> bool:
        return False

    def write(self, place: dict, about: dict, points: list[tuple]) -> dict:
        return place

    def rewrite(self, place: dict, about: dict, points: list[tuple]) -> dict:
        return place

    def settle(self, place: dict, about: dict) -> dict:
        return place

    def finish(self, place: dict, about: dict, points: Callable[[], list[tuple]]) -> None:
        with self._some:
            self._write(about, points())

    def _write(self, about: dict, points: list[tuple]) -> None:
        directory = self._directory / about["uid"]
        shutil.rmtree(directory, ignore_errors=True)  # of a time before that broke off
        directory.mkdir(parents=True)
        rows: dict[int, dict] = {}
        for key, step, value, _ in points:
            rows.setdefault(step, {})[key] = value
        told = {
            "dir": str(directory),
            "id": about["uid"],
            "name": f"{about['name']}-{about['id']}",
            "project": self._project,
            "entity": self._entity,
            "config": {"muster_job": about["id"], "queue": about["queue"]}
            | about["labels"]
            | (about.get("values") or {}),
            "rows": sorted(rows.items()),
            "exit": 0 if about["state"] == "SUCCEEDED" else 1,
        }
        self._run([self._python, "-c", _PROGRAM], WRITE_LIMIT_S, json.dumps(told))
        if not self._key:
            return  # for `wandb sync` by hand
        runs = sorted((directory / "wandb").glob("offline-run-*"))
        command = [self._python, "-m", "wandb", "sync", "--yes", *map(str, runs)]
        self._run(command, SYNC_LIMIT_S)
        shutil.rmtree(directory, ignore_errors=True)

    def _run(self, command: list[str], limit_s: float, text: str = "") -> None:
        environment = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": str(self._directory),
            "WANDB_SILENT": "true",
            "WANDB_ERROR_REPORTING": "false",
        }
        if self._key:
            environment["WANDB_API_KEY"] = self._key
        if self._url:
            environment["WANDB_BASE_URL"] = self._url
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(text, timeout=limit_s)
        except subprocess.TimeoutExpired as error:
            os.killpg(process.pid, signal.SIGKILL)  # and what it has started
            process.wait()
            raise OSError(f"wandb: had not ended after {limit_s:g} s") from error
        if process.returncode != 0:
            raise OSError(f"wandb: exit {process.returncode}: {said[-300:]}")
