"""`muster-trainer convert`: between Hugging Face directories and checkpoints, both ways."""

import json
import shutil
import subprocess

import families
import parity
import pytest
import resume
import roundtrip
import test_bad_models
import torch
from harness import Gang


@pytest.mark.parametrize(
    "family,dtype,max_shard_size",
    [
        ("qwen3", torch.bfloat16, "100KB"),
        ("llama-biases", torch.float32, "50GB"),
        ("mistral", torch.float16, "50GB"),
        ("phi3", torch.bfloat16, "50GB"),
    ],
)
def test_in_and_out_again_gives_the_same_bytes(
    family, dtype, max_shard_size, trainer_bin, tmp_path
):
    found = roundtrip.roundtrip(trainer_bin, tmp_path, family, dtype, max_shard_size)
    assert (tmp_path / "source" / "model.safetensors.index.json").exists() == (
        max_shard_size == "100KB"
    )
    assert found["tensors"] >= 15 and found["tensors_differ"] == 0
    assert found["logits"] <= 1e-5


@pytest.mark.parametrize("sharded", [False, True])
def test_a_tied_model_may_have_either_name_of_its_matrix(sharded, trainer_bin, tmp_path):
    from safetensors.torch import load_file

    embedding, head = "model.embed_tokens.weight", "lm_head.weight"
    source = families.make(tmp_path / "source", "llama3")
    tensors = load_file(source / "model.safetensors")
    matrix = tensors[embedding]
    assert head not in tensors
    for name, change in {
        "head alone": lambda t: {head if k == embedding else k: v for k, v in t.items()},
        "embedding alone": lambda t: t,
        # The embedding counts, as for transformers.
        "both": lambda t: t | {head: matrix + 1},
    }.items():
        folder = tmp_path / name
        shutil.copytree(source, folder)
        test_bad_models.retensor(folder, change)
        if sharded:
            test_bad_models.shard(folder)
        imported, exported = tmp_path / f"{name} checkpoint", tmp_path / f"{name} exported"
        for command in (
            ("convert", "--input", folder, "--output", imported),
            ("export", "--checkpoint", imported, "--output", exported),
        ):
            done = run(trainer_bin, *command)
            assert done.returncode == 0, done.stderr
        found = load_file(exported / "model.safetensors")
        assert found.keys() == tensors.keys()
        assert all(torch.equal(found[key], tensors[key]) for key in tensors)


TOKENIZER = {
    "tokenizer.json": '{"version": "1.0"}',
    "tokenizer_config.json": "{}",
    "chat_template.jinja": "{{ messages }}",
    "LICENSE": "free",
    "generation_config.json": '{"temperature": 0.25}\n',
    "tokenizer.model": "\0pieces",
}


def run(trainer_bin, *arguments) -> subprocess.CompletedProcess:
    return subprocess.run([trainer_bin, *map(str, arguments)], capture_output=True, text=True)


