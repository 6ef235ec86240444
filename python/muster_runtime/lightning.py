"""Muster's callback for Lightning's Trainer.

    trainer = Trainer(..., callbacks=[MusterCallback()])
    trainer.fit(model, data, ckpt_path=newest_checkpoint())

It reports steps and losses, saves when Muster's interval is over and when the job is stopped, and ends the training then.
"""

import os
import time

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


class MusterCallback(Callback):
    def __init__(self):
        self.stopped = False  # by Muster: what comes after the training may be left out
        self._written: list[str] = []
        self._read_at = 0.0

    def on_train_start(self, trainer, module):
        muster_runtime.should_stop()  # from now on a stop is heard

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_index):
        step = trainer.global_step
        if trainer.is_global_zero:
            steps = trainer.estimated_stepping_batches
            muster_runtime.report(
                step,
                total_steps=int(steps) if steps != float("inf") else None,
                loss=self._loss(outputs),
            )
        stop, save = muster_runtime.decide()
        if stop or save:
            self._save(trainer, step)
        if stop:
            self.stopped = trainer.should_stop = True

    def _loss(self, outputs) -> float | None:
        """Once a second: reading it waits for the GPU."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is None or time.monotonic() - self._read_at < 1:
            return None
        self._read_at = time.monotonic()
        return float(loss)

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
