"""Row `openb`: GPU allocation on Alibaba's 2023 GPU trace at 130 % load, V against FGD, by the protocol of docs/scheduling.md §3.

The seeds are none of those that V was tuned on (1-5), nor those seen when FGD's typical pods were settled (101-110). FGD is our own implementation; its published means stand beside it.

What V allocates and how many 8-GPU pods it refuses are traded against each other by one number, how much a whole host counts. The
row prints that trade-off for every workload and, with `bench/run.sh openb -- --plot FILE`, draws it (FILE.svg or .png; needs matplotlib).
"""

import csv
import gzip
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean

from figures import figure

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data" / "openb"
NODES = DATA / "openb_node_list_gpu_node.csv"
PUBLISHED = DATA / "published_fgd_gpu_allocation.csv"
PROGRAM = Path(os.environ.get("MUSTER_BIN_DIR", ROOT / "build" / "release" / "bin")) / "bench_openb"
FIRST_SEED = 201
BARS = {"default": 95.9, "gpushare100": 88.3, "cpu050": 95.9, "multigpu30": 96.5}
WHOLE_HOST_WEIGHT = 4  # V's own (HostScorer::kWholeHostWeight)
OTHER_WEIGHTS = (1, 2, 8, 16)
REFUSED_BAR = {"default": 3, "cpu050": 3}  # more 8-GPU pods than FGD refuses before 100 % load


def published() -> dict[str, float]:
    lines = [line for line in PUBLISHED.read_text().splitlines() if not line.startswith("#")]
    return {
        row["workload"].removeprefix("openb_pod_list_"): float(row["06-FGD"])
        for row in csv.DictReader(lines)
    }


def run(
    workload: str, policy: str, seeds: int, folder: Path, weight: int = WHOLE_HOST_WEIGHT
) -> tuple[float, float]:
    """Mean allocation in %, and mean number of 8-GPU pods refused before 100 % load."""
    pods = folder / f"{workload}.csv"
    if not pods.exists():
        pods.write_bytes(gzip.decompress((DATA / f"openb_pod_list_{workload}.csv.gz").read_bytes()))
    most_scored = "1000000" if policy == "fgd" else "128"
    command = [
        PROGRAM,
        NODES,
        pods,
        policy,
        str(FIRST_SEED),
        str(FIRST_SEED + seeds - 1),
        most_scored,
        str(weight),
    ]
    lines = [
        json.loads(line)
        for line in subprocess.run(
            command, check=True, capture_output=True, text=True
        ).stdout.splitlines()
    ]
    print(
        f"{workload} {policy}{f' (a whole host counts {weight})' if weight != WHOLE_HOST_WEIGHT else ''}: "
        + " ".join(f"{line['allocation']:.2f}" for line in lines)
        + f"  ({sum(line['seconds'] for line in lines):.1f} s)",
        flush=True,
    )
    return mean(line["allocation"] for line in lines), mean(line["refused_8_gpu"] for line in lines)


def draw(
    path: Path,
    curves: dict[str, list[tuple[int, float, float]]],
    peers: dict[str, tuple[float, float]],
) -> None:
    """Refused 8-GPU pods against allocation, a panel a workload: V by weight, and FGD's point."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = 4
    rows = -(-len(curves) // columns)
    shown, panels = plt.subplots(rows, columns, figsize=(3.4 * columns, 3 * rows), squeeze=False)
    for panel in panels.flat[len(curves) :]:
        panel.set_axis_off()
    for panel, (workload, points) in zip(panels.flat, curves.items()):
        panel.plot(
            [refused for _, refused, _ in points],
            [allocation for _, _, allocation in points],
            marker="o",
            markersize=3,
            label="V by weight",
        )
        for weight, refused, allocation in points:
            panel.annotate(
                str(weight),
                (refused, allocation),
                textcoords="offset points",
                xytext=(4, 3),
                fontsize=7,
            )
        panel.plot(*peers[workload], marker="x", linestyle="none", color="tab:red", label="FGD")
        panel.set_title(workload, fontsize=9)
        panel.tick_params(labelsize=7)
    panels[0][0].legend(fontsize=7)
    shown.supxlabel("8-GPU pods refused before 100 % load")
    shown.supylabel("GPU allocation at 130 % load (%)")
    shown.tight_layout()
    shown.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> int:
    quick = "--quick" in sys.argv
    if not NODES.exists():
        print(
            f"openb: {NODES} isn't there; the row needs the trace in ../shared/data/openb",
            file=sys.stderr,
        )
        return 2
    if not PROGRAM.exists():
        print(
            f"openb: {PROGRAM} isn't built; run deploy/build.sh --no-trainer bench_openb",
            file=sys.stderr,
        )
        return 2
    peers = published()
    seeds = 2 if quick else 10
    held = True
    plot = Path(sys.argv[sys.argv.index("--plot") + 1]) if "--plot" in sys.argv else None
    curves, fgd_points = {}, {}
    with tempfile.TemporaryDirectory(prefix="muster-openb-") as name:
        for workload in (
            ["default", "gpushare100"]
            if quick
            else [*BARS, *(w for w in sorted(peers) if w not in BARS)]
        ):
            fgd, fgd_refused = run(workload, "fgd", seeds, Path(name))
            v, v_refused = run(workload, "v", seeds, Path(name))
            peer = {"FGD published": peers[workload], "FGD here": round(fgd, 2)}
            curve = (
                []
                if quick
                else [
                    (weight, *reversed(run(workload, "v", seeds, Path(name), weight)))
                    for weight in OTHER_WEIGHTS
                ]
            )
            curves[workload] = sorted([*curve, (WHOLE_HOST_WEIGHT, v_refused, v)])
            fgd_points[workload] = (fgd_refused, fgd)
            bar = BARS.get(workload)
            held &= figure(
                f"openb.{workload}.v",
                round(v, 2),
                "%",
                f">= {bar} and above FGD" if bar else "above FGD",
                v > max(fgd, peers[workload]) and v >= (bar or 0),
                peer,
            )
            # Two seeds say little about a mean of ten.
            slack = 0.6 if quick else 0.2
            held &= figure(
                f"openb.{workload}.fgd",
                round(fgd, 2),
                "%",
                f"published +- {slack}",
                abs(fgd - peers[workload]) <= slack,
                {"FGD published": peers[workload]},
            )
            more = REFUSED_BAR.get(workload)
            held &= figure(
                f"openb.{workload}.refused-8-gpu",
                round(v_refused, 1),
                "pods",
                f"<= FGD's + {more}" if more is not None else None,
                more is None or v_refused <= fgd_refused + more,
                {
                    "FGD here": round(fgd_refused, 1),
                    **{
                        f"V, {weight}": f"{refused:.1f} at {allocation:.2f} %"
                        for weight, refused, allocation in curve
                    },
                },
            )
    if plot is not None:
        draw(plot, curves, fgd_points)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
