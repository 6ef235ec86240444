"""Frozen weights in 4 bits and moments in 8, against an implementation of the published methods that is written here.

NF4 (QLoRA, arXiv 2305.14314, section 3): a block of 64 is divided by its largest absolute value, and each quotient becomes the nearest of 16
quantiles of a normal distribution. Double quantisation: the scales, less their mean, become in blocks of 256 entries of a dynamic map
(8-bit optimizers, arXiv 2110.02861, section 2), whose entries are found as bitsandbytes does it, from 65,536 places between -1 and 1. AdamW's
moments in 8 bits are coded so, too.
"""

import json
import shutil
import subprocess

import families
import layouts
import parity
import pytest
import torch
from harness import Gang, clean_environment
from safetensors.torch import load_file
from test_bad_models import retensor, rewrite
from test_schema import train
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

NF4 = torch.tensor(
    [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635]
    + [-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725]
    + [0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941]
    + [0.7229568362236023, 1.0]
)  # fmt: skip
LINEAR = "model.layers.0.mlp.gate_proj.weight"
# Several units of 16,384 elements; a short last block; a matrix whose blocks of scales are short.
SIZES = {"hidden_size": 136, "intermediate_size": 243, "num_attention_heads": 4}


def dynamic_map(signed: bool) -> torch.Tensor:
    values = [0.0, 1.0]
    for exponent in range(7):
        bounds = torch.linspace(0.1, 1, 2 ** (exponent + (not signed)) + 1)
        means = (bounds[:-1] + bounds[1:]) / 2 * 10.0 ** (exponent - 6)
        values += [*means.tolist(), *((-means).tolist() if signed else ())]
    return torch.tensor(sorted(values))


def blocks_of(values: torch.Tensor, size: int) -> torch.Tensor:
    flat = values.flatten()
    return torch.nn.functional.pad(flat, (0, -len(flat) % size)).view(-1, size)


def nearest(values: torch.Tensor, entries: torch.Tensor) -> torch.Tensor:
    return (values.unsqueeze(-1) - entries).abs().argmin(-1)


def quantise(weight: torch.Tensor, double: bool) -> dict:
    blocks = blocks_of(weight.float(), 64)
    absmax = blocks.abs().amax(1)
    codes = nearest(blocks / absmax.unsqueeze(1), NF4).flatten()[: weight.numel()]
    codes = torch.nn.functional.pad(codes, (0, len(codes) % 2), value=7)
    packed = (codes[::2] * 16 + codes[1::2]).to(torch.uint8)
    if not double:
        return {"packed": packed, "absmax": absmax}
    mean = absmax.mean()
    outer = blocks_of(absmax - mean, 256)
    largest = outer.abs().amax(1)
    place = ((outer / largest.unsqueeze(1) + 1) / 2 * 65535).round()
    bytes_ = nearest(place / 65535 * 2 - 1, dynamic_map(True)).to(torch.uint8)
    return {
        "packed": packed,
        "absmax": bytes_.flatten()[: len(absmax)],
        "nested": largest,
        "mean": mean,
    }


def dequantise(found: dict, shape) -> torch.Tensor:
    absmax = found["absmax"]
    if "nested" in found:
        entries = blocks_of(dynamic_map(True)[absmax.long()], 256) * found["nested"].unsqueeze(1)
        absmax = entries.flatten()[: len(absmax)] + found["mean"]
    codes = torch.stack([found["packed"] >> 4, found["packed"] & 15], 1).flatten().long()
    numel = torch.Size(shape).numel()
    return (blocks_of(NF4[codes[:numel]], 64) * absmax.unsqueeze(1)).flatten()[:numel].view(shape)


def linears(tensors: dict) -> list[str]:
    return [name for name in tensors if "_proj.weight" in name]


def as_bitsandbytes_saves(init, folder, double: bool):
    """A copy of a directory with its linears as bitsandbytes has them in files."""
    shutil.copytree(init, folder)

    def change(tensors: dict) -> dict:
        for name in linears(tensors):
            found, weight = quantise(tensors[name], double), tensors[name]
            state = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32"}
            state["shape"] = list(weight.shape)
            tensors[name] = found["packed"].unsqueeze(1)
            tensors[f"{name}.absmax"] = found["absmax"]
            tensors[f"{name}.quant_map"] = NF4.clone()
            if double:
                tensors[f"{name}.nested_absmax"] = found["nested"]
                tensors[f"{name}.nested_quant_map"] = dynamic_map(True)
                state |= {"nested_blocksize": 256, "nested_dtype": "float32"}
                state["nested_offset"] = found["mean"].item()
            text = list(json.dumps(state).encode())
            key = f"{name}.quant_state.bitsandbytes__nf4"
            tensors[key] = torch.tensor(text, dtype=torch.uint8)
        return tensors

    retensor(folder, change)
    how = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    rewrite(folder, quantization_config=how | {"bnb_4bit_use_double_quant": double})
    return folder


