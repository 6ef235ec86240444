"""Row `tune-search`: a ranking model found by muster tune, against five after their papers at the same budget of FLOPs a sample, by normalised entropy.

    tune_search.py [--quick]

Three times over, each with other clicks (deploy/examples/rank_clicks.py makes them) and another seed of the search: a job of two workers tries 96 settings
of the example's blocks, each as wide as the budget allows; it begins with FIRSTS. Each of the five (bench/zoo.py) has all of its grid of dimensions, depths and
learning rates, each as wide as the budget allows: 24 trainings, together 120. Both choose by the validation rows. What was chosen is then trained with SEEDS other
seeds of the weights and judged on test rows that no choice has seen, by the mean; the five's best is chosen by the test itself, to their favour.
Optuna is python/requirements-tune.txt's, in an environment that the row makes. --quick: once, few and short trainings, and no bar: too little is tried to find
anything; without that environment the sampler is random, and it says so.
"""

import concurrent.futures
import multiprocessing
import random
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES, PYTHON = ROOT / "deploy" / "examples", ROOT / "python"
sys.path[:0] = [str(ROOT / "deploy" / "local"), str(ROOT / "tests" / "system")]
sys.path[:0] = [str(EXAMPLES), str(PYTHON)]

import rank_clicks
import rank_model
import rank_search
import rank_space
import torch
import zoo
from borrowers import submit
from environments import environment
from figures import BIN, figure, say_failed
from local_system import Failed, LocalSystem, system_folder, wait_for
from muster_tune.study import DONE, Study, read
from small_system import ENDED, start

QUEUES = "queues: [{name: research, quota: {cpu-slot: {guarantee: 2}}, submit: ['*']}]\n"
TUNE = """\
name: rank-search
queue: research
independent_workers: {{min: 1, max: 2}}
resources: {{gpus: 1, gpu_types: [cpu-slot]}}
checkpoint: {{interval: 30s}}
env: {{PYTHONPATH: "{python}", OMP_NUM_THREADS: "1"}}
run: >
  exec {worker} -m muster_tune --study {study} --trials {trials} --sampler {sampler} --seed {seed} --give-up-after {trials}
  --objective ne --direction minimize {knobs}
  {firsts}
  -- {interpreter} {examples}/rank_search.py train --data {data} --budget {budget} --fill --steps {steps}
"""
OPERATORS = ",".join(rank_space.OPERATORS[1:])
KNOBS = [f"dim={','.join(map(str, zoo.Peer.dims))}", f"lr={','.join(map(str, zoo.RATES))}"]
KNOBS += [f"op1={OPERATORS}", f"op2=none,{OPERATORS}", f"op3=none,{OPERATORS}"]
KNOBS += [f"from{i}={','.join(rank_space.SOURCES)}" for i in (2, 3)]
# Tried first: after DLRM, DeepFM and DCN-v2.
FIRSTS = [
    {"dim": 16, "op1": "dot", "op2": "fc", "from2": "numbers"},
    {"dim": 16, "op1": "dot", "op2": "fc", "from2": "numbers", "op3": "fc", "from3": "last"},
    {"dim": 8, "op1": "fm", "op2": "fc", "from2": "features"},
    {"dim": 8, "op1": "dcn", "op2": "fc", "from2": "features"},
]
FIRST_RATE = 1.6e-2
BUDGET, SEEDS, BATCH = 16_000, 3, 500
FIRST = 21  # seed; with 1 and 7 the example was written, and 11 was seen before it was (161)


@dataclass
class Size:
    searches: int = 3
    trials: int = 96
    each: int | None = None  # of the five: trainings; None: all of its grid
    steps: int = 200


# ---- trainings outside of a job, in processes of their own ----

_clicks = {}


def prepare(data: Path) -> None:
    torch.set_num_threads(1)
    whole = rank_clicks.read(data)
    _clicks.update({name: whole.part(name) for name in rank_clicks.ROWS})


def made(what: str | None, setting: dict, seed: int):
    """The model of a peer's name, or the searched one."""
    clicks = _clicks["train"]
    sizes, numbers = clicks.sizes, clicks.numbers.shape[1]
    if what is None:
        return rank_model.model_of(setting, sizes, numbers, seed)
    torch.manual_seed(seed)
    peer = getattr(zoo, what)
    return peer(sizes, numbers, setting["dim"], setting["width"], setting["depth"])


def trained(what: str | None, setting: dict, seed: int, steps: int, part: str) -> float:
    """Its normalised entropy on the rows of that part."""
    model = made(what, setting, seed)
    rank_model.train(model, _clicks["train"], setting["lr"], steps, BATCH)
    return rank_model.judged(model, _clicks[part])


class Trainings:
    def __init__(self, data: Path, steps: int):
        self.steps, self.count = steps, 0
        self.pool = concurrent.futures.ProcessPoolExecutor(
            2, multiprocessing.get_context("spawn"), prepare, (data,)
        )

    def tried(self, what: str, settings: list[dict]) -> dict:
        """The best of them, by validation."""
        given = [self.pool.submit(trained, what, s, 0, self.steps, "validation") for s in settings]
        found = [one.result() for one in given]
        return settings[found.index(min(found))]

    def tested(self, what: str | None, setting: dict) -> float:
        seeds = range(1, 1 + SEEDS)
        given = [self.pool.submit(trained, what, setting, s, self.steps, "test") for s in seeds]
        return statistics.mean(one.result() for one in given)