def test_the_tokenizer_goes_along_or_is_asked_for(trainer_bin, tmp_path):
    source = families.make(tmp_path / "source", "llama2")
    bare = run(trainer_bin, "convert", "--input", source, "--output", tmp_path / "bare")
    assert (
        bare.returncode == 0
        and "no tokenizer lies there; an export of it will want --tokenizer DIR" in bare.stdout
    )
    asked = run(
        trainer_bin, "export", "--checkpoint", tmp_path / "bare", "--output", tmp_path / "without"
    )
    assert (
        asked.returncode == 0
        and "it has no tokenizer, as the checkpoint names none: --tokenizer DIR" in asked.stdout
    )
    for name, text in (
        TOKENIZER
        | {
            "pytorch_model.bin": "weights",
            "adapter_config.json": "{}",
            "model.onnx": "weights",
            ".gitattributes": "x",
        }
    ).items():
        (source / name).write_text(text)
    assert (
        run(
            trainer_bin, "convert", "--input", source, "--output", tmp_path / "checkpoint"
        ).stdout.count("\n")
        == 1
    )
    done = run(
        trainer_bin,
        "export",
        "--checkpoint",
        tmp_path / "checkpoint",
        "--output",
        tmp_path / "again",
    )
    assert (
        done.returncode == 0
        and f"with the tokenizer of {source}" in done.stdout
        and "in place of" not in done.stdout
    )
    again = {path.name for path in (tmp_path / "again").iterdir()}
    assert again == {*TOKENIZER, "config.json", "model.safetensors"}, again
    assert all((tmp_path / "again" / name).read_text() == text for name, text in TOKENIZER.items())
    assert (
        "in place of what was there"
        in run(
            trainer_bin,
            "convert",
            "--input",
            tmp_path / "checkpoint",
            "--output",
            tmp_path / "again",
        ).stdout
    )
    source.rename(tmp_path / "moved")
    done = run(
        trainer_bin, "convert", "--input", tmp_path / "checkpoint", "--output", tmp_path / "later"
    )
    assert (
        done.returncode == 0
        and f"{source} any more: --tokenizer DIR puts one beside it" in done.stdout
    )
    assert f"can't be read in {source}" in done.stdout
    done = run(
        trainer_bin,
        "convert",
        "--input",
        tmp_path / "checkpoint",
        "--output",
        tmp_path / "later",
        "--tokenizer",
        tmp_path / "moved",
    )
    assert (
        f"with the tokenizer of {tmp_path}/moved" in done.stdout
        and (tmp_path / "later" / "tokenizer.json").exists()
    )


def test_directories_may_be_named_with_a_slash_at_their_end(trainer_bin, tokens, tmp_path):
    """Each is written where nothing is, and then in the place of an earlier one."""
    source = families.make(tmp_path / "source", "llama2")
    for command in (
        ("convert", "--input", f"{source}/", "--output", f"{tmp_path}/checkpoint/"),
        ("export", "--checkpoint", f"{tmp_path}/checkpoint/", "--output", f"{tmp_path}/model//"),
    ) * 2:
        done = run(trainer_bin, *command)
        assert done.returncode == 0, done.stderr
    settings = resume.config(tokens, max_steps=1, save_steps=0, export=f"{tmp_path}/trained/")
    for name in ("first", "second"):
        with Gang(trainer_bin, settings, 1, tmp_path / name) as gang:
            gang.finish()
    made = {path.name for path in tmp_path.iterdir()}
    assert made == {"source", "checkpoint", "model", "trained", "first", "second"}
    for name in ("model", "trained"):
        assert (tmp_path / name / "config.json").exists()
    # A file is in the way, and stays.
    (tmp_path / "file").write_text("mine")
    done = run(trainer_bin, "convert", "--input", source, "--output", f"{tmp_path}/file/")
    assert done.returncode == 2 and "is no earlier checkpoint" in done.stderr, done.stderr
    assert (tmp_path / "file").read_text() == "mine"


def test_a_runs_checkpoint_is_exported_with_its_tokenizer(trainer_bin, tokens, tmp_path):
    with Gang(
        trainer_bin, resume.config(tokens, max_steps=2, save_steps=1), 1, tmp_path / "run"
    ) as gang:
        gang.finish()
    done = run(
        trainer_bin, "export", "--checkpoint", gang.checkpoint(2), "--output", tmp_path / "model"
    )
    assert (
        f"exported step=2 to {tmp_path}/model, with the tokenizer of {tokens}/tokenizer"
        in done.stdout
    )
    assert (tmp_path / "model" / "tokenizer.json").read_bytes() == (
        tokens / "tokenizer" / "tokenizer.json"
    ).read_bytes()
    for command, flag in (("export", "--checkpoint"), ("convert", "--input")):
        done = run(trainer_bin, command, flag, gang.checkpoints, "--output", tmp_path / "other")
        assert (
            done.returncode == 2
            and f"{flag}: {gang.checkpoints} is a directory of checkpoints; did you mean {gang.checkpoint(2)}, the newest of its 2?"
            in done.stderr
        )
        done = run(trainer_bin, command, flag, tmp_path / "nowhere", "--output", tmp_path / "other")
        assert (
            done.returncode == 2
            and f"{flag}: {tmp_path}/nowhere: there is no such directory" in done.stderr
        )


