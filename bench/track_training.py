"""What row `track` trains: steps of some milliseconds whose losses depend on the step alone.

track_training.py --steps N --times FILE [--reports none|muster] [--mlflow URL --site DIR]

Under Muster it goes on from the newest checkpoint, saves twice a second and when it is stopped. With --mlflow it tells transformers' own MLflowCallback
instead, as a Trainer does. FILE gets a line a step: when it ended, and how long it took, in seconds.
"""

import argparse
import os
import sys
import time
from pathlib import Path

import numpy

sys.path.append(str(Path(__file__).resolve().parent.parent / "python"))
import muster_runtime


def loss_of(weights: numpy.ndarray, step: int) -> float:
    state = numpy.full(weights.shape[0], step * 1e-3)
    for _ in range(60):
        state = numpy.tanh(weights @ state + 1e-3)
    return float(state.sum())


class Peer:
    """transformers' callback for MLflow, driven as a Trainer drives it."""

    def __init__(self, url: str, site: str):
        sys.path.append(site)
        os.environ["MLFLOW_TRACKING_URI"] = url
        from transformers import TrainerControl, TrainerState, TrainingArguments
        from transformers.integrations import MLflowCallback

        self._arguments = TrainingArguments(output_dir="/tmp", report_to=[], use_cpu=True)
        self._state, self._control = TrainerState(), TrainerControl()
        self._state.is_world_process_zero = True
        self._callback = MLflowCallback()
        self._callback.setup(self._arguments, self._state, None)

    def log(self, step: int, loss: float) -> None:
        self._state.global_step = step
        self._callback.on_log(self._arguments, self._state, self._control, {"loss": loss})


def resumed() -> int:
    path = muster_runtime.newest(lambda path: int(Path(path).read_text()))
    return int(Path(path).read_text()) if path else 0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--times", required=True)
    parser.add_argument("--reports", choices=("none", "muster"), default="muster")
    parser.add_argument("--mlflow")
    parser.add_argument("--site")
    options = parser.parse_args()
    weights = numpy.random.default_rng(0).normal(0, 0.08, (192, 192))
    peer = Peer(options.mlflow, options.site) if options.mlflow else None
    muster_runtime.should_stop()
    step, saved_s = resumed(), time.monotonic()
    with open(options.times, "a") as times:
        while step < options.steps:
            began_s = time.perf_counter()
            step += 1
            loss = loss_of(weights, step)
            time.sleep(0.004)
            if peer is not None:
                peer.log(step, loss)
            elif options.reports == "muster":
                muster_runtime.report(step, total_steps=options.steps, loss=loss, half=step / 2)
            print(f"{time.time():.6f} {time.perf_counter() - began_s:.9f}", file=times)
            stop = muster_runtime.should_stop()
            if stop or time.monotonic() - saved_s > 0.5:
                path = Path(muster_runtime.checkpoint_directory("/tmp")) / f"step-{step}"
                if muster_runtime.under_muster():
                    path.write_text(str(step))
                    muster_runtime.checkpoint(path, step)
                saved_s = time.monotonic()
            if stop:
                return


if __name__ == "__main__":
    main()