@pytest.fixture(scope="module")
def init(tmp_path_factory):
    torch.manual_seed(7)
    folder = tmp_path_factory.mktemp("low") / "init"
    LlamaForCausalLM(LlamaConfig(**(parity.TINY_MODEL | SIZES))).save_pretrained(folder)
    return folder


def config(init, tokens, export, double=True, **more) -> dict:
    return (
        parity.config(init, tokens, 1, export)
        | {"lora": {"rank": 4}, "quantize": {"type": "nf4", "double": double}}
        | {"weight_decay": 0, "learning_rate": 1e-3}
        | more
    )


# Too small a rate to move anything: an export has the frozen weights as they are computed with.
STILL = {"learning_rate": 1e-60}


@pytest.mark.parametrize(
    "double, ranks, more",
    [
        (True, 1, {}),
        (False, 1, {}),
        (True, 3, {"zero_stage": 3, "poison": True, "micro_batch_size": 2}),
        (False, 2, {"zero_stage": 3, "recompute": "full"}),
        (True, 2, {"parallel": {"pp": 2}}),
        (True, 2, {"parallel": {"cp": 2}}),
        (True, 4, {"zero_stage": 3, "shard_size": 2}),
    ],
)
def test_frozen_linears_are_what_nf4_makes_of_them(
    double, ranks, more, trainer_bin, tokens, init, tmp_path
):
    settings = config(init, tokens, tmp_path / "model", double, **(STILL | more))
    with Gang(trainer_bin, settings, ranks, tmp_path / "run") as gang:
        gang.finish()
    before, after = (
        load_file(init / "model.safetensors"),
        load_file(tmp_path / "model" / "model.safetensors"),
    )
    for name, weight in before.items():
        wanted = weight
        if name in linears(before):
            wanted = dequantise(quantise(weight, double), weight.shape)
            assert 0.01 < (wanted - weight).norm() / weight.norm() < 0.15, name
        assert torch.equal(after[name], wanted), name
    # The same of a checkpoint, which has adapters alone.
    checkpoint = gang.checkpoint(1)
    assert all("lora_" in name for name in layouts.read_tensors(checkpoint, "master"))
    command = [trainer_bin, "export", "--checkpoint", checkpoint, "--output", tmp_path / "again"]
    subprocess.run(command, check=True, env=clean_environment())
    again = load_file(tmp_path / "again" / "model.safetensors")
    assert all(torch.equal(again[name], after[name]) for name in after)


@pytest.mark.parametrize("double", [True, False])
def test_a_directory_that_is_quantised_already_is_read_exactly(
    double, trainer_bin, tokens, init, tmp_path
):
    saved = as_bitsandbytes_saves(init, tmp_path / "saved", double)
    losses, exports = [], []
    for number, directory in enumerate((init, saved)):
        export = tmp_path / f"model{number}"
        settings = config(directory, tokens, export, double, max_steps=4, dtype="fp32")
        with Gang(trainer_bin, settings | {"zero_stage": 3}, 2, tmp_path / f"run{number}") as gang:
            gang.finish()
        losses.append(gang.metric("loss"))
        exports.append(load_file(export / "model.safetensors"))
    assert losses[0] == losses[1] and losses[0][1] - losses[0][4] > 1e-3
    assert all(torch.equal(exports[0][name], exports[1][name]) for name in exports[0])
    assert "quantization_config" not in json.loads((export / "config.json").read_text())
    merged = AutoModelForCausalLM.from_pretrained(export, dtype=torch.float32)
    assert merged.model.layers[0].mlp.gate_proj.weight.shape == (243, 136)


def quantise_directory(trainer_bin, source, target, *more) -> subprocess.CompletedProcess:
    command = [trainer_bin, "convert", "--input", source, "--output", target, *more]
    return subprocess.run(command, capture_output=True, text=True, env=clean_environment())


