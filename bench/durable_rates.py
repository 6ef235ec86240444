"""Row `durable-rates`: durable submissions, and starts end to end through store and simulated agents; Slurm in the same run.

Submissions twice: at the engine's port, as the code behind an RPC calls it, from several threads; and over gRPC to a real
musterd on a Unix socket, from a load generator on the same machine. 40,000 jobs of one slot that all wait but 800. 4,096 of
them wait for their answers at any time: all that is asked during a commit shares the next one.
Starts: 40,000 such jobs that run for 100 ms on 1,000 simulated hosts of 8 slots; submission, start and end all go on at once,
and the rate is that of committed starts from the first submission on. Best of three, as others may use the machine.
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / name) for name in ("deploy/local", "tests/system", "bench/peers")]

import slurm
from figures import BIN, at_least, measure
from local_system import LocalSystem, system_folder
from small_system import configure


def over_grpc(jobs: int) -> float:
    with system_folder() as folder:
        system = LocalSystem(folder, BIN)
        configure(system)
        system.start_musterd()
        done = subprocess.run(
            [
                BIN / "bench_submit_load",
                system.server,
                "--jobs",
                str(jobs),
                "--outstanding",
                "4096",
            ],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        print(f"over gRPC: {done.stdout.strip()}", flush=True)
        return json.loads(done.stdout)["submissions_per_s"]


def peer(jobs: int, times: int) -> dict | None:
    try:
        with slurm.Slurm(64) as controller:
            measured = controller.measure(jobs, times)
            print(f"{controller.version()}: {measured}", flush=True)
            return {"name": controller.version(), **measured}
    except slurm.Unavailable as why:
        print(f"Slurm was not measured: {why}", flush=True)
        return None


def main() -> int:
    quick = "--quick" in sys.argv
    times = 1 if quick else 3
    jobs = 10_000 if quick else 40_000
    load = {"jobs": jobs, "outstanding": 4096}
    other = peer(100 if quick else 500, times)
    submissions = max(
        measure("bench_durable_rates", "STORE", **load)["submissions_per_s"] for _ in range(times)
    )
    grpc = max(over_grpc(jobs) for _ in range(times))
    starts = max(
        measure("bench_durable_rates", "STORE", **load, hosts=1000, runtime_ms=100, wait_ends=True)[
            "starts_per_s"
        ]
        for _ in range(times)
    )

    # What it is set against isn't the same work, and no bar stands on it: the peer's label says what it did.
    def named(key):
        what = {
            "submissions_per_s": "one sbatch a job, 8 at a time",
            "jobs_per_s": "jobs that run /bin/true",
        }[key]
        return {f"{other['name']}, {what}": round(other[key])} if other else None

    held = [
        at_least(
            "durable-rates.submissions.engine",
            submissions,
            "1/s",
            20_000,
            named("submissions_per_s"),
            places=0,
        ),
        at_least(
            "durable-rates.submissions.grpc",
            grpc,
            "1/s",
            20_000,
            named("submissions_per_s"),
            places=0,
        ),
        at_least("durable-rates.starts", starts, "1/s", 5_000, named("jobs_per_s"), places=0),
    ]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
