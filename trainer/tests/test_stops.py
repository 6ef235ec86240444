"""What a run does that is asked to stop, or loses a rank, while it does something long beside its steps."""

import hashlib
import json
import os
import signal
import struct
import time
from pathlib import Path

import resume
from harness import START_TIMEOUT_S, Gang
from parity import make_init

STEP_TIMEOUT_S = 1


def slow_to_verify(folder: Path) -> Path:
    """Token shards with minutes of hashing in them, and little on the disk: one file, named many times, of zeros that aren't written."""
    folder.mkdir()
    tokens = 32 << 20
    (folder / "0.tokens").touch()
    os.truncate(folder / "0.tokens", 2 * tokens)
    (folder / "0.docs").write_bytes(struct.pack("<2q", 0, tokens))
    shard = {
        "tokens": "0.tokens",
        "documents": "0.docs",
        "num_tokens": tokens,
        "num_documents": 1,
        "sha256_tokens": hashlib.sha256(bytes(2 * tokens)).hexdigest(),
    }
    (folder / "index.json").write_text(
        json.dumps(
            {
                "format": "muster-tokens-2",
                "dtype": "uint16",
                "vocab_size": 259,
                "shards": [shard] * 1000,
            }
        )
    )
    return folder


def wait_for(condition, gang: Gang) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, gang.stderr()
        time.sleep(0.01)


def assert_running(gang: Gang, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert [process.poll() for process in gang.processes] == [None] * gang.ranks, gang.stderr()
        time.sleep(0.05)


def test_a_stop_during_an_evaluation_ends_it_at_a_checkpoint(trainer_bin, tokens, tmp_path):
    settings = resume.config(
        tokens,
        max_steps=1_000_000,
        save_steps=0,
        eval_interval=1,
        eval_data=str(tokens),
        eval_sequences=4000,
    )
    with Gang(trainer_bin, settings, 2, tmp_path / "run") as gang:
        gang.wait_for_step(1)
        gang.signal(signal.SIGTERM, ranks=[1])  # most likely while step 2 is evaluated, or before
        gang.finish()
    assert ["eval_loss" in line for line in gang.lines] == [True] * (len(gang.lines) - 1) + [False]
    assert gang.checkpoint_steps() == [gang.lines[-1]["step"]]


def test_the_last_step_is_saved_before_it_is_evaluated_and_a_stop_ends_that(
    trainer_bin, tokens, tmp_path
):
    settings = resume.config(
        tokens, max_steps=2, save_steps=0, eval_interval=2, eval_data=str(tokens)
    )
    with Gang(trainer_bin, settings, 2, tmp_path / "run") as gang:
        gang.wait_for_line(b"checkpoint step=2 ")
        assert [line["step"] for line in gang.lines] == [1]
        gang.signal(signal.SIGTERM, ranks=[1])
        gang.finish()
    assert [line["step"] for line in gang.lines] == [1, 2] and "eval_loss" not in gang.lines[-1]


def test_a_finished_run_saves_and_then_waits_for_its_data_to_be_verified_or_a_stop(
    trainer_bin, tmp_path
):
    settings = resume.config(
        slow_to_verify(tmp_path / "tokens"),
        max_steps=2,
        save_steps=0,
        step_timeout_s=STEP_TIMEOUT_S,
        export=str(tmp_path / "model"),
    )
    with Gang(trainer_bin, settings, 2, tmp_path / "run") as gang:
        wait_for(gang.checkpoint_steps, gang)
        assert_running(gang, 3 * STEP_TIMEOUT_S)
        gang.signal(signal.SIGTERM, ranks=[1])
        gang.finish()
    assert gang.checkpoint_steps() == [2]
    assert (
        b"stopped_at_step=2" in (gang.folder / "0.out").read_bytes()
        and not (tmp_path / "model").exists()
    )


def test_ranks_wait_for_a_long_export_and_notice_one_that_dies_meanwhile(
    trainer_bin, tokens, tmp_path
):
    """The export waits for somebody to write to a pipe that lies in the place of one of the files it copies."""
    init = make_init(tmp_path / "init")
    pipe = init / "generation_config.json"
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)
    settings = resume.config(
        tokens,
        max_steps=2,
        save_steps=0,
        step_timeout_s=STEP_TIMEOUT_S,
        export=str(tmp_path / "model"),
    ) | {"init": str(init)}
    del settings["model"]

    written_before = tmp_path / "model.staging.unfinished" / "model.safetensors"

    with Gang(trainer_bin, settings, 2, tmp_path / "whole") as gang:
        wait_for(written_before.exists, gang)
        assert_running(gang, 3 * STEP_TIMEOUT_S)
        pipe.open("wb").close()
        gang.finish()
    assert (tmp_path / "model" / "model.safetensors").exists()
    with Gang(trainer_bin, settings, 2, tmp_path / "cut") as gang:
        wait_for(written_before.exists, gang)
        gang.signal(signal.SIGKILL, ranks=[1])
        assert gang.wait() == [1, -signal.SIGKILL]
