"""Muster's callback for transformers' Trainer.

    arguments = TrainingArguments(output_dir=muster_runtime.checkpoint_directory("out"), ...)
    trainer = Trainer(..., args=arguments, callbacks=[MusterCallback()])
    trainer.train(resume_from_checkpoint=newest_checkpoint())

It reports steps and losses, saves when Muster's interval is over and when the job is stopped, and ends the training then. The Trainer restores
weights, optimizer, schedule, random state and its place in the data: what goes on is what would have been.
"""

import json
import os

from transformers import TrainerCallback

import muster_runtime


def newest_checkpoint() -> str | None:
    """For Trainer.train(resume_from_checkpoint=...): the newest whole one of this task's earlier attempts."""
    return muster_runtime.newest(_step_of)


def _step_of(path: str) -> int:
    with open(os.path.join(path, "trainer_state.json")) as file:
        return json.load(file)["global_step"]


class MusterCallback(TrainerCallback):
    def __init__(self):
        self.stopped = False  # by Muster: what comes after the training may be left out

    def on_train_begin(self, args, state, control, **_):
        muster_runtime.should_stop()  # from now on a stop is heard
        if muster_runtime.under_muster():
            world = int(os.environ.get("WORLD_SIZE", "1"))
            if args.world_size != world:
                raise ValueError(
                    f"this Trainer trains with {args.world_size} processes where WORLD_SIZE says {world}, so each would train for itself; "
                    "on hosts without GPUs it takes TrainingArguments(use_cpu=True)"
                )
            directory = os.path.abspath(muster_runtime.checkpoint_directory())
            if os.path.commonpath([directory, os.path.abspath(args.output_dir)]) != directory:
                raise ValueError(
                    f"output_dir is {args.output_dir}: under Muster it has to lie below MUSTER_CHECKPOINT_DIR; write "
                    "output_dir=muster_runtime.checkpoint_directory()"
                )
            if args.save_total_limit is None:
                args.save_total_limit = muster_runtime.checkpoints_kept()
            if args.save_total_limit is not None and args.save_total_limit > 0:
                # The Trainer removes old ones before it says that there is a new one, which Muster has to hear of first.
                args.save_total_limit = max(2, args.save_total_limit)

    def on_step_end(self, args, state, control, **_):
        if state.is_world_process_zero:
            muster_runtime.report(state.global_step, total_steps=state.max_steps)
        stop, save = muster_runtime.decide()
        if stop:
            self.stopped = control.should_training_stop = True
        if stop or save or state.global_step >= state.max_steps:
            control.should_save = True  # the end, too: a later job may go on from it
        return control

    def on_log(self, args, state, control, logs=None, **_):
        # Not the summary at the end of a training: each attempt ends with one.
        if state.is_world_process_zero and logs and "train_runtime" not in logs:
            muster_runtime.report_logged(state.global_step, state.max_steps, logs)

    def on_save(self, args, state, control, **_):
        if state.is_world_process_zero:
            path = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
            muster_runtime.checkpoint(path, state.global_step)
