"""Row `score`: rows scored by independent workers that are killed and preempted: none lost, none doubled; beside the bare engine.

    score.py [--quick] [--vllm]

Kills and preemptions: 10,000 rows (--quick: 2,000) by a stand-in engine that answers at once, under a real musterd and agent. Answers and speed: a
small Llama made on the spot, by transformers, against the same engine in a loop of its own. Bookkeeping: the plan of 10,000,000 rows (--quick: a
million). vLLM on CPUs, against bare LLM.generate and Ray Data LLM: in environments that the row makes, of several GiB. --quick: only where they are; --vllm: that
part alone. What can't be made is not measured, and said so; with --vllm the row fails then.
"""

import json
import os
import random
import resource
import statistics
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
from figures import BIN, at_least, at_most, figure, none, say_failed
from local_system import Failed, LocalSystem, system_folder, wait_for
from small_system import ENDED, start
from vllm_environment import PINNED, environment_of_ray_llm, environment_of_vllm

SHARD_ROWS = 100
MOST_MIB, LEAST_SPEED = 200, 0.97
SCORE = """\
name: score
queue: research
independent_workers: {{min: 1, max: {workers}}}
max_restarts: 1000
resources: {{gpus: 1, gpu_types: [cpu-slot]}}
grace: 10s
env: {{PYTHONPATH: "{python}:{python}/tests", SHOUT_S: "0.05", SHOUT_LOG: {folder}/asked}}
run: >
  exec {interpreter} -m muster_score --input {folder}/in.jsonl --output {folder}/out --engine score_engines:Shout
  --batch-size 10 --shard-rows {shard_rows} --lease 5
"""


def disturbed(rows: int, kills: int, preemptions: int) -> bool:
    dice = random.Random(1)
    with system_folder() as folder:
        system = LocalSystem(folder, BIN)
        start(system, QUEUES, hosts=("h01",), slots=WORKERS)
        with (folder / "in.jsonl").open("w") as file:
            file.writelines(f'{{"id": {i}, "prompt": "p{i}"}}\n' for i in range(rows))
        number = submit(
            system,
            SCORE.format(
                workers=WORKERS,
                python=PYTHON,
                folder=folder,
                interpreter=sys.executable,
                shard_rows=SHARD_ROWS,
            ),
        )
        wait_for("the first rows", (folder / "asked").exists, 60)
        hits = [kill_one] * kills + [lambda s, _: preempt(s)] * preemptions
        dice.shuffle(hits)
        for hit in hits:
            hit(system, dice)
            time.sleep(dice.random() * 0.4)  # so that it strikes anywhere in a shard
        done_before = len(list((folder / "out").glob("part-*")))
        wait_for("the end", lambda: system.job(number)["state"] in ENDED, 300, 0.1)
        lines = []
        for part in sorted((folder / "out").glob("part-*")):
            lines += [json.loads(line) for line in part.read_text().splitlines()]
        ids = [line["id"] for line in lines]
        errors = sum("error" in line for line in lines)
        asked = len((folder / "asked").read_text().splitlines())
        state = system.job(number)["state"]
        manifest = (folder / "out" / "manifest.json").exists()
    again = (asked - rows) / SHARD_ROWS
    label = f"of {rows:,}, {kills} SIGKILLs and {preemptions} preemptions of two"
    return all(
        [
            figure("rows lost", rows - len(set(ids)), label, 0, len(set(ids)) == rows),
            none("rows answered with an error", errors, label),
            figure("rows doubled", len(ids) - len(set(ids)), label, 0, len(ids) == len(set(ids))),
            figure(
                "shards that were there when the last hit came",
                done_before,
                f"of {rows // SHARD_ROWS}",
                "less than all",
                done_before < rows // SHARD_ROWS,
            ),
            at_most(
                "shards' worth of rows asked again", again, "", kills + 2 * preemptions, places=1
            ),
            figure("the job's end", state, "", "SUCCEEDED", state == "SUCCEEDED" and manifest),
        ]
    )


