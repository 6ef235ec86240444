"""Row `tests`: the README's second command on a bare machine, from scratch; then in a fresh clone there, with its compiler
cache. --quick: tests/run.sh --fast on this checkout."""

import subprocess
import sys
import time
from pathlib import Path

from bare_machine import BareMachine
from figures import figure


def closing(text: str) -> str:
    return text.strip().splitlines()[-1] if text.strip() else "nothing printed"


def quick() -> bool:
    began = time.monotonic()
    run = subprocess.run(["tests/run.sh", "--fast"], stdout=subprocess.PIPE, text=True)
    took_min = (time.monotonic() - began) / 60
    return all(
        [
            figure("tests.fast", round(took_min, 1), "min", "<= 10", took_min <= 10),
            figure("tests.closing_line", closing(run.stdout), "", "0 failed", run.returncode == 0),
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
