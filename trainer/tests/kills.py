"""SIGKILL while a checkpoint is written; peers that die or stop."""

import random
import signal
import time
from pathlib import Path

import resume
from harness import START_TIMEOUT_S, TINY_MODEL, Gang

# Big enough that writing takes a good part of the time: 1.4 million parameters, 17 MB a checkpoint.
MODEL = TINY_MODEL | {"hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 2}


def on_its_way(gang: Gang) -> bool:
    """Whether there is a checkpoint without an index that is newer than all published ones."""
    newest = max(gang.checkpoint_steps(), default=0)
    return any(
        int(path.name.removeprefix("step-")) > newest for path in gang.checkpoints.glob("step-*")
    )


def kill_while_writing(
    trainer_bin: str, tokens: Path, folder: Path, kills: int, ranks: int, seed: int = 1
) -> dict:
    """Kills a run that writes checkpoints all the time, and resumes it from what it left, until `kills` kills have hit a
    checkpoint on its way (a kill that comes just behind one doesn't count).

    Returns hits, attempts, not_resumed (times that a run didn't load one though one had been published), refused (published ones
    that were found bad), went_back (times that a run resumed from a step before one that had been told of)."""
    random_source = random.Random(seed)
    checkpoints: list[Path] = []
    told = 0  # the newest step that a run said was published
    found = {"hits": 0, "attempts": 0, "not_resumed": 0, "refused": 0, "went_back": 0}
    last = False
    while not last:
        last = found["hits"] == kills or found["attempts"] == 4 * kills
        settings = resume.config(
            tokens,
            model=MODEL,
            micro_batch_size=8,
            global_batch_size=8,
            max_steps=told + 3 if last else 1_000_000,
            save_steps=2,
        )
        with Gang(
            trainer_bin,
            settings,
            ranks,
            folder / str(found["attempts"]),
            resume_from=checkpoints,
            keep=2,
        ) as gang:
            if last:
                gang.finish()
            else:
                gang.wait_for_step(told + 3)
                deadline = time.monotonic() + START_TIMEOUT_S
                while not on_its_way(gang):
                    assert time.monotonic() < deadline, gang.stderr()
                    time.sleep(0.0005)
                time.sleep(random_source.uniform(0, 0.04))
                gang.signal(signal.SIGKILL)
                gang.wait()
                found["hits"] += on_its_way(gang)
                found["attempts"] += 1
        loaded = [event["loaded"] for event in gang.events if "loaded" in event]
        found["not_resumed"] += told > 0 and not loaded
        found["refused"] += sum(len(one["skipped"]) for one in loaded)
        found["went_back"] += bool(loaded) and loaded[0]["step"] < told
        told = max(
            [told, *(event["checkpoint"]["step"] for event in gang.events if "checkpoint" in event)]
        )
        checkpoints = ([gang.checkpoint(step) for step in gang.checkpoint_steps()] + checkpoints)[
            :3
        ]
    assert told > 0, "no run ever published a checkpoint"
    return found


def end_of_peers(
    trainer_bin: str,
    tokens: Path,
    folder: Path,
    number: int,
    ranks: int = 3,
    timeout_s: float | None = None,
) -> float:
    """Seconds from sending rank 1 the signal to the end of all others; each must have failed."""
    more = {} if timeout_s is None else {"step_timeout_s": timeout_s}
    with Gang(
        trainer_bin, resume.config(tokens, max_steps=1_000_000, save_steps=0, **more), ranks, folder
    ) as gang:
        gang.wait_for_step(3)
        began = time.monotonic()
        gang.signal(number, ranks=[1])
        codes = [gang.processes[rank].wait(timeout=60) for rank in range(ranks) if rank != 1]
        took_s = time.monotonic() - began
        gang.signal(signal.SIGKILL, ranks=[1])
        gang.wait()
    assert 0 not in codes, codes
    return took_s
