"""Figure `resume`: a killed, resumed and resized run against the same run undisturbed.

bench_resume.py [--quick]        MUSTER_TRAINER_BIN names the binary
"""

import sys
import tempfile
from pathlib import Path

import harness
import resume


def main() -> int:
    quick = "--quick" in sys.argv[1:]
    trainer_bin = harness.trainer_binary()
    print(f"machine: {harness.machine()}")
    figures = []
    with tempfile.TemporaryDirectory(prefix="bench-resume-") as name:
        folder = Path(name)
        tokens = harness.make_tokens(folder / "tokens")
        outcomes = []
        for number in range(1 if quick else 3):
            outcomes.append(resume.compare(trainer_bin, tokens, folder / str(number)))
            print(f"run {number + 1}: {outcomes[-1]}", flush=True)
    for key, unit, bar in (
        ("tokens_differ", "steps", 0),
        ("bitwise_differ", "steps on 4 ranks", 0),
        ("loss", "relative, 4 -> 2 ranks", 1e-6),
    ):
        figures.append(
            harness.figure(
                f"resume.{key}",
                max(one[key] for one in outcomes),
                unit,
                bar,
                peer="60 steps at once",
            )
        )
    return harness.report(figures)


if __name__ == "__main__":
    sys.exit(main())
