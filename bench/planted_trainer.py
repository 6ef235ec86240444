#!/usr/bin/env python3
"""Row `planted-trainer`: each patch of tests/mutants/trainer planted, built, and looked for by the test that found.json names.

    planted_trainer.py [--quick]

They are bugs of models that ranks share out, in slices and in pipelines, of the kinds that other trainers had: a sum that is left out or an average,
an element that two ranks own, a loss that is counted twice, messages that cross. The tree without bugs has to pass all of the tests.
--quick: two of the bugs.
"""

import json
import subprocess
import sys
from pathlib import Path

from figures import figure

ROOT = Path(__file__).resolve().parent.parent
FEWEST = 15
QUICK = ["messages-cross", "norms-not-summed-over-slices"]


def main() -> int:
    quick = "--quick" in sys.argv
    words = ["tests/mutants/run.py", "--in", "trainer", "--replay", *(QUICK if quick else [])]
    run = subprocess.Popen([sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    bugs = []
    for line in run.stdout:
        print(line, end="", flush=True)
        bugs.append(json.loads(line))
    run.wait()
    found = sum(bug["found"] for bug in bugs)
    wanted = len(QUICK) if quick else max(FEWEST, len(bugs))
    holds = found == wanted and run.returncode == 0
    figure("planted bugs found, each by a named test", found, f"of {wanted}", wanted, holds)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
