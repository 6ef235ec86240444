"""Predicts a trainer's speed in settings that nobody has tried, from those that somebody has (CubicML, arXiv 2409.04585, section 3: a model of the system's
speed that is learnt from past jobs stands in for a run).

Two parts. The base is a sum of times that follow from `muster-trainer estimate`: products, bytes, micro-batches, each times a coefficient above 0 that
past steps give (non-negative least squares of relative errors). It carries over to models that nobody has run. LightGBM learns what is left, the
logarithm of measured by base: what the sum can't say, such as how two settings go together.
"""

import math
import statistics
import warnings
from dataclasses import dataclass

from muster_tune.space import Space, key_of
from muster_tune.study import DONE, FAILED, Trial

MEMBERS = 5  # models of the ensemble, each of a part of the records
FEW = 6  # own trials without a history: until then settings are spread out
OWN_WEIGHT = 3.0  # of a trial of this study, beside one of another
RIDGE = 0.05  # pulls coefficients that the records don't tell towards the smallest
_TESTED = 5  # past studies that are left out in turn
_ROUNDS, _USUAL = 6, 0.1  # of the fit; relative error that counts in full
CAUTION = 0.5  # times the ensemble's spread: above 0 tries what it is unsure of


@dataclass
class Record:
    """One measured run: of this study or of a past one."""

    study: str
    setting: dict
    estimate: dict
    tokens_per_step: int
    layers: int
    tokens_per_s: float

    @property
    def step_s(self) -> float:
        return self.tokens_per_step / self.tokens_per_s


def sent_bytes(estimate: dict) -> float:
    kinds = ("gather", "reduce", "slice", "context", "expert", "pipeline")
    return float(sum(estimate.get(f"{kind}_bytes_per_step", 0) for kind in kinds))


def terms(setting: dict, estimate: dict, layers: int) -> list[float]:
    """Of a step, in units of nobody: what takes time, each in proportion. The last two stand for any estimate that tells them."""
    flops = estimate["flops_per_step"] / estimate["ranks"]
    parameters = float(estimate["trained_parameters"])
    micro = float(estimate["micro_batches"])
    passes = micro * max(1, layers)
    recompute = setting.get("recompute", "none")
    stage, offload = setting.get("zero_stage", 1), setting.get("offload", "none")
    again = [float(recompute == kind) for kind in ("pointwise", "keep_attention", "full")]
    return [
        flops,
        *(flops * kind for kind in again),
        passes,
        *(passes * kind for kind in again),
        sent_bytes(estimate),
        passes * (stage == 2),
        passes * (stage == 3),
        micro * parameters,
        parameters,
        parameters * (offload == "optimizer"),
        parameters * (offload == "parameters"),
        passes * (offload == "parameters"),
        estimate.get("step_time_s", 0.0),
        1.0,
    ]


def features(setting: dict, estimate: dict, layers: int, names: list[str]) -> list[float]:
    """For LightGBM: the knobs, and ratios that mean the same in a model of another size."""
    micro = float(estimate["micro_batches"])
    flops, parameters = estimate["flops_per_step"], float(estimate["trained_parameters"])
    kept = {one["class"]: one["bytes"] for one in estimate.get("memory", [])}
    return [
        *(_number(setting.get(name)) for name in names),
        math.log(micro),
        math.log(estimate["micro_batch_size"]),
        math.log(flops / estimate["ranks"] / micro / max(1, layers)),
        math.log(1 + sent_bytes(estimate) / parameters),
        math.log(1 + kept.get("activations kept", 0)),
    ]


_TEXTS = {
    "none": 0.0,
    "pointwise": 1.0,
    "keep_attention": 2.0,
    "full": 3.0,
    "optimizer": 4.0,
    "parameters": 5.0,
}


def _number(value) -> float:
    """Of a knob's value. Texts that aren't known here get a number that hangs on them alone, so that it is the same in every study."""
    if isinstance(value, (bool, int, float)):
        return float(value)
    if value is None:
        return math.nan
    return _TEXTS.get(value, 10.0 + sum(map(ord, value)) % 991)


