"""DeepSeek's routing (dots1): biases that even out how often experts are chosen, experts that every token meets, and what is refused.
The numbers of transformers in all layouts, and resuming in others, are in test_experts.py."""

import shutil

import experts
import families
import layouts
import parity
import pytest
import resume
import roundtrip
import torch
from experts import DOTS
from harness import Gang
from safetensors.torch import load_file
from test_bad_models import retensor, rewrite
from test_experts import MOE
from test_schema import train
from test_stages import estimate


@pytest.mark.parametrize(
    "layout,dtype", [("one rank", "fp32"), ("tp 2 x ep 4", "fp32"), ("ep 4, stage 3", "bf16")]
)
def test_biases_of_routers_become_what_plain_python_makes_them(
    layout, dtype, trainer_bin, tokens, tmp_path
):
    """Beside transformers, from which experts its routers chose; with recompute, and micro-batches that are added up. In bf16
    transformers chooses otherwise now and then, so there only the steps' size and the type are held against it."""
    init = experts.make_init(tmp_path / "init", "dots1")
    wanted = experts.Biases(0.003)
    ranks, more = layouts.LAYOUTS[layout]
    found = parity.compare(
        trainer_bin,
        tokens,
        tmp_path,
        6,
        ranks,
        init=init,
        dtype=dtype,
        watch=wanted.watch,
        **more | {"router_bias_speed": 0.003, "recompute": "full"},
    )
    for key, bar in layouts.BARS[dtype].items():
        assert found[key] <= bar, key
    assert wanted.moves > 50
    exported = load_file(tmp_path / "model/model.safetensors")
    before = load_file(init / "model.safetensors")
    for name, bias in wanted.found.items():
        assert exported[name].dtype == torch.float32
        moved = (exported[name] - before[name]) / 0.003
        assert moved.round().any() and moved.sub(moved.round()).abs().max() < 1e-4, name
        if dtype == "fp32":
            assert exported[name].tolist() == [float(one) for one in bias], name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_routers_biases_come_back_from_a_checkpoint_in_fp32(dtype, trainer_bin, tmp_path):
    found = roundtrip.roundtrip(trainer_bin, tmp_path, "dots1", dtype)
    assert found["tensors"] > 30 and found["tensors_differ"] == 0
    assert found["logits"] <= 1e-5
    again = load_file(tmp_path / "again/model.safetensors")
    assert again["model.layers.1.mlp.gate.e_score_correction_bias"].dtype == torch.float32
    assert again["model.layers.1.mlp.gate.weight"].dtype == dtype


def test_a_resumed_run_has_the_bits_of_one_that_was_not_stopped(trainer_bin, tokens, tmp_path):
    settings = resume.config(tokens, max_steps=8, save_steps=4, model=DOTS)
    settings |= {"router_bias_speed": 0.01, "zero_stage": 3, "parallel": {"ep": 2}}
    with Gang(trainer_bin, settings, 2, tmp_path / "whole") as whole:
        whole.finish()
    with Gang(
        trainer_bin, settings, 2, tmp_path / "resumed", resume_from=[whole.checkpoint(4)]
    ) as resumed:
        resumed.finish()
    assert resumed.metric("loss") == {
        step: loss for step, loss in whole.metric("loss").items() if step > 4
    }
    for kind in ("master", "exp_avg"):
        found, wanted = (
            layouts.read_tensors(gang.checkpoint(8), kind) for gang in (resumed, whole)
        )
        assert all(found[name].equal(wanted[name]) for name in wanted)


def test_adapters_stand_beside_experts_that_every_token_meets(trainer_bin, tokens, tmp_path):
    init = experts.make_init(tmp_path / "init", "dots1")
    settings = parity.config(init, tokens, 2, tmp_path / "model")
    settings |= {"lora": {"rank": 4, "target_modules": ["gate_proj", "down_proj"]}}
    norms = []
    for name, ranks, more in (
        ("alone", 1, {}),
        ("shared out", 4, {"parallel": {"tp": 2, "ep": 4}, "zero_stage": 3}),
        ("bf16", 1, {"dtype": "bf16"}),
    ):
        with Gang(trainer_bin, settings | more, ranks, tmp_path / name) as gang:
            gang.finish()
        norms.append([line["grad_norm"] for line in gang.lines])
    assert norms[1] == pytest.approx(norms[0], rel=5e-6)
    adapters = load_file(tmp_path / "model/adapter/adapter_model.safetensors")
    assert {name.split(".lora")[0].split("layers.")[1] for name in adapters} == {
        f"{layer}.mlp.{block}{linear}_proj"
        for layer, block in ((0, ""), *((one, "shared_experts.") for one in (1, 2, 3)))
        for linear in ("gate", "down")
    }
    before, after = (
        load_file(folder / "model.safetensors") for folder in (init, tmp_path / "model")
    )
    parity.export_checkpoint(trainer_bin, gang.checkpoint(2), tokens, tmp_path / "exported")
    exported = load_file(tmp_path / "exported/model.safetensors")
    for name, value in after.items():
        if name.endswith(families.ROUTER_BIAS):
            assert value.equal(before[name]) and exported[name].equal(before[name]), name
    refused = train(trainer_bin, tmp_path, settings | {"router_bias_speed": 0.001})
    assert refused.returncode == 2
    assert "router_bias_speed: with lora the model stays as it is" in refused.stderr


