"""The search of row `tune`, played back on the measured grid; in the environment that bench/tune.py makes.

tune_replay.py [--seeds 20] [--remeasure N]
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import optuna
from figures import at_least, figure, none
from muster_tune.proxy import Model, Proxy, Record
from muster_tune.space import Knob, Space, key_of
from muster_tune.study import DONE, Trial
from scipy.stats import spearmanr
from tune_grid import KNOBS, MODELS, WHOLE, config, estimate, measure

GRID = Path(__file__).resolve().parent / "tuning" / "grid.jsonl"
SPACE = Space([Knob(name, tuple(values)) for name, values in KNOBS.items()])
TRIALS, MOST = 12, 216


class Grid:
    """One model's measured settings."""

    def __init__(self, model: str, lines: list[dict]):
        _, self.layers, *_, length, rows = MODELS[model]
        tokens = length * rows
        self.records = [
            Record(
                model, line["setting"], line["estimate"], tokens, self.layers, max(line["turns"])
            )
            for line in lines
        ]
        self.told = {key_of(r.setting): {"estimate": r.estimate} for r in self.records}
        self.speed = {key_of(r.setting): r.tokens_per_s for r in self.records}
        self.best, self.tokens = max(self.speed.values()), tokens

    def share(self, setting: dict) -> float:
        return self.speed[key_of(setting)] / self.best


def read_lines() -> list[dict]:
    return [json.loads(line) for line in GRID.read_text().splitlines()]


def read_grids() -> dict[str, Grid]:
    lines = read_lines()
    return {
        model: Grid(model, [line for line in lines if line["model"] == model]) for model in MODELS
    }


def ours(grid: Grid, past: list[Record], seed: int, trials: int = TRIALS) -> list[float]:
    """Each trial's speed as a share of the best."""
    proxy = Proxy(SPACE, grid.told, past, None, grid.tokens, grid.layers, seed)
    tried: list[Trial] = []
    for number in range(trials):
        setting = proxy.propose(tried)
        tried.append(Trial(number, setting, DONE, grid.speed[key_of(setting)]))
    return [grid.share(trial.setting) for trial in tried]


def peer(grid: Grid, sampler, enough: float) -> list[float]:
    """Until one is good enough. What the sampler proposes twice it is told again, and isn't counted; nor is what is no setting."""
    study = optuna.create_study(direction="maximize", sampler=sampler)
    kinds = {name: optuna.distributions.CategoricalDistribution(v) for name, v in KNOBS.items()}
    shares: dict[str, float] = {}
    while len(shares) < MOST and max(shares.values(), default=0) < enough:
        asked = study.ask(kinds)
        key = key_of(asked.params)
        if key not in grid.speed:
            study.tell(asked, state=optuna.trial.TrialState.FAIL)
            continue
        shares[key] = grid.speed[key] / grid.best
        study.tell(asked, grid.speed[key])
    return list(shares.values())


def trials_to(shares: list[float], enough: float) -> int:
    return next((i + 1 for i, share in enumerate(shares) if share >= enough), MOST)


def searched(grid: Grid, past: list[Record], seeds: int) -> bool:
    learnt = [ours(grid, past, seed) for seed in range(seeds)]
    alone = [ours(grid, [], seed, 2 * TRIALS) for seed in range(seeds)]
    samplers = optuna.samplers
    tpe = [peer(grid, samplers.TPESampler(seed=seed), 0.95) for seed in range(seeds)]
    drawn = [peer(grid, samplers.RandomSampler(seed=seed), 0.95) for seed in range(seeds)]
    good = sum(share >= 0.95 for share in (speed / grid.best for speed in grid.speed.values()))
    reached = [max(shares) for shares in learnt]
    cold = [max(shares[:TRIALS]) for shares in alone]
    middle = {
        name: statistics.median(trials_to(shares, 0.95) for shares in runs)
        for name, runs in (("ours", learnt), ("alone", alone), ("tpe", tpe), ("random", drawn))
    }
    label = f"of the best of {len(grid.speed)}, worst of {seeds} seeds"
    half = min(middle["tpe"], middle["random"]) / 2
    peers = {"TPE": middle["tpe"], "random": middle["random"]}
    return all(
        [
            at_least("measured settings of the grid", len(grid.speed), f"{good} within 5 % of the best", 200),
            at_least("speed that 12 trials reach", min(reached), label, 0.97, places=4),
            figure("trials to 95 %", middle["ours"], f"median of {seeds} seeds", f"<= {half:g}", middle["ours"] <= half, peers),
            figure("speed that 12 trials reach without a history", round(min(cold), 4), f"{label}; their median {statistics.median(cold):.4f}"),
            figure("trials to 95 % without a history", middle["alone"], f"median of {seeds} seeds", peer=peers),
        ]
    )  # fmt: skip


