"""warm_restart: a stop that doesn't wait for the disk, and the run that goes on."""

import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import resume
from harness import Gang, relative

STEPS = 1_000


def settings(tokens, **more) -> dict:
    return resume.config(tokens, save_steps=0, max_steps=STEPS, warm_restart=True, **more)


def test_resized_again_and_again_it_is_the_same_run(trainer_bin, tokens, tmp_path):
    losses, resume_from, loaded = {}, [], 0
    for number, ranks in enumerate((4, 2, 4)):
        with Gang(
            trainer_bin, settings(tokens), ranks, tmp_path / f"{number}", resume_from=resume_from
        ) as gang:
            gang.wait_for_step(loaded + 5)
            gang.signal(signal.SIGTERM)
            gang.finish()
        if number > 0:
            assert gang.event("loaded")["path"] == str(resume_from[0])
            assert min(gang.metric("loss")) == loaded + 1
            assert "may not have" not in gang.stderr()
        told = gang.event("checkpoint")
        loaded, resume_from = told["step"], [told["path"], *resume_from]
        assert max(gang.metric("loss")) == loaded
        losses |= gang.metric("loss")
    with Gang(
        trainer_bin, settings(tokens) | {"max_steps": loaded}, 4, tmp_path / "whole"
    ) as whole:
        whole.finish()
    wanted = whole.metric("loss")
    assert sorted(losses) == sorted(wanted)
    assert max(relative(loss, wanted[step]) for step, loss in losses.items()) <= 1e-6


@pytest.fixture(scope="module")
def stopped(trainer_bin, tokens, tmp_path_factory):
    """A gang with a checkpoint of step 5 on the disk that was stopped later: its checkpoints, the newest first."""
    folder = tmp_path_factory.mktemp("stopped")
    with Gang(trainer_bin, settings(tokens) | {"save_steps": 5}, 2, folder / "run") as gang:
        gang.wait_for_step(7)
        gang.signal(signal.SIGTERM)
        gang.finish()
    return [gang.checkpoint(step) for step in gang.checkpoint_steps()]


@pytest.mark.parametrize("ranks", [2, 4])
def test_what_a_crash_left_of_it_is_passed_over(stopped, ranks, trainer_bin, tokens, tmp_path):
    newest = tmp_path / stopped[0].name
    shutil.copytree(stopped[0], newest)
    for path in newest.glob("*.safetensors"):
        path.write_bytes(bytes(path.stat().st_size))  # its size was on the disk, its blocks weren't
    last = settings(tokens) | {"max_steps": 20}
    with Gang(trainer_bin, last, ranks, tmp_path / "run", resume_from=[newest, stopped[1]]) as gang:
        gang.finish()
    loaded = gang.event("loaded")
    assert loaded["path"] == str(stopped[1])
    assert [one["path"] for one in loaded["skipped"]] == [str(newest)]


def test_what_the_disk_does_not_take_is_saved_anew(stopped, trainer_bin, tokens, tmp_path):
    newest = tmp_path / stopped[0].name
    shutil.copytree(stopped[0], newest)
    (newest / "loop").symlink_to("loop")  # no list of the directory comes to its end
    with Gang(trainer_bin, settings(tokens), 2, tmp_path / "run", resume_from=[newest]) as gang:
        gang.wait_for_event("checkpoint")
        gang.signal(signal.SIGTERM)
        gang.finish()
    assert "a new checkpoint is made" in gang.stderr()
    first = next(event["checkpoint"] for event in gang.events if "checkpoint" in event)
    assert first["step"] < max(gang.metric("loss")), "it was not the one of the stop"


@pytest.fixture(scope="module")
def recorder(tmp_path_factory):
    """A library to preload that writes down what the disk took."""
    library = tmp_path_factory.mktemp("recorder") / "librecord_syncs.so"
    source = Path(__file__).parent / "record_syncs.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


@pytest.mark.parametrize(
    ("changes", "resumed", "waits"),
    [
        pytest.param({}, False, True, id="nothing is on the disk yet"),
        pytest.param({"save_steps": 50}, False, False, id="an earlier checkpoint is"),
        pytest.param({}, True, False, id="what was loaded is"),
        pytest.param({"save_steps": 50, "warm_restart": False}, False, True, id="not asked for"),
    ],
)
def test_a_stop_waits_for_the_disk_where_that_has_no_checkpoint(
    changes, resumed, waits, recorder, stopped, trainer_bin, tokens, tmp_path
):
    log = tmp_path / "syncs"
    log.touch()
    loaded = stopped[0].resolve()
    with Gang(
        trainer_bin,
        settings(tokens) | changes,
        1,
        tmp_path / "run",
        resume_from=[loaded] if resumed else [],
        LD_PRELOAD=str(recorder),
        SYNCS=str(log),
    ) as gang:
        gang.wait_for_step(51)
        # The last that is synced of what was loaded is the directory that has its name.
        while resumed and str(loaded.parent) not in log.read_text().splitlines():
            gang.wait_for_step(max(gang.steps) + 1)
        gang.signal(signal.SIGTERM)
        gang.finish()
    last = gang.checkpoint(gang.checkpoint_steps()[0]).resolve()
    assert last.name != "step-00000050"
    assert any(line.startswith(str(last)) for line in log.read_text().splitlines()) == waits


def test_it_changes_nothing_in_an_object_store_and_says_so(trainer_bin, tokens, tmp_path):
    """There is no such server, and nothing asks it before the first checkpoint."""
    stored = settings(tokens) | {"checkpoints": "s3://nowhere/x"}
    with Gang(
        trainer_bin, stored, 1, tmp_path / "run", AWS_ENDPOINT_URL="http://127.0.0.1:1"
    ) as gang:
        gang.wait_for_step(1)
    assert "warm_restart changes nothing here" in gang.stderr()
