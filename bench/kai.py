"""Row `kai-scale`: the scale tests that KAI Scheduler publishes, each against its published time.

The published times include pod creation and binding through Kubernetes' API server; ours include
submission, the durable store, dispatch to simulated agents and their committed word that all
processes have started. Its "NCCL Simulation" is left out: the data don't say what it runs.
"""

import json
import os
import re
import sys
from pathlib import Path

from figures import ROOT, figure, measure

DATA = Path(os.environ.get("MUSTER_DATA", ROOT.parent / "shared" / "data")) / "kai"
FASTER = 20
# Ours -> the published test's name, and the field that tells its size where a name stands twice.
TESTS = {
    "gang_512_topology": ("Allocate with preferred topology", {}),
    "gang_512": ("Allocate without preferred topology", {}),
    "fill_then_schedule": ("Fill Cluster with single GPU Jobs", {}),
    "fill": ("Fill Cluster with single GPU Jobs - scheduler is running while submitting jobs", {}),
    "fill_beside_pending": (
        "Fill Cluster with single GPU Jobs with 400 pending tasks in background",
        {},
    ),
    "unschedulable": ("Average time to unschedulable for distributed job", {}),
    "reclaim_gang_250": ("Reclaim time for one very large job", {"number of pods": 250}),
    "reclaim_gang_500": ("Reclaim time for one very large job", {"number of pods": 500}),
    "reclaim_one": ("Measuring reclaim time for single GPU", {}),
    "reclaim_4000": ("Reclaim 4000 single GPU Jobs", {}),
    "reclaim_50_gangs": ("Multi Node Reclaim for distributed jobs", {}),
    "consolidate_41_gangs": ("Consolidation to run multiple distributed jobs", {}),
}


def seconds(test: dict) -> float:
    """The one time among a published test's fields: Go's notation, or a number of seconds."""
    for field, value in test.items():
        if field == "time":
            minutes, rest = re.fullmatch(r"(?:(\d+)m)?([\d.]+)s", value).groups()
            return 60 * int(minutes or 0) + float(rest)
        if "(seconds)" in field:
            return float(value)
    raise ValueError(f"no time in {test}")


def main() -> int:
    published = json.loads((DATA / "published_scale_results.json").read_text())["tests"]
    measured = measure("bench_kai", "STORE")
    held = []
    for ours, (name, fields) in TESTS.items():
        (test,) = [t for t in published if t["name"] == name and fields.items() <= t.items()]
        theirs_s = seconds(test)
        times = theirs_s / measured[ours]
        held.append(
            figure(
                f"kai-scale.{ours}",
                measured[ours],
                "s",
                f"<= {theirs_s / FASTER:.2f}",
                times >= FASTER,
                {"KAI, published": f"{theirs_s:.1f} s", "faster": f"{times:.0f}x"},
            )
        )
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
