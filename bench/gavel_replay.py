"""Gavel's rounds as Shockwave's simulator runs them, to reproduce the published row of TACC-32 (Gavel: 9.22 h / 3.13 h).

Gavel (Narayanan et al., OSDI'20, §5): max-min fairness over the jobs' shares of time, then rounds of 120 s in which the jobs that
received least of their share run. What the published figures contain besides the algorithm, found in the artifact of
Shockwave (NSDI'23, uw-mad-dash/shockwave, scheduler/), and modelled here, because the figures can't be reached without it:
  - shares are computed anew at most every 1,000 s; a job that arrived since takes its place in a round but does not run;
  - a job that didn't run in the round before loses 20 s of a full round;
  - batch sizes change at the end of a round that the job ran in (Accordion by regime, GNS by table), and the epochs done are
    rounded up when they do;
  - completion times count from the round in which the job was admitted.
"""

import gzip
import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path

SAMPLES = {
    "ResNet-18": 50000,
    "ResNet-50": 100000,
    "Transformer": 10000,
    "LM": 59675,
    "Recommendation": 117907,
}
LARGEST = {"ResNet-18": 256, "ResNet-50": 128, "Transformer": 128, "LM": 80, "Recommendation": 8192}
SMALLEST = {"ResNet-18": 16, "ResNet-50": 16, "Transformer": 16, "LM": 5, "Recommendation": 512}
# GNS doubles the batch size at these epochs, by (model, first batch size, GPUs).
GNS = {
    ("ResNet-18", 16, 1): [31, 41, 51, 71],
    ("ResNet-18", 32, 1): [21, 31, 51],
    ("ResNet-18", 64, 1): [11, 31],
    ("ResNet-18", 128, 1): [11],
    ("ResNet-18", 16, 2): [21, 31, 91, 111],
    ("ResNet-18", 32, 2): [11, 21, 41],
    ("ResNet-18", 64, 2): [21, 41],
    ("ResNet-18", 128, 2): [41],
    ("ResNet-18", 16, 4): [11, 21, 81, 91],
    ("ResNet-18", 32, 4): [21, 31, 61],
    ("ResNet-18", 64, 4): [11, 61],
    ("ResNet-18", 128, 4): [11],
    ("ResNet-50", 64, 1): [101],
    ("ResNet-50", 32, 2): [101, 111],
    ("ResNet-50", 64, 2): [81],
    ("ResNet-50", 32, 4): [131, 221],
    ("ResNet-50", 64, 4): [191],
    ("LM", 5, 1): [31, 41, 61, 71],
    ("LM", 10, 1): [11, 21, 41],
    ("LM", 20, 1): [11, 41],
    ("LM", 40, 1): [11],
    ("LM", 5, 2): [31, 51, 61, 71],
    ("LM", 10, 2): [11, 31, 41],
    ("LM", 20, 2): [31, 41],
    ("LM", 40, 2): [11],
    ("LM", 5, 4): [11, 31, 71, 91],
    ("LM", 10, 4): [11, 31, 61],
    ("LM", 20, 4): [11, 61],
    ("LM", 40, 4): [61],
    ("Recommendation", 512, 1): [21, 41, 71, 91],
    ("Recommendation", 1024, 1): [21, 51, 91],
    ("Recommendation", 2048, 1): [21, 41],
    ("Recommendation", 4096, 1): [41],
}


@dataclass(eq=False)
class Job:
    index: int
    model: str
    first_batch: int
    steps: int
    gpus: int
    mode: str
    arrival_s: float
    batch: int = 0
    done: int = 0  # steps at the current batch size
    adapts: str = ""  # "larger" or "smaller" at the end of its next round
    received_s: float = 0.0  # since the shares were computed
    admitted_s: float = 0.0
    end_s: float = field(default=math.nan)

    def epochs(self, steps: int, batch: int) -> int:
        return math.ceil(steps / math.ceil(SAMPLES[self.model] / batch))


def read_jobs(path: Path) -> list[Job]:
    jobs = []
    for index, line in enumerate(path.read_text().splitlines()):
        cells = line.split("\t")
        model, batch = re.fullmatch(r"(.*) \(batch size (\d+)\)", cells[0]).groups()
        jobs.append(
            Job(
                index,
                model,
                int(batch),
                int(cells[5]),
                int(cells[6]),
                cells[7],
                float(cells[11]),
                batch=int(batch),
            )
        )
    return jobs


def read_rates(path: Path) -> dict[tuple[str, int, int], float]:
    """Steps a second by (model, batch size, GPUs)."""
    with gzip.open(path, "rt") as file:
        measured = json.load(file)["v100"]
    keys = {key: re.fullmatch(r"\('(.*) \(batch size (\d+)\)', (\d+)\)", key) for key in measured}
    return {(m[1], int(m[2]), int(m[3])): measured[key]["null"] for key, m in keys.items() if m}


