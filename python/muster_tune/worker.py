"""One worker: tries settings until all trials of the study have ended."""

import shutil
import threading
import time
from dataclasses import dataclass

import muster_runtime
from muster_score.leases import Lease, Leases

from muster_tune.attempt import Attempt, Outcome, Run
from muster_tune.samplers import Sampler
from muster_tune.study import DONE, FAILED, OPEN, Study, StudyError, Trial

_BEAT_S = 5.0


class Stopped(Exception):
    pass


def stop_if_told() -> None:
    if muster_runtime.should_stop():
        raise Stopped


@dataclass
class Limits:
    lease_s: float = 60
    deaths: int = 5  # of workers with the trial in hand, before it is the trial's fault
    give_up_after: int = 5  # trials that failed, while none has worked


class Worker:
    def __init__(self, study: Study, sampler: Sampler, run: Run, limits: Limits, owner: str):
        self.study, self.sampler, self.run_, self.limits = study, sampler, run, limits
        self.leases = Leases(study.directory / "leases", owner, limits.lease_s)
        self.told_s, self.told = 0.0, None

    def run(self) -> None:
        """Returns once all trials have ended. Stopped: it was told to stop."""
        while True:
            stop_if_told()
            self.study.refresh()
            self.report()
            self._give_up_if_nothing_works()
            if self.study.ended():
                break
            if self._work_on_an_open_one():
                continue
            if self.study.may_propose():
                setting = self.sampler.propose(self.study.trials)
                self.study.propose(setting, "all settings that fit have been tried")
            else:
                self._wait(min(1.0, self.limits.lease_s / 4))
        self.study.finish()

    def report(self) -> None:
        """A line of progress: trials that have ended, and the best. Where nothing is new, every few seconds."""
        ended = sum(trial.state != OPEN for trial in self.study.trials)
        best = self.study.best()
        line, now_s = (ended, best and best.value), time.monotonic()
        if line == self.told and now_s - self.told_s < _BEAT_S:
            return
        self.told, self.told_s = line, now_s
        muster_runtime.report(ended, total_steps=self.study.plan["trials"], best=line[1])

    def _beat(self) -> None:
        if time.monotonic() - self.told_s >= _BEAT_S:
            self.study.refresh()
            self.report()

    def _give_up_if_nothing_works(self) -> None:
        failed = [trial for trial in self.study.trials if trial.state == FAILED]
        if any(trial.state == DONE for trial in self.study.trials):
            return
        if len(failed) >= self.limits.give_up_after or (failed and self.study.ended()):
            raise StudyError(
                f"no trial works: {len(failed)} failed, the last one with: {failed[-1].cause}"
            )
        if self.study.ended():
            raise StudyError(f"there is nothing to try: {self.study.no_more}")

    def _wait(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            stop_if_told()
            time.sleep(0.05)

    # ---- a trial ----

    def _work_on_an_open_one(self) -> bool:
        for trial in self.study.trials:
            if trial.state != OPEN:
                continue
            lease = self.leases.take(trial.number)
            if lease is not None:
                self._work(trial, lease)
                return True
        return False

    def _work(self, trial: Trial, lease: Lease) -> None:
        self.study.refresh()
        if trial.state != OPEN:
            self.leases.forget(trial.number)
            return
        if lease.deaths >= self.limits.deaths:
            cause = f"{lease.deaths} workers died as they tried it"
            self._end(trial, Outcome(cause=cause))
            return
        working = threading.Event()
        renewing = threading.Thread(target=self._renew, args=(lease, working), daemon=True)
        renewing.start()
        try:
            folder = self.study.folder(trial) / lease.path.suffix[1:]
            attempt = Attempt(self.run_, trial.setting, trial.number, folder)
            outcome = attempt.run(muster_runtime.should_stop, self._beat)
        except BaseException:
            self._stop_renewing(working, renewing)
            self.leases.give_back(lease)
            raise
        self._stop_renewing(working, renewing)
        if outcome.stopped:
            self.leases.give_back(lease)
            raise Stopped
        self._end(trial, outcome)

    @staticmethod
    def _stop_renewing(working: threading.Event, renewing: threading.Thread) -> None:
        working.set()
        renewing.join()

    def _renew(self, lease: Lease, working: threading.Event) -> None:
        while not working.wait(self.limits.lease_s / 4):
            try:
                self.leases.renew(lease)
            except OSError:
                continue  # of a file server: the next time may be better, and no trial hangs on it

    def _end(self, trial: Trial, outcome: Outcome) -> None:
        won = self.study.end(trial, outcome.value, outcome.cause, outcome.memory)
        self.leases.forget(trial.number)
        if won:
            told = f"{outcome.value:g}" if outcome.value is not None else f"failed: {outcome.cause}"
            print(f"trial {trial.number}: {told}  {trial.setting}", flush=True)
        for attempt in self.study.folder(trial).glob("[0-9]*"):
            shutil.rmtree(attempt / "checkpoints", ignore_errors=True)
