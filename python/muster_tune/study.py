"""A study: its trials, as files in a directory that all workers see. There is no coordinator that could die.

    study.json                     what it is of; the first worker makes it
    proposals/00000003.json        trial 3 and its setting: whoever is first to link it has proposed it
    leases/00000003.GENERATION     who works on it (muster_score.leases)
    trials/00000003/GENERATION/    what this attempt printed, reported and saved
    results/00000003.json          how it ended: done with a value, or failed with a cause. The first one counts
    best.json                      once all have ended

Proposals and results appear by link(2), whole, and once. So a trial can't be counted twice, whoever was taken for dead and wasn't; and a trial without
a result is open, whoever died with it in hand.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from muster_score import files

OPEN, DONE, FAILED = "open", "done", "failed"


class StudyError(Exception):
    """What is wrong with the study, and the remedy."""


@dataclass
class Trial:
    number: int
    setting: dict
    state: str = OPEN
    value: float | None = None  # of one that is done
    cause: str = ""  # of one that has failed
    memory: bool = False  # it failed for want of memory


class Study:
    def __init__(self, directory: Path, plan: dict):
        """`plan`: what makes trials comparable. Another plan than the directory's is refused."""
        self.directory, self.plan = directory, plan
        self.trials: list[Trial] = []
        self.no_more: str | None = None  # why no further trial will be proposed
        for name in ("proposals", "leases", "trials", "results"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        if not files.create(directory / "study.json", plan):
            self._refuse_another(files.read(directory / "study.json"))

    @property
    def minimize(self) -> bool:
        return self.plan["direction"] == "minimize"

    def _refuse_another(self, planned: dict) -> None:
        now = json.loads(json.dumps(self.plan))
        differ = [
            f"{name} {planned.get(name)!r}, and now it is {now.get(name)!r}"
            for name in sorted({*planned, *now})
            if planned.get(name) != now.get(name)
        ]
        if differ:
            raise StudyError(
                f"--study {self.directory}: its trials are of {'; '.join(differ)}. Take another directory, or remove this one"
            )

    def refresh(self) -> None:
        """Reads what has come since."""
        while self.no_more is None and len(self.trials) < self.plan["trials"]:
            number = len(self.trials)
            found = files.read(self._file("proposals", number))
            if found is None:
                break
            if found["setting"] is None:
                self.no_more = found["why"]
                break
            self.trials.append(Trial(number, found["setting"]))
        for trial in self.trials:
            if trial.state == OPEN:
                self._look(trial)

    def _look(self, trial: Trial) -> None:
        found = files.read(self._file("results", trial.number))
        if found is not None:
            trial.state, trial.value = found["state"], found["value"]
            trial.cause, trial.memory = found["cause"], found["memory"]

    def may_propose(self) -> bool:
        return self.no_more is None and len(self.trials) < self.plan["trials"]

    def propose(self, setting: dict | None, why: str = "") -> None:
        """The next trial, unless another worker has been faster: see refresh(). None: there is none, and why."""
        files.create(
            self._file("proposals", len(self.trials)),
            {"setting": setting} if setting is not None else {"setting": None, "why": why},
        )
        self.refresh()

    def end(self, trial: Trial, value: float | None, cause: str = "", memory: bool = False) -> bool:
        """Its result: a value, or a cause. False: it has one already."""
        state = DONE if value is not None else FAILED
        content = {"state": state, "value": value, "cause": cause, "memory": memory}
        won = files.create(self._file("results", trial.number), content)
        self._look(trial)
        return won

    def ended(self) -> bool:
        return not self.may_propose() and all(trial.state != OPEN for trial in self.trials)

    def best(self) -> Trial | None:
        done = [trial for trial in self.trials if trial.state == DONE]
        sign = 1 if self.minimize else -1
        return min(done, key=lambda trial: (sign * trial.value, trial.number), default=None)

    def finish(self) -> None:
        """What came of it, by whoever is first to see its end."""
        best = self.best()
        found = {
            "trials": len(self.trials),
            "failed": sum(trial.state == FAILED for trial in self.trials),
            "no_more": self.no_more,
            "best": best and {"trial": best.number, "setting": best.setting, "value": best.value},
        }
        files.create(self.directory / "best.json", found)
        for trial in self.trials:
            for lease in (self.directory / "leases").glob(f"{trial.number:08}.*"):
                lease.unlink(missing_ok=True)
        for name in ("", "proposals", "leases", "results"):
            files.tidy(self.directory / name)

    def folder(self, trial: Trial) -> Path:
        return self.directory / "trials" / f"{trial.number:08}"

    def _file(self, kind: str, number: int) -> Path:
        return self.directory / kind / f"{number:08}.json"


def read(directory: Path) -> Study:
    """One that is there, to look at."""
    plan = files.read(directory / "study.json")
    if plan is None:
        raise StudyError(f"{directory}: there is no study; its directory is what --study named")
    study = Study.__new__(Study)
    study.directory, study.plan, study.trials, study.no_more = directory, plan, [], None
    study.refresh()
    return study
