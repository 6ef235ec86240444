"""Row `federation`: Philly's mix at 85 % load on four equal clusters, under one queue tree and statically split.

Four clusters of 17 hosts x 8 GPUs. Each of Philly's virtual clusters is one tenant of one of them: by work, largest first, to the
cluster with the least, so that each gets about a quarter of the work. `one tree`: a job may go to the other clusters, which come
after its own in its list; its tenant is guaranteed what it has at home. `split`: it stays at home, as under a dispatcher without
spill-over. Jobs, guarantees, engine and decision are the same. A third run splits job by job in turn, whoever owns them.

Mix: Philly's jobs of days 20 to 110, in an order drawn from a seed, submitted at random times of constant rate (Poisson), so that
85 % of what the GPUs can do arrives. At the trace's own times the same load is 128 % for five weeks and 58 % after them: every
policy then has a backlog of weeks, and what is measured is in which order it is worked off (docs/decisions/025). `--trace-times`
runs that instead.
"""

import csv
import gzip
import random
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from figures import at_least, at_most, none
from simulate import DATA, at_once, late, overtaken, simulate, table

CLUSTERS = ["phx", "dal", "fra", "osl"]
HOSTS = 17  # of each cluster
GPUS_OF_A_CLUSTER = HOSTS * 8
SEED = 20201125


def write(folder: Path, first_day: int, last_day: int, mixed: bool, share: float = 1) -> None:
    """Traces, clusters and queues of the experiment. `mixed`: that share of the jobs, in random order and at random times."""
    with gzip.open(DATA / "philly" / "philly.csv.gz", "rt") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if first_day <= int(row["submit_s"]) // 86400 < last_day
        ]
    times = [int(row["submit_s"]) - first_day * 86400 for row in rows]
    if mixed:
        draw = random.Random(SEED)
        rows = draw.sample(rows, int(len(rows) * share))
        times = [0.0]
        while len(times) < len(rows):
            times.append(
                times[-1] + draw.expovariate(1 / 60)
            )  # muster-sim stretches them to the load
    work = defaultdict(float)
    for row in rows:
        work[row["cluster"]] += int(row["gpus"]) * float(row["duration_s"])
    home, load = {}, dict.fromkeys(CLUSTERS, 0.0)
    for tenant in sorted(work, key=lambda each: -work[each]):
        home[tenant] = min(CLUSTERS, key=lambda cluster: load[cluster])
        load[home[tenant]] += work[tenant]
    for name, cluster_of in (
        ("by-tenant", lambda index, row: home[row["cluster"]]),
        ("in-turn", lambda index, row: CLUSTERS[index % 4]),
    ):
        with open(folder / f"{name}.csv", "w") as file:
            print("submit_s,duration_s,queue,workers,gpus,clusters,name,checkpoint_s", file=file)
            for index, row in enumerate(rows):
                gpus = int(row["gpus"])
                each = next(size for size in range(min(gpus, 8), 0, -1) if gpus % size == 0)
                print(
                    f"{int(times[index])},{row['duration_s']},{row['cluster']},{gpus // each},{each},"
                    f"{cluster_of(index, row)},{row['job_id']},0",
                    file=file,
                )
    names = ", ".join(CLUSTERS)
    (folder / "four.clusters.yaml").write_text(
        "skus:\n  gpux8: {flavour: gpu, gpus: 8, nvlink_island: 8, cpus: 64, memory: 512GiB, disk: 1TiB, declared: true}\n"
        f"storages:\n  shared: {{path: /sim, clusters: [{names}]}}\nclusters:\n"
        + "".join(
            f'  - {{name: {cluster}, sku: gpux8, job_storage: shared, topology: {{b1: {{r1: ["h[01-{HOSTS}]"]}}}}}}\n'
            for cluster in CLUSTERS
        )
    )
    lines = ["queues:"]
    for tenant in sorted(work):
        share = int(GPUS_OF_A_CLUSTER * work[tenant] / load[home[tenant]])
        lines.append(
            f'  - {{name: "{tenant}", quota: {{gpu: {{guarantee: {{{home[tenant]}: {share}}}, weight: {max(1, share)}}}}}}}'
        )
    (folder / "four.queues.yaml").write_text("\n".join(lines) + "\n")


def main() -> int:
    quick, trace_times = "--quick" in sys.argv, "--trace-times" in sys.argv
    first_day, last_day = (40, 42) if quick and trace_times else (20, 110)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        write(folder, first_day, last_day, mixed=not trace_times, share=0.05 if quick else 1)

        def run(trace: str, *options: str) -> dict:
            return simulate(
                folder / f"{trace}.csv",
                folder / "four",
                ["muster"],
                "--load",
                "85",
                "--report",
                "60s",
                *options,
                queues=folder / "four",
            )["muster"]

        one, split, in_turn = at_once(
            lambda: run("by-tenant"),
            lambda: run("by-tenant", "--own-cluster"),
            lambda: run("in-turn", "--own-cluster"),
        )
    table(
        "four clusters, 85 % load:",
        {"one tree": one, "split by tenant": split, "split in turn": in_turn},
    )

    def wait(result: dict) -> float:
        return round(result["summary"]["wait_mean_s"], 1)

    name = "federation.trace_times" if trace_times else "federation"
    split_waits = {"split by tenant": wait(split), "split in turn": wait(in_turn)}
    bar = round(min(split_waits.values()) / 3, 1)
    times = {kind: round(each / max(wait(one), 0.001), 2) for kind, each in split_waits.items()}
    held = [
        at_most(f"{name}.wait_mean", wait(one), "s", bar, split_waits),
        at_least(f"{name}.times_shorter", times["split by tenant"], "x", 3),
        at_least(f"{name}.times_shorter_than_in_turn", times["split in turn"], "x", 3),
        *late(
            name,
            one,
            {
                "split by tenant": split["summary"]["late"],
                "split in turn": in_turn["summary"]["late"],
            },
        ),
        none(f"{name}.late_outside_the_entitled_set", one["summary"]["left_out"], "jobs"),
        *overtaken(name, one),
    ]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
