"""SIGKILL while a checkpoint is written; peers that die or stop."""

import random
import signal
import time
from pathlib import Path

import resume
from harness import TINY_MODEL, Gang

# Big enough that writing takes a good part of the time: 1.4 million parameters, 17 MB a checkpoint.
MODEL = TINY_MODEL | {"hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 2}


def kill_while_writing(trainer_bin: str, tokens: Path, folder: Path, kills: int, ranks: int, seed: int = 1) -> dict:
    """Kills a run that writes checkpoints all the time `kills` times and resumes it from what it left.

    Returns resumed (times that a checkpoint was there and loaded), newest_refused (times that a published checkpoint was bad),
    went_back (times that the run resumed from a step before the one that it had told of), unfinished (times that the kill hit
    a checkpoint on its way)."""
    random_source = random.Random(seed)
    checkpoints: list[Path] = []
    told = 0  # the newest step that a run said was published
    found = {"kills": kills, "resumed": 0, "newest_refused": 0, "went_back": 0, "unfinished": 0}
    for number in range(kills + 1):
        last = number == kills
        settings = resume.config(tokens, model=MODEL, micro_batch_size=8, global_batch_size=8, max_steps=told + 3 if last else 1_000_000, save_steps=2)
        with Gang(trainer_bin, settings, ranks, folder / str(number), resume_from=checkpoints, keep=2) as gang:
            if last:
                gang.finish()
            else:
                gang.wait_for_step(told + 3)  # the first checkpoint is on its way
                time.sleep(random_source.uniform(0, 0.3))
                gang.signal(signal.SIGKILL)
                gang.wait()
        loaded = [event["loaded"] for event in gang.events if "loaded" in event]
        if checkpoints:
            found["resumed"] += len(loaded) == 1 and loaded[0]["step"] > 0
            found["newest_refused"] += sum(len(one["skipped"]) for one in loaded)
            found["went_back"] += not loaded or loaded[0]["step"] < told
        told = max([told, *(event["checkpoint"]["step"] for event in gang.events if "checkpoint" in event)])
        left = [gang.checkpoint(step) for step in gang.checkpoint_steps()]
        found["unfinished"] += any(not (path / "index.json").exists() for path in gang.checkpoints.glob("step-*"))
        checkpoints = (left + checkpoints)[:3]
    return found


def end_of_peers(trainer_bin: str, tokens: Path, folder: Path, number: int, ranks: int = 3, timeout_s: float | None = None) -> float:
    """Seconds from sending rank 1 the signal to the end of all others; each must have failed."""
    more = {} if timeout_s is None else {"step_timeout_s": timeout_s}
    with Gang(trainer_bin, resume.config(tokens, max_steps=1_000_000, save_steps=0, **more), ranks, folder) as gang:
        gang.wait_for_step(3)
        began = time.monotonic()
        gang.signal(number, ranks=[1])
        codes = [gang.processes[rank].wait(timeout=60) for rank in range(ranks) if rank != 1]
        took_s = time.monotonic() - began
        gang.signal(signal.SIGKILL, ranks=[1])
        gang.wait()
    assert 0 not in codes, codes
    return took_s
