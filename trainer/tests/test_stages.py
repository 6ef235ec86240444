"""ZeRO's stages, hybrid sharding, recompute, offload; the guard; what progress lines tell of memory and waiting."""

import json
import math
import subprocess

import pytest
import resume
import stages
from harness import Gang
from test_schema import train


def test_zero_3_on_two_ranks_is_one_process_bit_for_bit(trainer_bin, tokens, tmp_path):
    found = stages.zero3_bitwise(trainer_bin, tokens, tmp_path, steps=8)
    assert found["differ"] == 0
    assert found["clipped_loss"] <= 1e-6 and found["clipped_steps"] > 0


def test_sharded_layouts_train_as_one_rank_does(trainer_bin, tokens, tmp_path):
    found = stages.compare_layouts(trainer_bin, tokens, tmp_path, 8, ["2", "hybrid"])
    assert all(value <= 1e-6 for one in found.values() for value in one.values()), found


def test_what_saves_memory_changes_no_bit(trainer_bin, tokens, tmp_path):
    assert stages.compare_toggles(
        trainer_bin, tokens, tmp_path, 4, ["poison, recompute full", "offload parameters"], "fp32"
    ) == {"poison, recompute full": 0, "offload parameters": 0}


def test_a_run_goes_on_in_another_stage(trainer_bin, tokens, tmp_path):
    """ZeRO-1 on 2 ranks, resumed as ZeRO-3 and as two groups of one."""
    with Gang(
        trainer_bin,
        resume.config(tokens, max_steps=12, save_steps=6, zero_stage=1),
        2,
        tmp_path / "first",
    ) as first:
        first.finish()
    wanted = first.metric("loss")
    for name, more in (
        ("three", {"zero_stage": 3, "poison": True}),
        ("groups", {"zero_stage": 2, "shard_size": 1}),
    ):
        with Gang(
            trainer_bin,
            resume.config(tokens, max_steps=12, save_steps=6, **more),
            2,
            tmp_path / name,
            resume_from=[first.checkpoint(6)],
        ) as gang:
            gang.finish()
        found = gang.metric("loss")
        assert sorted(found) == list(range(7, 13)) and all(
            found[step] == pytest.approx(wanted[step], rel=1e-6) for step in found
        )


def test_groups_that_dont_make_up_the_world_are_refused(trainer_bin, tokens, tmp_path):
    with Gang(trainer_bin, resume.config(tokens, shard_size=2), 3, tmp_path / "run") as gang:
        assert gang.wait() == [2, 2, 2]
    assert "trainer.shard_size: 2 doesn't divide the 3 ranks; use one of 1, 3" in gang.stderr()


def test_bad_steps_are_skipped_and_end_the_run_when_they_go_on(trainer_bin, tokens, tmp_path):
    # Nothing is learnt at this rate: some losses lie above the mean of those before.
    settings = resume.config(
        tokens, save_steps=0, max_steps=24, learning_rate=1e-30, spike_factor=1.000001
    )
    with Gang(trainer_bin, settings | {"skip_limit": 24}, 2, tmp_path / "skips") as gang:
        gang.finish()
    skipped = [event for event in gang.events if "skipped" in event]
    assert (
        skipped
        and all("the loss jumped" in event["skipped"] for event in skipped)
        and len(gang.metric("loss")) == 24
    )
    assert min(event["step"] for event in skipped) > 8
    with Gang(trainer_bin, settings, 2, tmp_path / "ends") as gang:
        codes = gang.wait()
    assert 0 not in codes and "the loss jumped" in gang.stderr() and "skip_limit" in gang.stderr()


def test_a_loss_that_is_not_finite_ends_the_run(trainer_bin, tokens, tmp_path):
    settings = resume.config(
        tokens,
        save_steps=0,
        max_steps=60,
        learning_rate=1000,
        max_grad_norm=0,
        adam_beta2=0,
        weight_decay=1000,
    )
    done = train(trainer_bin, tmp_path, settings)
    assert done.returncode == 1 and "not finite" in done.stderr, done.stderr


def test_progress_lines_tell_of_memory_waiting_and_z_loss(trainer_bin, tokens, tmp_path):
    with Gang(
        trainer_bin,
        resume.config(tokens, save_steps=0, max_steps=4, z_loss=1e-4),
        2,
        tmp_path / "run",
    ) as gang:
        gang.finish()
    line = [event for event in gang.events if event.get("step") == 3][0]
    assert 1 << 26 < line["memory_bytes"] <= line["memory_peak_bytes"] < 1 << 34
    assert (
        0 < line["exposed_communication_s"] < line["step_time_s"]
        and 0 < line["data_wait_s"] < line["step_time_s"]
    )
    # An untrained model's logits are small: the log of the sum of 259 exponentials is near log 259.
    assert line["z_loss"] == pytest.approx(1e-4 * math.log(259) ** 2, rel=0.05)