class Base:
    """Seconds of a step as a sum of terms."""

    def __init__(self, records: list[Record]):
        import numpy
        from scipy.optimize import nnls

        rows = numpy.array([terms(r.setting, r.estimate, r.layers) for r in records])
        seconds = numpy.array([r.step_s for r in records])
        self.scale = rows.max(axis=0)
        self.scale[self.scale == 0] = 1.0
        relative = rows / self.scale / seconds[:, None]
        weights = numpy.ones(len(records))
        for _ in range(_ROUNDS):
            # Each coefficient's own pull: without it few records would be met exactly, by whichever terms.
            pull = RIDGE * math.sqrt(len(records)) * numpy.diag(relative.mean(axis=0))
            left = numpy.vstack([relative * weights[:, None], pull])
            right = numpy.concatenate([weights, numpy.zeros(len(pull))])
            self.coefficients, _ = nnls(left, right, maxiter=50 * rows.shape[1])
            # Huber's weights: a run that something else slowed down counts for less.
            off = numpy.abs(relative @ self.coefficients - 1)
            weights = numpy.sqrt(numpy.minimum(1, _USUAL / numpy.maximum(off, 1e-9)))

    def log_step_s(self, setting: dict, estimate: dict, layers: int) -> float:
        parts = [value / of for value, of in zip(terms(setting, estimate, layers), self.scale)]
        return math.log(max(1e-12, float(self.coefficients @ parts)))


class Model:
    """Of records, at least one: the logarithm of a step's seconds, up to a constant of each study. `jobs` have one figure each, of a model that nobody
    else has run: they tell the base, but nothing about which of two settings is the faster."""

    def __init__(
        self, records: list[Record], own: str, seed: int, jobs: list[Record] | None = None
    ):
        self.jobs = jobs or []
        self.names = sorted({name for record in records for name in record.setting})
        self.base = Base(records + self.jobs)
        self.trees = [
            self._trees(self.base, records, own, seed * MEMBERS + i) for i in range(MEMBERS)
        ]
        self.trust = self._trust(records, own, seed)

    def _trees(self, base: Base, records: list[Record], own: str, seed: int):
        weights = [OWN_WEIGHT if record.study == own else 1.0 for record in records]
        rows = [features(r.setting, r.estimate, r.layers, self.names) for r in records]
        return _fit(rows, _without_outliers(_left(base, records)), weights, seed)

    def _trust(self, records: list[Record], own: str, seed: int) -> float:
        """How much of what the trees say holds for a study that they haven't seen, 0 to 1: the slope of the truth over it, each past study left out in turn."""
        import numpy

        sizes = {study: 0 for study in {record.study for record in records} - {own}}
        for record in records:
            if record.study in sizes:
                sizes[record.study] += 1
        tested = sorted(sizes, key=lambda study: (-sizes[study], study))[:_TESTED]
        if len(sizes) < 2:
            return 1.0
        said, true = [], []
        for study in tested:
            others = [record for record in records if record.study not in (study, own)]
            held = [record for record in records if record.study == study]
            base = Base(others + self.jobs)
            trees = self._trees(base, others, own, seed)
            rows = [features(r.setting, r.estimate, r.layers, self.names) for r in held]
            told = trees.predict(numpy.array(rows))
            said += list(told - numpy.median(told))
            true += _without_outliers(_left(base, held))
        square = sum(one * one for one in said)
        slope = sum(one * other for one, other in zip(said, true)) / max(square, 1e-12)
        return min(1.0, max(0.0, slope))

    def predict(self, settings: list[dict], estimates: list[dict], layers: int):
        """Of each the mean and the spread of the ensemble, as two arrays."""
        import numpy

        base = numpy.array(
            [self.base.log_step_s(one, e, layers) for one, e in zip(settings, estimates)]
        )
        rows = [features(one, e, layers, self.names) for one, e in zip(settings, estimates)]
        left = numpy.array([trees.predict(numpy.array(rows)) for trees in self.trees])
        return base + self.trust * left.mean(axis=0), left.std(axis=0)


def _left(base: Base, records: list[Record]) -> list[float]:
    """What the base leaves over of each, around the middle of its study."""
    left = [math.log(r.step_s) - base.log_step_s(r.setting, r.estimate, r.layers) for r in records]
    middle = {}
    for study in {record.study for record in records}:
        middle[study] = statistics.median(
            one for record, one in zip(records, left) if record.study == study
        )
    return [one - middle[record.study] for record, one in zip(records, left)]


def _without_outliers(left: list[float]) -> list[float]:
    """Those beyond three standard deviations, by the median of the distances, are taken there."""
    far = 3 * 1.48 * statistics.median(map(abs, left))
    return [max(-far, min(far, one)) for one in left]


