"""`muster-trainer convert`: between Hugging Face directories and checkpoints, both ways."""

import subprocess

import pytest
import torch

import families
import parity
import roundtrip
from harness import Gang


@pytest.mark.parametrize("family,dtype,max_shard_size", [("qwen3", torch.bfloat16, "100KB"), ("llama-biases", torch.float32, "50GB"), ("mistral", torch.float16, "50GB")])
def test_in_and_out_again_gives_the_same_bytes(family, dtype, max_shard_size, trainer_bin, tmp_path):
    found = roundtrip.roundtrip(trainer_bin, tmp_path, family, dtype, max_shard_size)
    assert (tmp_path / "source" / "model.safetensors.index.json").exists() == (max_shard_size == "100KB")
    assert found["tensors"] > 15 and found["tensors_differ"] == 0
    assert found["logits"] <= 1e-5


def test_training_resumes_from_what_was_converted(trainer_bin, tokens, tmp_path):
    init = families.make(tmp_path / "init", "qwen2")
    roundtrip.convert(trainer_bin, init, tmp_path / "checkpoint")
    settings = parity.config(init, tokens, 3, tmp_path / "model")
    with Gang(trainer_bin, settings, 2, tmp_path / "begun") as begun:
        begun.finish()
    with Gang(trainer_bin, settings, 2, tmp_path / "resumed", resume_from=[tmp_path / "checkpoint"]) as resumed:
        resumed.finish()
    assert resumed.event("loaded")["step"] == 0
    assert resumed.metric("loss") == begun.metric("loss") and len(begun.metric("loss")) == 3


def test_memory_doesnt_grow_with_the_model(trainer_bin, tmp_path):
    from transformers import AutoModelForCausalLM, LlamaConfig

    peaks = []
    for name, vocabulary in (("small", 259), ("big", 100_000)):
        model = AutoModelForCausalLM.from_config(LlamaConfig(**families.SHAPE | {"vocab_size": vocabulary, "hidden_size": 512}))
        model.save_pretrained(tmp_path / name)
        there = roundtrip.convert(trainer_bin, tmp_path / name, tmp_path / f"{name}-checkpoint")
        peaks.append(max(there, roundtrip.convert(trainer_bin, tmp_path / f"{name}-checkpoint", tmp_path / f"{name}-again")))
    size = (tmp_path / "big" / "model.safetensors").stat().st_size
    assert size > 400e6 and peaks[1] - peaks[0] < 100e6, (size, peaks)


def test_what_is_neither_is_refused(trainer_bin, tmp_path):
    (tmp_path / "empty").mkdir()
    init = families.make(tmp_path / "init", "llama2")
    for arguments, wanted in (((tmp_path / "empty", tmp_path / "out"), "neither index.json, as a checkpoint has, nor config.json"),
                              ((init, tmp_path / "out", "--dtype", "bf16"), "--dtype: is for turning a checkpoint into"),
                              ((init, init), "is no earlier checkpoint; name a new directory")):
        source, target, *more = arguments
        done = subprocess.run([trainer_bin, "convert", "--input", source, "--output", target, *more], capture_output=True, text=True)
        assert done.returncode == 2 and wanted in done.stderr, done.stderr
        assert not (tmp_path / "out").exists()
