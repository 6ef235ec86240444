"""A trainer's example, stopped, killed and gone on from: what any callback of muster_runtime has to make good."""

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
EXAMPLES = PACKAGE.parent / "deploy" / "examples"
STEPS = 400  # of some milliseconds: reports come twice a second, and what follows them is to see a step amid the training


def lightning_site() -> Path:
    """Where bench/run.sh python-runtime puts Lightning."""
    cache = Path(os.environ.get("MUSTER_CACHE_DIR") or Path.home() / ".cache" / "muster")
    text = (PACKAGE / "requirements-lightning.txt").read_bytes()
    return cache / f"lightning-{hashlib.sha256(text).hexdigest()[:12]}"


def lightning_is_whole() -> bool:
    """Marked so by who installed it, or, of before there was a mark: each package has its list of files, which pip moves there like the rest."""
    site = lightning_site()
    packages = ("lightning", "lightning_utilities", "torchmetrics")
    return (site / ".complete").exists() or all(
        (site / name).is_dir() and any(site.glob(f"{name}-*.dist-info/RECORD")) for name in packages
    )


class Gang:
    """Some ranks' processes, spoken to as one."""

    def __init__(self, ranks: list[subprocess.Popen]):
        self.ranks = ranks

    def send_signal(self, number: int) -> None:
        for rank in self.ranks:
            rank.send_signal(number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        codes = [rank.poll() for rank in self.ranks]
        return None if None in codes else max(codes, key=abs)

    def wait(self) -> int:
        return max((rank.wait(60) for rank in self.ranks), key=abs)


def start(agent, example: Path, folder: Path, attempt: int, resume="", interval_s=0.0, ranks=1):
    (folder / f"attempt-{attempt}").mkdir(parents=True)
    # fmt: off
    with socket.create_server(("127.0.0.1", 0)) as free:
        gang = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(ranks),
                "LOCAL_WORLD_SIZE": str(ranks), "TORCHELASTIC_RUN_ID": "x"}
    # fmt: on
    places = [gang | {"RANK": str(i), "LOCAL_RANK": str(i)} for i in range(ranks)]
    return Gang(
        [
            start_rank(agent, example, folder, attempt, resume, interval_s, place)
            for place in (places if ranks > 1 else [{}])
        ]
    )


def start_rank(agent, example, folder, attempt, resume, interval_s, place) -> subprocess.Popen:
    checkpoints = folder / f"attempt-{attempt}"
    return subprocess.Popen(
        [sys.executable, example, "--steps", str(STEPS), "--losses", folder / f"losses-{attempt}"],
        env={name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
        | {
            "PYTHONPATH": f"{PACKAGE}:{lightning_site()}",
            "OMP_NUM_THREADS": "1",
            "MUSTER_PROGRESS_SOCKET": str(agent.path),
            "MUSTER_CHECKPOINT_DIR": str(checkpoints),
            "MUSTER_CHECKPOINT_INTERVAL_S": str(interval_s),
            "MUSTER_CHECKPOINT_KEEP": "2",
            "MUSTER_RESUME_FROM": resume,
        }
        | place,
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


def check(agent, example: Path, folder: Path, ranks: int = 1, kill: bool = True) -> None:
    """Its losses are those of the same training undisturbed."""
    whole = start(agent, example, folder / "whole", 1, ranks=ranks)
    follow(agent, whole)
    assert whole.wait() == 0

    first = start(agent, example, folder, 1, ranks=ranks)
    lines = follow(agent, first, lambda line: line.get("step", 0) >= 5)
    first.send_signal(signal.SIGTERM)
    lines += follow(agent, first)
    assert first.wait() == 0
    saved = [line["checkpoint"] for line in lines if "checkpoint" in line]
    assert len(saved) == 1 and 5 <= saved[0]["step"] < STEPS and saved[0]["bytes"] > 0
    resume = saved[0]["path"]
    if kill:
        resume = killed(agent, example, folder, resume, ranks)

    third = start(agent, example, folder, 3, resume, ranks=ranks)
    lines = follow(agent, third)
    assert third.wait() == 0
    assert lines[-1].get("checkpoint", {}).get("step") == STEPS, (
        "a later job may go on from the end"
    )
    expected, got = losses(folder / "whole", 1), losses(folder, 3)
    assert max(got) == STEPS and len(expected) == STEPS
    assert all(abs(expected[step] - loss) <= 1e-6 for step, loss in got.items())


def killed(agent, example: Path, folder: Path, saved: str, ranks: int) -> str:
    """Goes on from `saved`, saves after each step, as the interval is always over, and is killed: what to resume from then."""
    second = start(agent, example, folder, 2, f"/gone,{saved}", interval_s=1e-6, ranks=ranks)
    lines = follow(agent, second, lambda line: "checkpoint" in line)
    second.kill()
    second.wait()
    lines += agent.lines()
    loaded = next(line["loaded"] for line in lines if "loaded" in line)
    assert loaded["path"] == saved and loaded["skipped"][0]["path"] == "/gone"
    told = [line["checkpoint"]["path"] for line in lines if "checkpoint" in line]
    assert told, "the interval was over"
    return ",".join([*reversed(told), saved])
