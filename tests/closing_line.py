"""What tests/run.sh says at its end: summary.py and again.py on reports that are made here. Run by tests/run.sh, in part `arrows`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
GOOD = '<testcase classname="{where}" name="{name}" />'
BAD = '<testcase classname="{where}" name="{name}"><failure message="no" /></testcase>'


def write_report(path: Path, where: str, cases: dict[str, bool]) -> None:
    lines = [(GOOD if good else BAD).format(where=where, name=name) for name, good in cases.items()]
    path.write_text(f"<testsuites><testsuite>{''.join(lines)}</testsuite></testsuites>")


def closing_lines(reports: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, ROOT / "tests/summary.py", reports], capture_output=True, text=True
    )
    assert done.returncode == (0 if ", 0 failed," in done.stdout else 1), done.stderr
    return done.stdout.splitlines()


def test_what_failed_and_passed_alone_counts_and_is_named(tmp_path):
    (tmp_path / "parts").write_text("system 1\ntrainer-1 0\n")
    write_report(tmp_path / "system.xml", "tests.system.test_a", {"x": True, "y": False})
    write_report(tmp_path / "trainer-1.xml", "trainer.tests.test_b", {"y": True})
    assert closing_lines(tmp_path) == [
        "FAILED tests.system.test_a.y",
        "2 passed, 1 failed, 0 skipped",
    ]
    write_report(tmp_path / "system.again.xml", "tests.system.test_other", {"y": True})
    assert closing_lines(tmp_path)[-1] == "2 passed, 1 failed, 0 skipped"
    write_report(tmp_path / "system.again.xml", "tests.system.test_a", {"y": False})
    assert closing_lines(tmp_path)[-1] == "2 passed, 1 failed, 0 skipped"
    write_report(tmp_path / "system.again.xml", "tests.system.test_a", {"y": True})
    assert closing_lines(tmp_path) == [
        "FAILED AT FIRST, passed when it was run again: tests.system.test_a.y",
        "3 passed, 0 failed, 0 skipped",
    ]


def test_a_unit_test_program_that_passed_alone_counts_by_its_cases(tmp_path):
    (tmp_path / "parts").write_text("unit-release 8\n")
    for name, good in (("unit-release", False), ("unit-release.again", True)):
        write_report(tmp_path / f"{name}.xml", "store_test", {"store_test": good})
        (tmp_path / name).mkdir()
        write_report(tmp_path / name / "store_test.xml", "Store", {"opens": True, "commits": good})
        passed, failed = (1, 1) if not good else (2, 0)
        assert closing_lines(tmp_path)[-1] == f"{passed} passed, {failed} failed, 0 skipped"


@pytest.mark.parametrize("part", ["crashed 139", "timed-out 124"])
def test_a_part_that_ends_badly_is_a_failure(tmp_path, part):
    (tmp_path / "parts").write_text(f"system 0\n{part}\n")
    write_report(tmp_path / "system.xml", "tests.system.test_a", {"x": True})
    assert closing_lines(tmp_path)[-1] == "1 passed, 1 failed, 0 skipped"


def test_a_part_that_was_cut_off_fails_whatever_passed_again(tmp_path):
    (tmp_path / "parts").write_text("system 124\n")
    write_report(tmp_path / "system.xml", "tests.system.test_a", {"x": True, "y": False})
    write_report(tmp_path / "system.again.xml", "tests.system.test_a", {"y": True})
    assert closing_lines(tmp_path)[-2:] == [
        "FAILED system: exit 124",
        "2 passed, 1 failed, 0 skipped",
    ]


@pytest.mark.parametrize(("failures", "runs"), [(0, False), (1, True), (3, True), (4, False)])
def test_few_failures_are_run_again(tmp_path, failures, runs):
    (tmp_path / "parts").write_text("system 1\nlint 1\n")
    cases = {f"test_{number}": number >= failures for number in range(6)}
    write_report(tmp_path / "system.xml", "tests.system.test_a", cases)
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\nfor word; do echo "$word"; done > "$(dirname "$0")/words"\n')
    program.chmod(0o755)
    subprocess.run(
        [sys.executable, ROOT / "tests/again.py", tmp_path],
        env={**os.environ, "MUSTER_PYTHON": str(program)},
        check=True,
    )
    assert (tmp_path / "words").exists() == runs
    if runs:
        words = (tmp_path / "words").read_text().split()
        assert [word for word in words if "::" in word] == [
            f"tests/system/test_a.py::test_{number}" for number in range(failures)
        ]
