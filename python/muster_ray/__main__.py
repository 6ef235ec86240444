"""python3 -m muster_ray [--dashboard] [--cpus N] [--memory-bytes N] -- PROGRAM…: what a worker of a task with `ray` runs. See docs/ray.md."""

import argparse
import os
import sys

from muster_ray import record, worker
from muster_ray.head import Cluster
from muster_ray.node import RayError, Stop, Stopped, check_version, say

STOPPED = 143  # exit code after SIGTERM
NEEDS = ("MUSTER_JOB_DIR", "MUSTER_ATTEMPT", "MUSTER_ARRAY_JOB", "MUSTER_ARRAY_INDEX")


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("muster_ray", description="One worker of a Ray cluster.")
    parser.add_argument("--dashboard", action="store_true")
    parser.add_argument("--cpus", type=int, default=0)
    parser.add_argument("--memory-bytes", type=int, default=0)
    parser.add_argument("program", nargs="+", help="behind --: what the head runs")
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    given = parse(words)
    missing = [name for name in NEEDS if name not in os.environ]
    if missing:
        say(f"{missing[0]} isn't set: Muster starts this, for a task with ray: (docs/ray.md)")
        return 2
    stop = Stop()
    folder = record.directory(dict(os.environ))
    try:
        check_version(stop)
        if os.environ["MUSTER_ARRAY_INDEX"] == "0":
            return Cluster(folder, given, stop).run()
        return worker.run(folder, given, stop)
    except RayError as error:
        say(str(error))
        return 1
    except Stopped:
        return STOPPED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