def critical(job: Job, epoch: int) -> bool:
    if job.model == "LM":
        return epoch < 10
    if job.model == "Recommendation":
        return epoch < (30 if job.first_batch <= 1024 else 40 if job.first_batch == 2048 else 10)
    if job.model == "ResNet-50":
        return epoch % 30 < 10
    return (
        epoch < (20 if job.first_batch == 256 else 10) or 150 <= epoch < 160 or 250 <= epoch < 260
    )


def ask(job: Job) -> None:
    """What the job's adaptation asks for after a round."""
    epoch = job.epochs(job.done, job.batch)
    if job.mode == "accordion" and job.model != "Transformer":
        if (
            job.batch == job.first_batch
            and not critical(job, epoch)
            and job.batch != LARGEST[job.model]
        ):
            job.adapts = "larger"
        elif (
            job.batch != job.first_batch
            and critical(job, epoch)
            and job.batch != SMALLEST[job.model]
        ):
            job.adapts = "smaller"
    elif job.mode == "gns" and job.batch != LARGEST[job.model]:
        reached = sum(at <= epoch + 1 for at in GNS.get((job.model, job.first_batch, job.gpus), []))
        if min(job.first_batch << reached, LARGEST[job.model]) > job.batch:
            job.adapts = "larger"


def adapt(job: Job, rates: dict) -> None:
    wish, job.adapts = job.adapts, ""
    if not wish or job.model == "Transformer" or job.first_batch == LARGEST[job.model]:
        return
    batch = (
        2 * job.batch
        if job.mode == "gns"
        else LARGEST[job.model]
        if wish == "larger"
        else job.first_batch
    )
    if (job.model, batch, job.gpus) not in rates:
        return
    each = math.ceil(SAMPLES[job.model] / batch)
    epochs = job.epochs(job.steps, job.batch)
    steps = math.ceil(job.steps * job.batch / batch)
    job.done = job.epochs(job.done, job.batch) * each
    job.steps = steps if job.epochs(steps, batch) == epochs else epochs * each
    job.batch = batch


def shares(jobs: list[Job], gpus: int) -> dict[int, float]:
    """Max-min fair shares of time: every job as many GPU-hours as the others, none more than all of the time."""
    low, high = 0.0, float(max(job.gpus for job in jobs))
    for _ in range(60):
        middle = (low + high) / 2
        fits = sum(min(job.gpus, middle) for job in jobs) <= gpus
        low, high = (middle, high) if fits else (low, middle)
    return {job.index: min(1.0, low / job.gpus) for job in jobs}


def replay(
    trace: Path,
    throughputs: Path,
    gpus: int = 32,
    round_s: float = 120,
    overhead_s: float = 20,
    shares_every_s: float = 1000,
) -> tuple[float, float]:
    """(makespan, average completion time) in hours."""
    rates = read_rates(throughputs)
    jobs = read_jobs(trace)
    queued = sorted(jobs, key=lambda job: job.arrival_s)
    active, running, before = [], [], [set(), set()]
    now = begin = queued[0].arrival_s
    rounds, share, shared_s, changed = 0, {}, 0.0, False
    while active or queued:
        if running:
            begin, now = now, max(end for end, _, _ in running)
        elif not active:
            now = max(now, queued[0].arrival_s)
        for end, job, steps in sorted(running, key=lambda each: -each[0]):
            ran_s = end - begin
            if rounds > 1 and job not in before[0] and ran_s > round_s - 5:
                steps = int(steps * (ran_s - overhead_s) / ran_s)
                ran_s -= overhead_s
            job.done += steps
            job.received_s += ran_s
            if job.done >= job.steps:
                job.end_s = end
                active.remove(job)
                share.pop(job.index, None)
                changed = True
            adapt(job, rates)
        for job in active:
            ask(job)
        while queued and queued[0].arrival_s <= now:
            job = queued.pop(0)
            job.admitted_s, job.received_s = now, round_s / 2
            active.append(job)
            changed = True
        if not active:
            running = []
            continue
        if changed and (now - shared_s >= shares_every_s or shared_s == 0):
            shared_s, changed = now, False
            share = shares(active, gpus)
            for job in active:
                job.received_s = round_s / 2
        left, chosen = gpus, []
        for job in sorted(
            active, key=lambda each: share.get(each.index, 0) / each.received_s, reverse=True
        ):
            if job.gpus <= left:
                left -= job.gpus
                if job.index in share:
                    chosen.append(job)
        before = [before[1], set(chosen)]
        running = []
        for job in chosen:
            rate = rates[(job.model, job.batch, job.gpus)]
            steps = min(int(rate * round_s), job.steps - job.done)
            running.append((now + steps / rate, job, steps))
        if not running:
            now += round_s
        rounds += 1
    return max(job.end_s for job in jobs) / 3600, sum(
        job.end_s - job.admitted_s for job in jobs
    ) / len(jobs) / 3600
