"""The runner of the tests for GPUs: what crashes, hangs or is skipped there is told as failed, and hinders nothing else."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import gpu_all
import gpu_cases
import pytest

PROGRAM = """#!{python}
import os, signal, sys, time
words = " ".join(sys.argv)
if "--gtest_list_tests" in words:
    print("Good.\\n  One\\n  Two\\nCrashes.\\n  One\\nFails.\\n  One\\nForms.\\n  One/plain\\n  One/gpu\\nEach/Kinds.\\n  One/0  # 7")
if "Crashes" in words:
    os.kill(os.getpid(), signal.SIGSEGV)
sys.exit(3 if "Fails" in words else 0)
"""


@pytest.fixture
def bundle(tmp_path) -> Path:
    for name in ("bin", "lib", "tests"):
        (tmp_path / name).mkdir()
    (tmp_path / "bundle").write_text("a bundle for this test")
    for name in ("muster-trainer", "trainer_engine_test"):
        program = tmp_path / "bin" / name
        program.write_text(PROGRAM.format(python=sys.executable))
        program.chmod(0o755)
    shutil.copy(gpu_cases.__file__, tmp_path / "tests")
    return tmp_path


def run(bundle: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, bundle / "tests/gpu_cases.py", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )


def test_each_case_is_apart_and_a_crash_fails_it(bundle):
    done = run(bundle, "--case", "cpu: ", "--case", "loads")
    told = {
        line.split("  ")[-1]: line.split()[0] for line in done.stdout.splitlines() if "s  " in line
    }
    assert done.returncode == 1
    assert {name: told[name] for name in told if "test_" not in name} == {
        "loads": "passed",
        "loads: tests": "passed",
        "cpu: Good.*": "passed",
        "cpu: Crashes.*": "FAILED",
        "cpu: Fails.*": "FAILED",
        "cpu: Forms.*/plain": "passed",
        "cpu: Each/Kinds.*": "passed",
    }
    assert "killed by signal 11 (SIGSEGV)" in done.stdout and "exit 3" in done.stdout
    assert "gpu: " not in done.stdout


def test_a_program_that_does_not_start_fails(bundle):
    (bundle / "bin/trainer_engine_test").write_text("#!/bin/false\n")
    done = run(bundle, "--case", "loads")
    assert done.returncode == 1 and "FAILED" in done.stdout and "doesn't start" in done.stdout


def test_nothing_that_passes_is_a_failure(bundle):
    assert run(bundle, "--case", "no such case").returncode == 1


def test_a_case_has_a_limit_and_hinders_none_beside_it(bundle):
    program = bundle / "bin/trainer_engine_test"
    text = program.read_text()
    waits = 'if "--gtest_filter=Good" in words:\n    open(os.environ["TMPDIR"] + "/0.err", "w").write("so far")\n    signal.pause()\n'
    program.write_text(text.replace("sys.exit(3", waits + "sys.exit(3"))
    done = run(bundle, "--jobs", "3", "--limit", "5", "--case", "cpu: Good", "--case", "cpu: Forms")
    assert done.returncode == 1 and "1 passed, 1 failed, 0 skipped" in done.stdout
    assert "took more than 5 s" in done.stdout and "0.err: so far" in done.stdout


def test_no_run_takes_more_than_any_lent_gpu_has_unless_it_is_asked_for():
    assert [gpu_all.most_gib(0, gib) for gib in (24, 80, 140.4)] == [20, 75, 75]
    assert gpu_all.most_gib(137, 140.4) == 137
