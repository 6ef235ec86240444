"""What the demo reads of job 1 and of others while it waits, as `muster … -o json` and the job's logs tell it."""

import time

from local_system import CommandFailed, Failed, LocalSystem, job_processes, now_ns, wait_for
from reference import losses
from screen import Screen

ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")


class Reading:
    """Job 1's number and its steps are set once it is submitted."""

    def __init__(self, system: LocalSystem, screen: Screen):
        self.system, self.screen = system, screen
        self.number, self.steps = 0, 0
        self.job: dict = {}  # job 1 as last read

    def submit(self, name: str) -> dict:
        return self.system.submit(self.system.folder / "etc" / name)

    def read_job(self) -> dict | None:
        """Job 1 now; None while musterd is away."""
        try:
            self.job = self.system.job(self.number)
            return self.job
        except CommandFailed as error:
            if error.code == 6:
                return None
            raise

    def train(self) -> dict:
        return next(task for task in self.job["tasks"] if task["name"] == "train")

    def progress(self) -> dict:
        return self.train().get("progress") or {
            "step": 0,
            "attempt": 0,
            "at_ns": 0,
            "loss": 0,
            "tokens_per_s": 0,
        }

    def current(self) -> dict:
        self.read_job()
        return self.train()["attempts"][-1]

    def attempt(self, number: int) -> dict:
        self.read_job()
        return next(one for one in self.train()["attempts"] if one["number"] == number)

    def running(self, workers: int, after: dict | None = None) -> dict | None:
        """The newest attempt, if it is of that size, has trained a step and is newer than `after`."""
        if not self.read_job() or not self.train()["attempts"]:
            return None
        newest = self.train()["attempts"][-1]
        fits = (
            newest["workers"] == workers
            and newest["state"] == "TASK_RUNNING"
            and (after is None or newest["number"] > after["number"])
        )
        return newest if fits and int(self.progress()["attempt"]) == newest["number"] else None

    def trained(self, attempt: dict) -> dict | None:
        self.read_job()
        progress = self.progress()
        return (
            progress
            if int(progress["attempt"]) == attempt["number"]
            and int(progress["step"]) > int(attempt["resumed_step"])
            else None
        )

    def steps_since_checkpoint(self) -> int:
        self.read_job()
        known = [
            int(one["step"])
            for one in self.train()["checkpoints"]
            if one["attempt"] == self.train()["attempts"][-1]["number"]
        ]
        return int(self.progress()["step"]) - max(known) if known else -1

    def log_losses(self, attempt: int) -> dict[int, float]:
        return losses(
            self.system.run(
                ["logs", self.number, "--task", "train", "--attempt", attempt, "--rank", "0"]
            ).stdout
        )

    def steps_lost(self, before: dict, after: dict) -> int:
        """Steps made twice from `before` to `after`, over each restart between: one's log against where the next went on."""
        chain = [
            one
            for one in self.train()["attempts"]
            if before["number"] <= one["number"] <= after["number"]
        ]
        return sum(
            max(self.log_losses(one["number"]), default=max(0, int(one["resumed_step"])))
            - max(0, int(following["resumed_step"]))
            for one, following in zip(chain, chain[1:])
        )

    def rank_pids(self, rank: int | None = None) -> list[int]:
        return [
            pid
            for pid, environment in job_processes(self.system.folder).items()
            if environment.get("MUSTER_TASK") == "train"
            and environment.get("MUSTER_JOB") in (str(self.number), self.job["uid"])
            and (rank is None or environment.get("RANK", "0") == str(rank))
        ]

    def explain(self, number: int) -> str:
        """The verdict's sentence, or where it runs by now."""
        job = self.system.json("explain", number)["job"]
        text = job["tasks"][0].get("verdict") or {}
        if text.get("text"):
            return text["text"].rstrip(".")
        if not job["tasks"][0]["attempts"]:
            return job["state"].lower()
        spilled = job["tasks"][0].get("spill_reason")
        return f"runs on {where(job['tasks'][0]['attempts'][-1])}" + (
            f": {spilled}" if spilled else ""
        )

    def wait_step(self, share: float) -> None:
        step = int(self.steps * share)
        self.wait_train(
            lambda: self.read_job() and int(self.progress()["step"]) >= step,
            240,
            f"step {step} of job 1",
        )

    def wait_train(self, condition, timeout_s: float, what: str):
        """wait_for with the live bar; job 1's failure ends the wait."""

        def turn():
            value = condition()
            self.draw()
            if not value and self.job.get("state") in ("FAILED", "CANCELLED"):
                raise Failed(
                    f"job 1 ended {self.job['state']} ({self.job['cause']}: {self.job['detail']}) while waiting for {what}"
                )
            return value

        return wait_for(what, turn, timeout_s, 0.15)

    def draw(self) -> None:
        if not self.job or not self.train()["attempts"]:
            self.screen.bar(0, f"job {self.number}: prepare")
            return
        progress, newest = self.progress(), self.train()["attempts"][-1]
        step = int(progress["step"])
        left = (
            f"  {(time.monotonic() - self.screen.began) / step * (self.steps - step):.0f} s left"
            if step > 5
            else ""
        )
        state = (
            ""
            if newest["state"] == "TASK_RUNNING"
            else f" {newest['state'].removeprefix('TASK_').lower()}"
        )
        self.screen.bar(
            step / self.steps,
            f"{step}/{self.steps}{left}  loss {float(progress['loss']):.2f}  "
            f"{float(progress['tokens_per_s']) / 1000:.0f}k tok/s  {newest['workers']} ranks{state}",
        )


def where(attempt: dict) -> str:
    hosts = ",".join(part["host"].rsplit("/", 1)[-1] for part in attempt["placements"])
    return f"{attempt['cluster']}/{hosts}, {attempt['workers']} {'declared ' if attempt['declared'] else ''}{attempt['flavour']}{'s' if attempt['workers'] != 1 else ''}"


def when(candidate: dict) -> str:
    """When a job would start in a cluster, and why not sooner."""
    start_ns = int(candidate["start_ns"])
    time_text = (
        "never"
        if start_ns < 0
        else "at an unknown time"
        if start_ns == 0
        else "now"
        if start_ns <= now_ns() + 10**9
        else f"in {(start_ns - now_ns()) / 1e9:.0f} s"
    )
    why = (
        f" (job {', '.join(map(str, candidate['after_jobs']))} ends)"
        if candidate["after_jobs"]
        else f" ({candidate['reason']})"
        if candidate["reason"]
        else ""
    )
    return time_text + why + (", chosen" if candidate["chosen"] else "")


def started(job: dict) -> dict | None:
    attempts = job["tasks"][0]["attempts"]
    return job if attempts and int(attempts[0]["start_ns"]) > 0 else None


def ended(job: dict | None) -> dict | None:
    return job if job and job["state"] in ENDED else None


def assert_that(holds: bool, what: str) -> None:
    if not holds:
        raise Failed(what)
