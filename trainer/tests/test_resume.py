"""Checkpoints: resume, resize, corruption; the stop flag; a killed peer."""

import json
import shutil
import signal
import time

import pytest
import resume
from harness import Gang
from test_schema import train

LONG = {"max_steps": 1_000_000, "save_steps": 0}


def test_killed_resumed_and_resized_run_is_the_same_run(trainer_bin, tokens, tmp_path):
    outcome = resume.compare(trainer_bin, tokens, tmp_path)
    assert outcome["resumed_at"] == 20
    assert outcome["tokens_differ"] == 0
    assert outcome["bitwise_differ"] == 0
    assert outcome["loss"] <= 1e-6


@pytest.fixture(scope="module")
def two_checkpoints(trainer_bin, tokens, tmp_path_factory):
    """A finished gang of two with checkpoints at 5 and 10 of 12 steps (and the last)."""
    folder = tmp_path_factory.mktemp("checkpoints")
    with Gang(
        trainer_bin, resume.config(tokens, max_steps=12, save_steps=5), 2, folder / "run"
    ) as gang:
        gang.finish()
    assert gang.checkpoint_steps() == [12, 10, 5]
    return gang


def copied(gang: Gang, step: int, folder):
    target = folder / gang.checkpoint(step).name
    shutil.copytree(gang.checkpoint(step), target)
    return target


