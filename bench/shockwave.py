"""Row `shockwave`: Shockwave's TACC-32, 120 jobs on 32 V100.

First Gavel's published row (9.22 h / 3.13 h) from our model of its rounds (bench/gavel_replay.py), then the same jobs in
muster-sim: durations follow the batch sizes that Accordion and GNS give each epoch, a restart costs 20 s as there. Nobody but
`srtf` knows durations; Muster sees the progress of what runs. The trace names no tenants: Muster's setup is a queue for each size of
gang (bench/fleets/tacc32-by-size.queues.yaml says how its guarantees were found); one queue for all is shown beside it.
"""

import sys

from figures import figure
from gavel_replay import replay
from simulate import DATA, simulate, table

PUBLISHED = {"makespan": 9.22, "jct": 3.13}
FOLDER = DATA / "shockwave"


def main() -> int:
    trace, rates = FOLDER / "tacc32_120jobs.trace", FOLDER / "tacc_throughputs.json.gz"
    if not trace.exists():
        raise SystemExit(f"{trace} is missing: MUSTER_DATA names another folder")
    makespan_h, jct_h = replay(trace, rates)
    held = []
    for name, value in (("makespan", makespan_h), ("jct", jct_h)):
        off = 100 * abs(value / PUBLISHED[name] - 1)
        held.append(
            figure(
                f"shockwave.gavel_reproduced.{name}",
                round(value, 2),
                "h",
                f"{PUBLISHED[name]} within 3 %",
                off <= 3,
                PUBLISHED[name],
            )
        )
    peers = ["fifo-backfill", "las", "dlas", "gavel", "srtf"]
    options = ["--throughputs", str(rates), "--quantum", "120s", "--launch", "15s"]
    runs = simulate(trace, "tacc32", ["muster", *peers], *options)
    runs["muster, by size"] = simulate(
        trace, "tacc32", ["muster"], *options, "--queue-by-size", queues="tacc32-by-size"
    )["muster"]
    table("TACC-32 in muster-sim:", runs)
    for key, bar in (("jct", 2.68), ("makespan", 8.0)):
        hours = {
            policy: round(
                (run["summary"]["jct_mean_s"] if key == "jct" else run["end_s"]) / 3600, 2
            )
            for policy, run in runs.items()
        }
        peer = {
            "Gavel, published": PUBLISHED[key],
            **{each: hours[each] for each in peers},
            "Muster with one queue": hours["muster"],
        }
        held.append(
            figure(
                f"shockwave.{key}",
                hours["muster, by size"],
                "h",
                f"<= {bar}",
                hours["muster, by size"] <= bar,
                peer,
            )
        )
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
