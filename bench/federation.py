"""Row `federation`: Philly's jobs at 85 % load on four equal clusters, under one queue tree and statically split.

Four clusters of 17 hosts x 8 GPUs, which the trace loads with about 85 %. Each of Philly's virtual clusters is one tenant of one of them: by work, largest first, to
the cluster with the least, so that each gets a quarter of the work. `one tree`: a job may go to the other clusters, which come
after its own in its list; its tenant is guaranteed what it has at home. `split`: it stays at home, as under a dispatcher without
spill-over. Jobs, guarantees, engine and decision are the same. A third run splits job by job in turn, whoever owns them.
"""

import csv
import gzip
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from figures import figure
from simulate import DATA, simulate, table

CLUSTERS = ["phx", "dal", "fra", "osl"]
HOSTS = 17                      # of each cluster
GPUS_OF_A_CLUSTER = HOSTS * 8


def write(folder: Path, first_day: int, last_day: int) -> None:
    """Traces, clusters and queues of the experiment."""
    with gzip.open(DATA / "philly" / "philly.csv.gz", "rt") as file:
        rows = [row for row in csv.DictReader(file) if first_day <= int(row["submit_s"]) // 86400 < last_day]
    work = defaultdict(float)
    for row in rows:
        work[row["cluster"]] += int(row["gpus"]) * float(row["duration_s"])
    home, load = {}, dict.fromkeys(CLUSTERS, 0.0)
    for tenant in sorted(work, key=lambda each: -work[each]):
        home[tenant] = min(CLUSTERS, key=lambda cluster: load[cluster])
        load[home[tenant]] += work[tenant]
    for name, cluster_of in (("by-tenant", lambda index, row: home[row["cluster"]]), ("in-turn", lambda index, row: CLUSTERS[index % 4])):
        with open(folder / f"{name}.csv", "w") as file:
            print("submit_s,duration_s,queue,workers,gpus,clusters,name,checkpoint_s", file=file)
            for index, row in enumerate(rows):
                gpus = int(row["gpus"])
                each = next(size for size in range(min(gpus, 8), 0, -1) if gpus % size == 0)
                print(f"{int(row['submit_s']) - first_day * 86400},{row['duration_s']},{row['cluster']},{gpus // each},{each},"
                      f"{cluster_of(index, row)},{row['job_id']},0", file=file)
    names = ", ".join(CLUSTERS)
    (folder / "four.clusters.yaml").write_text(
        "skus:\n  gpux8: {flavour: gpu, gpus: 8, nvlink_island: 8, cpus: 64, memory: 512GiB, disk: 1TiB, declared: true}\n"
        f"storages:\n  shared: {{path: /sim, clusters: [{names}]}}\nclusters:\n" + "".join(
            f"  - {{name: {cluster}, sku: gpux8, job_storage: shared, topology: {{b1: {{r1: [\"h[01-{HOSTS}]\"]}}}}}}\n" for cluster in CLUSTERS))
    lines = ["queues:"]
    for tenant in sorted(work):
        share = int(GPUS_OF_A_CLUSTER * work[tenant] / load[home[tenant]])
        lines.append(f'  - {{name: "{tenant}", quota: {{gpu: {{guarantee: {{{home[tenant]}: {share}}}, weight: {max(1, share)}}}}}}}')
    (folder / "four.queues.yaml").write_text("\n".join(lines) + "\n")


def main() -> int:
    quick = "--quick" in sys.argv
    first_day, last_day = (40, 42) if quick else (20, 110)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        write(folder, first_day, last_day)

        def run(trace: str, *options: str) -> dict:
            return simulate(folder / f"{trace}.csv", folder / "four", ["muster"], "--load", "85", "--report", "60s", *options,
                            queues=folder / "four")["muster"]

        one = run("by-tenant")
        split = run("by-tenant", "--own-cluster")
        in_turn = run("in-turn", "--own-cluster")
    table("four clusters, 85 % load:", {"one tree": one, "split by tenant": split, "split in turn": in_turn})

    def mean(result: dict) -> float:
        return result["summary"]["wait_mean_s"]

    times = round(mean(split) / max(mean(one), 0.001), 2)
    held = [figure("federation.wait_mean", round(mean(one), 1), "s", f"<= {round(mean(split) / 3, 1)}", times >= 3,
                   {"split by tenant": round(mean(split), 1), "split in turn": round(mean(in_turn), 1)}),
            figure("federation.times_shorter", times, "x", ">= 3", times >= 3),
            figure("federation.late", one["summary"]["late"], "jobs", "0", one["summary"]["late"] == 0, {"split by tenant": split["summary"]["late"]})]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
