"""Shared by the rows that replay traces: runs muster-sim and reads what it says."""

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from figures import BIN, ROOT, figure, none

DATA = Path(os.environ.get("MUSTER_DATA", ROOT.parent / "shared" / "data"))
FLEETS = ROOT / "bench" / "fleets"


def simulate(
    trace: Path,
    fleet: str | Path,
    policies: list[str],
    *options: str,
    queues: str | Path | None = None,
    timeout_s: float = 3000,
) -> dict[str, dict]:
    """policy -> its run, as `muster-sim -o json` has it, without jobs. `fleet` and `queues` name files of bench/fleets, or lie elsewhere."""
    if not trace.exists():
        raise SystemExit(
            f"{trace} is missing: the rows replay the traces of shared/data; MUSTER_DATA names another folder"
        )
    command = [
        BIN / "muster-sim",
        trace,
        "--cluster",
        f"{FLEETS / fleet}.clusters.yaml",
        *(["--queues", f"{FLEETS / queues}.queues.yaml"] if queues else []),
        "--policy",
        ",".join(policies),
        "-o",
        "json",
        *options,
    ]
    run = subprocess.run(
        list(map(str, command)), stdout=subprocess.PIPE, text=True, timeout=timeout_s
    )
    if not run.stdout.startswith("{"):
        raise SystemExit(f"muster-sim ended with {run.returncode}: {' '.join(map(str, command))}")
    return {each["policy"]: each for each in json.loads(run.stdout)["runs"]}


def overtaken(name: str, run: dict) -> list[bool]:
    """Told beside what is late: whom younger jobs of their own queue kept from what it is promised. Nobody promises otherwise: no bar."""
    return [
        figure(f"{name}.overtaken", run["summary"]["overtaken"], "jobs"),
        figure(
            f"{name}.overtaken_longest", round(run["summary"]["overtaken_max_s"] / 3600, 1), "h"
        ),
    ]


def late(name: str, run: dict, peers: dict[str, int]) -> list[bool]:
    """Who was late, one by one: for want of hosts in its shape, which what isn't stopped for it stands on; behind an older job of its queue, for
    which what room there is is kept; or although it had room."""
    jobs = run["late_jobs"]
    for job in sorted(jobs, key=lambda each: -each["late_s"]):
        room_h = job["late_room_s"] / 3600
        print(
            f"late: {job['name']} of {job['queue']}, {job['gpus']:g} GPUs, {job['late_s'] / 3600:.1f} h: "
            f"hosts could have held it beside what isn't stopped for it for {room_h:.2f} h on end, "
            f"with what is kept for an older one for {job['late_behind_s'] / 3600:.2f} h"
        )
    unexplained, behind = (run["summary"][key] for key in ("late_with_room", "late_behind_older"))
    return [
        figure(f"{name}.late", len(jobs), "jobs", peer=peers),
        figure(f"{name}.late_for_want_of_hosts", len(jobs) - unexplained - behind, "jobs"),
        figure(f"{name}.late_behind_an_older_one", behind, "jobs"),
        none(f"{name}.late_with_room", unexplained, "jobs"),
    ]


def at_once(*calls) -> list[dict]:
    """What each of the calls gives; two at a time, as nothing that they measure is a time of this machine."""
    with ThreadPoolExecutor(2) as threads:
        return [each.result() for each in [threads.submit(call) for call in calls]]


def table(title: str, runs: dict[str, dict]) -> None:
    print(
        f"{title}\n{'policy':16}{'wait mean':>11}{'p50':>9}{'p99':>11}{'delay':>11}{'JCT':>11}{'util':>7}{'evicted':>9}{'late':>6}{'unfinished':>11}{'real s':>8}"
    )
    for name, run in runs.items():
        s = run["summary"]
        print(
            f"{name:16}{s['wait_mean_s']:10.0f}s{s['wait_p50_s']:8.0f}s{s['wait_p99_s']:10.0f}s{s['delay_mean_s']:10.0f}s{s['jct_mean_s']:10.0f}s"
            f"{100 * run['utilisation']:6.1f}%{s['evictions']:9}{s['late']:6}{s['unfinished']:11}{run['real_s']:8.1f}",
            flush=True,
        )
