"""Row `warm-restart`: an elastic job of 1 GiB of state is resized 4 -> 2 -> 4 ranks by musterd, again and again.

warm_restart.py [--quick]

Measured is the time from the stop, as musterd records it, to the end of the next attempt's first step, with warm_restart
(the last checkpoint stays in the file cache) and without it (the stop waits for the disk). The stretches between tell
where the time goes. What was trained on the way is compared with a run that nobody disturbed.
"""

import json
import os
import re
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [
    str(ROOT / part) for part in ("deploy/local", "tests/system", "trainer/tests", "bench")
]

import harness
import resume
from figures import BIN, figure, say_failed
from local_system import Failed, LocalSystem, system_folder, wait_for
from small_system import let_go, start, submit_waiting, task, wait_ended

BAR_S, LOSS_BAR = 1.0, 1e-6
LARGE = harness.TINY_MODEL | {
    "vocab_size": 32_000,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
}  # 92 million parameters, 12 bytes each
SMALL = LARGE | {"hidden_size": 192, "intermediate_size": 512}
RANKS, FEWER = 4, 2
SETTLED_KIB = 64 << 10  # the next resize of a large state is not to wait for the one before


class Steps:
    """When the job's steps ended: the last line of its metrics, looked at all the time."""

    def __init__(self, path: Path):
        self._path, self._read = path, 0
        self.ended_s: dict[int, float] = {}
        self.losses: dict[int, float] = {}

    def look(self) -> int:
        """The newest step. A line counts when it is seen; a step that is trained again replaces the one before."""
        if self._path.exists() and self._path.stat().st_size > self._read:
            with open(self._path, "rb") as file:
                file.seek(self._read)
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._read += len(whole)
            for line in whole.splitlines():
                one = json.loads(line)
                self.ended_s[one["step"]] = time.time()
                self.losses[one["step"]] = one["loss"]
        return max(self.ended_s, default=0)


def config(tokens: Path, model: dict, **more) -> dict:
    # One sequence a rank: steps are there to be reached, not to be measured.
    return (
        resume.config(
            tokens,
            model=model,
            max_steps=100_000,
            global_batch_size=RANKS,
            micro_batch_size=1,
            max_length=16,
            save_steps=0,
        )
        | more
    )


def submit(system: LocalSystem, name: str, settings: dict) -> tuple[int, Steps]:
    given, metrics = system.folder / f"{name}.json", system.folder / f"{name}.metrics"
    given.write_text(json.dumps(settings))
    path = system.folder / f"{name}.yaml"
    path.write_text(f"""\
name: {name}
queue: research
workers: {{min: {FEWER}, max: {RANKS}}}
resources: {{gpus: 1, gpu_types: [cpu-slot]}}
grace: 60s
run: exec {system.bin_dir}/muster-trainer train --config {given} --metrics {metrics}
""")
    return system.submit(path)["number"], Steps(metrics)


def dirty_kib() -> int:
    found = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return sum(int(found[name].split()[0]) for name in ("Dirty", "Writeback"))


def attempts(system: LocalSystem, number: int) -> list[dict]:
    return task(system.job(number))["attempts"]


def await_attempt(
    system: LocalSystem, number: int, steps: Steps, workers: int, most_dirty_kib: float
) -> dict:
    """The newest attempt, once it has so many workers and two steps are done, and no more is left for the disk to take."""
    looked_s = 0.0

    def found():
        nonlocal looked_s
        newest = steps.look()
        if time.monotonic() - looked_s < 0.5:  # each look costs what is being measured
            return None
        looked_s = time.monotonic()
        one = attempts(system, number)[-1]
        settled = (
            int(one["workers"]) == workers
            and not int(one.get("stop_ns", 0))
            and newest >= int(one.get("resumed_step", 0)) + 2
            and dirty_kib() <= most_dirty_kib
        )
        return one if settled else None

    return wait_for(f"an attempt of {workers} ranks", found, 120, 0.005)


def log_of(system: LocalSystem, number: int, attempt: int) -> str:
    return system.run(["logs", number, "--attempt", attempt, "--rank", 0]).stdout


def said_s(pattern: str, log: str) -> float:
    """The last number that the log has behind it."""
    return float(re.findall(pattern + r"([0-9.]+)", log)[-1])