PLAN = """
import resource, sys
from muster_score.plan import Options, make_plan
from muster_score.worker import Worker
import muster_score.__main__
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
options = Options(input=sys.argv[1], output=sys.argv[2])
worker = Worker(options, make_plan(options), None, False, "1")
worker._look(0)
print(before / 1024, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, worker.total_rows)
"""


def bookkeeping(rows: int) -> bool:
    with system_folder() as folder:
        with (folder / "in.jsonl").open("w") as file:
            for begin in range(0, rows, 10_000):
                text = "".join(f'{{"prompt": "p{i}"}}\n' for i in range(begin, begin + 10_000))
                file.write(text)
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", PLAN, folder / "in.jsonl", folder / "out"],
            env={**os.environ, "PYTHONPATH": str(PYTHON)},
            capture_output=True,
            text=True,
            check=True,
        )
        seconds = time.monotonic() - began
    _, most, planned = (float(word) for word in done.stdout.split())
    return all(
        [
            figure(
                f"memory of a worker without its engine, {rows:,} rows planned",
                round(most),
                "MiB",
                f"<= {MOST_MIB}",
                most <= MOST_MIB and planned == rows,
            ),
            figure("time to plan them", round(seconds, 1), "s"),
        ]
    )


def bare(engine, asks: list, batch: int) -> tuple[list[str], float]:
    """The engine in a loop of its own, in the input's order: answers, and seconds of CPU time."""
    began, texts = time.process_time(), []
    for at in range(0, len(asks), batch):
        texts += [answer.text for answer in engine(asks[at : at + batch])]
    return texts, time.process_time() - began


def scored_here(engine, folder: Path, turn: int, batch: int, sampling) -> tuple[list[str], float]:
    """As a worker does it: rows of a length together."""
    from muster_score.plan import Options, make_plan
    from muster_score.worker import Worker

    output = folder / f"out{turn}"
    began = time.process_time()
    given = Options(
        f"{folder}/in.jsonl", str(output), shard_rows=8 * batch, batch_size=batch, sampling=sampling
    )
    Worker(given, make_plan(given), engine, predicts=False, owner="1").run()
    seconds = time.process_time() - began
    texts = []
    for part in sorted(output.glob("part-*")):
        texts += [json.loads(line)["answer"] for line in part.read_text().splitlines()]
    return texts, seconds


def beside_the_engine(rows: int) -> bool:
    import torch
    from muster_score.engines import Transformers
    from muster_score.prompts import Ask, Sampling
    from score_model import make_model

    torch.set_num_threads(1)
    dice, sampling, batch, few = random.Random(2), Sampling(max_tokens=64), 16, 32
    prompts = [
        " ".join(dice.choices("abcdefghijklmnop", k=dice.randint(2, 8))) for _ in range(rows)
    ]
    asks = [Ask(prompt, sampling) for prompt in prompts]
    with system_folder() as folder:
        engine = Transformers(str(make_model(folder / "model", hidden=256)), sampling)
        with (folder / "in.jsonl").open("w") as file:
            file.writelines(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts)
        bare(engine, asks[:batch], batch)  # warm
        speeds = []
        for turn in range(5):
            alone, bare_s = bare(engine, asks, batch)
            found, scored_s = scored_here(engine, folder, turn, batch, sampling)
            speeds.append(bare_s / scored_s)
        one_by_one, _ = bare(engine, asks[:few], 1)
    differ = sum(a != b for a, b in zip(found, alone, strict=True))
    differ_alone = sum(a != b for a, b in zip(found[:few], one_by_one, strict=True))
    return all(
        [
            none(
                "answers unlike the bare engine's, which has other rows in its batches",
                differ,
                f"of {rows}",
            ),
            none("answers unlike those of one row at a time", differ_alone, f"of {few}"),
            at_least(
                "rows a second of CPU time, of the bare engine's",
                statistics.median(speeds),
                "transformers, a Llama of 2 layers of 256, 64 tokens a row, median of five turns",
                LEAST_SPEED,
                places=3,
            ),
        ]
    )


