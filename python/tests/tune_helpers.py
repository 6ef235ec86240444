"""What the tests of muster_tune share: workers as processes, and trials that each can judge."""

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from tune_program import value_of

ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{HERE}:{HERE.parent}"}
MINIMIZE = ["--objective", "loss", "--direction", "minimize"]


def words(folder: Path, trials: int, *more: str) -> list[str]:
    """Trials of tune_program.py: a third of a second each."""
    # fmt: off
    return ["--study", f"{folder}/study", "--knob", "x=0..1000000", "--trials", str(trials), "--sampler", "random", *MINIMIZE, *more,
            "--", sys.executable, f"{HERE}/tune_program.py", "{x}", f"{folder}/log"]
    # fmt: on


def program(folder: Path, text: str, trials: int = 1, knob: str = "x=1,2,3") -> list[str]:
    """Trials of a program that is this text; its argument is x."""
    path = folder / "program.py"
    path.write_text("import json, os, sys, time\nx = json.loads(sys.argv[1])\n" + text)
    # fmt: off
    return ["--study", f"{folder}/study", "--knob", knob, "--trials", str(trials), "--sampler", "random", *MINIMIZE,
            "--give-up-after", "100", "--", sys.executable, str(path), "{" + knob.partition("=")[0] + "}"]
    # fmt: on


def tune(given: list[str], **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "muster_tune", *given],
        env=ENVIRONMENT | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def start(given: list[str], **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "muster_tune", *given],
        env=ENVIRONMENT | environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def results(folder: Path) -> list[dict]:
    """Of all trials in their order, with their settings."""
    study = folder / "study"
    found = []
    for path in sorted((study / "proposals").glob("0*")):
        proposal = json.loads(path.read_text())
        if proposal["setting"] is None:
            continue
        result = json.loads((study / "results" / path.name).read_text())
        found.append(result | {"setting": proposal["setting"]})
    return found


def every_trial_once(folder: Path, trials: int) -> None:
    found = results(folder)
    assert len(found) == trials
    assert len({one["setting"]["x"] for one in found}) == trials
    assert [one["value"] for one in found] == [value_of(one["setting"]["x"]) for one in found]


def left_behind(folder: Path) -> list[Path]:
    study = folder / "study"
    return [*study.rglob(".*"), *(study / "leases").iterdir()]
