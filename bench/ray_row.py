#!/usr/bin/env python3
"""Row `ray`: tasks with `ray`, by the real Ray: how soon they are ready beside bare `ray symmetric-run`, many clusters of one user on one host, resizes, logs.

    ray_row.py [--quick]

Ray is bench/requirements-ray.txt's, in an environment that the row makes. Fifty clusters of two nodes (--quick: four) are submitted at once; as many run at a time
as the host has memory and CPUs for. --quick: only where the environment is.
"""

import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / name) for name in ("deploy/local", "tests/system", "python")]

from borrowers import submit
from environments import environment
from figures import BIN, figure, say_failed
from local_system import Failed, LocalSystem, processes_of, system_folder, wait_for
from muster_ray.node import store_bytes
from small_system import ENDED, start

PROGRAM = ROOT / "bench" / "ray_program.py"
QUEUES = """\
queues:
  - {name: research, quota: {cpu-slot: {guarantee: 2}}, submit: ['*']}
  - {name: prod, quota: {cpu-slot: {guarantee: 2}}, submit: ['*']}
"""
JOB = """\
name: ray
queue: research
independent_workers: {workers}
ray: {{}}
resources: {{gpus: 1, gpu_types: [cpu-slot], cpus: {cpus}, memory: {memory}GiB}}
grace: 1m
env: {{PATH: "{path}", PYTHONPATH: "{root}/python"}}
run: python {program} {words}
"""
TAKER = "queue: prod\nworkers: 2\nresources: {gpus: 1, gpu_types: [cpu-slot]}\nrun: exec sleep 3600"
LATER_MOST_S, PAIRS = 1.0, 50
CPUS, MEMORY_BYTES = 1, 1 << 30  # of a node
PAIRS_A_CPU = 2  # with 16 on two CPUs each `ray start` gives up after two minutes
NODE_BYTES = 700 << 20  # what a node of Ray's takes with nothing in it, and some room


class Clusters:
    def __init__(self, system: LocalSystem, place: Path):
        self.system, self.folder = system, system.folder
        self.path = f"{place}/bin:/usr/bin:/bin"

    def submit(self, workers: str, *words) -> str:
        text = JOB.format(
            workers=workers,
            path=self.path,
            root=ROOT,
            program=PROGRAM,
            words=" ".join(map(str, words)),
            cpus=CPUS,
            memory=MEMORY_BYTES >> 30,
        )
        return submit(self.system, text)

    def await_end(self, number: str, seconds: float = 300) -> None:
        job = wait_for(f"job {number}", lambda: self._ended(number), seconds, 0.2)
        if job["state"] != "SUCCEEDED":
            said = self.system.run(["logs", f"{number}_0"], check=False).stdout
            raise Failed(f"job {number}: {job['state']}: {said[-1500:]}")

    def _ended(self, number: str) -> dict | None:
        job = self.system.job(number)
        return job if job["state"] in ENDED else None

    def directories(self, number: str, workers: int) -> list[Path]:
        jobs = self.folder / "storage" / "jobs"
        return [
            path for i in range(workers) for path in jobs.glob(f"{int(number) + i}-*/ray/attempt-*")
        ]


# ---- how soon ----


def with_muster(clusters: Clusters, ready: Path) -> float:
    began_s = time.time()
    clusters.await_end(clusters.submit("1", 1, ready))
    return float(ready.read_text()) - began_s


