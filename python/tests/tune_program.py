"""What a trial of the tests runs: tune_program.py X LOG. Six steps of 50 ms, each with a checkpoint, of which an attempt goes on; says each start to LOG.
With WAITS_AT_STEPS=2 an attempt stands still after each second step until it is asked to stop."""

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import muster_runtime as muster

STEPS, STEP_S = 6, 0.05


def value_of(x: int) -> float:
    """Each step adds to it, so that a step done twice or left out shows."""
    return sum(abs(x - 300_000) * step for step in range(1, STEPS + 1)) / 1e6


def main() -> int:
    x, log = int(sys.argv[1]), sys.argv[2]
    state = {"step": 0, "sum": 0}
    if newest := muster.newest(lambda path: json.loads(Path(path).read_text())["step"]):
        state = json.loads(Path(newest).read_text())
    with open(log, "a") as file:
        file.write(f"{x} {state['step']}\n")
    wait_at = int(os.environ.get("WAITS_AT_STEPS", STEPS + 1))
    while state["step"] < STEPS:
        if muster.should_stop():
            return 143
        time.sleep(STEP_S)
        state["step"] += 1
        state["sum"] += abs(x - 300_000) * state["step"]
        path = Path(muster.checkpoint_directory()) / f"step-{state['step']}"
        path.write_text(json.dumps(state))
        muster.checkpoint(path, state["step"])
        muster.report(state["step"], total_steps=STEPS, loss=state["sum"] / 1e6)
        while state["step"] % wait_at == 0 and not muster.should_stop():
            time.sleep(0.01)
    return 0


if __name__ == "__main__":
    sys.exit(main())
