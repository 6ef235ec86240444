"""Hugging Face directories with something wrong in them: refused before anything starts, with file, tensor or field, and remedy."""

import json
import shutil

import families
import parity
import pytest
from test_schema import train


def rewrite(folder, **changes) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({key: value for key, value in (config | changes).items() if value != "remove"})
    )


def truncate(path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def retensor(folder, change, part: int | None = None) -> None:
    from safetensors.torch import load_file, save_file

    name = f"model-{part:05d}-of-00002.safetensors" if part else "model.safetensors"
    save_file(change(load_file(folder / name)), folder / name, {"format": "pt"})


def shard(folder, change=lambda index: index) -> None:
    """Into two files and an index, as save_pretrained does with big models."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {
        "model-00001-of-00002.safetensors": names[:5],
        "model-00002-of-00002.safetensors": names[5:],
    }
    for part, own in parts.items():
        save_file({name: tensors[name] for name in own}, folder / part, {"format": "pt"})
    index = change(
        {"metadata": {}, "weight_map": {name: part for part, own in parts.items() for name in own}}
    )
    (folder / "model.safetensors.index.json").write_text(
        index if isinstance(index, str) else json.dumps(index)
    )


CASES = {  # name: (family, what is done to the directory, what the message must hold)
    "truncated weights": (
        "llama2",
        lambda f: truncate(
            f / "model.safetensors", (f / "model.safetensors").stat().st_size - 50_001
        ),
        [
            "model.safetensors: not a valid safetensors file",
            "has 50001 bytes too few for all of them",
            "download it again",
        ],
    ),
    "cut in the header": (
        "llama2",
        lambda f: truncate(f / "model.safetensors", 100),
        ["model.safetensors: not a valid safetensors file: its header reaches past the end"],
    ),
    "no weights": (
        "llama2",
        lambda f: (f / "model.safetensors").unlink(),
        ["holds neither model.safetensors nor", "download the weights"],
    ),
    "a part is missing": (
        "llama2",
        lambda f: (shard(f), (f / "model-00002-of-00002.safetensors").unlink()),
        ["model-00002-of-00002.safetensors: No such file or directory; download it, too"],
    ),
    "a part is cut": (
        "llama2",
        lambda f: (shard(f), truncate(f / "model-00001-of-00002.safetensors", 9_000)),
        ["model-00001-of-00002.safetensors: not a valid safetensors file", "download it again"],
    ),
    "a broken index": (
        "llama2",
        lambda f: shard(f, lambda index: json.dumps(index)[:60]),
        ["model.safetensors.index.json has no weight_map; download it again"],
    ),
    "an index without its map": (
        "llama2",
        lambda f: shard(f, lambda index: {"metadata": {}}),
        ["model.safetensors.index.json has no weight_map"],
    ),
    "an index that leads elsewhere": (
        "llama2",
        lambda f: shard(f, lambda index: {"weight_map": {"a": "../../etc/passwd"}}),
        ["model.safetensors.index.json: weight_map.a is no file name; download it again"],
    ),
    "an index that leads to the wrong part": (
        "llama2",
        lambda f: (
            shard(f),
            retensor(f, lambda t: {k: v for k, v in t.items() if k != "model.norm.weight"}, 2),
        ),
        [
            "has no model.norm.weight in model-00002-of-00002.safetensors, where model.safetensors.index.json means it to be; download both again"
        ],
    ),
    "pickled weights": (
        "llama2",
        lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
        ["save_pretrained()"],
    ),
    "a tensor is missing": (
        "qwen2",
        lambda f: retensor(
            f, lambda t: {k: v for k, v in t.items() if "layers.1.self_attn.k_proj.bias" not in k}
        ),
        ["has no model.layers.1.self_attn.k_proj.bias, which config.json's model has"],
    ),
    "a tensor too many": (
        "qwen3",
        lambda f: rewrite(
            f,
            model_type="llama",
            architectures=["LlamaForCausalLM"],
            sliding_window="remove",
            layer_types="remove",
        ),
        [
            "has model.layers.0.self_attn.k_norm.weight, which config.json's model doesn't have",
            "of different models",
        ],
    ),
    "another shape": (
        "mistral",
        lambda f: rewrite(f, intermediate_size=128),
        ["mlp.gate_proj.weight is [160, 64] where config.json means [128, 64]"],
    ),
    "another dtype": (
        "llama2",
        lambda f: retensor(f, lambda t: {k: v.to(__import__("torch").int8) for k, v in t.items()}),
        ["is of dtype I8; F32, BF16, F16 and F64 can be read", "more tensors that don't fit"],
    ),
    "without its head": (
        "llama3",
        lambda f: retensor(f, lambda t: {k.removeprefix("model."): v for k, v in t.items()}),
        ['its names lack "model."'],
    ),
    "no config": (
        "llama2",
        lambda f: (f / "config.json").unlink(),
        ["config.json is missing; give a Hugging Face directory"],
    ),
    "broken config": (
        "llama2",
        lambda f: truncate(f / "config.json", 50),
        ["config.json:4:5: not JSON", "copy or download it again"],
    ),
    "more layers than there can be": (
        "llama2",
        lambda f: rewrite(f, num_hidden_layers=1_000_000_000),
        [
            "trainer.init/config.json.num_hidden_layers: must be a whole number from 1 to 10000; got 1000000000"
        ],
    ),
    "another architecture": (
        "llama2",
        lambda f: rewrite(f, model_type="phi"),
        ['model_type: "phi" can\'t be trained; can be: llama, mistral, qwen2, qwen3, mixtral'],
    ),
    "text and images": (
        "llama2",
        lambda f: rewrite(f, model_type="gemma3", architectures="remove"),
        ['model_type: "gemma3" is of text and images; its text part can be trained'],
    ),
    "another width of joined linears": (
        "phi3",
        lambda f: rewrite(f, intermediate_size=96),
        [
            "mlp.gate_up_proj.weight is [320, 64] where config.json means [192, 64]",
            "take config.json and the weights from one place",
        ],
    ),
    "contradicting thetas": (
        "llama2",
        lambda f: rewrite(f, rope_theta=5e5),
        ["rope_theta: contradicts rope_parameters.rope_theta"],
    ),
    "contradicting types": (
        "llama2",
        lambda f: rewrite(f, torch_dtype="bfloat16"),
        ["torch_dtype: contradicts dtype"],
    ),
    "unknown scaling": (
        "qwen2",
        lambda f: rewrite(
            f, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
        ),
        ['rope_type: "dynamic" can\'t be trained'],
    ),
    "quantised": (
        "llama2",
        lambda f: rewrite(f, quantization_config={"bits": 4}),
        ["quantization_config: quantised weights"],
    ),
    "end beyond the vocabulary": (
        "llama2",
        lambda f: rewrite(f, eos_token_id=[257, 300]),
        ["eos_token_id: 300 is no token id below vocab_size, 259"],
    ),
    "small vocabulary": (
        "llama2",
        lambda f: rewrite(f, vocab_size=200, bos_token_id=None, eos_token_id=None),
        ["vocab_size 200 is below that of"],
    ),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        family: families.make(folder / family, family)
        for family in {family for family, _, _ in CASES.values()}
    }


@pytest.mark.parametrize("case", CASES)
def test_a_bad_directory_is_refused_with_its_place_and_a_remedy(
    case, trainer_bin, tokens, models, tmp_path
):
    family, damage, wanted = CASES[case]
    init = tmp_path / "init"
    shutil.copytree(models[family], init)
    damage(init)
    done = train(trainer_bin, tmp_path, parity.config(init, tokens, 1, tmp_path / "model"))
    assert done.returncode == 2, done.stderr
    assert not [words for words in wanted if words not in done.stderr], done.stderr
    assert len(done.stderr.splitlines()) <= 12 and "step=" not in done.stdout
