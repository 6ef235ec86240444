"""Muster's callback for Lightning's Trainer.

    trainer = Trainer(..., callbacks=[MusterCallback()])
    trainer.fit(model, data, ckpt_path=newest_checkpoint())

It reports steps and what is logged, saves when Muster's interval is over and when the job is stopped, and ends the training then; both after a whole step of the
optimizer, so that no accumulated gradient is lost. Lightning restores weights, optimizer and counters; the place in the data and each rank's random state, which it
doesn't, are this callback's: what goes on is what would have been.

Checkpoints are files. Strategies that write a directory are refused: it could not be gone on from.
"""

import os
import random
import shutil
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


def _check_files(strategy) -> None:
    """ValueError: newest_checkpoint() could not read its checkpoints, and each attempt would begin from the start."""
    kinds = {kind.__name__ for kind in type(strategy).__mro__}
    what = ""
    if "DeepSpeedStrategy" in kinds:
        what = "take FSDPStrategy or DDPStrategy"
    elif getattr(strategy, "_state_dict_type", "full") == "sharded":
        what = 'write FSDPStrategy(state_dict_type="full")'
    elif getattr(strategy, "_save_distributed_checkpoint", False):
        what = "write ModelParallelStrategy(save_distributed_checkpoint=False)"
    if what:
        raise ValueError(
            f"{type(strategy).__name__} writes checkpoints that are directories, which MusterCallback can't go on from: {what} (docs/programs.md)"
        )


def _remove(path: str) -> None:
    if os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.exists(path):
        os.remove(path)


class MusterCallback(Callback):
    def __init__(self):
        self.stopped = False  # by Muster: what comes after the training may be left out
        self._written: list[str] = []
        self._epoch_began: dict | None = None  # the random state then: shuffling depends on it
        self._resumed: dict | None = None
        self._last_step = 0
        self._total_steps: int | None = None

    # ---- going on ----

    def state_dict(self):
        """One file has the states of all ranks: Lightning calls this on each of them."""
        own = {"epoch_began": self._epoch_began, "now": _random_state()}
        return {"ranks": muster_runtime.gather(own)}

    def load_state_dict(self, state):
        """Of another number of ranks there is no random state to go on with: only the place in the data."""
        ranks = state.get("ranks") or [state]
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        rank = torch.distributed.get_rank() if distributed else 0
        world = torch.distributed.get_world_size() if distributed else 1
        other = {"epoch_began": None, "now": None}
        self._resumed = ranks[rank] if len(ranks) == world else other

    def on_fit_start(self, trainer, module):
        """Before the data's order is drawn."""
        if muster_runtime.under_muster():  # by hand nothing is gone on from
            muster_runtime.checkpoint_directory()  # a URL is told now, and not at the first save
            _check_files(trainer.strategy)
        if self._resumed is not None and self._resumed["epoch_began"] is not None:
            _set_random_state(self._resumed["epoch_began"])
        self._epoch_began = _random_state()

    def on_train_start(self, trainer, module):
        muster_runtime.should_stop()  # from now on a stop is heard
        muster_runtime.hear_alone()  # Lightning would end each rank for itself, amid a step
        self._last_step = trainer.global_step
        steps = trainer.estimated_stepping_batches
        self._total_steps = int(steps) if steps != float("inf") else None
        if self._resumed is not None:
            self._go_on(trainer, self._resumed["epoch_began"], self._resumed["now"])
            self._resumed = None

    def _go_on(self, trainer, epoch_began: dict | None, now: dict | None) -> None:
        done = trainer.fit_loop.epoch_loop.batch_progress.current.ready
        loaders = trainer.fit_loop._combined_loader.flattened
        keeps = all(hasattr(loader, "load_state_dict") for loader in loaders)
        over = done >= trainer.num_training_batches
        if not keeps and not over:
            self._draw_epoch(trainer, loaders, epoch_began)
            self._skip(trainer, done)
        if now is not None:
            _set_random_state(now)
        if not keeps and over:
            self._draw_next_epoch(trainer, loaders)

    def on_train_epoch_end(self, trainer, module):
        """The next one's order is drawn after this."""
        self._epoch_began = _random_state()

    def _skip(self, trainer, done: int) -> None:
        """What of the epoch's data was used before; a loader that keeps its own place has done so."""
        batches = trainer.fit_loop._data_fetcher.iterator
        for _ in range(done):
            next(batches)

    def _draw_epoch(self, trainer, loaders, began: dict | None) -> None:
        """Lightning has drawn the order before it tells samplers which epoch it is of."""
        if self._tell_epoch(trainer, loaders):
            if began is not None:
                _set_random_state(began)
            iter(trainer.fit_loop._data_fetcher)

    def _draw_next_epoch(self, trainer, loaders) -> None:
        """Saved after an epoch's last batch: Lightning would begin the next one in the order of the one that is over."""
        self._epoch_began = _random_state()
        self._tell_epoch(trainer, loaders)
        iter(trainer.fit_loop._data_fetcher)

    @staticmethod
    def _tell_epoch(trainer, loaders) -> bool:
        """Whether there is a sampler whose order depends on it."""
        samplers = [getattr(loader, "sampler", None) for loader in loaders]
        told = [sampler for sampler in samplers if hasattr(sampler, "set_epoch")]
        for sampler in told:
            sampler.set_epoch(trainer.fit_loop.epoch_progress.current.processed)
        return bool(told)

    # ---- each step ----

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_index):
        step = trainer.global_step
        if step == self._last_step:
            return  # its gradient is accumulated with the next one's: no checkpoint would have it
        self._last_step = step
        if trainer.is_global_zero:
            muster_runtime.report_logged(
                step, self._total_steps, self._figures(trainer, step, outputs)
            )
        stop, save = muster_runtime.decide()
        if stop or save:
            self._save(trainer, step)
        if stop:
            self.stopped = trainer.should_stop = True
            trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None

    def on_train_end(self, trainer, module):
        """A later job may go on from it."""
        self._save(trainer, trainer.global_step)

    def _figures(self, trainer, step: int, outputs) -> dict:
        """The loss and what the module has logged, no oftener than Lightning's own loggers have it: reading it waits for the GPU."""
        if step % trainer.log_every_n_steps != 0:
            return {}
        if not muster_runtime.takes_figures(step, self._total_steps):
            return {}
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is None:
            return dict(trainer.logged_metrics)
        # Lightning hands it divided by the batches that are accumulated.
        return trainer.logged_metrics | {"loss": float(loss) * trainer.accumulate_grad_batches}

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
            if trainer.is_global_zero:
                _remove(old)
