"""bench/run.sh peer-death: one of 3 ranks is killed, or stopped; when the others have ended, with failure."""

import signal
import sys
import tempfile
from pathlib import Path

import harness
import kills

TIMEOUT_S = 3


def main() -> int:
    repeats = 2 if "--quick" in sys.argv[1:] else 10
    trainer_bin = harness.trainer_binary()
    with tempfile.TemporaryDirectory(prefix="bench-peer-death-") as name:
        folder = Path(name)
        tokens = harness.make_tokens(folder / "tokens")
        killed = [
            kills.end_of_peers(trainer_bin, tokens, folder / f"k{n}", signal.SIGKILL)
            for n in range(repeats)
        ]
        stopped = [
            kills.end_of_peers(
                trainer_bin, tokens, folder / f"s{n}", signal.SIGSTOP, timeout_s=TIMEOUT_S
            )
            for n in range(repeats)
        ]
    print(f"killed {sorted(killed)}, stopped {sorted(stopped)}")
    return harness.report(
        [
            harness.figure(
                f"killed peer: the others' end, worst of {repeats}", round(max(killed), 3), "s", 2
            ),
            harness.figure(
                f"stopped peer, step_timeout_s {TIMEOUT_S}: the others' end, worst of {repeats}",
                round(max(stopped), 3),
                "s",
                TIMEOUT_S + 2,
            ),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
