"""Row `tests`: tests/run.sh on this checkout, as warm as the compiler cache is."""

import subprocess
import sys
import time

from figures import figure


def main() -> int:
    began = time.monotonic()
    run = subprocess.run(["tests/run.sh", *(["--fast"] if "--quick" in sys.argv else [])], stdout=subprocess.PIPE, text=True)
    took_min = (time.monotonic() - began) / 60
    closing = run.stdout.strip().splitlines()[-1] if run.stdout.strip() else "nothing printed"
    print(closing)
    held = [figure("tests.warm", round(took_min, 1), "min", "<= 12", took_min <= 12),
            figure("tests.closing_line", closing, "", "0 failed", run.returncode == 0)]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
