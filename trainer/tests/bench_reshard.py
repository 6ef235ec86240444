"""bench/run.sh reshard-all: a checkpoint of each of 23 layouts of ranks, read and saved again in each of the others.

The unit test does it, ranks being threads: every element of weights and moments on every rank, and every file that is written
again, bit for bit. --quick leaves pairs out. The tests' programs lie in build/release/tests (deploy/build.sh).
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import harness

TEST = "Reshard.AnyLayoutReadsWhatAnyOtherWroteBitForBit"


def main() -> int:
    program = Path(harness.trainer_binary()).parent.parent / "tests" / "trainer_engine_test"
    quick = "--quick" in sys.argv[1:]
    done = subprocess.run(
        [program, f"--gtest_filter={TEST}"],
        env=os.environ | ({} if quick else {"MUSTER_ALL_PAIRS": "1"}),
        capture_output=True,
        text=True,
    )
    told = re.search(r"reshard layouts=(\d+) pairs=(\d+) differing=(\d+)", done.stdout)
    if told is None:
        sys.exit(f"{program} ended with {done.returncode}\n{done.stdout[-3000:]}{done.stderr}")
    layouts, pairs, differing = map(int, told.groups())
    unit = f"elements on a rank, or files, that differ in a bit; {pairs} pairs of {layouts} layouts"
    return harness.report([harness.figure("reshard-all", differing, unit, 0)]) or done.returncode


if __name__ == "__main__":
    sys.exit(main())