def made(make, what: str) -> Path | None:
    """An environment, if it is there or can be made."""
    try:
        place = make()
        why = "its environment is not there"
    except (OSError, subprocess.CalledProcessError) as error:
        place, why = None, f"its environment can't be made: {error}"
    if place is None:
        print(f"{what}: not measured: {why}", flush=True)
    return place


def last_object(said: str) -> dict:
    """vLLM says things behind it, too."""
    return json.loads([line for line in said.splitlines() if line.startswith("{")][-1])


def measured(place: Path, what: str, folder: Path, rows: int, turns: int = 1) -> dict:
    """What bench/score_vllm.py says."""
    words = [what, folder, rows, turns]
    try:
        done = subprocess.run(
            [str(word) for word in [place / "bin/python", ROOT / "bench/score_vllm.py", *words]],
            env=os.environ | PINNED | {"PATH": f"{place}/bin:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=1500,
        )
    except subprocess.TimeoutExpired as error:
        raise Failed(f"score_vllm.py {what}: it took more than 25 minutes") from error
    if done.returncode != 0:
        raise Failed(f"score_vllm.py {what}: {done.stderr[-1500:]}")
    return last_object(done.stdout)


def beside_vllm(rows: int, may_make: bool, must: bool) -> bool:
    """`must`: what isn't measured doesn't hold."""
    vllm = made(lambda: environment_of_vllm(may_make), "vLLM")
    if vllm is None:
        return not must
    ray = made(lambda: environment_of_ray_llm(may_make, vllm), "Ray Data LLM")
    with system_folder() as folder, system_folder() as another:
        turns = [measured(vllm, "speed", folder, rows, turns=3)]
        # Ray's between ours, as the machine has slow minutes.
        rays = measured(ray, "ray", folder, rows) if ray is not None else None
        turns.append(measured(vllm, "speed", another, rows, turns=2))
    ours = [speed for one in turns for speed in one["rows_per_s"]]
    theirs = [speed for one in turns for speed in one["bare_rows_per_s"]]
    ok = none(
        "prompts whose tokens are unlike bare vLLM's",
        sum(one["differ"] for one in turns),
        f"of {turns[0]['prompts']}, greedy, in 32 bits, five turns",
    )
    ok &= at_least(
        "rows a second, of bare LLM.generate's",
        statistics.median(a / b for a, b in zip(ours, theirs, strict=True)),
        "vLLM on a CPU, one thread, a Llama of 2 layers of 256, 64 tokens a row, median of five turns",
        LEAST_SPEED,
        places=3,
    )
    if rays is None:
        return ok and not must
    return beside_ray(rays, rows, statistics.median(ours)) and ok


def beside_ray(found: dict, rows: int, ours: float) -> bool:
    if found["rows"] != rows or found["counted"] == 0:
        raise Failed(f"Ray Data LLM gave {found['rows']} of {rows} rows: {found}")
    return figure(
        "rows a second, beside Ray Data LLM's",
        round(ours, 1),
        f"rows/s, median of five turns, Ray's between the third and the fourth; loading not counted; {found['differ']} of Ray's answers are unlike ours",
        ">= 1.0x",
        ours >= found["rows_per_s"],
        peer=round(found["rows_per_s"], 1),
    )


def main() -> int:
    quick, alone = "--quick" in sys.argv, "--vllm" in sys.argv
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ok = True
    try:
        if not alone:
            ok &= disturbed(2000, 6, 2) if quick else disturbed(10_000, 20, 5)
            ok &= bookkeeping(1_000_000 if quick else 10_000_000)
            ok &= beside_the_engine(256 if quick else 512)
        ok &= beside_vllm(1024 if quick else 4096, may_make=alone or not quick, must=alone)
    except Failed as error:
        return say_failed(error)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
