"""Checkpoints on an S3-compatible store: written, pruned, resumed from, exported, and refused when damaged."""

import signal
import subprocess
import time

import kills
import pytest
import resume
from harness import START_TIMEOUT_S, Gang, clean_environment, relative, s3_server

ATTEMPT = {"MUSTER_JOB": "7", "MUSTER_TASK": "train", "MUSTER_ATTEMPT": "2"}
PARENT = "s3://acme/runs/7/train/2"


@pytest.fixture(scope="module")
def store():
    with s3_server("acme") as (client, environment):
        yield client, environment


def keys(client) -> list[str]:
    """But for the markers that the client puts in the place of directories that it empties."""
    return [
        one["Key"]
        for one in client.list_objects_v2(Bucket="acme").get("Contents", [])
        if not one["Key"].endswith("/")
    ]


def test_a_run_saves_prunes_resumes_and_exports_there(trainer_bin, tokens, store, tmp_path):
    client, environment = store
    settings = resume.config(
        tokens,
        max_steps=12,
        save_steps=4,
        checkpoints="s3://acme/runs/",
        export=str(tmp_path / "model"),
    )
    with Gang(
        trainer_bin, settings, 2, tmp_path / "first", keep=2, **ATTEMPT, **environment
    ) as first:
        first.finish()
    assert keys(client) == [
        f"runs/7/train/2/step-{step:08d}/{name}"
        for step in (8, 12)
        for name in (
            "index.json",
            "rank-00000-of-00002.safetensors",
            "rank-00001-of-00002.safetensors",
        )
    ]
    told = first.event("checkpoint")
    assert told["bytes"] > 0 and told | {"bytes": 0} == {
        "step": 12,
        "path": f"{PARENT}/step-00000012",
        "bytes": 0,
    }
    assert not any(first.checkpoints.iterdir())

    with Gang(
        trainer_bin,
        settings | {"export": str(tmp_path / "again")},
        3,
        tmp_path / "second",
        resume_from=[f"{PARENT}/step-00000008"],
        **ATTEMPT | {"MUSTER_ATTEMPT": "3"},
        **environment,
    ) as second:
        second.finish()
    assert second.event("loaded")["path"] == f"{PARENT}/step-00000008"
    losses = first.metric("loss")
    assert list(second.metric("loss")) == [9, 10, 11, 12]
    assert max(relative(loss, losses[step]) for step, loss in second.metric("loss").items()) <= 1e-6
    assert sum(key.startswith("runs/7/train/3/") for key in keys(client)) == 4

    subprocess.run(
        [
            trainer_bin,
            "export",
            "--checkpoint",
            f"{PARENT}/step-00000012",
            "--output",
            tmp_path / "exported",
        ],
        check=True,
        capture_output=True,
        env=clean_environment(**environment),
    )
    assert (tmp_path / "exported" / "model.safetensors").read_bytes() == (
        tmp_path / "model" / "model.safetensors"
    ).read_bytes()


