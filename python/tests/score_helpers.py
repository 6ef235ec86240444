"""What the tests of muster_score share: rows, workers as processes, workers within the test."""

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from muster_score.plan import Options, make_plan
from muster_score.worker import Worker

ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{HERE}:{HERE.parent}"}


def write_rows(path: Path, count: int) -> None:
    path.write_text("".join(f'{{"id": {i}, "prompt": "p{i}"}}\n' for i in range(count)))


def words(folder: Path, *more: str) -> list[str]:
    # fmt: off
    return ["--input", f"{folder}/in*.jsonl", "--output", f"{folder}/out", "--engine", "score_engines:Shout",
            "--shard-rows", "7", "--batch-size", "3", *more]
    # fmt: on


def score(folder: Path, *more: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "muster_score", *words(folder, *more)],
        env=ENVIRONMENT | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def scored(folder: Path) -> list[dict]:
    lines = []
    for part in sorted((folder / "out").glob("part-*.jsonl")):
        lines += map(json.loads, part.read_text().splitlines())
    return lines


def every_row_once(folder: Path, count: int) -> None:
    lines = scored(folder)
    assert [line["id"] for line in lines] == list(range(count))
    assert all(line["answer"] == f"P{line['id']}" for line in lines)


def run_here(folder: Path, engine, owner: str = "1", predicts=False, **options) -> Worker:
    """The engine is given texts; if it predicts, rows."""
    words = {"input": f"{folder}/in*", "output": f"{folder}/out", "shard_rows": 7, "batch_size": 3}
    given = Options(**words | options)

    def asked(items):
        return engine(items if predicts else [ask.prompt for ask in items])

    worker = Worker(given, make_plan(given), asked, predicts, owner)
    worker.run()
    return worker