def flip_last_byte(path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


DAMAGE = {  # name: (what is done to the checkpoint's directory, what the reason must name)
    "flipped byte": (
        lambda folder: flip_last_byte(sorted(folder.glob("*.safetensors"))[-1]),
        "checksum",
    ),
    "truncated file": (
        lambda folder: (lambda path: path.write_bytes(path.read_bytes()[:-100]))(
            sorted(folder.glob("*.safetensors"))[0]
        ),
        "",
    ),
    "missing file": (lambda folder: sorted(folder.glob("*.safetensors"))[0].unlink(), ""),
    "broken index": (lambda folder: (folder / "index.json").write_text('{"format":'), ""),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_checkpoint_is_refused_and_the_one_before_used(
    case, trainer_bin, tokens, two_checkpoints, tmp_path
):
    damage, reason = DAMAGE[case]
    newest, older = copied(two_checkpoints, 10, tmp_path), copied(two_checkpoints, 5, tmp_path)
    damage(newest)
    with Gang(
        trainer_bin,
        resume.config(tokens, max_steps=12, save_steps=0),
        2,
        tmp_path / "run",
        resume_from=[newest, older],
    ) as gang:
        gang.finish()
    loaded = gang.event("loaded")
    assert (loaded["step"], loaded["path"]) == (5, str(older))
    assert [one["path"] for one in loaded["skipped"]] == [str(newest)]
    assert reason in loaded["skipped"][0]["why"] and loaded["skipped"][0]["why"]
    assert str(newest) in gang.stderr() and str(older) in gang.stderr()
    undisturbed = two_checkpoints.metric("loss")
    assert gang.metric("loss") == {step: undisturbed[step] for step in range(6, 13)}


def test_no_good_checkpoint_at_all_is_an_error(trainer_bin, tokens, two_checkpoints, tmp_path):
    newest = copied(two_checkpoints, 10, tmp_path)
    flip_last_byte(newest / "index.json")
    with Gang(
        trainer_bin, resume.config(tokens, max_steps=12), 2, tmp_path / "run", resume_from=[newest]
    ) as gang:
        codes = gang.wait()
    assert 0 not in codes and str(newest) in gang.stderr() and not gang.lines


@pytest.mark.parametrize("zero_stage,ranks", [(0, 2), (0, 3), (1, 1)])
def test_any_number_of_ranks_and_either_stage_reads_a_checkpoint(
    zero_stage, ranks, trainer_bin, tokens, two_checkpoints, tmp_path
):
    settings = resume.config(tokens, max_steps=12, zero_stage=zero_stage)
    with Gang(
        trainer_bin, settings, ranks, tmp_path / "run", resume_from=[two_checkpoints.checkpoint(5)]
    ) as gang:
        gang.finish()
    undisturbed, found = two_checkpoints.metric("loss"), gang.metric("loss")
    assert sorted(found) == list(range(6, 13))
    assert all(found[step] == pytest.approx(undisturbed[step], rel=1e-6) for step in found)


def test_a_checkpoint_beyond_the_last_step_is_refused_and_one_of_it_is_told(
    trainer_bin, tokens, two_checkpoints, tmp_path
):
    beyond = resume.config(tokens, max_steps=7, save_steps=0, export=str(tmp_path / "beyond"))
    with Gang(
        trainer_bin, beyond, 2, tmp_path / "first", resume_from=[two_checkpoints.checkpoint(10)]
    ) as gang:
        assert gang.wait() == [2, 2]
    assert (
        f"max_steps: 7 is below the step of {two_checkpoints.checkpoint(10)}, 10; raise it"
        in gang.stderr()
        and not (tmp_path / "beyond").exists()
    )
    last = resume.config(tokens, max_steps=10, save_steps=0, export=str(tmp_path / "last"))
    with Gang(
        trainer_bin, last, 2, tmp_path / "second", resume_from=[two_checkpoints.checkpoint(10)]
    ) as gang:
        gang.finish()
    assert (
        "is of step 10, and max_steps is 10: there is nothing left to train" in gang.stderr()
        and (tmp_path / "last" / "config.json").exists()
    )
    assert f"exported to {tmp_path}/last\n" in (gang.folder / "0.out").read_text()


def test_what_changed_since_the_checkpoint_is_told(trainer_bin, tokens, two_checkpoints, tmp_path):
    settings = resume.config(
        tokens, max_steps=11, save_steps=0, learning_rate=2e-4, warmup_steps=0, zero_stage=2
    )
    with Gang(
        trainer_bin, settings, 2, tmp_path / "run", resume_from=[two_checkpoints.checkpoint(5)]
    ) as gang:
        gang.finish()
    note = [line for line in gang.stderr().splitlines() if "note: changed since" in line]
    told = dict(one.split(": ") for one in note[0].split("step-00000005: ")[1].split(", "))
    assert told.pop("save_steps").endswith("-> 0") and told.pop("max_steps").endswith("-> 11")
    assert told == {"learning_rate": "0.0001 -> 0.0002", "zero_stage": "1 -> 2"} and len(note) == 1
    with Gang(
        trainer_bin,
        json.loads((two_checkpoints.folder / "trainer.json").read_text()),
        2,
        tmp_path / "same",
        resume_from=[two_checkpoints.checkpoint(5)],
    ) as gang:
        gang.finish()
    assert "note: changed" not in gang.stderr()


def test_a_checkpoint_of_another_model_is_refused_with_what_differs(
    trainer_bin, tokens, two_checkpoints, tmp_path
):
    model = resume.TINY_MODEL | {"hidden_size": 32, "rms_norm_eps": 1e-6}
    with Gang(
        trainer_bin,
        resume.config(tokens, max_steps=12, model=model),
        2,
        tmp_path / "run",
        resume_from=[two_checkpoints.checkpoint(5)],
    ) as gang:
        assert gang.wait() == [2, 2]
    for words in (
        "trainer.model: is another model than that of",
        "whose hidden_size is 64, not 32; head_dim is 16, not 8; rms_norm_eps is 1e-05, not 1e-06",
    ):
        assert words in gang.stderr(), gang.stderr()


def test_sigterm_to_one_rank_stops_all_at_one_checkpoint(trainer_bin, tokens, tmp_path):
    with Gang(trainer_bin, resume.config(tokens, **LONG), 3, tmp_path / "run") as gang:
        gang.wait_for_step(3)
        gang.signal(signal.SIGTERM, ranks=[2])
        gang.finish()
    steps = gang.checkpoint_steps()
    assert (
        len(steps) == 1
        and steps[0] == max(gang.metric("loss"))
        and gang.event("checkpoint")["step"] == steps[0]
    )
    index = json.loads((gang.checkpoint(steps[0]) / "index.json").read_text())
    assert (
        index["step"] == steps[0]
        and len(list(gang.checkpoint(steps[0]).glob("*.safetensors"))) == 3
    )


def test_a_killed_peer_ends_the_others_promptly_and_not_with_success(trainer_bin, tokens, tmp_path):
    with Gang(trainer_bin, resume.config(tokens, **LONG), 3, tmp_path / "run") as gang:
        gang.wait_for_step(3)
        began = time.monotonic()
        gang.signal(signal.SIGKILL, ranks=[1])
        codes = gang.wait()
        took_s = time.monotonic() - began
    assert codes[1] == -signal.SIGKILL and 0 not in codes
    assert took_s < 5, f"took {took_s:.1f} s"


@pytest.mark.parametrize("in_background", [True, False])
def test_interval_and_keep_are_followed(in_background, trainer_bin, tokens, tmp_path):
    """At an interval near zero a checkpoint begins when the one before has ended; two are kept."""
    settings = resume.config(tokens, max_steps=40, save_steps=0, save_in_background=in_background)
    with Gang(trainer_bin, settings, 2, tmp_path / "run", interval_s=1e-6, keep=2) as gang:
        gang.finish()
    told = [event["checkpoint"]["step"] for event in gang.events if "checkpoint" in event]
    assert len(told) >= 3 and told == sorted(set(told)) and told[-1] == 40
    assert in_background or told == list(range(1, 41))
    assert gang.checkpoint_steps() == told[:-3:-1]


def test_old_checkpoints_stay_while_nobody_was_told_of_newer_ones(trainer_bin, tokens, tmp_path):
    settings = resume.config(tokens, max_steps=4, save_steps=1)
    for name, more in (
        ("told", {}),
        ("untold", {"MUSTER_PROGRESS_SOCKET": str(tmp_path / "nobody")}),
    ):
        (tmp_path / name).mkdir()
        done = train(
            trainer_bin,
            tmp_path / name,
            settings,
            MUSTER_CHECKPOINT_DIR=str(tmp_path / name),
            MUSTER_CHECKPOINT_KEEP="1",
            **more,
        )
        assert done.returncode == 0, done.stderr
    left = {
        name: sorted(
            int(path.parent.name[5:]) for path in (tmp_path / name).glob("step-*/index.json")
        )
        for name in ("told", "untold")
    }
    assert left == {"told": [3, 4], "untold": [1, 2, 3, 4]}


def test_save_steps_are_all_saved_however_fast_they_come(trainer_bin, tokens, tmp_path):
    with Gang(
        trainer_bin, resume.config(tokens, max_steps=8, save_steps=1), 2, tmp_path / "run", keep=100
    ) as gang:
        gang.finish()
    assert gang.checkpoint_steps() == list(range(8, 0, -1))


def test_a_full_disk_fails_the_checkpoint_and_training_goes_on(trainer_bin, tokens, tmp_path):
    with Gang(
        trainer_bin,
        resume.config(tokens, max_steps=1_000_000, save_steps=4),
        2,
        tmp_path / "run",
        keep=1,
    ) as gang:
        gang.wait_for_step(6)
        gang.limit_file_size(1, 8192)  # as a disk that is full: a file of rank 1 may not grow
        gang.wait_for_step(max(gang.metric("loss")) + 16)
        good = gang.checkpoint_steps()
        assert len(good) == 1 and not [
            path for path in gang.checkpoints.glob("step-*") if int(path.name[5:]) < good[0]
        ]
        gang.limit_file_size(1, None)
        gang.wait_for_step(max(gang.metric("loss")) + 16)
        gang.signal(signal.SIGTERM)
        gang.finish()
    assert "failed: rank 1: cannot write" in gang.stderr() and "File too large" in gang.stderr()
    # Of the newest it may not be known yet that its word has come, so the one before it is left, too.
    told = [event["checkpoint"]["step"] for event in gang.events if "checkpoint" in event]
    assert (
        gang.checkpoint_steps() == told[:-3:-1]
        and told[-1] > told[-2] > good[0]
        and told[-1] == max(gang.metric("loss"))
    )