def bare(clusters: Clusters, ready: Path) -> float:
    """With what ours is given: CPUs, Ray's store, threads. In a PID namespace: at its end symmetric-run stops all of Ray that it sees."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    apart = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    with tempfile.TemporaryDirectory(prefix="mr-bare-", dir="/tmp") as temporary:
        words = ["ray", "symmetric-run", "--address", address, "--num-cpus", str(CPUS)]
        words += ["--object-store-memory", str(store_bytes(MEMORY_BYTES))]
        words += ["--include-dashboard", "false", "--temp-dir", temporary, "--disable-usage-stats"]
        began_s = time.time()
        done = subprocess.run(
            [*apart, *words, "--", "python", PROGRAM, "1", ready],
            env=os.environ | {"PATH": clusters.path, "OMP_NUM_THREADS": str(CPUS)},
            capture_output=True,
            text=True,
        )
    if not ready.exists():
        raise Failed(f"ray symmetric-run: {done.stdout[-800:]} {done.stderr[-800:]}")
    return float(ready.read_text()) - began_s


def how_soon(clusters: Clusters, tries: int) -> bool:
    times = {with_muster: [], bare: []}
    for i in range(tries):
        for way, found in times.items():
            found.append(way(clusters, clusters.folder / f"ready-{way.__name__}-{i}"))
    ours, theirs = (statistics.median(times[way]) for way in (with_muster, bare))
    return figure(
        "submit to a first task that has run, one node",
        round(ours, 2),
        f"s, median of {tries}",
        f"<= bare symmetric-run + {LATER_MOST_S} s",
        ours <= theirs + LATER_MOST_S,
        peer=round(theirs, 2),
    )


# ---- many clusters, resizes, logs ----


def pairs(clusters: Clusters, count: int, at_a_time: int) -> bool:
    ready = [clusters.folder / f"pair-{i}" for i in range(count)]
    began_s = time.monotonic()
    numbers = [clusters.submit("2", 2, path) for path in ready]
    wait_for(
        "all pairs",
        lambda: all(clusters.system.job(number)["state"] in ENDED for number in numbers),
        1800,
        1,
    )
    states = [clusters.system.job(number)["state"] for number in numbers]
    good = sum(s == "SUCCEEDED" and path.exists() for s, path in zip(states, ready, strict=True))
    return figure(
        "clusters of one user on one host whose two nodes found each other, and no others",
        good,
        f"of {count}, {at_a_time} at a time, in {time.monotonic() - began_s:.0f} s",
        count,
        good == count,
    )


def heads(clusters: Clusters) -> list[int]:
    """Processes: a cluster's GCS."""
    return [
        pid for pid, program in processes_of(clusters.folder).items() if program == "gcs_server"
    ]


def resized(clusters: Clusters) -> bool:
    folder = clusters.folder
    files = [folder / name for name in ("resized", "seen", "go")]
    taker = submit(clusters.system, TAKER)
    wait_for("the taker", lambda: clusters.system.job(taker)["state"] == "RUNNING", 60)
    number = clusters.submit("{min: 2, max: 4}", 2, *files)

    def await_nodes(count: int) -> None:
        def so_many():
            return files[1].exists() and files[1].read_text().splitlines()[-1] == str(count)

        wait_for(f"{count} nodes", so_many, 120, 0.1)

    await_nodes(2)
    head = heads(clusters)
    clusters.system.run(["cancel", taker, "-y"])
    await_nodes(4)
    taker = submit(clusters.system, TAKER)
    await_nodes(2)
    same = len(head) == 1 and heads(clusters) == head
    clusters.system.run(["cancel", taker, "-y"])
    files[2].touch()
    clusters.await_end(number)
    steps = ", ".join(files[1].read_text().split())
    resized_ok = figure("2 -> 4 -> 2 nodes: the head's process", "the same" if same else "another", f"nodes: {steps}", "the same", same)  # fmt: skip
    return all([resized_ok, logs_stay(clusters, number)])


def logs_stay(clusters: Clusters, number: str) -> bool:
    kept = clusters.directories(number, 4)
    names = {path.name for one in kept for path in one.rglob("*") if path.stat().st_size > 0}
    texts = [path.read_text(errors="replace") for one in kept for path in one.rglob("worker-*.out")]
    task = any("a task says where it is" in text for text in texts)
    ok = task and {"gcs_server.out", "raylet.out", "start.log"} <= names
    label = f"{len(names)} names in {len(kept)} directories of the job's"
    return figure("logs of Ray and of tasks after the end", "there" if ok else "missing", label, "there", ok)  # fmt: skip


def room_for_pairs(most: int) -> int:
    available = next(
        int(line.split()[1]) << 10
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemAvailable")
    )
    room = available * 2 // 3 // (2 * NODE_BYTES)
    return max(2, min(most, room, PAIRS_A_CPU * len(os.sched_getaffinity(0))))


@contextmanager
def clusters_of(place: Path, slots: int):
    """A Muster with one host."""
    with system_folder() as folder:
        system = LocalSystem(folder, BIN)
        start(system, QUEUES, hosts=("h01",), slots=slots)
        yield Clusters(system, place)


def main() -> int:
    quick = "--quick" in sys.argv
    place = environment("ray", "bench/requirements-ray.txt", may_make=not quick)
    if place is None:
        return say_failed(Failed("Ray isn't installed: bench/run.sh ray does that"))
    if shutil.which("unshare") is None:
        return say_failed(Failed("unshare isn't there: apt-get install util-linux"))
    count = 4 if quick else PAIRS
    at_a_time = 2 if quick else room_for_pairs(count)
    ok = []
    try:
        with clusters_of(place, slots=4) as clusters:  # so few that a taker gets other workers'
            ok += [how_soon(clusters, 1 if quick else 5), resized(clusters)]
        with clusters_of(place, slots=2 * at_a_time) as clusters:
            ok.append(pairs(clusters, count, at_a_time))
    except Failed as error:
        return say_failed(error)
    return 0 if all(ok) else 1


if __name__ == "__main__":
    sys.exit(main())
