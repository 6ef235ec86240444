"""Products in 8 bits (matmul: fp8): against quantising and dequantising in Python, in layouts, and what is refused."""

import json

import fp8
import layouts
import parity
import pytest
import torch
from harness import TINY_MODEL, Gang, read_batches, relative
from test_schema import train
from test_stages import estimate
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

# Multiples of 16 in two slices, too.
SIZES = {"hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "attention_bias": True}
BAR = 1e-2


@pytest.fixture(scope="module")
def init(tmp_path_factory):
    torch.manual_seed(7)
    folder = tmp_path_factory.mktemp("fp8") / "init"
    LlamaForCausalLM(LlamaConfig(**(TINY_MODEL | SIZES))).save_pretrained(folder)
    return folder


def config(init, tokens, steps=1, **more) -> dict:
    said = parity.config(init, tokens, steps, "") | {"matmul": "fp8"} | more
    return {name: value for name, value in said.items() if name != "export"}


def run(trainer_bin, said: dict, ranks: int, folder, **more) -> Gang:
    with Gang(trainer_bin, said, ranks, folder, **more) as gang:
        gang.finish()
    return gang


@pytest.mark.parametrize(
    "ranks, more",
    [(1, {}), (2, {"parallel": {"tp": 2}}), (2, {"parallel": {"cp": 2}})],
    ids=["one", "tp", "cp"],
)
def test_loss_and_gradients_are_those_of_quantising_and_dequantising(
    trainer_bin, tokens, tmp_path, init, ranks, more
):
    # One micro-batch: activations have a scale in each.
    said = config(init, tokens, max_grad_norm=0, micro_batch_size=16, **more)
    gang = run(trainer_bin, said, ranks, tmp_path / "run", dump_tokens=tmp_path / "dump")
    (batch,) = read_batches(tmp_path / "dump", parity.BATCH, parity.LENGTH + 1)
    found = layouts.read_tensors(gang.checkpoint(1), "exp_avg")
    ids = torch.tensor(batch).view(parity.BATCH, parity.LENGTH + 1)
    losses, gradients = {}, {}
    for name in ("fp8", "exact"):
        model = AutoModelForCausalLM.from_pretrained(init, dtype=torch.float32)
        model = fp8.in_fp8(model) if name == "fp8" else model
        logits = model(input_ids=ids[:, :-1]).logits.flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, ids[:, 1:].flatten())
        loss.backward()
        losses[name] = loss.item()
        gradients[name] = {key: value.grad for key, value in model.named_parameters()}
    assert set(found) == set(gradients["fp8"])

    def farthest(which: str) -> float:
        wanted = gradients[which]
        least = 1e-4 * torch.stack([one.norm() for one in wanted.values()]).norm()
        return max(
            ((found[name] / 0.1 - its).norm() / max(its.norm(), least)).item()
            for name, its in wanted.items()
        )

    assert relative(gang.metric("loss")[1], losses["fp8"]) < 1e-4
    assert farthest("fp8") <= BAR
    assert farthest("exact") > 2 * BAR, "it does round"


def test_it_learns_as_bf16_does(trainer_bin, tokens, tmp_path, init):
    losses = {}
    for name, more in {"bf16": {"matmul": "dtype"}, "fp8": {}}.items():
        said = config(init, tokens, 20, dtype="bf16", learning_rate=1e-3, **more)
        losses[name] = run(trainer_bin, said, 2, tmp_path / name).metric("loss")
    assert losses["bf16"][1] - losses["bf16"][20] > 0.5
    apart = [relative(losses["fp8"][step], losses["bf16"][step]) for step in losses["bf16"]]
    assert 0 < max(apart) <= BAR, max(apart)


