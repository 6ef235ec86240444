#!/usr/bin/env python3
"""Draws what muster-sim did: devices in use over time by queue, the distribution of waiting times, and a Gantt chart.

    muster-sim compare TRACE --cluster FILE … -o json --jobs > runs.json
    python3 sim/plot.py runs.json --out plots/ [--format svg|png] [--gantt-jobs 200]

Writes allocation-POLICY, gantt-POLICY for each run, and waits for all of them together. Needs matplotlib (docs/simulating.md).
"""

import argparse
import json
import sys
from pathlib import Path

DAY_S, HOUR_S = 86400, 3600


def steps(
    run: dict, queues: list[str], most: int = 8
) -> tuple[list[float], dict[str, list[float]]]:
    """Times and, for the queues that use the most and `others`, GPUs held from each time on."""
    area = {queue: 0.0 for queue in queues}
    changes = []
    for job in run["jobs"]:
        for begin, end, _, gpus in job["segments"]:
            area[job["queue"]] += (end - begin) * gpus
            changes += [(begin, job["queue"], gpus), (end, job["queue"], -gpus)]
    shown = sorted(queues, key=lambda queue: -area[queue])[:most]
    names = shown + (["others"] if len(queues) > most else [])
    now = dict.fromkeys(names, 0.0)
    times, held = [], {name: [] for name in names}
    for at, queue, gpus in sorted(changes):
        name = queue if queue in now else "others"
        now[name] += gpus
        if times and times[-1] == at:
            for other in names:
                held[other][-1] = now[other]
            continue
        times.append(at)
        for other in names:
            held[other].append(now[other])
    return times, held


def scale(last_s: float) -> tuple[float, str]:
    return (
        (DAY_S, "days")
        if last_s > 3 * DAY_S
        else (HOUR_S, "hours")
        if last_s > 3 * HOUR_S
        else (60, "minutes")
    )


def save(plt, figure, path: Path) -> None:
    figure.savefig(
        path, bbox_inches="tight", metadata={"Date": None} if path.suffix == ".svg" else None
    )  # the same runs give the same file
    plt.close(figure)


def draw_allocation(plt, data: dict, run: dict, path: Path) -> None:
    queues = sorted({job["queue"] for job in run["jobs"]})
    times, held = steps(run, queues)
    unit, name = scale(run["end_s"])
    figure, axes = plt.subplots(figsize=(10, 4))
    axes.stackplot(
        [t / unit for t in times], *held.values(), labels=list(held), step="post", linewidth=0
    )
    axes.axhline(data["devices"], color="black", linewidth=0.8, linestyle="--")
    axes.set(
        xlabel=f"time ({name})",
        ylabel="GPUs held",
        title=f"{run['policy']}: GPUs held by queue",
        xlim=(0, run["end_s"] / unit),
        ylim=(0, None),
    )
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0, fontsize="small")
    save(plt, figure, path)


def draw_waits(plt, data: dict, path: Path) -> None:
    figure, axes = plt.subplots(figsize=(7, 4))
    for run in data["runs"]:
        waits = sorted(
            job["start_s"] - job["submit_s"] for job in run["jobs"] if job["start_s"] is not None
        )
        axes.step(
            [max(wait, 1.0) for wait in waits],
            [(i + 1) / len(waits) for i in range(len(waits))],
            where="post",
            label=run["policy"],
        )
    axes.set(
        xscale="log",
        xlabel="wait until the first start (s; below 1 s shown as 1)",
        ylabel="share of jobs",
        ylim=(0, 1.01),
        title="Waiting times",
    )
    axes.legend(loc="lower right", fontsize="small")
    axes.grid(alpha=0.3)
    save(plt, figure, path)


def waits_of(job: dict) -> list[tuple[float, float]]:
    """The times in which the job held nothing: before its first start, and after each stop that wasn't its end."""
    starts = [segment[0] for segment in job["segments"]]
    ends = [job["submit_s"]] + [segment[1] for segment in job["segments"]]
    return [(end, start) for end, start in zip(ends, starts) if start > end]


def draw_gantt(plt, data: dict, run: dict, most: int, path: Path) -> None:
    jobs = [job for job in run["jobs"] if job["segments"]][:most]
    last_s = max((job["segments"][-1][1] for job in jobs), default=1)
    unit, name = scale(last_s)
    least_s = last_s / 500  # so that what ran for a moment can be seen: about a pixel
    colours = plt.get_cmap("tab10")
    figure, axes = plt.subplots(figsize=(10, max(2.0, 0.09 * len(jobs) + 1)))
    for row, job in enumerate(jobs):
        for begin, end in waits_of(job):
            axes.plot([begin / unit, end / unit], [row, row], color="0.6", linewidth=0.6, zorder=1)
        for begin, end, cluster, _ in job["segments"]:
            axes.barh(
                row,
                max(end - begin, least_s) / unit,
                left=begin / unit,
                height=0.8,
                color=colours(cluster % 10),
                linewidth=0,
                zorder=2,
            )
    for index, cluster in enumerate(data["clusters"][:10]):
        axes.barh(0, 0, color=colours(index), label=cluster)
    axes.set(
        xlabel=f"time ({name})",
        ylabel="jobs by submission",
        title=f"{run['policy']}: the first {len(jobs)} jobs; grey: waiting",
    )
    axes.invert_yaxis()
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0, fontsize="small")
    save(plt, figure, path)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="sim/plot.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", help="output of muster-sim -o json --jobs; - reads standard input")
    parser.add_argument("--out", default=".", help="directory of the pictures")
    parser.add_argument("--format", default="svg", choices=["svg", "png"])
    parser.add_argument("--gantt-jobs", type=int, default=200)
    options = parser.parse_args()
    try:
        import matplotlib
    except ImportError:
        print(
            "sim/plot.py: matplotlib is missing; `apt-get install python3-matplotlib` brings it for Debian's python3, "
            "`pip install matplotlib` for another",
            file=sys.stderr,
        )
        return 2
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "muster"  # as save() says
    import matplotlib.pyplot as plt

    data = json.loads(sys.stdin.read() if options.runs == "-" else Path(options.runs).read_text())
    if any("jobs" not in run for run in data["runs"]):
        print("sim/plot.py: the file has no jobs; run muster-sim with --jobs", file=sys.stderr)
        return 2
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    written = [out / f"waits.{options.format}"]
    draw_waits(plt, data, written[0])
    for run in data["runs"]:
        named = f"{run['policy']}.{options.format}"
        written += [out / f"allocation-{named}", out / f"gantt-{named}"]
        draw_allocation(plt, data, run, written[-2])
        draw_gantt(plt, data, run, options.gantt_jobs, written[-1])
    print("\n".join(map(str, written)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
