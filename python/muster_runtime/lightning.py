"""Muster's callback for Lightning's Trainer.

    trainer = Trainer(..., callbacks=[MusterCallback()])
    trainer.fit(model, data, ckpt_path=newest_checkpoint())

It reports steps and what is logged, saves when Muster's interval is over and when the job is stopped, and ends the training then. Lightning restores weights,
optimizer and counters; the place in the data and the random state, which it doesn't, are this callback's: what goes on is what would have been.
"""

import os
import random
import sys

import torch

try:
    from lightning.pytorch.callbacks import Callback
except ModuleNotFoundError:
    from pytorch_lightning.callbacks import Callback

import muster_runtime


def newest_checkpoint() -> str | None:
    """For Trainer.fit(ckpt_path=...): the newest whole one of this task's earlier attempts."""
    return muster_runtime.newest(_step_of)


def _step_of(path: str) -> int:
    try:
        return torch.load(path, map_location="cpu", weights_only=False, mmap=True)["global_step"]
    except RuntimeError as error:  # of a file that is no whole one
        raise ValueError(str(error)) from error


def _random_state() -> dict:
    state = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if "numpy" in sys.modules:
        name, keys, *rest = sys.modules["numpy"].random.get_state()
        state["numpy"] = [name, keys.tolist(), *rest]  # as torch.load takes it with weights_only
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _set_random_state(state: dict) -> None:
    torch.set_rng_state(state["torch"].cpu())
    random.setstate(state["python"])
    if "numpy" in state and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(tuple(state["numpy"]))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].cpu())


class MusterCallback(Callback):
    def __init__(self):
        self.stopped = False  # by Muster: what comes after the training may be left out
        self._written: list[str] = []
        self._epoch_began: dict | None = None  # the random state then: shuffling depends on it
        self._resumed: dict | None = None

    # ---- going on ----

    def state_dict(self):
        return {"epoch_began": self._epoch_began, "now": _random_state()}

    def load_state_dict(self, state):
        self._resumed = state

    def on_fit_start(self, trainer, module):
        """Before the data's order is drawn."""
        if self._resumed is not None and self._resumed["epoch_began"] is not None:
            _set_random_state(self._resumed["epoch_began"])
        self._epoch_began = _random_state()

    def on_train_start(self, trainer, module):
        muster_runtime.should_stop()  # from now on a stop is heard
        if self._resumed is None:
            return
        self._skip(trainer)
        _set_random_state(self._resumed["now"])
        self._resumed = None

    def on_train_epoch_end(self, trainer, module):
        """The next one's order is drawn after this."""
        self._epoch_began = _random_state()

    def _skip(self, trainer) -> None:
        """What of the epoch's data was used before; a loader that keeps its own place has done so."""
        done = trainer.fit_loop.epoch_loop.batch_progress.current.ready
        loaders = trainer.fit_loop._combined_loader.flattened
        keeps = all(hasattr(loader, "load_state_dict") for loader in loaders)
        if keeps or done >= trainer.num_training_batches:
            return
        batches = trainer.fit_loop._data_fetcher.iterator
        for _ in range(done):
            next(batches)

    # ---- each step ----

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_index):
        step = trainer.global_step
        if trainer.is_global_zero:
            steps = trainer.estimated_stepping_batches
            muster_runtime.report(
                step,
                total_steps=int(steps) if steps != float("inf") else None,
                **self._figures(trainer, step, outputs),
            )
        stop, save = muster_runtime.decide()
        if stop or save:
            self._save(trainer, step)
        if stop:
            self.stopped = trainer.should_stop = True

    def _figures(self, trainer, step: int, outputs) -> dict[str, float]:
        """The loss and what the module has logged, as often as Lightning's own loggers have it: reading it waits for the GPU."""
        if step % trainer.log_every_n_steps != 0:
            return {}
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        figures = {name: float(value) for name, value in trainer.logged_metrics.items()}
        return figures | ({} if loss is None else {"loss": float(loss)})

    def _save(self, trainer, step: int) -> None:
        directory = os.path.abspath(muster_runtime.checkpoint_directory())
        path = os.path.join(directory, f"step-{step:09}.ckpt")
        if path in self._written:
            return
        trainer.save_checkpoint(path + ".new")
        if trainer.is_global_zero:
            os.replace(path + ".new", path)
            muster_runtime.checkpoint(path, step)
        self._written.append(path)
        kept = muster_runtime.checkpoints_kept(2)
        while len(self._written) > kept:
            old = self._written.pop(0)
            if trainer.is_global_zero and os.path.exists(old):
                os.remove(old)
