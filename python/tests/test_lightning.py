"""MusterCallback with Lightning's Trainer: as test_transformers.py. Lightning is there once bench/run.sh python-runtime was run."""

import pytest
from disturbed import EXAMPLES, check, lightning_site

needs_lightning = pytest.mark.skipif(
    not (lightning_site() / "lightning").exists(),
    reason="Lightning has an environment of its own, which bench/run.sh python-runtime makes",
)
EXAMPLE = EXAMPLES / "lightning_trainer.py"


@needs_lightning
def test_stopped_and_killed_it_ends_as_if_nothing_had_been(agent, tmp_path):
    check(agent, EXAMPLE, tmp_path)


@needs_lightning
def test_so_it_does_with_shuffled_data_dropout_and_several_epochs(agent, tmp_path):
    text = EXAMPLE.read_text()
    for old, new in (
        ("shuffle=False", "shuffle=True"),
        ("return 4096", "return 112"),  # seven steps an epoch
        ("torch.nn.GELU()", "torch.nn.GELU(), torch.nn.Dropout(0.2)"),
    ):
        assert old in text
        text = text.replace(old, new)
    example = tmp_path / "example.py"
    example.write_text(text)
    check(agent, example, tmp_path)