@pytest.mark.parametrize("double", [True, False])
def test_a_directory_is_written_as_bitsandbytes_saves_it(
    double, trainer_bin, tokens, init, tmp_path
):
    written = tmp_path / "written"
    more = () if double else ("--double", "false")
    done = quantise_directory(trainer_bin, init, written, "--quantize", "nf4", *more)
    assert done.returncode == 0, done.stderr
    saved = as_bitsandbytes_saves(init, tmp_path / "saved", double)
    found, wanted = (load_file(folder / "model.safetensors") for folder in (written, saved))
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        if name.endswith(STATE):  # spaces may follow
            states = [json.loads(bytes(its[name].tolist())) for its in (found, wanted)]
            assert states[0] == states[1], name
            continue
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name
    how = [json.loads((its / "config.json").read_text()) for its in (written, saved)]
    assert how[1]["quantization_config"].items() <= how[0]["quantization_config"].items()
    losses = []
    for number, directory in enumerate((init, written)):
        settings = config(directory, tokens, tmp_path / f"model{number}", double, max_steps=2)
        with Gang(trainer_bin, settings, 1, tmp_path / f"run{number}") as gang:
            gang.finish()
        losses.append(gang.metric("loss"))
    assert losses[0] == losses[1]
    # In place of the earlier one.
    again = quantise_directory(trainer_bin, init, written, "--quantize", "nf4", *more)
    assert "in place of what was there" in again.stdout, again.stderr


def test_what_can_not_be_quantised_is_refused(trainer_bin, init, tmp_path):
    saved = as_bitsandbytes_saves(init, tmp_path / "saved", True)
    unnamed = shutil.copytree(saved, tmp_path / "unnamed")
    shutil.copy(init / "config.json", unnamed)
    checkpoint = tmp_path / "checkpoint"
    assert quantise_directory(trainer_bin, init, checkpoint).returncode == 0
    joined = families.make(tmp_path / "joined", "phi3")
    experts = families.make(tmp_path / "experts", "mixtral")
    beside = shutil.copytree(init, tmp_path / "beside.unfinished")
    out, nf4 = tmp_path / "out", ("--quantize", "nf4")
    for source, target, more, wanted in (
        (saved, out, nf4, "quantised already; give the unquantised model"),
        (unnamed, out, nf4, "where config.json means ["),
        (checkpoint, out, nf4, f"--quantize: is for a Hugging Face directory, and {checkpoint}"),
        (joined, out, nf4, "--quantize: is not supported yet for phi3"),
        (experts, out, nf4, "--quantize: is not supported for models with experts"),
        (init, init, nf4, f"--output: {init} holds the weights that are to be quantised"),
        (init, init / "within", nf4, "name a directory apart from it"),
        (beside, beside.with_suffix(""), nf4, f"--output: {beside} holds the weights"),
        (init, "s3://acme/out", nf4, "--output: s3://acme/out: a directory is wanted"),
        (init, out, ("--quantize", "fp4"), "--quantize: must be nf4; got fp4"),
        (init, out, ("--double", "true"), "--double: says how --quantize nf4 keeps its scales"),
        (init, out, (*nf4, "--double", "no"), "--double: must be true or false; got no"),
        (init, out, (*nf4, "--dtype", "int8"), "--dtype: must be fp32, bf16 or fp16; got int8"),
        (init, out, (*nf4, "--init", init), "--init: is for a LoRA run's checkpoint"),
    ):
        done = quantise_directory(trainer_bin, source, target, *more)
        assert done.returncode == 2 and wanted in done.stderr, (wanted, done.stderr)
        assert not out.exists() and not (init / "within").exists()
    assert (beside / "model.safetensors").exists()


def test_losses_are_those_of_the_model_that_is_dequantised(trainer_bin, tokens, init, tmp_path):
    """The same adapters beside weights that are rounded to NF4's values, but kept in fp32."""
    shutil.copytree(init, tmp_path / "rounded")

    def rounded(tensors: dict) -> dict:
        for name in linears(tensors):
            tensors[name] = dequantise(quantise(tensors[name], True), tensors[name].shape)
        return tensors

    retensor(tmp_path / "rounded", rounded)
    losses = []
    for name in ("init", "rounded"):
        settings = config(
            {"init": init}.get(name, tmp_path / name), tokens, tmp_path / f"m-{name}", max_steps=6
        )
        if name == "rounded":
            settings.pop("quantize")
        with Gang(trainer_bin, settings, 1, tmp_path / f"run-{name}") as gang:
            gang.finish()
        losses.append(gang.metric("loss"))
    assert losses[0] == losses[1], "bit for bit"
    assert losses[0][1] - losses[0][6] > 1e-3


