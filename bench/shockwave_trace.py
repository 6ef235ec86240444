"""Traces like Shockwave's TACC-32, from other seeds: `shockwave_trace.py SEED THROUGHPUTS > TRACE`.

The facts are those of the artifact of Shockwave (NSDI'23, uw-mad-dash/shockwave, commit 8a44f4a): the name of its trace,
120_0.2_5_100_40_25_0,0.5,0.5_0.6,0.3,0.09,0.01_multigpu_dynamic, tells the number of jobs, the shortest and the longest hours and
how many steps lie between them, the mean seconds between arrivals, the seed, and the shares of modes and of gangs of 1, 2, 4 and 8
GPUs; scheduler/job_table.py has the models and batch sizes. Most of its jobs are short: 72 % are drawn from the shortest fifth of the
durations, 20 % from those up to the middle, 5 % from those up to nine tenths, 3 % from the rest (as in its trace: 33 of the 40 jobs
above 80 minutes are below 150). The steps are those of that time at the measured rate of the first batch size.
"""

import gzip
import json
import math
import random
import sys
from pathlib import Path

JOBS = 120
SHORTEST_H, LONGEST_H, DURATIONS = 0.2, 5.0, 100
BETWEEN_ARRIVALS_S = 40
BATCHES = {
    "ResNet-18": [32, 64, 128, 256],
    "ResNet-50": [16, 32, 64],
    "Transformer": [16, 32, 64, 128],
    "LM": [5, 10, 20, 40, 80],
    "Recommendation": [512, 1024, 2048, 4096, 8192],
}
ON_ONE_GPU = {"Recommendation"}
GANGS = {1: 0.6, 2: 0.3, 4: 0.09, 8: 0.01}
MODES = {"accordion": 0.5, "gns": 0.5}
# (share of the jobs, where its durations end)
LENGTHS = [(0.72, 0.2), (0.2, 0.5), (0.05, 0.9), (0.03, 1.0)]


def draw_duration_s(dice: random.Random) -> int:
    first = 0
    left = dice.random()
    for share, end in LENGTHS:
        last = round(DURATIONS * end)
        if left < share or end == 1.0:
            break
        left -= share
        first = last
    step_h = (LONGEST_H - SHORTEST_H) / (DURATIONS - 1)
    return round(3600 * (SHORTEST_H + step_h * dice.randrange(first, last)))


def make(seed: int, throughputs: Path, jobs: int = JOBS) -> str:
    with gzip.open(throughputs, "rt") as file:
        rates = json.load(file)["v100"]
    dice = random.Random(seed)
    kinds = [(model, batch) for model, batches in BATCHES.items() for batch in batches]
    lines, arrival_s = [], 0.0
    for index in range(jobs):
        model, batch = dice.choice(kinds)
        gpus = 1 if model in ON_ONE_GPU else dice.choices(list(GANGS), list(GANGS.values()))[0]
        mode = dice.choices(list(MODES), list(MODES.values()))[0]
        duration_s = draw_duration_s(dice)
        if index > 0:
            arrival_s += -math.log(1 - dice.random()) * BETWEEN_ARRIVALS_S
        name = f"{model} (batch size {batch})"
        steps = max(1, round(duration_s * rates[str((name, gpus))]["null"]))
        cells = [name, "-", "-", "-", "1", steps, gpus, mode, "1", "-1", duration_s, int(arrival_s)]
        lines.append("\t".join(map(str, cells)) + "\n")
    return "".join(lines)


if __name__ == "__main__":
    sys.stdout.write(make(int(sys.argv[1]), Path(sys.argv[2])))