def test_a_damaged_one_is_refused_and_the_one_before_taken(trainer_bin, tokens, store, tmp_path):
    client, environment = store
    settings = resume.config(tokens, max_steps=4, save_steps=2, checkpoints="s3://acme/damaged")
    with Gang(trainer_bin, settings, 2, tmp_path / "first", **environment) as first:
        first.finish()
    key = "damaged/step-00000004/rank-00001-of-00002.safetensors"
    data = bytearray(client.get_object(Bucket="acme", Key=key)["Body"].read())
    data[-100] ^= 1
    client.put_object(Bucket="acme", Key=key, Body=bytes(data))
    # Started by hand in the same place: it looks for what is there itself.
    environment = clean_environment(**environment)
    (tmp_path / "trainer.json").write_text((tmp_path / "first" / "trainer.json").read_text())
    done = subprocess.run(
        [trainer_bin, "train", "--config", tmp_path / "trainer.json"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert (
        "checkpoint refused: s3://acme/damaged/step-00000004: rank-00001-of-00002.safetensors doesn't match its checksum"
        in done.stderr
    )
    assert "resumed from s3://acme/damaged/step-00000002 at step 2" in done.stderr


def test_a_file_that_is_too_long_for_an_object_goes_on_in_others(
    trainer_bin, tokens, store, tmp_path
):
    client, environment = store
    environment = environment | {"MUSTER_TEST_OBJECT_BYTES": "200000"}
    settings = resume.config(tokens, max_steps=4, save_steps=2)
    there = {"checkpoints": "s3://acme/long"}
    with Gang(trainer_bin, settings | there, 2, tmp_path / "first", **environment) as first:
        first.finish()
    folder = "long/step-00000004"
    saved = [f"s3://acme/{folder}", "s3://acme/long/step-00000002"]
    sizes = {
        one["Key"].removeprefix(f"{folder}/"): one["Size"]
        for one in client.list_objects_v2(Bucket="acme", Prefix=f"{folder}/")["Contents"]
    }
    name = "rank-00001-of-00002.safetensors"
    assert sizes[name] == sizes[f"{name}.1"] == 200_000 and max(sizes.values()) == 200_000, sizes

    settings |= {"max_steps": 5}
    with Gang(
        trainer_bin, settings, 3, tmp_path / "second", resume_from=saved, **environment
    ) as second:
        second.finish()
    assert second.event("loaded") == {"step": 4, "path": saved[0], "skipped": []}

    client.delete_object(Bucket="acme", Key=f"{folder}/{name}.1")
    with Gang(
        trainer_bin, settings, 1, tmp_path / "third", resume_from=saved, **environment
    ) as third:
        third.finish()
    loaded = third.event("loaded")
    assert loaded["path"] == saved[1]
    assert f"{name} has 200000 bytes where index.json means" in loaded["skipped"][0]["why"]


def test_without_a_place_for_temporary_files_none_is_taken_for_missing(
    trainer_bin, store, tmp_path
):
    environment = clean_environment(**store[1], TMPDIR=str(tmp_path / "nowhere"))
    done = subprocess.run(
        [trainer_bin, "export", "--checkpoint", "s3://acme/any/step-1", "--output", tmp_path / "o"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    assert "there must be a directory for temporary files, as TMPDIR names" in done.stderr


@pytest.mark.parametrize("bytes_", ["0", "-1", "200k", "1e6", " 5", "99999999999999999999"])
def test_a_size_of_objects_that_is_no_number_is_refused(trainer_bin, store, tmp_path, bytes_):
    environment = clean_environment(**store[1], MUSTER_TEST_OBJECT_BYTES=bytes_)
    done = subprocess.run(
        [trainer_bin, "export", "--checkpoint", "s3://acme/any/step-1", "--output", tmp_path / "o"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    assert f"MUSTER_TEST_OBJECT_BYTES must be a whole number above 0; got {bytes_}" in done.stderr


def test_a_kill_while_it_uploads_leaves_the_one_before(trainer_bin, tokens, store, tmp_path):
    client, environment = store
    # 17 MB a rank: an upload in two parts.
    settings = resume.config(
        tokens,
        model=kills.MODEL | {"num_hidden_layers": 4},
        micro_batch_size=1,
        global_batch_size=2,
        max_steps=1_000_000,
        save_steps=2,
        checkpoints="s3://acme/killed",
    )

    def newest_step() -> int:
        return max(
            (
                int(key.split("/")[1].removeprefix("step-"))
                for key in keys(client)
                if key.startswith("killed/") and key.endswith("/index.json")
            ),
            default=0,
        )

    def uploads() -> list[str]:
        return [
            one["Key"] for one in client.list_multipart_uploads(Bucket="acme").get("Uploads", [])
        ]

    # A kill that comes just behind an upload counts for nothing: the next attempt goes on from there.
    for attempt in range(8):
        with Gang(
            trainer_bin,
            settings,
            2,
            tmp_path / f"killed-{attempt}",
            resume_from=None,
            keep=2,
            **environment,
        ) as gang:
            begun = newest_step()
            gang.wait_for_step(begun + 3)
            deadline = time.monotonic() + START_TIMEOUT_S
            while newest_step() <= begun or not uploads():
                assert time.monotonic() < deadline, gang.stderr()
            gang.signal(signal.SIGKILL)
            gang.wait()
        if left := uploads():
            break
    published = newest_step()
    assert left and all(key.startswith("killed/step-") for key in left), "no upload was cut off"
    with Gang(
        trainer_bin,
        settings | {"max_steps": published + 1},
        2,
        tmp_path / "again",
        resume_from=None,
        **environment,
    ) as again:
        again.finish()
    assert again.event("loaded") == {
        "step": published,
        "path": f"s3://acme/killed/step-{published:08d}",
        "skipped": [],
    }
    assert newest_step() == published + 1


def test_a_bucket_that_isnt_there_fails_the_checkpoint_and_is_named(
    trainer_bin, tokens, store, tmp_path
):
    settings = resume.config(tokens, max_steps=3, save_steps=2, checkpoints="s3://nowhere/run")
    with Gang(trainer_bin, settings, 1, tmp_path / "run", **store[1]) as gang:
        assert gang.wait() == [1]
    assert (
        "checkpoint of step 2 failed: rank 0: s3://nowhere/run/step-00000002/rank-00000-of-00001.safetensors: "
        in gang.stderr()
    )
    assert "NoSuchBucket" in gang.stderr() or "bucket does not exist" in gang.stderr()
    assert len(gang.metric("loss")) == 3