def estimate(trainer_bin, folder, settings, *more):
    (folder / "trainer.json").write_text(json.dumps(settings))
    return subprocess.run(
        [trainer_bin, "estimate", "--config", folder / "trainer.json", *more],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=60,
    )


def test_estimate_tells_what_a_layout_needs_before_anything_runs(trainer_bin, tmp_path):
    settings = resume.config(tmp_path / "not there yet", save_steps=0)
    told = {}
    for stage in range(4):
        done = estimate(
            trainer_bin,
            tmp_path,
            settings | {"zero_stage": stage},
            "--ranks",
            "4",
            "--json",
            "true",
        )
        assert done.returncode == 0, done.stderr
        told[stage] = json.loads(done.stdout)
        told[stage]["memory"] = {one["class"]: one["bytes"] for one in told[stage]["memory"]}
    parameters = told[0]["parameters"]
    assert parameters == 2 * 259 * 64 + 64 + 2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 160 + 2 * 64)
    assert told[0]["memory"]["moments"] == pytest.approx(8 * parameters, rel=0.01)
    assert told[1]["memory"]["moments"] == pytest.approx(2 * parameters, rel=0.01)
    assert told[0]["memory"]["gradients"] == pytest.approx(4 * parameters, rel=0.01)
    assert told[2]["memory"]["gradients"] == pytest.approx(parameters, rel=0.01)
    assert told[3]["memory"]["weights, this rank's share"] == pytest.approx(parameters, rel=0.01)
    # 4 ranks send 3/4 of a tensor so that all have it: gathered once a step, or for 2 forwards and 2 backwards but for what is kept in between.
    assert told[0]["gather_bytes_per_step"] == 0 and told[1][
        "gather_bytes_per_step"
    ] == pytest.approx(3 * parameters, rel=0.01)
    assert (
        2 * told[1]["gather_bytes_per_step"]
        <= told[3]["gather_bytes_per_step"]
        <= 4 * told[1]["gather_bytes_per_step"]
    )
    assert (
        told[2]["reduce_bytes_per_step"]
        == 2 * told[1]["reduce_bytes_per_step"]
        == pytest.approx(12 * parameters, rel=0.01)
    )


def test_estimate_of_a_gpu_predicts_a_step_and_bad_layouts_are_refused(trainer_bin, tmp_path):
    settings = resume.config(tmp_path, save_steps=0)
    done = estimate(trainer_bin, tmp_path, settings, "--ranks", "8", "--device", "H100")
    assert done.returncode == 0 and "step time: about" in done.stdout and "together" in done.stdout
    done = estimate(trainer_bin, tmp_path, settings | {"shard_size": 3}, "--ranks", "8")
    assert (
        done.returncode == 2 and "trainer.shard_size: 3 doesn't divide the 8 ranks" in done.stderr
    )
    done = estimate(trainer_bin, tmp_path, settings, "--ranks", "many")
    assert done.returncode == 2 and "--ranks" in done.stderr


BIG = {
    "vocab_size": 152064,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
}  # 7.6 billion parameters


