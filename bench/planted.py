#!/usr/bin/env python3
"""Rows `planted-bugs`, `planted-security` and `planted-trainer`: each patch of tests/mutants, or of its folder of that name, planted, built, and looked for.

    planted.py bugs|security|trainer [--quick]

What finds each, the fault simulator or sched-fuzz with a seed, or one test, is kept in found.json beside them, where
`tests/mutants/run.py` writes it; a seed that no longer finds its bug is looked for anew, among 2,000 that nobody has seen. The tree without
bugs has to pass all of them. --quick: two of the bugs.

security: bugs of running jobs as their owners: what is dropped in another order, kept, done as root, not asked. Needs root.
trainer: bugs of models that ranks share out, in slices and in pipelines, of the kinds that other trainers had: a sum that is left out or an
average, an element that two ranks own, a loss that is counted twice, messages that cross.
"""

import json
import os
import sys

from figures import ROOT, figure, say_failed, shown

SEEDS = 2000
# What the figure is called, how many there are at the least, and the two of --quick.
SETS = {
    "bugs": (
        f"planted bugs found, each within {SEEDS:,} seeds or by a named test",
        115,  # 19 of them were asked for by the models behind docs/contracts.md
        ["ended-after-the-first-gone", "reply-before-commit"],
    ),
    "security": (
        "planted bugs found, each by a named test",
        20,
        ["groups-kept", "state-directory-shown"],
    ),
    "trainer": (
        "planted bugs found, each by a named test",
        15,
        ["messages-cross", "norms-not-summed-over-slices"],
    ),
}


def main() -> int:
    chosen, quick = sys.argv[1], "--quick" in sys.argv
    if chosen == "security" and os.geteuid() != 0:
        return say_failed(RuntimeError("needs root: the tests that find them are skipped without"))
    name, fewest, two = SETS[chosen]
    words = ["tests/mutants/run.py", *([] if chosen == "bugs" else ["--in", chosen]), "--replay"]
    words += two if quick else []
    code, said = shown([sys.executable, *words], cwd=ROOT)
    bugs = [json.loads(line) for line in said.splitlines()]
    found = [bug for bug in bugs if bug["found"] and bug.get("tries", 0) <= SEEDS]
    wanted = len(two) if quick else max(fewest, len(bugs))
    holds = len(found) == wanted and code == 0
    figure(name, len(found), f"of {wanted}", wanted, holds)
    if chosen == "bugs":
        for finder in ("simulator", "sched-fuzz", "test"):
            figure(f"of them by {finder}", sum(b["finder"] == finder for b in found), "", "-")
        most = max((bug.get("tries", 0) for bug in found), default=0)
        figure("most seeds that one needed", most, "", "-")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
