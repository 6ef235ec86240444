"""MusterCallback with transformers' Trainer: stopped, killed, gone on from, and what would have been without all that."""

import os

import pytest
from disturbed import EXAMPLES, check

pytest.importorskip("transformers")


def test_stopped_and_killed_it_ends_as_if_nothing_had_been(agent, tmp_path):
    check(agent, EXAMPLES / "hf_trainer.py", tmp_path)


def test_all_that_is_logged_is_reported_but_for_the_summary(agent, monkeypatch):
    import muster_runtime
    import muster_runtime.transformers as runtime
    from transformers import TrainerState

    monkeypatch.setenv("MUSTER_PROGRESS_SOCKET", str(agent.path))
    monkeypatch.setattr(muster_runtime, "_channel", None)
    state = TrainerState(global_step=7, max_steps=9)
    callback = runtime.MusterCallback()
    callback.on_log(None, state, None, {"eval_loss": 0.5, "epoch": 1, "note": "x", "step": 3})
    callback.on_log(None, state, None, {"train_runtime": 3.0, "train_loss": 0.1})
    muster_runtime._reports.flush()
    assert agent.lines() == [
        {"rank": 0, "step": 7, "total_steps": 9, "eval_loss": 0.5, "epoch": 1.0}
    ]


def test_ranks_that_would_train_each_for_itself_are_refused(agent, monkeypatch, tmp_path):
    import muster_runtime.transformers as runtime
    from transformers import TrainingArguments

    monkeypatch.setenv("MUSTER_PROGRESS_SOCKET", str(agent.path))
    monkeypatch.setenv("MUSTER_CHECKPOINT_DIR", str(tmp_path))
    alone = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    runtime.MusterCallback().on_train_begin(alone, None, None)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="1 processes where WORLD_SIZE says 2.*use_cpu=True"):
        runtime.MusterCallback().on_train_begin(alone, None, None)


def test_checkpoints_have_to_lie_where_muster_looks_for_them(agent, tmp_path):
    import muster_runtime.transformers as runtime
    from transformers import TrainingArguments

    os.environ["MUSTER_PROGRESS_SOCKET"] = str(agent.path)
    os.environ["MUSTER_CHECKPOINT_DIR"] = str(tmp_path / "here")
    try:
        arguments = TrainingArguments(output_dir=str(tmp_path / "there"), use_cpu=True)
        with pytest.raises(ValueError, match="MUSTER_CHECKPOINT_DIR"):
            runtime.MusterCallback().on_train_begin(arguments, None, None)
    finally:
        del os.environ["MUSTER_PROGRESS_SOCKET"], os.environ["MUSTER_CHECKPOINT_DIR"]


@pytest.mark.parametrize(("own", "kept"), [(None, 3), (5, 5), (1, 2)])
def test_as_many_checkpoints_are_kept_as_muster_says_or_the_program(
    agent, monkeypatch, tmp_path, own, kept
):
    import muster_runtime.transformers as runtime
    from transformers import TrainingArguments

    monkeypatch.setenv("MUSTER_PROGRESS_SOCKET", str(agent.path))
    monkeypatch.setenv("MUSTER_CHECKPOINT_DIR", str(tmp_path))
    monkeypatch.setenv("MUSTER_CHECKPOINT_KEEP", "3")
    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, save_total_limit=own)
    runtime.MusterCallback().on_train_begin(arguments, None, None)
    assert arguments.save_total_limit == kept