def ranked(grids: dict[str, Grid]) -> bool:
    """Each model by what was learnt of the others."""
    ok = True
    for name, grid in grids.items():
        past = [r for other, of in grids.items() if other != name for r in of.records]
        model = Model(past, own="", seed=0)
        told, _ = model.predict(
            [r.setting for r in grid.records], [r.estimate for r in grid.records], grid.layers
        )
        base = [model.base.log_step_s(r.setting, r.estimate, grid.layers) for r in grid.records]
        speeds = [r.tokens_per_s for r in grid.records]
        found, by_base = (
            float(spearmanr([-x for x in log], speeds).statistic) for log in (told, base)
        )
        label = f"of {len(speeds)} settings; by the base alone {by_base:.3f}"
        ok &= at_least(
            f"Spearman's correlation, model {name} left out", found, label, 0.9, places=3
        )
    return ok


def counted(told: dict) -> dict:
    """Without what a process takes for itself, which isn't quite the same each time."""
    return {name: value for name, value in told.items() if name != "memory_bytes"}


def repeated(lines: list[dict]) -> bool:
    """What two turns of a setting say of each other: no model of the grid can say more than about the root of it."""
    twice = [line["turns"] for line in lines if line["model"] == WHOLE and len(line["turns"]) > 1]
    found = float(spearmanr(*zip(*(turns[:2] for turns in twice), strict=True)).statistic)
    label = f"of {len(twice)} settings that were measured twice, on a machine that others used"
    return figure("Spearman's correlation of two turns of a setting", round(found, 3), label)


def measured_again(grid: Grid, count: int) -> bool:
    """That the grid is what this trainer does: its estimates are the same, and settings drawn from it measure alike."""
    if shutil.which(os.environ.get("MUSTER_TRAINER_BIN", "muster-trainer")) is None:
        print("muster-trainer isn't built: the grid is not measured again", flush=True)
        return True
    with tempfile.TemporaryDirectory() as folder:
        tokens = f"{folder}/tokens"
        words = [os.environ.get("MUSTER_TRAINER_BIN", "muster-trainer"), "prepare", "--input"]
        words += [__file__, "--tokenizer", "bytes", "--max-length", "64", "--output", tokens]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        differ, now, then = 0, [], []
        for record in random.Random(3).sample(grid.records, count):
            whole = config(WHOLE, tokens) | record.setting
            differ += counted(estimate(whole)) != counted(record.estimate)
            now.append(measure(whole)["tokens_per_cpu_s"])
            then.append(record.tokens_per_s)
    ok = none("estimates unlike those beside the grid", differ, f"of {count}")
    if count < 6:
        return ok  # too few to rank
    found = float(spearmanr(now, then).statistic)
    name = "Spearman's correlation of the grid and settings measured again"
    return at_least(name, found, f"of {count}", 0.8, places=3) and ok


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--remeasure", type=int, default=0)
    given = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    grids = read_grids()
    past = [r for name, grid in grids.items() if name != WHOLE for r in grid.records]
    ok = searched(grids[WHOLE], past, given.seeds)
    ok &= ranked(grids)
    ok &= repeated(read_lines())
    if given.remeasure:
        ok &= measured_again(grids[WHOLE], given.remeasure)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
