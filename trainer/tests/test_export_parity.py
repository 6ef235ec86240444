"""muster-trainer against a plain transformers loop on the same tokens; export and init by Hugging Face directories."""

import filecmp
import json

import parity
import pytest
from harness import TINY_MODEL, Gang


@pytest.fixture(scope="module")
def compared(trainer_bin, tokens, tmp_path_factory):
    folder = tmp_path_factory.mktemp("parity")
    return folder, parity.compare(trainer_bin, tokens, folder, steps=50, ranks=2)


def test_fifty_steps_equal_transformers(compared):
    differences = compared[1]
    assert differences["logits_moved_by_training"] > 0.05, (
        "the training did nothing; the comparison would mean nothing"
    )
    assert 0 < differences["clipped_steps"] < 50, "both sides of the clipping limit must be seen"
    assert differences["loss"] <= 1e-6
    assert differences["grad_norm"] <= 2e-6


def test_exported_model_gives_the_reference_models_logits(compared):
    assert compared[1]["logits"] <= 1e-5


def test_export_brings_config_and_tokenizer(compared, tokens):
    from transformers import AutoTokenizer

    model = compared[0] / "model"
    config = json.loads((model / "config.json").read_text())
    for key in (
        "architectures",
        "model_type",
        "vocab_size",
        "hidden_size",
        "num_key_value_heads",
        "tie_word_embeddings",
    ):
        assert config[key] == TINY_MODEL[key], key
    assert filecmp.cmp(
        model / "tokenizer.json", tokens / "tokenizer" / "tokenizer.json", shallow=False
    )
    assert AutoTokenizer.from_pretrained(model)("hello")["input_ids"] == list(b"hello")


def test_export_subcommand_equals_the_export_at_the_end(compared, trainer_bin, tokens):
    from safetensors.torch import load_file

    folder = compared[0]
    steps = sorted((folder / "run" / "checkpoints").glob("step-*"))
    parity.export_checkpoint(trainer_bin, steps[-1], tokens / "tokenizer", folder / "again")
    first, again = (load_file(folder / name / "model.safetensors") for name in ("model", "again"))
    assert first.keys() == again.keys() and all(first[name].equal(again[name]) for name in first)


def test_tied_model_from_scratch_exports_without_lm_head(trainer_bin, tokens, tmp_path):
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    config = parity.config(tmp_path, tokens, 2, tmp_path / "model") | {
        "model": TINY_MODEL | {"tie_word_embeddings": True}
    }
    del config["init"]
    for attempt in ("first", "second"):  # the second replaces what the first exported
        with Gang(trainer_bin, config, 1, tmp_path / attempt) as gang:
            gang.finish()
        assert gang.event("export")["target"] == str(tmp_path / "model")
    assert "lm_head.weight" not in load_file(tmp_path / "model" / "model.safetensors")
    _, loading = AutoModelForCausalLM.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not any(loading.values()), loading