@pytest.mark.parametrize("zero_stage", [1, 3])
def test_two_ranks_have_the_bits_of_one(trainer_bin, tokens, tmp_path, init, zero_stage):
    lines = []
    for ranks, micro in ((1, 8), (2, 8)):
        said = config(init, tokens, 5, dtype="bf16", micro_batch_size=micro)
        said |= {"deterministic": True, "zero_stage": zero_stage}
        gang = run(trainer_bin, said, ranks, tmp_path / str(ranks))
        lines.append([gang.metric("loss"), gang.metric("grad_norm")])
    assert lines[0][0][1] == lines[1][0][1] and lines[0][1] == lines[1][1]


def test_adapters_learn_beside_weights_in_8_bits(trainer_bin, tokens, tmp_path, init):
    losses = []
    for ranks, more in ((1, {}), (2, {"parallel": {"tp": 2}})):
        said = config(init, tokens, 5, lora={"rank": 4}, micro_batch_size=16)
        said |= {"learning_rate": 1e-2, "weight_decay": 0} | more
        losses.append(run(trainer_bin, said, ranks, tmp_path / str(ranks)).metric("loss"))
    assert losses[0][1] - losses[0][5] > 0.05
    assert max(relative(losses[1][step], losses[0][step]) for step in losses[0]) < 2e-3


def test_an_estimate_counts_the_copies_in_8_bits(trainer_bin, tokens, tmp_path, init):
    told = {}
    for kind in ("dtype", "fp8"):
        said = config(init, tokens, matmul=kind)
        done = estimate(trainer_bin, tmp_path, said, "--json", "true", "--device", "h100-80g")
        assert done.returncode == 0, done.stderr
        told[kind] = {one["class"]: one["bytes"] for one in json.loads(done.stdout)["memory"]}
    more = {name: told["fp8"][name] - its for name, its in told["dtype"].items()}
    # Of gate and up: tokens and their gradients as bytes, beside fp32 that gradients are made of.
    rows, d, width = 4 * parity.LENGTH, SIZES["hidden_size"], 2 * SIZES["intermediate_size"]
    assert more.pop("work of the widest block") == rows * (d + width) + 4 * rows * width
    assert not any(more.values())
    old = estimate(trainer_bin, tmp_path, said, "--device", "a100-80g")
    assert old.returncode == 2 and "compute capability 8.9 or later" in old.stderr, old.stderr


@pytest.mark.parametrize(
    "more, said",
    [
        ({"matmul": "fp16"}, "trainer.matmul: must be one of dtype fp8"),
        (
            {"lora": {"rank": 4}, "quantize": {"type": "nf4"}},
            "trainer.matmul: fp8 doesn't go with quantize",
        ),
        (
            {"parallel": {"tp": 2}, "num_key_value_heads": 2, "head_dim": 8},
            "model.layers.0.self_attn.k_proj (and that of other layers) has 64 inputs and 8 "
            "outputs on a rank, with parallel.tp: 2; leave matmul out, or use another parallel.tp",
        ),
        (
            {"intermediate_size": 168},
            "model.layers.0.mlp.gate_proj (and that of other layers) has 64 inputs and 168 "
            "outputs; leave matmul out",
        ),
        (
            {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
            "trainer.matmul: fp8 is not supported yet for models with experts",
        ),
    ],
    ids=["kind", "nf4", "slices", "width", "experts"],
)
def test_what_does_not_go_with_it_is_refused_by_name(
    trainer_bin, tokens, tmp_path, init, more, said
):
    keys = ("lora", "quantize", "parallel", "matmul")
    given = {name: value for name, value in more.items() if name in keys}
    model = {name: value for name, value in more.items() if name not in keys}
    wanted = config(init, tokens, **given)
    if model:
        wanted.pop("init")
        model = TINY_MODEL | SIZES | model
        if model["model_type"] == "mixtral":
            model = {key: value for key, value in model.items() if key != "attention_bias"}
            model |= {"architectures": ["MixtralForCausalLM"]}
        wanted["model"] = model
    done = train(trainer_bin, tmp_path, wanted)
    assert done.returncode == 2 and said in done.stderr, done.stderr
