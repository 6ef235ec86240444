"""Ranks that share out one model (tensor parallelism): the numbers of transformers, checkpoints for any layout, what is refused."""

import json

import layouts
import parity
import pytest
import resume
from harness import Gang
from test_stages import estimate

SLICED = {"parallel": {"tp": 2}}


@pytest.mark.parametrize(
    "family,layout",
    [
        ("llama2", "tp 4"),
        ("llama3", "tp 2"),
        ("llama-biases", "dp 2 x tp 2, stage 3"),
        ("mistral", "tp 2"),
        ("qwen2", "dp 2 x tp 2, two copies"),
        ("qwen3-biases", "dp 2 x tp 2"),
    ],
)
def test_gradients_of_each_parameter_are_autograds(family, layout, trainer_bin, tokens, tmp_path):
    init = layouts.make_init(tmp_path / "init", family)
    distance, name = layouts.compare_gradients(trainer_bin, tokens, tmp_path, init, layout)
    assert distance <= layouts.GRADIENT_BAR, name


@pytest.mark.parametrize(
    "family,layout,dtype",
    [
        ("llama3", "dp 2 x tp 2", "fp32"),
        ("qwen2", "tp 4", "fp32"),
        ("qwen3", "dp 2 x tp 2, stage 3", "bf16"),
    ],
)
def test_slices_train_as_transformers_does(family, layout, dtype, trainer_bin, tokens, tmp_path):
    init = layouts.make_init(tmp_path / "init", family)
    found = layouts.compare_steps(trainer_bin, tokens, tmp_path, init, layout, dtype, steps=8)
    assert found["logits_moved_by_training"] > 0.01
    for key, bar in layouts.BARS[dtype].items():
        assert found[key] <= bar, key
    assert found["logits"] <= (1e-5 if dtype == "fp32" else 0.05)


def test_a_run_goes_on_in_any_other_layout(trainer_bin, tokens, tmp_path):
    """Packed documents, moments in bf16 that are rounded by their place, a validation loss: dp 2 x tp 2, then tp 4, then dp 3."""
    more = {"packing": "bfd", "zero_stage": 2, "eval_interval": 6, "eval_data": str(tokens)}
    more |= {"eval_sequences": 8, "model": resume.TINY_MODEL | {"num_key_value_heads": 4}}
    settings = resume.config(tokens, max_steps=18, save_steps=6, **more)
    with Gang(trainer_bin, settings, 1, tmp_path / "whole") as whole:
        whole.finish()
    came_from, begin = [], 0
    for name, ranks, parallel, steps in (
        ("first", 4, {"tp": 2}, 6),
        ("second", 4, {"tp": 4}, 12),
        ("third", 3, {}, 18),
    ):
        changed = settings | {"max_steps": steps, "parallel": parallel}
        with Gang(trainer_bin, changed, ranks, tmp_path / name, resume_from=came_from) as gang:
            gang.finish()
        for key in ("loss", "grad_norm", "eval_loss"):
            found = {line["step"]: line[key] for line in gang.lines if key in line}
            wanted = {line["step"]: line[key] for line in whole.lines if key in line}
            assert found == pytest.approx(
                {step: wanted[step] for step in wanted if begin < step <= steps}, rel=5e-6
            ), (name, key)
        index = json.loads((gang.checkpoint(steps) / "index.json").read_text())
        assert index["format"] == ("muster-checkpoint-2" if parallel else "muster-checkpoint-1")
        came_from, begin = [gang.checkpoint(steps)], steps


def test_an_export_of_slices_is_that_of_its_checkpoint(trainer_bin, tokens, tmp_path):
    settings = resume.config(tokens, max_steps=2, save_steps=0, export=str(tmp_path / "model"))
    for stage in (1, 3):
        with Gang(
            trainer_bin, settings | SLICED | {"zero_stage": stage}, 4, tmp_path / f"run{stage}"
        ) as gang:
            gang.finish()
        parity.export_checkpoint(
            trainer_bin, gang.checkpoint(2), tokens, tmp_path / f"exported{stage}"
        )
        weights = [
            (folder / "model.safetensors").read_bytes()
            for folder in (tmp_path / "model", tmp_path / f"exported{stage}")
        ]
        assert weights[0] == weights[1]


@pytest.mark.parametrize(
    "changes,ranks,wanted",
    [
        (
            {"parallel": {"tp": 3}},
            3,
            "parallel.tp: 3 must divide the model's 2 key-value heads and the 3 ranks; use 1 (3 such groups)",
        ),
        (
            {"parallel": {"tp": 4}},
            8,
            "4 must divide the model's 2 key-value heads and the 8 ranks; use 2 (4 such groups)",
        ),
        (
            SLICED,
            3,
            "the 3 ranks; use 1 (3 such groups), or take 2 or 4 ranks",
        ),
        (SLICED | {"shard_size": 3}, 6, "3 is no multiple of parallel.tp, 2"),
        (SLICED | {"cuda_graphs": True}, 2, "trainer.cuda_graphs: a layer that ranks share out"),
        ({"parallel": {"tp": 0}}, 2, "parallel.tp: must be a whole number from 1 to 1024; got 0"),
        ({"parallel": 2}, 2, "trainer.parallel: must be a map; got 2"),
        (
            {"parallel": {"tensor_parallel_size": 2}},
            2,
            "trainer.parallel.tensor_parallel_size: use tp",
        ),
        ({"parallel": {"pp": 2}}, 2, "pipelines are not supported yet"),
    ],
)
def test_layouts_that_cant_be_are_refused_with_those_that_can(
    changes, ranks, wanted, trainer_bin, tmp_path
):
    settings = resume.config(tmp_path, save_steps=0) | changes
    done = estimate(trainer_bin, tmp_path, settings, "--ranks", str(ranks))
    assert done.returncode == 2 and wanted in done.stderr, done.stderr


def test_estimate_knows_slices(trainer_bin, tmp_path):
    told = {}
    for name, parallel in (("dp 4", {}), ("dp 2 x tp 2", {"tp": 2})):
        settings = resume.config(
            tmp_path, save_steps=0, zero_stage=0, micro_batch_size=4, parallel=parallel
        )
        done = estimate(trainer_bin, tmp_path, settings, "--ranks", "4", "--json", "true")
        assert done.returncode == 0, done.stderr
        told[name] = json.loads(done.stdout)
        told[name]["memory"] = {one["class"]: one["bytes"] for one in told[name]["memory"]}
    whole, sliced = told["dp 4"], told["dp 2 x tp 2"]
    assert whole["parameters"] == sliced["parameters"]
    assert whole["micro_batches"] == 1 and sliced["micro_batches"] == 2
    for name in ("weights", "gradients", "moments", "activations kept"):
        assert sliced["memory"][name] == pytest.approx(whole["memory"][name] / 2, rel=0.02), name
    # A step's 512 tokens of 64 numbers of 4 bytes, of which each rank sends half: 10 times in each of 2 layers, and at the ends.
    assert sliced["slice_bytes_per_step"] == 512 * 64 * 4 // 2 * (2 * 10 + 4)
    assert whole["slice_bytes_per_step"] == 0
