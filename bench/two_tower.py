#!/usr/bin/env python3
"""Row `two-tower`: programs/two_tower.py under Muster, on one worker and on two, with tables alike and shared out, killed, preempted and resumed.

    two_tower.py [--quick]

The truth of its data is known, so Recall@10 says how good a model is. What the callback costs is measured in one process, where every other block of steps does
without it. TorchRec is bench/requirements-two-tower.txt's, in an environment that the row makes. --quick: fewer steps, killed once; only where the environment is.
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "programs")]

import python_runtime  # its imports find what a system is made of
from borrowers import submit
from figures import BIN, at_least, at_most, figure, say_failed
from local_system import Failed, LocalSystem, system_folder
from python_runtime import QUEUES, Trainings
from runtime_cost import cost_of
from small_system import start
from two_tower_data import World
from two_tower_environment import environment_of_two_tower

JOB = """\
name: {name}
queue: research
workers: {workers}
resources: {{gpus: 1, gpu_types: [cpu-slot], cpus: 1}}
env: {{PYTHONPATH: "{path}", PYTHONWARNINGS: ignore, TOKENIZERS_PARALLELISM: "false"}}
checkpoint: {{interval: {interval}}}
grace: 30s
run: exec {python} {words}
"""
SCORE = """\
name: items
queue: research
independent_workers: {{min: 1, max: 2}}
resources: {{gpus: 1, gpu_types: [cpu-slot], cpus: 1}}
env: {{PYTHONPATH: "{path}", PYTHONWARNINGS: ignore, TWO_TOWER_MODEL: "{model}"}}
run: >
  exec {python} -m muster_score --engine two_tower_score:Items --input {items} --output {output} --column text
  --shard-rows 100 --output-format parquet
"""
PATH = f"{ROOT}/python:{ROOT}/programs"
DIFFERS_MOST, RECALL_POINTS, LEAST_RECALL, LEAST_SPEED = 1e-6, 0.5, 0.5, 1.0


class Towers(Trainings):
    def __init__(self, system: LocalSystem, environment: Path, steps: int):
        super().__init__(system)
        self.python, self.steps = environment / "bin" / "python", steps

    def submit(self, name: str, words: str, workers: int = 1, interval: str = "1s") -> str:
        values = {"workers": workers, "path": PATH, "python": self.python, "interval": interval}
        return submit(self.system, JOB.format(name=name, words=words, **values))

    def train(self, name: str, more: str, workers: int, steps: int = 0) -> str:
        out = f"--out {self.system.folder}/{name}.json --export {self.system.folder}/{name}"
        words = f"{ROOT}/programs/two_tower.py --steps {steps or self.steps} {out} {more}"
        return self.submit(name, words, workers)

    def told(self, name: str) -> dict:
        return json.loads((self.system.folder / f"{name}.json").read_text())


def furthest(one: dict, other: dict) -> float:
    """How far a loss is from the other training's, as a share of it, over all steps."""
    losses, others = one["losses"], other["losses"]
    if losses.keys() != others.keys():
        return float("inf")
    return max(abs(loss / others[step] - 1) for step, loss in losses.items())


def furthest_items(rows: list[list[float]], others: list[list[float]]) -> float:
    pairs = zip(rows, others, strict=True)
    return max(abs(a - b) for row, other in pairs for a, b in zip(row, other, strict=True))


def one_and_two(towers: Towers) -> bool:
    """The same training on one worker, and on two that share out the tables."""
    towers.await_end(towers.train("one", "", 1))
    towers.await_end(towers.train("two", "--tables row-wise", 2))
    one, two = (towers.told(name)["recall"] for name in ("one", "two"))
    points = 100 * abs(one - two)
    label = f"points, {100 * one:.1f} and {100 * two:.1f} after {towers.steps} steps"
    return all(
        [
            at_most("Recall@10, two workers against one", points, label, RECALL_POINTS, places=2),
            at_least(
                "Recall@10 against the known truth (10 of 500 at random: 0.02)",
                one,
                "",
                LEAST_RECALL,
                places=3,
            ),
        ]
    )


def furthest_weights(folder: Path, names: list[str]) -> float:
    """Of what two trainings have exported, tables and all."""
    import torch

    files = [torch.load(folder / name / "model.pt", weights_only=True) for name in names]
    one, other = (file["state"] for file in files)
    if one.keys() != other.keys():
        return float("inf")
    return max(float((weight - other[name]).abs().max()) for name, weight in one.items())


