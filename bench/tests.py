"""Row `tests`: the README's second command on a bare machine, from scratch; then in a fresh clone there, with its compiler
cache. --quick: the shorter unit tests of this build."""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bare_machine import BareMachine
from figures import at_most, figure


def closing(text: str) -> str:
    return text.strip().splitlines()[-1] if text.strip() else "nothing printed"


def quick() -> bool:
    """The unit tests that need no longer limit than a test has by itself (cmake/muster.cmake)."""
    listed = subprocess.run(
        ["ctest", "--test-dir", "build/release", "--show-only=json-v1"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    limits_s = {
        test["name"]: {one["name"]: one["value"] for one in test["properties"]}["TIMEOUT"]
        for test in json.loads(listed)["tests"]
    }
    names = [name for name, limit_s in limits_s.items() if limit_s <= 120]
    with tempfile.TemporaryDirectory() as reports:
        began = time.monotonic()
        report = f"{reports}/unit-release.xml"
        code = subprocess.run(
            ["tests/unit.sh", "release", report, *names], stdout=subprocess.DEVNULL
        ).returncode
        took_s = time.monotonic() - began
        Path(reports, "parts").write_text(f"unit-release {code}\n")
        said = subprocess.run(
            [sys.executable, "tests/summary.py", reports], stdout=subprocess.PIPE, text=True
        ).stdout
    return all(
        [
            at_most("tests.unit", took_s, "s", 60, places=0),
            figure("tests.closing_line", closing(said), "", "0 failed", code == 0),
        ]
    )


def full() -> bool:
    with BareMachine(Path.cwd()) as machine:
        code, scratch_s, said = machine.run("tests/run.sh")
        again, warm_s, _ = machine.run("rm -rf build && tests/run.sh")
    return all(
        [
            figure(
                "tests.from_scratch",
                round(scratch_s / 60, 1),
                "min",
                "<= 30",
                code == 0 and scratch_s <= 1800,
            ),
            figure(
                "tests.warm", round(warm_s / 60, 1), "min", "<= 10", again == 0 and warm_s <= 600
            ),
            figure("tests.closing_line", closing(said), "", "0 failed", code == 0),
        ]
    )


if __name__ == "__main__":
    sys.exit(0 if (quick() if "--quick" in sys.argv else full()) else 1)
