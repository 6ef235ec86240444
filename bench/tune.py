"""Row `tune`: trials that are killed and preempted, none lost; and how few trials find the best settings of the trainer, beside Optuna.

    tune.py [--quick]

The search is played back on a grid that was measured (bench/tuning/grid.jsonl by bench/tune_grid.py, which says how): each setting of the real
muster-trainer on four small models, in tokens a second of CPU time. Peers: Optuna's TPE and random samplers, as they come; a setting that they propose
again, or that is none, isn't counted as a trial of theirs. Both and LightGBM are of python/requirements-tune.txt, in an environment that the row makes.
The history of a model's search are the other models' trials. --quick: fewer seeds, kills and settings; without that environment no search, and it says so.
"""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / "python"
sys.path[:0] = [
    str(ROOT / name) for name in ("deploy/local", "tests/system", "python", "python/tests")
]

from borrowers import QUEUES, WORKERS, kill_one, preempt, submit
from environments import environment
from figures import BIN, figure, say_failed
from local_system import Failed, LocalSystem, system_folder, wait_for
from small_system import ENDED, start
from tune_program import value_of

TUNE = """\
name: tune
queue: research
independent_workers: {{min: 1, max: {workers}}}
max_restarts: 1000
resources: {{gpus: 1, gpu_types: [cpu-slot]}}
grace: 10s
env: {{PYTHONPATH: "{python}"}}
run: >
  exec {interpreter} -m muster_tune --study {folder}/study --knob x=0..1000000 --trials {trials} --sampler random --deaths 50
  --objective loss --direction minimize --lease 5 -- {interpreter} {python}/tests/tune_program.py {{x}} {folder}/log
"""


def disturb(system: LocalSystem, kills: int, preemptions: int, restarts: int) -> None:
    dice = random.Random(1)
    hits = ["kill"] * kills + ["preempt"] * preemptions + ["musterd"] * restarts
    dice.shuffle(hits)
    for hit in hits:
        if hit == "kill":
            kill_one(system, dice)
        elif hit == "preempt":
            preempt(system)
        else:
            system.processes["musterd"].kill()
            system.processes["musterd"].wait()
            system.start_musterd()
        time.sleep(dice.random() * 0.5)  # so that it strikes anywhere in a trial


def disturbed(trials: int, kills: int, preemptions: int, restarts: int) -> bool:
    with system_folder() as folder:
        system = LocalSystem(folder, BIN)
        start(system, QUEUES, hosts=("h01",), slots=WORKERS)
        given = {"workers": WORKERS, "python": PYTHON, "folder": folder, "trials": trials}
        number = submit(system, TUNE.format(**given, interpreter=sys.executable))
        wait_for("the first trial", (folder / "log").exists, 60)
        disturb(system, kills, preemptions, restarts)
        results = folder / "study" / "results"
        done_before = len(list(results.glob("0*")))
        wait_for("the end", lambda: system.job(number)["state"] in ENDED, 400, 0.1)
        state = system.job(number)["state"]
        proposals = [
            json.loads(path.read_text())["setting"]["x"]
            for path in sorted((folder / "study" / "proposals").glob("0*"))
        ]
        found = [json.loads(path.read_text()) for path in sorted(results.glob("0*"))]
        log = [line.split() for line in (folder / "log").read_text().splitlines()]
    right = [f["value"] == value_of(x) for f, x in zip(found, proposals, strict=True)]
    hits = kills + 2 * preemptions
    label = f"of {trials}, {kills} SIGKILLs of workers, {preemptions} preemptions of two, {restarts} SIGKILLs of musterd"
    resumed = sum(begin != "0" for _, begin in log)
    return all(
        [
            figure("trials lost", trials - len(found), label, 0, len(found) == trials),
            figure(
                "trials whose value is not their setting's", trials - sum(right), "", 0, all(right)
            ),
            figure(
                "trials' settings that were tried twice over",
                len(proposals) - len(set(proposals)),
                "",
                0,
                len(proposals) == len(set(proposals)) == trials,
            ),
            figure(
                "trials that had ended when the last hit came",
                done_before,
                f"of {trials}",
                "less than all",
                done_before < trials,
            ),
            figure(
                "attempts beside one a trial",
                len(log) - trials,
                f"{resumed} of them went on from a checkpoint",
                f"<= {hits}",
                len(log) - trials <= hits and resumed > 0,
            ),
            figure("the job's end", state, "", "SUCCEEDED", state == "SUCCEEDED"),
        ]
    )


def search(quick: bool) -> bool:
    place = environment("tune", "python/requirements-tune.txt", may_make=not quick)
    if place is None:
        print("the search is left out: bench/run.sh tune makes its environment", flush=True)
        return True
    words = [place / "bin" / "python", ROOT / "bench" / "tune_replay.py"]
    words += ["--seeds", "2" if quick else "20", "--remeasure", "1" if quick else "12"]
    return subprocess.run(words, env={**os.environ, "PYTHONPATH": str(PYTHON)}).returncode == 0


def main() -> int:
    quick = "--quick" in sys.argv
    try:
        ok = disturbed(24, 6, 2, 1) if quick else disturbed(120, 30, 6, 3)
    except Failed as error:
        return say_failed(error)
    ok &= search(quick)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