def test_training_resumes_from_what_was_converted(trainer_bin, tokens, tmp_path):
    init = families.make(tmp_path / "init", "qwen2")
    roundtrip.convert(trainer_bin, init, tmp_path / "checkpoint")
    settings = parity.config(init, tokens, 3, tmp_path / "model")
    with Gang(trainer_bin, settings, 2, tmp_path / "begun") as begun:
        begun.finish()
    with Gang(
        trainer_bin, settings, 2, tmp_path / "resumed", resume_from=[tmp_path / "checkpoint"]
    ) as resumed:
        resumed.finish()
    assert resumed.event("loaded")["step"] == 0
    assert resumed.metric("loss") == begun.metric("loss") and len(begun.metric("loss")) == 3


def test_memory_doesnt_grow_with_the_model(trainer_bin, tmp_path):
    from transformers import AutoModelForCausalLM, LlamaConfig

    peaks = []
    for name, vocabulary in (("small", 259), ("big", 100_000)):
        model = AutoModelForCausalLM.from_config(
            LlamaConfig(**families.SHAPE | {"vocab_size": vocabulary, "hidden_size": 512})
        )
        model.save_pretrained(tmp_path / name)
        there = roundtrip.convert(trainer_bin, tmp_path / name, tmp_path / f"{name}-checkpoint")
        peaks.append(
            max(
                there,
                roundtrip.convert(
                    trainer_bin, tmp_path / f"{name}-checkpoint", tmp_path / f"{name}-again"
                ),
            )
        )
    size = (tmp_path / "big" / "model.safetensors").stat().st_size
    assert size > 400e6 and peaks[1] - peaks[0] < 100e6, (size, peaks)


def test_what_is_neither_is_refused(trainer_bin, tmp_path):
    (tmp_path / "empty").mkdir()
    init = families.make(tmp_path / "init", "llama2")
    quantised = families.make(tmp_path / "quantised", "llama2")
    config = json.loads((quantised / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes"}
    (quantised / "config.json").write_text(json.dumps(config))
    # As a folder that this user may not enter.
    (tmp_path / "loop").symlink_to("loop")
    for arguments, wanted in (
        (
            (tmp_path / "loop", tmp_path / "out"),
            f"--input: {tmp_path}/loop can't be looked at: Too many levels of symbolic links",
        ),
        (
            (init, tmp_path / "loop"),
            f"--output: {tmp_path}/loop can't be looked at: Too many levels of symbolic links",
        ),
        (
            (tmp_path / "empty", tmp_path / "out"),
            "neither index.json, as a checkpoint has, nor config.json",
        ),
        ((init, tmp_path / "out", "--dtype", "bf16"), "--dtype: is for turning a checkpoint into"),
        ((quantised, tmp_path / "out"), "checkpoints have weights that aren't quantised; give the"),
        ((init, "s3://acme/out"), "--output: s3://acme/out: a directory is wanted"),
        ((init, init), "is no earlier checkpoint; name a new directory"),
    ):
        source, target, *more = arguments
        done = subprocess.run(
            [trainer_bin, "convert", "--input", source, "--output", target, *more],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 2 and wanted in done.stderr, done.stderr
        assert "add lora" not in done.stderr, done.stderr
        assert not (tmp_path / "out").exists()


def test_directories_that_are_made_on_the_way_are_said(trainer_bin, tmp_path):
    init = families.make(tmp_path / "init", "llama2")
    new = "and the directories above it, which were not there"
    for output, said in ((tmp_path / "a" / "b" / "c", True), (tmp_path / "d", False)):
        done = run(trainer_bin, "convert", "--input", init, "--output", output)
        assert done.returncode == 0 and (new in done.stdout) == said, done.stdout + done.stderr
