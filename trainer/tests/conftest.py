"""Shared fixtures. MUSTER_TRAINER_BIN names the binary under test; run with the environment's python:

MUSTER_TRAINER_BIN=build/dev/bin/muster-trainer ENV/bin/python -m pytest trainer/tests
"""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def trainer_bin() -> str:
    path = os.environ.get("MUSTER_TRAINER_BIN", "")
    if not os.access(path, os.X_OK):
        pytest.fail(
            f"MUSTER_TRAINER_BIN={path!r} is no program; set it to the built muster-trainer"
        )
    return os.path.abspath(path)


@pytest.fixture(scope="session")
def tokens(tmp_path_factory) -> Path:
    """Token shards of some of Python's own sources, cut into bytes; MUSTER_TOKENS names ready ones."""
    import harness

    if ready := os.environ.get("MUSTER_TOKENS"):
        return Path(ready)

    return harness.make_tokens(tmp_path_factory.mktemp("tokens") / "tokens")
