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


def changed(folder, *changes):
    text = EXAMPLE.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    example = folder / "example.py"
    example.write_text(text)
    return example


@needs_lightning
def test_so_it_does_with_shuffled_data_dropout_epochs_accumulated_gradients_and_any_name_logged(
    agent, tmp_path
):
    example = changed(
        tmp_path,
        ("shuffle=False", "shuffle=True"),
        ("return 4096", "return 112"),  # seven batches an epoch
        ("torch.nn.GELU()", "torch.nn.GELU(), torch.nn.Dropout(0.2)"),
        ("max_steps=", "accumulate_grad_batches=3, max_steps="),
        ("return loss", 'self.log("step", 0.5); self.log("total_steps", 0.5); return loss'),
    )
    check(agent, example, tmp_path)


@needs_lightning
def test_each_rank_goes_on_with_its_own_random_state_and_from_the_end_of_an_epoch(agent, tmp_path):
    example = changed(
        tmp_path,
        ("shuffle=False", "shuffle=True"),
        ("return 4096", "return 16"),  # one step an epoch
        ("torch.nn.GELU()", "torch.nn.GELU(), torch.nn.Dropout(0.2)"),
        (
            "model = Model(options.lr)",
            'model = Model(options.lr); torch.manual_seed(int(os.environ["RANK"]))',
        ),
    )
    check(agent, example, tmp_path, ranks=2, kill=False)
