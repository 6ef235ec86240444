"""Row `tests`: the README's second command on a bare machine, from scratch; then in a fresh clone there, with its compiler
cache. --quick: most unit tests of this checkout's build."""

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bare_machine import BareMachine
from figures import figure


def closing(text: str) -> str:
    return text.strip().splitlines()[-1] if text.strip() else "nothing printed"


def quick() -> bool:
    """The unit tests without the trainer's, whose ranks alone take two minutes of both cores."""
    listed = subprocess.run(
        ["ctest", "--test-dir", "build/release", "-N"], capture_output=True, text=True, check=True
    ).stdout
    names = re.findall(r"Test +#\d+: (\S+)", listed)
    names.remove("trainer_engine_test")
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
            figure("tests.unit", round(took_s), "s", "<= 60", took_s <= 60),
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
