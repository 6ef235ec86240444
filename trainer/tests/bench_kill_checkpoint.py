"""bench/run.sh kill-checkpoint: SIGKILL at random points while a checkpoint is written; each time the run resumes from a
complete one."""

import sys
import tempfile
from pathlib import Path

import harness
import kills


def main() -> int:
    count = 12 if "--quick" in sys.argv[1:] else 100
    with tempfile.TemporaryDirectory(prefix="bench-kill-checkpoint-") as name:
        folder = Path(name)
        tokens = harness.make_tokens(folder / "tokens")
        found = kills.kill_while_writing(
            harness.trainer_binary(), tokens, folder / "runs", count, ranks=2
        )
    print(found)
    return harness.report(
        [
            harness.figure(
                "kills while a checkpoint was written",
                found["hits"],
                f"of {found['attempts']} kills",
                count,
                at_most=False,
            ),
            harness.figure(
                "kills after which no complete checkpoint loaded", found["not_resumed"], "", 0
            ),
            harness.figure("published checkpoints that were refused", found["refused"], "", 0),
            harness.figure(
                "resumes from before a checkpoint that had been told of", found["went_back"], "", 0
            ),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