def stretches(before: dict, after: dict, steps: Steps, logs: tuple[str, str]) -> dict[str, float]:
    """Seconds of one resize, in order."""
    at = {name: int(before[name]) / 1e9 for name in ("stop_ns", "end_ns")}
    at |= {"placed": int(after["place_ns"]) / 1e9}
    resumed = int(after["resumed_step"])
    assert f"at step {resumed}\n" in logs[1], "it went on from another step"
    last_s, next_s = steps.ended_s[resumed], steps.ended_s[resumed + 1]
    saved_s = said_s(r"checkpoint step=\d+ path=\S+ seconds=", logs[0])
    return {
        "stop to the step's end": last_s - at["stop_ns"],
        "checkpoint": saved_s,
        "processes end": at["end_ns"] - last_s - saved_s,
        "placed again": at["placed"] - at["end_ns"],
        "processes start and meet": (met_s := said_s("first_collective_s=", logs[1])),
        "load, first step, and their start on the host": next_s - at["placed"] - met_s,
        "in all": next_s - at["stop_ns"],
    }


def resize(
    system: LocalSystem, settings: dict, name: str, times: int, most_dirty_kib: float
) -> tuple[list, Steps]:
    """So many times to 2 ranks and back to 4: the stretches of each resize."""
    number, steps = submit(system, name, settings)
    before = await_attempt(system, number, steps, RANKS, most_dirty_kib)
    rows = []
    for one in range(times):
        claim = f"{name}-{one}"
        claimed = submit_waiting(system, claim, workers=str(FEWER), queue="prod")
        for workers in (FEWER, RANKS):
            after = await_attempt(system, number, steps, workers, most_dirty_kib)
            first = int(before["number"])
            assert int(after["number"]) == first + 1, "an attempt too many"
            before = attempts(system, number)[-2]  # with its end
            logs = (log_of(system, number, first), log_of(system, number, first + 1))
            rows.append(stretches(before, after, steps, logs))
            print(f"{name}, to {workers}: " + told(rows[-1]), flush=True)
            before = after
            if workers == FEWER:
                let_go(system, claim)
                wait_ended(system, claimed)
    system.run(["cancel", number])
    wait_ended(system, number, 60)
    steps.look()
    return rows, steps


def told(row: dict[str, float]) -> str:
    return ", ".join(f"{name} {seconds:.3f}" for name, seconds in row.items())


def loss_differs(settings: dict, folder: Path, steps: Steps) -> float:
    """From those of 4 ranks that nobody disturbed."""
    last = max(steps.losses)
    with harness.Gang(
        harness.trainer_binary(), settings | {"max_steps": last}, RANKS, folder, checkpoints=False
    ) as whole:
        whole.finish()
    wanted = whole.metric("loss")
    assert sorted(steps.losses) == sorted(wanted), "steps are missing"
    return max(harness.relative(float(loss), wanted[step]) for step, loss in steps.losses.items())


def main() -> int:
    quick = "--quick" in sys.argv[1:]
    times = 1 if quick else 5
    os.environ.setdefault("MUSTER_TRAINER_BIN", str(BIN / "muster-trainer"))
    held = []
    with system_folder() as folder:
        system = LocalSystem(folder, BIN)
        try:
            tokens = harness.make_tokens(folder / "tokens")
            settings = config(tokens, SMALL if quick else LARGE)
            start(system, hosts=("h01",), slots=RANKS)
            median = {}
            for name, warm in (("memory", True), ("disk", False)):
                settled = float("inf") if quick else SETTLED_KIB
                said = settings | {"warm_restart": warm}
                rows, steps = resize(system, said, name, times, settled)
                median[name] = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
                print(f"{name}, p50: " + told(median[name]), flush=True)
                if warm:
                    trained = len(steps.losses)
                    differs = loss_differs(settings, folder / "whole", steps)
        except (Failed, AssertionError, KeyError, IndexError) as error:
            return say_failed(error)
        finally:
            system.stop()
    for name, row in median.items():
        total = round(row.pop("in all"), 3)
        bar = f"<= {BAR_S:g}" if name == "memory" and not quick else "-"
        parts = {key: round(seconds, 3) for key, seconds in row.items()}
        held.append(
            figure(
                f"warm-restart.{name}",
                total,
                f"s from stop to the next step's end, p50 of {2 * times} resizes",
                bar,
                bar == "-" or total <= BAR_S,
                peer=parts,
            )
        )
    held.append(
        figure(
            "warm-restart.loss",
            f"{differs:.1e}",
            f"of a loss, the most of {trained} steps from an undisturbed run's",
            f"<= {LOSS_BAR:g}",
            differs <= LOSS_BAR,
        )
    )
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
