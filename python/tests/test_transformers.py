"""MusterCallback with transformers' Trainer: stopped, killed, gone on from, and what would have been without all that."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("transformers")

PACKAGE = Path(__file__).resolve().parent.parent
EXAMPLE = PACKAGE.parent / "deploy" / "examples" / "hf_trainer.py"
STEPS = 24


def start(agent, folder: Path, attempt: int, resume: str = "", interval_s: float = 0):
    checkpoints = folder / f"attempt-{attempt}"
    checkpoints.mkdir(parents=True)
    return subprocess.Popen(
        [sys.executable, EXAMPLE, "--steps", str(STEPS), "--losses", folder / f"losses-{attempt}"],
        env={name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
        | {
            "PYTHONPATH": str(PACKAGE),
            "OMP_NUM_THREADS": "1",
            "MUSTER_PROGRESS_SOCKET": str(agent.path),
            "MUSTER_CHECKPOINT_DIR": str(checkpoints),
            "MUSTER_CHECKPOINT_INTERVAL_S": str(interval_s),
            "MUSTER_CHECKPOINT_KEEP": "2",
            "MUSTER_RESUME_FROM": resume,
        },
        stdout=subprocess.DEVNULL,
    )


def follow(agent, process, until=lambda line: False, timeout_s: float = 120) -> list[dict]:
    """Lines until one fits or the process has ended."""
    lines, end = [], time.monotonic() + timeout_s
    while time.monotonic() < end:
        new = agent.lines()
        lines += new
        if any(until(line) for line in new) or process.poll() is not None:
            return lines + agent.lines()
        time.sleep(0.005)
    raise AssertionError(f"waited {timeout_s} s; the last line was {lines[-1:]}")


def losses(folder: Path, attempt: int) -> dict[int, float]:
    return {int(k): v for k, v in json.loads((folder / f"losses-{attempt}").read_text()).items()}


def test_stopped_and_killed_it_ends_as_if_nothing_had_been(agent, tmp_path):
    whole = start(agent, tmp_path / "whole", 1)
    follow(agent, whole)
    assert whole.wait() == 0

    first = start(agent, tmp_path, 1)
    lines = follow(agent, first, lambda line: line.get("step", 0) >= 5)
    first.send_signal(signal.SIGTERM)
    lines += follow(agent, first)
    assert first.wait() == 0
    saved = [line["checkpoint"] for line in lines if "checkpoint" in line]
    assert len(saved) == 1 and 5 <= saved[0]["step"] < STEPS and saved[0]["bytes"] > 0

    # It saves after each step, as the interval is always over.
    second = start(agent, tmp_path, 2, f"/gone,{saved[0]['path']}", interval_s=1e-6)
    lines = follow(agent, second, lambda line: "checkpoint" in line)
    second.kill()
    second.wait()
    lines += agent.lines()
    loaded = next(line["loaded"] for line in lines if "loaded" in line)
    assert loaded["path"] == saved[0]["path"] and loaded["skipped"][0]["path"] == "/gone"
    told = [line["checkpoint"]["path"] for line in lines if "checkpoint" in line]
    assert told, "the interval was over"

    third = start(agent, tmp_path, 3, ",".join([*reversed(told), saved[0]["path"]]))
    follow(agent, third)
    assert third.wait() == 0
    expected, got = losses(tmp_path / "whole", 1), losses(tmp_path, 3)
    assert max(got) == STEPS and len(expected) == STEPS
    assert all(abs(expected[step] - loss) <= 1e-6 for step, loss in got.items())


def test_checkpoints_have_to_lie_where_muster_looks_for_them(agent, tmp_path):
    import muster_runtime.transformers as runtime
    from transformers import TrainingArguments

    os.environ["MUSTER_PROGRESS_SOCKET"] = str(agent.path)
    os.environ["MUSTER_CHECKPOINT_DIR"] = str(tmp_path / "here")
    try:
        arguments = TrainingArguments(output_dir=str(tmp_path / "there"), use_cpu=True)
        with pytest.raises(ValueError, match="MUSTER_CHECKPOINT_DIR"):
            runtime.MusterCallback().on_train_begin(arguments, None, None)
    finally:
        del os.environ["MUSTER_PROGRESS_SOCKET"], os.environ["MUSTER_CHECKPOINT_DIR"]
