"""bench/run.sh pipeline-order: the orders of pipelines, for 2 to 8 ranks and 1 to 32 micro-batches, in a model of ranks that wait.

The unit tests do it: every step once and after what it needs, messages that meet in order, no rank that waits for ever with two
buffers a neighbour, no more kept than the papers say, and idle time equal to their formulas. --quick is the same. The tests'
programs lie in build/release/tests (deploy/build.sh).
"""

import re
import subprocess
import sys
from pathlib import Path

import harness


def main() -> int:
    program = Path(harness.trainer_binary()).parent.parent / "tests" / "trainer_core_test"
    done = subprocess.run(
        [program, "--gtest_filter=PipelineOrder.*:CutLayers.*"], capture_output=True, text=True
    )
    told = re.search(r"pipeline cases=(\d+) bubbles=(\d+) differing=(\d+)", done.stdout)
    passed = re.search(r"PASSED  \] (\d+) tests", done.stdout)
    if told is None or passed is None:
        sys.exit(f"{program} ended with {done.returncode}\n{done.stdout[-3000:]}{done.stderr}")
    cases, bubbles, differing = map(int, told.groups())
    failed = len(set(re.findall(r"FAILED  \] (\w+\.\w+)", done.stdout)))
    figures = [
        harness.figure(
            "pipeline-order",
            failed,
            f"properties that fail, of {int(passed[1]) + failed}; {cases} pipelines",
            0,
        ),
        harness.figure(
            "pipeline-order.bubble", differing, f"idle times off their formula, of {bubbles}", 0
        ),
    ]
    return max(harness.report(figures), done.returncode)


if __name__ == "__main__":
    sys.exit(main())
