import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

from muster_exporter.store import Store
from stand_in_mlflow import StandIn


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "spool.db")
    made._db.execute("PRAGMA synchronous = OFF")  # no test pulls the plug
    yield made
    made.close()


@pytest.fixture
def server():
    made = StandIn()
    yield made
    made.mode = "well"
    made.stop()


@pytest.fixture
def about():
    return {
        "uid": "a" * 32,
        "id": "7",
        "name": "job",
        "owner": "ann",
        "queue": "research",
        "labels": {},
        "tasks": ["main"],
        "started": ["main"],
        "track": {"mlflow": "http://127.0.0.1:1"},
        "notify": {},
        "state": "RUNNING",
        "cause": "",
        "detail": "",
        "submit_ns": 10**18,
        "start_ns": 10**18,
        "end_ns": 0,
    }