def change_state(**changes):
    def change(tensors: dict) -> dict:
        key = f"{LINEAR}.quant_state.bitsandbytes__nf4"
        state = json.loads(bytes(tensors[key].tolist())) | changes
        text = list(json.dumps(state).encode())
        return tensors | {key: torch.tensor(text, dtype=torch.uint8)}

    return change


def without(suffix: str):
    return lambda tensors: {k: v for k, v in tensors.items() if k != LINEAR + suffix}


def replaced(suffix: str, change):
    return lambda tensors: tensors | {LINEAR + suffix: change(tensors[LINEAR + suffix])}


STATE = ".quant_state.bitsandbytes__nf4"
DAMAGE = {  # name: (what is done to the tensors, what the message must hold)
    "scales are missing": (without(".absmax"), [".absmax is missing", "download"]),
    "no nested map": (without(".nested_quant_map"), [".nested_quant_map is missing", "download"]),
    "no state": (without(STATE), ["has no quant_state.bitsandbytes__nf4", "linears are skipped"]),
    "no JSON": (replaced(STATE, lambda t: t[:-9]), [f"{STATE} is no JSON", "download"]),
    "cut bytes": (replaced("", lambda t: t[:-5]), ["bytes of U8 where", "download"]),
    "cut scales": (replaced(".absmax", lambda t: t[:-1]), [".absmax has", "download"]),
    "scales of another type": (
        replaced(".absmax", lambda t: t.float()),
        [".absmax has", "of F32 where", "of U8 are meant"],
    ),
    "not finite": (
        replaced(".nested_absmax", lambda t: t * torch.inf),
        [".nested_absmax has values that aren't finite", "download"],
    ),
    "another map": (replaced(".quant_map", lambda t: t.flip(0)), ["is not the map of NF4"]),
    "another shape": (change_state(shape=[243, 135]), ["has shape [243,135] where config.json"]),
    "other blocks": (change_state(blocksize=128), ["has blocks of 128; those of 64"]),
    "fp4": (change_state(quant_type="fp4"), ['has quant_type "fp4" where nf4 is meant']),
    "a dtype": (change_state(dtype="int8"), ['has dtype "int8"', "float32, bfloat16"]),
    "no offset": (change_state(nested_offset="x"), ['has nested_offset "x"']),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_directory_is_refused_with_file_tensor_and_remedy(
    case, trainer_bin, tokens, init, tmp_path
):
    damage, wanted = DAMAGE[case]
    saved = as_bitsandbytes_saves(init, tmp_path / "saved", True)
    retensor(saved, damage)
    done = train(trainer_bin, tmp_path, config(saved, tokens, tmp_path / "model"))
    assert done.returncode == 2, done.stderr
    place = f"{saved}/model.safetensors: {LINEAR}"
    assert not [words for words in [place, *wanted] if words not in done.stderr], done.stderr
    assert "step=" not in done.stdout and len(done.stderr.splitlines()) <= 12


REFUSED = {  # name: (settings, what the message must hold)
    "no adapters": ({"lora": None}, ["trainer.quantize: is for weights that stay", "add lora"]),
    "slices": ({"parallel": {"tp": 2}}, ["trainer.quantize: doesn't go with parallel.tp"]),
    "offload": (
        {"offload": "parameters", "zero_stage": 3},
        ["trainer.offload: parameters is not supported with quantize"],
    ),
    "another type": ({"quantize": {"type": "fp4"}}, ["trainer.quantize.type: must be nf4"]),
    "no type": ({"quantize": {}}, ["trainer.quantize.type: is missing"]),
    "other words": (
        {"quantize": {"type": "nf4", "bnb_4bit_use_double_quant": True}},
        ["bnb_4bit_use_double_quant: use double"],
    ),
    "saved otherwise": (
        {"quantize": {"type": "nf4", "double": False}},
        ["trainer.quantize.double: is false", "use what the weights there are saved with"],
    ),
    "not asked for": ({"quantize": None}, ["quantization_config: quantised weights can't"]),
    "moments elsewhere": (
        {"moments": "int8", "offload": "optimizer"},
        ["trainer.moments: int8 saves memory beside the weights"],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_go_together_is_refused(case, trainer_bin, tokens, init, tmp_path):
    more, wanted = REFUSED[case]
    saved = as_bitsandbytes_saves(init, tmp_path / "saved", True)
    settings = config(saved, tokens, tmp_path / "model", **more)
    settings = {key: value for key, value in settings.items() if value is not None}
    done = train(trainer_bin, tmp_path, settings)
    assert done.returncode == 2, done.stderr
    assert not [words for words in wanted if words not in done.stderr], done.stderr


# ---- moments in 8 bits ----


def moments(trainer_bin, tokens, folder, ranks=1, steps=3, **more):
    settings = parity.config(None, tokens, steps, folder / "model") | more
    settings |= {"model": parity.TINY_MODEL, "save_steps": 1, "max_grad_norm": 0}
    for key in ("init", "export"):
        settings.pop(key)
    with Gang(trainer_bin, settings, ranks, folder) as gang:
        gang.finish()
    return gang


def test_moments_are_codes_of_blocks_but_small_ones_and_embeddings(trainer_bin, tokens, tmp_path):
    exact = moments(trainer_bin, tokens, tmp_path / "fp32", steps=1)
    coded = moments(trainer_bin, tokens, tmp_path / "int8", steps=1, moments="int8")
    for kind, signed in (("exp_avg", True), ("exp_avg_sq", False)):
        entries = dynamic_map(signed)
        if signed:  # so a checkpoint has them: a block's largest value is the scale
            entries[0] = -1
            entries[120], entries[134] = 32764 / 65535 * 2 - 1, 32771 / 65535 * 2 - 1
        wanted = layouts.read_tensors(exact.checkpoint(1), kind)
        found = layouts.read_tensors(coded.checkpoint(1), kind)
        seen = set()
        for name, value in wanted.items():
            small = value.numel() < 4096 or name == "model.embed_tokens.weight"
            seen.add(small)
            if small:
                assert torch.equal(found[name], value), name
                continue
            blocks = blocks_of(value, 256)
            largest = blocks.abs().amax(1, keepdim=True)
            place = ((blocks / largest + 1) / 2 * 65535).round()
            codes = nearest(place / 65535 * 2 - 1, dynamic_map(signed))
            rebuilt = (entries[codes] * largest).flatten()[: value.numel()].view(value.shape)
            off = ((rebuilt - found[name]).abs() > 1e-6 * largest.max()).float().mean()
            assert off < 1e-3, (name, kind, off)  # of quotients that lie between two places
            assert not torch.equal(found[name], value), name
        assert seen == {True, False}


def test_moments_resume_bit_for_bit_and_in_other_layouts(trainer_bin, tokens, tmp_path):
    more = {"moments": "int8", "deterministic": True, "zero_stage": 2, "learning_rate": 1e-3}
    whole = moments(trainer_bin, tokens, tmp_path / "whole", 2, 6, **more)
    found = {}
    for name, ranks, other in (
        ("same", 2, {}),
        ("one rank", 1, {}),
        ("slices", 2, {"parallel": {"tp": 2}}),
        ("fp32", 2, {"moments": "fp32"}),
    ):
        settings = parity.config(None, tokens, 6, tmp_path) | more | other
        settings |= {"model": parity.TINY_MODEL, "max_grad_norm": 0}
        for key in ("init", "export"):
            settings.pop(key)
        with Gang(
            trainer_bin, settings, ranks, tmp_path / name, resume_from=[whole.checkpoint(3)]
        ) as gang:
            gang.finish()
        found[name] = gang.metric("loss")
    wanted = whole.metric("loss")
    assert all(found["same"][step] == wanted[step] for step in (4, 5, 6)), "bit for bit"
    for name, losses in found.items():
        for step in (4, 5, 6):
            assert abs(losses[step] / wanted[step] - 1) < 1e-3, (name, step)
    assert wanted[1] - wanted[6] > 0.05


def test_models_with_experts_are_refused(trainer_bin, tokens, tmp_path):
    init = families.make(tmp_path / "init", "mixtral")
    done = train(trainer_bin, tmp_path, config(init, tokens, tmp_path / "model"))
    assert done.returncode == 2, done.stderr
    assert "trainer.quantize: is not supported yet for models with experts" in done.stderr
