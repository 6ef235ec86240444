"""Stands in for an elastic trainer: counts steps, checkpoints when told to stop, goes on from the checkpoint it is given.

elastic.py STEPS LOG          LOG gets a line `attempt world first_step` from rank 0 of each attempt, and at its end `attempt world end last_step`
"""

import json
import os
import signal
import socket
import sys
import time


def main() -> None:
    steps, log = int(sys.argv[1]), sys.argv[2]
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    rank, attempt, world = (
        os.environ["RANK"],
        os.environ["MUSTER_ATTEMPT"],
        os.environ["WORLD_SIZE"],
    )
    progress = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    progress.connect(os.environ["MUSTER_PROGRESS_SOCKET"])

    def report(**line) -> None:
        if rank == "0":
            progress.send(json.dumps(line).encode())

    def note(*words) -> None:
        if rank == "0":
            with open(log, "a") as file:
                print(attempt, world, *words, file=file)

    step, loaded = 0, [path for path in os.environ["MUSTER_RESUME_FROM"].split(",") if path]
    if loaded:
        with open(os.path.join(loaded[0], "step")) as file:
            step = int(file.read())
        report(loaded={"step": step, "path": loaded[0]})
    note(step)
    while step < steps and not stop:
        time.sleep(0.02)
        step += 1
        report(step=step, total_steps=steps, loss=1.0 / step)
    if rank == "0" and stop:
        path = os.path.join(os.environ["MUSTER_CHECKPOINT_DIR"], f"step-{step}")
        os.makedirs(path)
        with open(os.path.join(path, "step"), "w") as file:
            file.write(str(step))
        report(checkpoint={"step": step, "path": path})
    note("end", step)


if __name__ == "__main__":
    main()