def shared_out(towers: Towers, quick: bool) -> bool:
    """Weights by SGD: Adam makes of a gradient that is nothing but rounding a step as of any other. By Adam, losses."""
    steps, ok, folder = 20, [], towers.system.folder
    for optimizer in ("sgd",) if quick else ("sgd", "adam"):
        more = f"--optimizer {optimizer}" + (" --lr 0.1" if optimizer == "sgd" else "")
        towers.await_end(towers.train("alike", more, 2, steps))
        towers.await_end(towers.train("rows", f"{more} --tables row-wise", 2, steps))
        by_loss = furthest(towers.told("alike"), towers.told("rows"))
        by_weight = furthest_weights(folder, ["alike", "rows"]) if optimizer == "sgd" else 0.0
        far = max(by_loss, by_weight)
        what = "weights and losses" if optimizer == "sgd" else "losses"
        ok.append(
            figure(
                f"tables shared out by rows: how far {what} by {optimizer} are from the unsharded",
                f"{far:.1e}",
                f"2 workers, {steps} steps",
                f"<= {DIFFERS_MOST:g}",
                far <= DIFFERS_MOST,
            )
        )
    return all(ok)


def disturbed(towers: Towers, quick: bool) -> bool:
    number = towers.train("disturbed", "--tables row-wise", 2)
    for disturbance in ["killed"] if quick else ["killed", "preempted"]:
        python_runtime.DISTURBANCES[disturbance](towers, number)
        print(f"{disturbance}, at step {towers.step(number)} of {towers.steps}", flush=True)
    if not quick:
        number = python_runtime.resume(towers, number)
    towers.await_end(number)
    far = furthest(towers.told("disturbed"), towers.told("two"))
    return figure(
        f"{'killed' if quick else 'killed, preempted'} and resumed: how far a loss is from the undisturbed",
        f"{far:.1e}",
        f"{towers.steps} steps, tables shared out by rows",
        f"<= {DIFFERS_MOST:g}",
        far <= DIFFERS_MOST,
    )


def scored_items(towers: Towers) -> bool:
    """Vectors of all items as Parquet, by muster_score, against those of the process that trained."""
    import pyarrow.parquet

    folder = towers.system.folder
    World().write_items(folder / "items.parquet")
    places = {"items": folder / "items.parquet", "output": folder / "vectors"}
    text = SCORE.format(path=PATH, python=towers.python, model=folder / "two", **places)
    towers.await_end(submit(towers.system, text))
    parts = sorted((folder / "vectors").glob("part-*.parquet"))
    rows = [row for part in parts for row in pyarrow.parquet.read_table(part).to_pylist()]
    whole = [row["item"] for row in rows] == list(range(World().items))
    far = furthest_items([row["vector"] for row in rows], towers.told("two")["items"])
    return figure(
        "vectors of items scored into Parquet: how far from those of the training's process",
        f"{far:.1e}",
        f"{len(rows)} items, {len(parts)} parts",
        f"<= {DIFFERS_MOST:g}",
        whole and far <= DIFFERS_MOST,
    )


def speed(towers: Towers, quick: bool) -> bool:
    out, steps = towers.system.folder / "times.json", 800 if quick else 5000
    program = f"{ROOT}/programs/two_tower.py"
    words = f"{ROOT}/bench/runtime_cost.py {program} {out} -- --steps {steps}"
    towers.await_end(towers.submit("speed", words, interval="1h"))  # what is plain saves nothing
    found = cost_of(out)
    return at_least(
        "steps a second with the callback, against plain Lightning's",
        1 / (1 + found.percent / 100),
        f"x of one; in % {found.words}",
        LEAST_SPEED,
        places=4,
    )


def main() -> int:
    quick = "--quick" in sys.argv
    environment = environment_of_two_tower(may_make=not quick)
    if environment is None:
        return say_failed(Failed("TorchRec isn't installed: bench/run.sh two-tower does that"))
    with system_folder() as folder:
        system = LocalSystem(folder, BIN)
        try:
            start(system, QUEUES, slots=1)
            towers = Towers(system, environment, 200 if quick else 600)
            ok = [one_and_two(towers), disturbed(towers, quick), scored_items(towers)]
            ok += [shared_out(towers, quick), speed(towers, quick)]
        except Failed as error:
            return say_failed(error)
    return 0 if all(ok) else 1


if __name__ == "__main__":
    sys.exit(main())
