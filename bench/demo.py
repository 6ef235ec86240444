"""Row `demo`: the demo to its summary, built before (a first run from a fresh clone is timed by hand: see RESULTS.md)."""

import subprocess
import sys
import time

from figures import figure


def main() -> int:
    subprocess.run(["deploy/build.sh"], check=True)
    began = time.monotonic()
    code = subprocess.run(["deploy/demo.sh", *(["--short"] if "--quick" in sys.argv else [])]).returncode
    took_s = time.monotonic() - began
    held = [figure("demo.second_run", round(took_s, 1), "s", "<= 180", code == 0 and took_s <= 180),
            figure("demo.asserted_results", code, "exit", "0", code == 0)]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
