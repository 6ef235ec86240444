"""MusterCallback with Lightning's Trainer: as test_transformers.py. Lightning is there once bench/run.sh python-runtime was run."""

import os
from types import SimpleNamespace

import pytest
from disturbed import EXAMPLES, check, lightning_is_whole, lightning_site

needs_lightning = pytest.mark.skipif(
    not lightning_is_whole(),
    reason="Lightning has an environment of its own, which bench/run.sh python-runtime makes",
)
EXAMPLE = EXAMPLES / "lightning_trainer.py"


@needs_lightning
def test_stopped_and_killed_it_ends_as_if_nothing_had_been(agent, tmp_path):
    check(agent, EXAMPLE, tmp_path)


def changed(folder, *changes):
    text = EXAMPLE.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    example = folder / "example.py"
    example.write_text(text)
    return example


@needs_lightning
def test_so_it_does_with_shuffled_data_dropout_epochs_accumulated_gradients_and_any_name_logged(
    agent, tmp_path
):
    example = changed(
        tmp_path,
        ("shuffle=False", "shuffle=True"),
        ("return 4096", "return 112"),  # seven batches an epoch
        ("torch.nn.GELU()", "torch.nn.GELU(), torch.nn.Dropout(0.2)"),
        ("max_steps=", "accumulate_grad_batches=3, max_steps="),
        ("return loss", 'self.log("step", 0.5); self.log("total_steps", 0.5); return loss'),
    )
    check(agent, example, tmp_path)


@needs_lightning
def test_each_rank_goes_on_with_its_own_random_state_and_from_the_end_of_an_epoch(agent, tmp_path):
    example = changed(
        tmp_path,
        ("shuffle=False", "shuffle=True"),
        ("return 4096", "return 16"),  # one step an epoch
        ("torch.nn.GELU()", "torch.nn.GELU(), torch.nn.Dropout(0.2)"),
        (
            "model = Model(options.lr)",
            'model = Model(options.lr); torch.manual_seed(int(os.environ["RANK"]))',
        ),
    )
    check(agent, example, tmp_path, ranks=2, kill=False)


@pytest.fixture
def runtime(monkeypatch):
    monkeypatch.syspath_prepend(str(lightning_site()))
    import muster_runtime.lightning

    return muster_runtime.lightning


class DeepSpeedStrategy:
    pass


@needs_lightning
@pytest.mark.parametrize(
    "strategy, remedy",
    [
        (SimpleNamespace(_state_dict_type="sharded"), 'state_dict_type="full"'),
        (SimpleNamespace(_save_distributed_checkpoint=True), "save_distributed_checkpoint=False"),
        (DeepSpeedStrategy(), "take FSDPStrategy"),
    ],
)
def test_strategies_that_write_directories_are_refused_under_muster(
    runtime, agent, tmp_path, monkeypatch, strategy, remedy
):
    trainer = SimpleNamespace(strategy=strategy)
    runtime.MusterCallback().on_fit_start(trainer, None)  # by hand they may
    monkeypatch.setenv("MUSTER_PROGRESS_SOCKET", str(agent.path))
    with pytest.raises(ValueError, match=remedy):
        runtime.MusterCallback().on_fit_start(trainer, None)
    for good in ({}, {"_state_dict_type": "full"}, {"_save_distributed_checkpoint": False}):
        trainer.strategy = SimpleNamespace(**good)
        runtime.MusterCallback().on_fit_start(trainer, None)


@needs_lightning
def test_a_place_in_an_object_store_is_told_before_the_first_step(runtime, agent, monkeypatch):
    monkeypatch.setenv("MUSTER_PROGRESS_SOCKET", str(agent.path))
    monkeypatch.setenv("MUSTER_CHECKPOINT_DIR", "s3://acme/7")
    with pytest.raises(ValueError, match="name another checkpoint.storage"):
        runtime.MusterCallback().on_fit_start(SimpleNamespace(strategy=None), None)


@needs_lightning
@pytest.mark.parametrize("directories", [False, True])
def test_old_checkpoints_are_removed_whatever_they_are(runtime, tmp_path, monkeypatch, directories):
    monkeypatch.setenv("MUSTER_CHECKPOINT_DIR", str(tmp_path))
    monkeypatch.setenv("MUSTER_CHECKPOINT_KEEP", "1")

    def save(path):
        place = os.path.join(path, "shard") if directories else path
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "w") as file:
            file.write("x")

    trainer = SimpleNamespace(save_checkpoint=save, is_global_zero=True)
    callback = runtime.MusterCallback()
    for step in (1, 2, 3):
        callback._save(trainer, step)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000003.ckpt"]


@needs_lightning
@pytest.mark.parametrize("outputs", [0.25, {"loss": 0.25}])
def test_the_loss_is_told_of_a_whole_step_however_many_batches_it_has(runtime, outputs):
    trainer = SimpleNamespace(log_every_n_steps=5, accumulate_grad_batches=4, logged_metrics={})
    assert runtime.MusterCallback()._figures(trainer, 10, outputs) == {"loss": 1.0}
    assert runtime.MusterCallback()._figures(trainer, 11, outputs) == {}


def test_half_of_an_interrupted_pip_does_not_count_as_installed(tmp_path, monkeypatch):
    monkeypatch.setenv("MUSTER_CACHE_DIR", str(tmp_path))
    site = lightning_site()
    for name in ("lightning", "lightning_utilities"):
        (site / name).mkdir(parents=True)
        (site / f"{name}-1.0.dist-info").mkdir()
        (site / f"{name}-1.0.dist-info" / "RECORD").touch()
        assert not lightning_is_whole()
    (site / "torchmetrics-1.0.dist-info").mkdir()
    (site / "torchmetrics-1.0.dist-info" / "RECORD").touch()
    assert not lightning_is_whole()
    (site / "torchmetrics").mkdir()
    assert lightning_is_whole(), "as it was installed before there was a mark"
    (site / "torchmetrics").rmdir()
    (site / ".complete").touch()
    assert lightning_is_whole()