def test_estimate_names_what_makes_a_rank_fit_its_gpu(trainer_bin, tmp_path):
    """As `muster submit` asks it: a GPU by its flavour, with its memory."""
    settings = resume.config(tmp_path, save_steps=0, dtype="bf16", max_length=1024) | {
        "model": resume.TINY_MODEL | BIG
    }

    def ask(ranks, gib):
        words = ["--ranks", str(ranks), "--device", "h100-80g", "--device-memory", str(gib << 30)]
        return json.loads(
            estimate(trainer_bin, tmp_path, settings, *words, "--json", "true").stdout
        )

    told = ask(8, 80)
    assert told["memory_bytes"] <= 80 << 30 and "fits_with" not in told and told["step_time_s"] > 0
    alone = ask(1, 80)  # 18 bytes a parameter: more than any recompute saves
    assert (
        alone["memory_bytes"] > 120 << 30
        and "offload: optimizer" in alone["fits_with"]
        and alone["fits_with_bytes"] <= 80 << 30
    )
    tight = ask(8, 40)
    assert "zero_stage: 3" in tight["fits_with"] and tight["fits_with_bytes"] <= 40 << 30
    assert "fits_with" not in ask(1, 4)
    done = estimate(
        trainer_bin, tmp_path, settings, "--device", "h100-80g", "--device-memory", str(80 << 30)
    )
    assert (
        done.returncode == 3
        and "does not fit: h100-80g has 80.00 GiB; with " in done.stdout
        and " GiB\n" in done.stdout.split("together")[1]
    )
    for memory in ("80GiB", "80g", "85.9GB", "80 GiB"):
        assert (
            estimate(
                trainer_bin, tmp_path, settings, "--device", "H100", "--device-memory", memory
            ).returncode
            == 3
        )
    done = estimate(trainer_bin, tmp_path, settings, "--device", "h100-80g")  # by its name
    assert done.returncode == 3 and "does not fit: h100-80g has 80.00 GiB" in done.stdout
    done = estimate(trainer_bin, tmp_path, settings, "--ranks", "8", "--device", "h100-80g")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1].startswith("fits: h100-80g has 80.00 GiB"), done.stdout
    done = estimate(trainer_bin, tmp_path, settings, "--device", "z9000")
    assert (
        done.returncode == 0
        and "unknown, as the peak of z9000 is; known are H100 PCIE, H100 NVL, H100, " in done.stdout
    )
    done = estimate(trainer_bin, tmp_path, settings, "--device", "H1000")
    assert "unknown, as the peak of H1000 is; known are H100 PCIE, " in done.stdout, done.stdout
    assert (
        estimate(trainer_bin, tmp_path, settings, "--device", "NVIDIA A100-SXM4-80GB").returncode
        == 3
    )
    done = estimate(trainer_bin, tmp_path, settings, "--device", "H100")
    assert (
        done.returncode == 0
        and "whether it fits isn't known, as the memory of H100 isn't: --device-memory SIZE"
        in done.stdout
    )
    for memory in ("many", "80GiBs", "-1", "0", "80"):
        done = estimate(
            trainer_bin, tmp_path, settings, "--device", "H100", "--device-memory", memory
        )
        assert (
            done.returncode == 2 and "--device-memory: must be a size such as 80GiB" in done.stderr
        )
    for words, wanted in (
        (["--json", "yes"], "--json: must be true or false; got yes"),
        (["--ranks", "--json"], "--ranks needs a value"),
    ):
        done = estimate(trainer_bin, tmp_path, settings, *words)
        assert done.returncode == 2 and wanted in done.stderr, done.stderr
    done = estimate(trainer_bin, tmp_path, settings, "--json", "--ranks", "2")
    assert json.loads(done.stdout)["ranks"] == 2, done.stderr
    bad = settings | {"shard_size": 3, "lora": {"rank": 0, "target_modules": ["nope"]}}
    done = estimate(trainer_bin, tmp_path, bad, "--ranks", "8")
    assert done.returncode == 2 and all(
        what in done.stderr
        for what in ("lora.rank", "nope means no linear", "shard_size: 3 doesn't divide")
    )


def test_estimate_says_where_a_fit_leaves_less_than_a_search_does(trainer_bin, tmp_path):
    settings = resume.config(tmp_path, save_steps=0, dtype="bf16", max_length=1024) | {
        "model": resume.TINY_MODEL | BIG
    }

    def ask(memory, *more):
        words = ["--ranks", "8", "--device", "h100", "--device-memory", str(memory)]
        return estimate(trainer_bin, tmp_path, settings, *words, *more)

    needs = json.loads(ask(80 << 30, "--json").stdout)["memory_bytes"]
    tight, wide = ask(needs * 102 // 100), ask(needs * 106 // 100)
    assert tight.returncode == wide.returncode == 0
    last = tight.stdout.splitlines()[-1]
    assert last.startswith("fits: h100 has ") and "to spare than the 5 % that --search" in last
    assert "; with recompute: " in last or "; with zero_stage: " in last, last
    assert "to spare" not in wide.stdout, wide.stdout
    assert "fits_with" not in json.loads(ask(needs * 102 // 100, "--json").stdout)
    search = ask(needs * 102 // 100, "--search", "1").stdout
    assert "which fits with less than 5 % to spare\n" in search, search


def test_estimate_says_that_it_counts_cpus_and_what_it_takes(trainer_bin, tmp_path):
    settings = resume.config(tmp_path, save_steps=0)
    done = estimate(trainer_bin, tmp_path, settings)
    assert "counted for ranks on CPUs; for GPUs add --device" in done.stdout, done.stdout
    assert "CPUs" not in estimate(trainer_bin, tmp_path, settings, "--device", "H100").stdout
    (tmp_path / "job.yaml").write_text("name: job\ntrainer: {}\n")
    words = [trainer_bin, "estimate", "--config", tmp_path / "job.yaml"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2
    assert "not JSON" in done.stderr and "below trainer:, as JSON" in done.stderr, done.stderr
