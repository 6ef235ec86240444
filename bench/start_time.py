"""Row `start-time`: the trainer to the end of its first collective, and musterd with an empty store to its first answer."""

import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "deploy" / "local"), str(ROOT / "tests" / "system")]

from figures import BIN, at_most
from local_system import LocalSystem, system_folder
from small_system import configure

BAR_S = 0.3


def musterd_start_s() -> float:
    with system_folder() as folder:
        system = LocalSystem(folder, BIN)
        try:
            configure(system)
            return system.start_musterd()
        finally:
            system.stop()


def main() -> int:
    quick = ["--quick"] if "--quick" in sys.argv else []
    trainer = subprocess.run(
        [sys.executable, ROOT / "trainer" / "tests" / "bench_trainer_start.py", *quick]
    ).returncode
    times_s = [musterd_start_s() for _ in range(5 if quick else 15)]
    median_s = round(statistics.median(times_s), 3)
    held = at_most("start-time.musterd", median_s, "s", BAR_S)
    return 0 if held and trainer == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
