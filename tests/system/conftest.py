"""Whole-system tests: a real musterd, real agents and shims in a folder of their own, talked to through `muster`.

MUSTER_BIN_DIR=build/release/bin ENV/bin/python -m pytest tests/system
"""

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "deploy" / "local"), str(Path(__file__).parent)]

from local_system import LocalSystem, kill_all, system_folder
from small_system import start


@pytest.fixture(scope="session")
def bin_dir() -> Path:
    path = Path(os.environ.get("MUSTER_BIN_DIR", ROOT / "build" / "release" / "bin")).resolve()
    for name in ("musterd", "muster-agent", "muster-shim", "muster"):
        if not os.access(path / name, os.X_OK):
            pytest.fail(
                f"{path / name} isn't there: deploy/build.sh, or name the folder in MUSTER_BIN_DIR"
            )
    return path


@pytest.fixture
def folder():
    with system_folder() as path:
        yield path


@pytest.fixture
def bare(folder, bin_dir):
    """Configured, nothing started yet."""
    system = LocalSystem(folder, bin_dir)
    yield system
    kill_all(folder)  # not stop(): that each program ends when told to is a test of its own
    for process in system.processes.values():
        process.wait(10)


@pytest.fixture
def system(bare):
    """musterd and agents lab/h01, lab/h02 with two declared slots each; queues research and prod, 2 guaranteed each."""
    start(bare)
    return bare


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """A failed test shows the ends of the daemons' logs: the folder is gone afterwards."""
    outcome = yield
    report = outcome.get_result()
    system = item.funcargs.get("system") or item.funcargs.get("bare")
    if report.when == "call" and report.failed and system:
        for name in system.processes:
            report.sections.append((f"end of {name}.log", system.log_tail(name, 30)))
