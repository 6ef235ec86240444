"""Who proposes the next setting. A sampler is called with all trials so far, open ones too, and keeps nothing: any worker may propose."""

import random
from typing import Protocol

from muster_tune.space import Space, key_of
from muster_tune.study import DONE, FAILED, Trial

_TRIES = 200  # for a setting that is new, of a space without end


class Sampler(Protocol):
    def propose(self, trials: list[Trial]) -> dict | None:
        """A setting that no trial has. None: there is none left."""


def new_settings(space: Space, trials: list[Trial]) -> list[dict]:
    """Those of a space that can be listed that no trial has."""
    tried = {key_of(trial.setting) for trial in trials}
    return [setting for setting in space.all() if key_of(setting) not in tried]


class Begun:
    """First the settings that somebody named, in their order, then a sampler's own."""

    def __init__(self, firsts: list[dict], sampler: Sampler):
        self.firsts, self.sampler = firsts, sampler

    def propose(self, trials: list[Trial]) -> dict | None:
        tried = {key_of(trial.setting) for trial in trials}
        for setting in self.firsts:
            if key_of(setting) not in tried:
                return setting
        return self.sampler.propose(trials)


class Random:
    def __init__(self, space: Space, seed: int):
        self.space, self.seed = space, seed

    def propose(self, trials: list[Trial]) -> dict | None:
        dice = random.Random(f"{self.seed} {len(trials)}")
        if self.space.size() is not None:
            left = new_settings(self.space, trials)
            return dice.choice(left) if left else None
        tried = {key_of(trial.setting) for trial in trials}
        for _ in range(_TRIES):
            setting = self.space.draw(dice)
            if key_of(setting) not in tried:
                return setting
        return None


class Tpe:
    """Optuna's TPE. Open trials count as bad ones meanwhile (constant liar), so that workers don't try the same; failed ones as the worst that was seen."""

    def __init__(self, space: Space, seed: int, minimize: bool):
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.optuna, self.space, self.seed, self.minimize = optuna, space, seed, minimize
        self.distributions = {knob.name: self._distribution(knob) for knob in space.knobs}

    def _distribution(self, knob):
        kinds = self.optuna.distributions
        if knob.values:
            return kinds.CategoricalDistribution(knob.values)
        if knob.whole:
            return kinds.IntDistribution(int(knob.low), int(knob.high), log=knob.log)
        return kinds.FloatDistribution(knob.low, knob.high, log=knob.log)

    def propose(self, trials: list[Trial]) -> dict | None:
        if self.space.size() is not None and not new_settings(self.space, trials):
            return None
        study = self._study(trials)
        tried = {key_of(trial.setting) for trial in trials}
        for _ in range(20):
            setting = study.ask(self.distributions).params
            if key_of(setting) not in tried:
                return setting
        return Random(self.space, self.seed).propose(trials)

    def _study(self, trials: list[Trial]):
        sampler = self.optuna.samplers.TPESampler(
            seed=self.seed * 1_000_003 + len(trials), constant_liar=True
        )
        study = self.optuna.create_study(
            sampler=sampler, direction="minimize" if self.minimize else "maximize"
        )
        values = [trial.value for trial in trials if trial.state == DONE]
        states = self.optuna.trial.TrialState
        for trial in trials:
            value, state = trial.value, states.COMPLETE
            if trial.state == FAILED:
                if not values:
                    continue
                value = max(values) if self.minimize else min(values)
            elif trial.state != DONE:
                state = states.RUNNING
            study.add_trial(
                self.optuna.trial.create_trial(
                    state=state, value=value, params=trial.setting, distributions=self.distributions
                )
            )
        return study