@pytest.mark.parametrize(
    "changes,wanted",
    [
        (
            {"router_bias_speed": 0.001, "model": MOE},
            "router_bias_speed: is for models whose routers have biases (dots1), and this one is of model_type qwen3_moe",
        ),
        (
            {"router_aux_loss": "sequence"},
            "router_aux_loss: sequence is not supported for model_type dots1, whose experts are scored one by one; leave it out, and balance them by router_bias_speed",
        ),
        ({"bias_update_speed": 0.1}, "bias_update_speed: use router_bias_speed"),
        (
            {"model": DOTS | {"n_group": 3}},
            "n_group: 3 doesn't divide the 8 experts (n_routed_experts) into equal groups",
        ),
        (
            {"model": DOTS | {"n_group": 8}},
            "n_group: 8 groups of the 8 experts have one each, and a group is judged by its best two; give at most 4",
        ),
        ({"model": DOTS | {"topk_group": 5}}, "topk_group: 5 is above n_group, 4"),
        (
            {"model": DOTS | {"topk_group": 1}},
            "topk_group: 1 of the groups have 2 experts, and a token meets 3",
        ),
        ({"model": DOTS | {"n_shared_experts": None}}, "n_shared_experts: is missing"),
        (
            {"model": DOTS | {"first_k_dense_replace": 2}},
            "first_k_dense_replace: must be a whole number from 0 to 1",
        ),
        (
            {"model": DOTS | {"scoring_func": "softmax"}},
            'scoring_func: "softmax" can\'t be trained; "sigmoid" can',
        ),
        (
            {"model": DOTS | {"topk_method": "greedy"}},
            'topk_method: "greedy" can\'t be trained; "noaux_tc" can',
        ),
        ({"model": MOE | {"n_group": 2}}, "n_group: has no meaning for model_type qwen3_moe"),
    ],
)
def test_what_cant_be_is_refused_with_what_can(changes, wanted, trainer_bin, tmp_path):
    settings = resume.config(tmp_path, max_steps=1, save_steps=0, model=DOTS) | changes
    done = estimate(trainer_bin, tmp_path, settings, "--ranks", "1")
    assert done.returncode == 2, done.stderr
    assert wanted in done.stderr, done.stderr


BAD = {
    "a router without its bias": (
        lambda f: retensor(
            f, lambda t: {k: v for k, v in t.items() if not k.endswith(families.ROUTER_BIAS)}
        ),
        ["has no model.layers.1.mlp.gate.e_score_correction_bias, which config.json's model has"],
    ),
    "a bias of fewer experts": (
        lambda f: retensor(
            f,
            lambda t: {
                k: v[:6].clone() if k.endswith(families.ROUTER_BIAS) else v for k, v in t.items()
            },
        ),
        ["e_score_correction_bias is [6] where config.json means [8]"],
    ),
    "an expert of dots1 without weights": (
        lambda f: retensor(
            f, lambda t: {k: v for k, v in t.items() if ".1.mlp.experts.5." not in k}
        ),
        ["has weights of 7 experts in model.layers.1.mlp.experts", "lacking: 5"],
    ),
    "groups that don't divide": (
        lambda f: rewrite(f, n_group=3),
        ["config.json.n_group: 3 doesn't divide the 8 experts"],
    ),
    "another way of scoring": (
        lambda f: rewrite(f, scoring_func="softmax"),
        ['config.json.scoring_func: "softmax" can\'t be trained; "sigmoid" can'],
    ),
    "a field of a router that nobody knows": (
        lambda f: rewrite(f, router_temperature=2.0),
        ["router_temperature: is no field of a dots1's router or experts that can be trained"],
    ),
    "fewer shared experts than weights": (
        lambda f: rewrite(f, n_shared_experts=1),
        ["shared_experts.gate_proj.weight is [80, 64] where config.json means [40, 64]"],
    ),
}


@pytest.fixture(scope="module")
def dots(tmp_path_factory):
    return families.make(tmp_path_factory.mktemp("models") / "dots", "dots1")


@pytest.mark.parametrize("case", BAD)
def test_a_bad_directory_of_dots1_is_refused_so_too(case, trainer_bin, tokens, dots, tmp_path):
    damage, wanted = BAD[case]
    init = tmp_path / "init"
    shutil.copytree(dots, init)
    damage(init)
    done = train(trainer_bin, tmp_path, parity.config(init, tokens, 1, tmp_path / "model"))
    assert done.returncode == 2, done.stderr
    assert not [words for words in wanted if words not in done.stderr], done.stderr