# ---- the search ----


def first_setting(blocks: dict) -> str:
    """All knobs of it."""
    rest = {"op3": "none", "from2": "features", "from3": "features"}
    rest |= {"lr": FIRST_RATE}
    return ",".join(f"{name}={value}" for name, value in (rest | blocks).items())


def searched(system: LocalSystem, tune: Path | None, data: Path, seed: int, size: Size) -> Study:
    study = system.folder / f"study-{seed}"
    sampler, worker = ("random", sys.executable) if tune is None else ("tpe", tune / "bin/python")
    text = TUNE.format(
        python=PYTHON,
        worker=worker,
        study=study,
        trials=size.trials,
        sampler=sampler,
        seed=seed,
        knobs=" ".join(f"--knob {knob}" for knob in KNOBS),
        firsts=" ".join(f"--first {first_setting(blocks)}" for blocks in FIRSTS),
        interpreter=sys.executable,
        examples=EXAMPLES,
        data=data,
        budget=BUDGET,
        steps=size.steps,
    )
    number = submit(system, text)
    wait_for("the search", lambda: system.job(number)["state"] in ENDED, 900, 0.2)
    state = system.job(number)["state"]
    if state != "SUCCEEDED":
        said = system.run(["logs", number], check=False).stdout[-1500:]
        raise Failed(f"job {number}: {state}: {said}")
    return read(study)


SHAPE = len(rank_clicks.FIELDS), rank_clicks.NUMBERS


def made_of(trial) -> dict:
    """As the trial has trained it."""
    return rank_space.filled(rank_space.DEFAULTS | trial.setting, *SHAPE, BUDGET)


def flops(setting: dict) -> int:
    return rank_space.flops_of(setting, *SHAPE)


def own(study: Study, seed: int) -> tuple[dict, bool]:
    """The chosen setting, and whether none above the budget was trained and all below it were."""
    refused = 0
    for trial in study.trials:
        above = flops(made_of(trial)) > BUDGET
        refused += above
        if above == (trial.state == DONE):
            return {}, figure("trial on the wrong side of the budget", trial.number, "", 0, False)
    count = len(study.trials)
    print(f"search {seed}: {count} trials, {refused} of them above the budget", flush=True)
    print(rank_search.front(study, *SHAPE), flush=True)
    return made_of(study.best()), True


def peers(trainings: Trainings, size: Size, seed: int) -> dict[str, tuple[float, int]]:
    """Normalised entropy in test, and FLOPs, of each one's chosen setting."""
    found = {}
    for peer in zoo.PEERS:
        settings = zoo.grid(peer, *SHAPE, BUDGET)
        if size.each is not None:
            settings = random.Random(seed).sample(settings, size.each)
        trainings.count += len(settings)
        best = trainings.tried(peer.__name__, settings)
        model = peer((1,) * SHAPE[0], SHAPE[1], best["dim"], best["width"], best["depth"])
        entropy = trainings.tested(peer.__name__, best)
        found[peer.__name__] = entropy, zoo.counted_flops(model, *SHAPE)
        told = f"{entropy:.5f}, {found[peer.__name__][1]} FLOPs, {best}"
        print(f"search {seed}: {peer.__name__} {told}", flush=True)
    return found


def compare(system: LocalSystem, tune: Path | None, seed: int, size: Size, bar: bool) -> bool:
    data = system.folder / f"clicks-{seed}.npz"
    rank_search.main(["data", "--data-seed", str(seed), str(data)])
    study = searched(system, tune, data, seed, size)
    best, right = own(study, seed)
    if not right:
        return False
    trainings = Trainings(data, size.steps)
    with trainings.pool:
        entropy = trainings.tested(None, best)
        print(f"search {seed}: ours {entropy:.5f}, {rank_space.told_setting(best)}", flush=True)
        others = peers(trainings, size, seed)
    name, (least, theirs) = min(others.items(), key=lambda one: one[1][0])
    told = f"{flops(best)} FLOPs a sample; {name} {theirs}"
    done = sum(trial.state == DONE for trial in study.trials)
    told += f"; {size.trials} trials, {done} of them trained; {trainings.count} of the five"
    lower = entropy < least
    return figure(
        f"normalised entropy in test, search {seed}",
        round(entropy, 5),
        told,
        "lower than the best of five" if bar else "-",
        lower or not bar,
        round(least, 5),
    )


def main() -> int:
    quick = "--quick" in sys.argv
    size = Size(1, 4, 4, 40) if quick else Size()
    tune = environment("tune", "python/requirements-tune.txt", may_make=not quick)
    if tune is None:
        print("the sampler is random: bench/run.sh tune-search makes tpe's environment", flush=True)
    with system_folder() as folder:
        system = LocalSystem(folder, BIN)
        try:
            start(system, QUEUES, hosts=("h01",), slots=2)
            seeds = range(FIRST, FIRST + size.searches)
            ok = [compare(system, tune, seed, size, not quick) for seed in seeds]
        except Failed as error:
            return say_failed(error)
    return 0 if all(ok) else 1


if __name__ == "__main__":
    sys.exit(main())
