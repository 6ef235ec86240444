#!/usr/bin/env python3
"""Row `planted-security`: each patch of tests/mutants/security planted, built, and looked for by the test that found.json names.

    planted_security.py [--quick]

They are bugs of running jobs as their owners: what is dropped in another order, kept, done as root, not asked. The tree without bugs has to
pass all of the tests. Needs root. --quick: two of the bugs.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from figures import figure, say_failed

ROOT = Path(__file__).resolve().parent.parent
FEWEST = 20
QUICK = ["groups-kept", "state-directory-shown"]


def main() -> int:
    if os.geteuid() != 0:
        return say_failed(RuntimeError("needs root: the tests that find them are skipped without"))
    quick = "--quick" in sys.argv
    words = ["tests/mutants/run.py", "--in", "security", "--replay", *(QUICK if quick else [])]
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
