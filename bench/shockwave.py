"""Row `shockwave`: Shockwave's TACC-32, 120 jobs on 32 V100.

First Gavel's published row (9.22 h / 3.13 h) from our model of its rounds (bench/gavel_replay.py), then the same jobs in
muster-sim: durations follow the batch sizes that Accordion and GNS give each epoch, a restart costs 20 s as there. Nobody but
`srtf` knows durations; Muster sees the progress of what runs. The trace names no tenants: Muster's setup is a queue for each size of
gang (bench/fleets/tacc32-by-size.queues.yaml says how its guarantees were found); one queue for all is shown beside it.

Then one queue with `order: shortest`, on this trace and on two that bench/shockwave_trace.py draws with other seeds; the order's
constants were settled on its seeds 1 to 10, so those are not among them. Preemptive peers choose anew every 120 s, and Muster's
min_runtime is that here. Nobody is told a duration at submission. But what runs reports its progress, and in the simulator that tells
its end exactly, from its first step on; a real program's rate changes, and bands are powers of two for that. Told beside it, without a
bar: min_runtime as it is by default, and jobs that report nothing, so that the queue goes by what each has had.
"""

import sys
import tempfile
from pathlib import Path

from figures import at_most, figure
from gavel_replay import replay
from shockwave_trace import make
from simulate import DATA, simulate, table

PUBLISHED = {"makespan": 9.22, "jct": 3.13}
FOLDER = DATA / "shockwave"
OPTIONS = ["--quantum", "120s", "--launch", "15s"]
OTHER_SEEDS = [11, 12]
ORDER_PEERS = ["fifo-backfill", "las", "dlas", "gavel"]


def hours(run: dict, key: str) -> float:
    return (run["summary"]["jct_mean_s"] if key == "jct" else run["end_s"]) / 3600


def shortest_first(name: str, trace: Path, rates: Path) -> list[bool]:
    """One queue that takes the shortest first, against the best of the peers that know no durations."""
    options = ["--throughputs", str(rates), *OPTIONS]
    runs = simulate(trace, "tacc32", ORDER_PEERS, *options)
    ways = {
        "shortest": ["--min-runtime", "120s"],
        "shortest, min_runtime 5m": [],
        "shortest, no progress": ["--min-runtime", "120s", "--unknown-ends"],
    }
    for way, more in ways.items():
        runs[way] = simulate(
            trace, "tacc32", ["muster"], *options, *more, queues="tacc32-shortest"
        )["muster"]
    table(f"{name}, one queue, the shortest first:", runs)
    held = []
    for key, part in (("jct", 0.95), ("makespan", 1.0)):
        bar = part * min(hours(runs[peer], key) for peer in ORDER_PEERS)
        peer = {each: round(hours(run, key), 2) for each, run in runs.items() if each != "shortest"}
        ours = hours(runs["shortest"], key)
        label = f"<= {part if part < 1 else 1} x the best = {bar:.2f}"
        held.append(
            figure(f"shockwave.{name}.{key}", round(ours, 2), "h", label, ours <= bar, peer)
        )
    return held


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
    options = ["--throughputs", str(rates), *OPTIONS]
    runs = simulate(trace, "tacc32", ["muster", *peers], *options)
    runs["muster, by size"] = simulate(
        trace, "tacc32", ["muster"], *options, "--queue-by-size", queues="tacc32-by-size"
    )["muster"]
    table("TACC-32 in muster-sim:", runs)
    for key, bar in (("jct", 2.68), ("makespan", 8.0)):
        told = {policy: round(hours(run, key), 2) for policy, run in runs.items()}
        peer = {
            "Gavel, published": PUBLISHED[key],
            **{each: told[each] for each in peers},
            "Muster with one queue": told["muster"],
        }
        held.append(at_most(f"shockwave.{key}", told["muster, by size"], "h", bar, peer))
    held += shortest_first("tacc32", trace, rates)
    with tempfile.TemporaryDirectory() as folder:
        for seed in OTHER_SEEDS:
            drawn = Path(folder) / f"seed{seed}.trace"
            drawn.write_text(make(seed, rates))
            held += shortest_first(f"seed{seed}", drawn, rates)
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
