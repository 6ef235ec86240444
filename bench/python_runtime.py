#!/usr/bin/env python3
"""Row `python-runtime`: the examples of transformers' Trainer and of Lightning under Muster, killed, preempted, made smaller and larger, and resumed.

    python_runtime.py [--quick]

Their losses are compared with those of the same training undisturbed, on one worker. What the callback costs a step is measured in one process, where every other
block of steps does without it. Lightning is python/requirements-lightning.txt's, in an environment that the row makes. --quick: one killed and resumed of each,
Lightning only where it is installed, and it says so.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
for folder in ("deploy/local", "tests/system", "python/tests"):
    sys.path.append(str(ROOT / folder))

from borrowers import submit
from disturbed import lightning_is_whole, lightning_site
from figures import BIN, figure, say_failed
from local_system import Failed, LocalSystem, job_processes, system_folder, wait_for
from runtime_cost import cost_of
from small_system import ENDED, start

PYTHON = os.environ.get("MUSTER_PYTHON", sys.executable)
QUEUES = "queues: [{name: research, quota: {cpu-slot: {guarantee: 0}}, submit: ['*']}, {name: prod, quota: {cpu-slot: {guarantee: 2}}, submit: ['*']}]\n"
JOB = """\
name: {name}
queue: research
workers: {workers}
resources: {{gpus: 1, gpu_types: [cpu-slot], cpus: 1}}
env: {{PYTHONPATH: "{python_path}", OMP_NUM_THREADS: "1", TOKENIZERS_PARALLELISM: "false"}}
checkpoint: {{interval: {interval}}}
grace: 30s
run: exec {python} {words}
"""
TAKER = "name: taker\nqueue: prod\nworkers: {workers}\nresources: {{gpus: 1, gpu_types: [cpu-slot]}}\nrun: sleep {seconds}\n"
EXAMPLES = {  # name: (file, arguments, steps; arguments that make a step long enough to be measured, and steps of that)
    "transformers": ("hf_trainer.py", "--dropout 0", 900, "--batch 64", 2000),
    "Lightning": ("lightning_trainer.py", "--lr 2e-5", 1500, "--batch 512", 6000),
}
DIFFERS_MOST, COSTS_MOST_PERCENT = 1e-6, 0.5


def has_lightning(may_make: bool) -> bool:
    if not lightning_is_whole() and may_make:
        site, wanted = lightning_site(), ROOT / "python" / "requirements-lightning.txt"
        print(f"installing {wanted.relative_to(ROOT)} into {site}", flush=True)
        draft = site.with_name(site.name + ".new")  # a pip that is interrupted leaves some of it
        shutil.rmtree(draft, ignore_errors=True)
        words = ["-q", "install", "--no-input", "--no-deps", "--target", draft, "-r", wanted]
        subprocess.run([PYTHON, "-m", "pip", *words], check=True)
        (draft / ".complete").touch()
        shutil.rmtree(site, ignore_errors=True)
        draft.rename(site)
    return lightning_is_whole()


class Trainings:
    def __init__(self, system: LocalSystem):
        self.system = system

    def submit(self, name: str, words: str, workers: str = "1", interval: str = "1s") -> str:
        job = JOB.format(
            name=name,
            workers=workers,
            python_path=f"{ROOT}/python:{lightning_site()}",
            interval=interval,
            python=PYTHON,
            words=words,
        )
        return submit(self.system, job)

    def task(self, number: str) -> dict:
        return self.system.job(number)["tasks"][0]

    def step(self, number: str) -> int:
        return int(self.task(number).get("progress", {}).get("step", 0))

    def await_step(self, number: str, step: int) -> int:
        """The first step from `step` on that it tells, of an attempt that runs."""

        def there():
            job = self.system.job(number)
            if job["state"] in ENDED:
                raise Failed(
                    f"job {number}: {job['state']} before step {step}: {self.said(number)}"
                )
            return job["state"] == "RUNNING" and max(0, self.step(number) - step + 1)

        return wait_for(f"step {step} of job {number}", there, 180, 0.1) + step - 1

    def await_workers(self, number: str, workers: int) -> int:
        """The attempt that has made steps with so many."""

        def so_many():
            attempt = self.task(number)["attempts"][-1]
            running = attempt["state"] == "TASK_RUNNING" and attempt["workers"] == workers
            return running and int(attempt["number"])

        attempt = wait_for(f"{workers} workers of job {number}", so_many, 120, 0.1)
        before = self.step(number)
        self.await_step(number, before + 10)
        if int(self.task(number)["attempts"][-1]["number"]) != attempt:
            return self.await_workers(number, workers)
        return attempt

    def await_end(self, number: str, wanted: str = "SUCCEEDED") -> None:
        wait_for(f"job {number}", lambda: self.system.job(number)["state"] in ENDED, 600, 0.2)
        state = self.system.job(number)["state"]
        if state != wanted:
            raise Failed(f"job {number}: {state}: {self.said(number)}")

    def said(self, number: str) -> str:
        return self.system.run(["logs", number], check=False).stdout[-1500:]


# ---- what happens to a training ----


def kill(trainings: Trainings, number: str) -> None:
    wait_for("a checkpoint", lambda: trainings.task(number).get("checkpoints"), 120, 0.1)
    step = trainings.await_step(number, trainings.step(number) + 30)
    attempts = len(trainings.task(number)["attempts"])
    os.kill(max(job_processes(trainings.system.folder)), signal.SIGKILL)
    wait_for("another attempt", lambda: len(trainings.task(number)["attempts"]) > attempts, 60, 0.1)
    trainings.await_step(number, step)


def preempt(trainings: Trainings, number: str) -> None:
    step = trainings.await_step(number, trainings.step(number) + 30)
    trainings.await_end(submit(trainings.system, TAKER.format(workers=2, seconds=0.5)))
    trainings.await_step(number, step)


def resize(trainings: Trainings, number: str) -> None:
    """One of its two workers is taken for a while; the taker ends once it has gone on with one."""
    trainings.await_workers(number, 2)
    taker = submit(trainings.system, TAKER.format(workers=1, seconds=600))
    trainings.await_workers(number, 1)
    trainings.system.run(["cancel", taker, "-y"])
    trainings.await_workers(number, 2)


def resume(trainings: Trainings, number: str) -> str:
    trainings.await_step(number, trainings.step(number) + 30)
    trainings.system.run(["cancel", number, "-y"])
    trainings.await_end(number, "CANCELLED")
    done = trainings.system.run(["resume", number, "-y", "--detach", "-o", "name"])
    return done.stdout.strip()


DISTURBANCES = {"killed": kill, "preempted": preempt, "made smaller and larger": resize}


def same_losses(trainings: Trainings, name: str, quick: bool) -> bool:
    file, arguments, steps, *_ = EXAMPLES[name]
    steps = steps // 3 if quick else steps
    folder = trainings.system.folder

    def words(losses: str) -> str:
        return (
            f"{ROOT}/deploy/examples/{file} --steps {steps} {arguments} --losses {folder}/{losses}"
        )

    trainings.await_end(trainings.submit(f"{name.lower()}-whole", words("whole.json")))
    number = trainings.submit(
        f"{name.lower()}-disturbed", words("disturbed.json"), "{min: 1, max: 2}"
    )
    for disturbance in ["killed"] if quick else DISTURBANCES:
        DISTURBANCES[disturbance](trainings, number)
        print(f"{name}: {disturbance}, at step {trainings.step(number)} of {steps}", flush=True)
    attempts = len(trainings.task(number)["attempts"])
    resumed = resume(trainings, number)
    trainings.await_end(resumed)
    began = int(trainings.task(resumed)["attempts"][-1]["resumed_step"])
    whole, last = (
        {int(step): loss for step, loss in json.loads((folder / one).read_text()).items()}
        for one in ("whole.json", "disturbed.json")
    )
    compared = [step for step in last if step > began]
    furthest = max((abs(last[step] - whole[step]) for step in compared), default=float("inf"))
    ends = max(last) == max(whole) == steps and len(compared) == steps - began
    print(f"{name}: {attempts} attempts, then resumed from step {began} of {steps}", flush=True)
    label = "killed and resumed" if quick else "killed, preempted, resized and resumed"
    return figure(
        f"{name}, {label}: how far a loss is from the undisturbed",
        f"{furthest:.1e}",
        f"{len(compared)} steps with {arguments}, losses {max(whole.values()):.3g} to {min(whole.values()):.3g}",
        f"<= {DIFFERS_MOST:g}",
        ends and furthest <= DIFFERS_MOST,
    )


# ---- what the callback costs ----


def cost(trainings: Trainings, name: str, quick: bool) -> bool:
    file, _, _, arguments, steps = EXAMPLES[name]
    out = trainings.system.folder / "times.json"
    steps = steps // 4 if quick else steps
    example = f"{ROOT}/deploy/examples/{file}"
    words = f"{ROOT}/bench/runtime_cost.py {example} {out} -- --steps {steps} {arguments}"
    # What a checkpoint costs isn't the callback's: none falls into the blocks that have it.
    trainings.await_end(trainings.submit(f"{name.lower()}-cost", words, interval="1h"))
    found = cost_of(out)
    return figure(
        f"{name}: step time with the callback, against without",
        round(found.percent, 2),
        f"% {found.words}, with {arguments}",
        f"<= {COSTS_MOST_PERCENT}",
        found.percent <= COSTS_MOST_PERCENT,
    )


def main() -> int:
    quick = "--quick" in sys.argv
    names = list(EXAMPLES) if has_lightning(may_make=not quick) else ["transformers"]
    if len(names) < len(EXAMPLES):
        print("Lightning isn't installed: bench/run.sh python-runtime does that", flush=True)
    with system_folder() as folder:
        system = LocalSystem(folder, BIN)
        try:
            start(system, QUEUES, slots=1)
            trainings = Trainings(system)
            ok = [one(trainings, name, quick) for name in names for one in (same_losses, cost)]
        except Failed as error:
            return say_failed(error)
    return 0 if all(ok) else 1


if __name__ == "__main__":
    sys.exit(main())