def _fit(rows: list[list[float]], left: list[float], weights: list[float], seed: int):
    import lightgbm
    import numpy

    parameters = {
        "objective": "regression",
        "learning_rate": 0.08,
        "num_leaves": 7,
        "min_data_in_leaf": max(2, min(10, len(rows) // 10)),
        "bagging_fraction": 0.8,
        "bagging_freq": 1,
        "feature_fraction": 0.8,
        "lambda_l2": 5.0,
        "seed": seed,
        "num_threads": 1,
        "deterministic": True,
        "verbosity": -1,
    }
    data = lightgbm.Dataset(numpy.array(rows), numpy.array(left), weight=numpy.array(weights))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return lightgbm.train(parameters, data, num_boost_round=100)


class Proxy:
    """A sampler for knobs of the trainer whose objective is tokens a second."""

    def __init__(
        self,
        space: Space,
        told: dict,
        past: list[Record],
        first: dict | None,
        tokens_per_step: int,
        layers: int,
        seed: int,
        jobs: list[Record] | None = None,
    ):
        """`told`: what Estimator.ask_all found. `first`: the setting that stands in the user's configuration, tried first if it is one of the space.
        `jobs`: what Model says."""
        self.space, self.told, self.past, self.first = space, told, past, first
        self.tokens_per_step, self.layers, self.seed = tokens_per_step, layers, seed
        self.jobs = jobs or []

    def propose(self, trials: list[Trial]) -> dict | None:
        import json

        tried = {key_of(trial.setting) for trial in trials}
        if not trials and self.first is not None and self._fits(key_of(self.first), trials):
            return self.first
        left = [key for key in self.told if key not in tried and self._fits(key, trials)]
        if not left:
            return None
        settings = [json.loads(key) for key in left]
        done = [trial for trial in trials if trial.state == DONE]
        if len(done) < (1 if not self.past else 0) or (not self.past and len(trials) < FEW):
            return self._spread_out(settings, trials)
        return settings[self._best(settings, left, trials)]

    def _fits(self, key: str, trials: list[Trial]) -> bool:
        """By the estimate, and by what ran out of memory before."""
        estimate = self.told.get(key, {}).get("estimate")
        if estimate is None:
            return False
        needs = estimate["memory_bytes"]
        lost = [self.told.get(key_of(t.setting), {}).get("estimate") for t in trials if t.memory]
        return all(needs < one["memory_bytes"] for one in lost if one is not None)

    def _spread_out(self, settings: list[dict], trials: list[Trial]) -> dict:
        """The one that is least like those that were tried, by how many knobs differ."""
        import random

        dice = random.Random(f"{self.seed} {len(trials)}")
        dice.shuffle(settings)
        seen = [trial.setting for trial in trials]

        def new(setting: dict) -> tuple:
            unlike = [sum(setting[k] != other.get(k) for k in setting) for other in seen]
            fresh = sum(all(setting[k] != other.get(k) for other in seen) for k in setting)
            return fresh, min(unlike, default=0)

        return max(settings, key=new)

    def _own(self, trials: list[Trial]) -> list[Record]:
        records = []
        for trial in trials:
            estimate = self.told.get(key_of(trial.setting), {}).get("estimate")
            if trial.state == DONE and estimate is not None and trial.value > 0:
                records.append(
                    Record(
                        "", trial.setting, estimate, self.tokens_per_step, self.layers, trial.value
                    )
                )
        return records

    def _best(self, settings: list[dict], keys: list[str], trials: list[Trial]) -> int:
        """Of them, the place of the one that promises the most. What is open counts by its prediction: it is tried already."""
        records = self.past + self._own(trials)
        model = Model(records, own="", seed=self.seed * 1009 + len(trials), jobs=self.jobs)
        estimates = [self.told[key]["estimate"] for key in keys]
        mean, spread = model.predict(settings, estimates, self.layers)
        promise = mean - CAUTION * spread
        failed = [trial.setting for trial in trials if trial.state == FAILED]
        for i, setting in enumerate(settings):  # the like of what has failed comes later
            alike = max((sum(setting[k] == o.get(k) for k in setting) for o in failed), default=0)
            promise[i] += 0.1 * alike / len(setting)
        return int(promise.argmin())
