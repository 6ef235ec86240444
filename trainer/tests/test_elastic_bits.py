"""deterministic: elastic (elastic_bits.py), and what it says and refuses."""

import json

import elastic_bits
import parity
import preferences
import pytest
from elastic_bits import config
from harness import Gang
from test_schema import train
from test_stages import estimate


@pytest.mark.parametrize("kind", elastic_bits.KINDS)
def test_any_number_of_ranks_trains_to_the_same_bits(trainer_bin, tokens, tmp_path, kind):
    ranks = [[2], [4, 3, 1]] if kind != "plain" else [[2], [8], [4, 1, 8]]
    found = elastic_bits.compare(trainer_bin, tokens, tmp_path, 6, kind, ranks)
    for way, (differ, loss) in found.items():
        assert differ == 0 and loss < 1e-13, (way, differ, loss)


@pytest.mark.parametrize("kind", elastic_bits.LAYOUTS)
def test_so_does_a_layout_on_any_number_of_units(trainer_bin, tokens, tmp_path, kind):
    ranks = [[2], [3, 1]] if kind in ("tp 2", "pp 2, tied") else [[2, 1]]
    found = elastic_bits.compare(trainer_bin, tokens, tmp_path, 6, kind, ranks)
    for way, (differ, loss) in found.items():
        assert differ == 0 and loss < 1e-13, (way, differ, loss)


def test_so_do_pairs_with_their_references(trainer_bin, tmp_path):
    """Eight pairs a step, two a micro-batch: of three ranks one has no part, and other rows than the rest."""
    init, pairs = parity.make_init(tmp_path / "init"), preferences.make_pairs(tmp_path / "pairs")
    norms, weights = {}, {}
    for ranks in (1, 2, 3):
        model = tmp_path / f"model{ranks}"
        said = preferences.settings(
            init, pairs, global_batch_size=8, deterministic="elastic", export=str(model)
        )
        lines = preferences.run(trainer_bin, said, ranks, tmp_path / f"run{ranks}")
        norms[ranks] = [line["grad_norm"] for line in lines]
        (file,) = model.glob("*.safetensors")
        weights[ranks] = file.read_bytes()
    assert norms[2] == norms[3] == norms[1] and len(norms[1]) == preferences.STEPS
    assert weights[2] == weights[1] and weights[3] == weights[1]


def test_references_of_other_micro_batches_are_computed_anew(trainer_bin, tmp_path):
    init, pairs = parity.make_init(tmp_path / "init"), preferences.make_pairs(tmp_path / "pairs")
    elastic = {"deterministic": "elastic"}
    for name, more, anew in (
        ("plain", {}, True),
        ("elastic", elastic, True),
        ("again", elastic, False),
        ("larger", elastic | {"micro_batch_size": 3}, True),
    ):
        said = preferences.settings(init, pairs, max_steps=1, **more)
        preferences.run(trainer_bin, said, 1, tmp_path / name, job=tmp_path / "job")
        told = (tmp_path / name / "0.err").read_text()
        assert ("computing reference log-probabilities" in told) == anew, name


def test_without_it_they_differ(trainer_bin, tokens, tmp_path):
    init = parity.make_init(tmp_path / "init")
    settings = config(init, tokens, 6, deterministic=True)
    one = elastic_bits.train(trainer_bin, settings, tmp_path / "one", [1])
    assert elastic_bits.train(trainer_bin, settings, tmp_path / "two", [4]).differs(one) > 0


def test_it_says_how_many_ranks_compute(trainer_bin, tokens, tmp_path):
    init = parity.make_init(tmp_path / "init")
    with Gang(trainer_bin, config(init, tokens, 1), 3, tmp_path / "run") as gang:
        gang.finish()
    assert "of 3 ranks 2 compute" in (gang.folder / "0.err").read_text()


def test_it_says_so_of_a_layout(trainer_bin, tokens, tmp_path):
    init = parity.make_init(tmp_path / "init")
    settings = config(init, tokens, 1, parallel={"tp": 2})
    with Gang(trainer_bin, settings, 6, tmp_path / "run") as gang:
        gang.finish()
    assert "of 6 ranks 4 compute; of 3 units" in (gang.folder / "0.err").read_text()


def test_an_estimate_counts_what_is_under_way(trainer_bin, tokens, tmp_path):
    """Eight parts of one rank are added in three sums; four of one of two ranks in two."""
    init = parity.make_init(tmp_path / "init")
    told = {}
    for ranks in (1, 2):
        for kind in (True, "elastic"):
            said = config(init, tokens, 1, zero_stage=0, deterministic=kind)
            done = estimate(trainer_bin, tmp_path, said, "--json", "true", "--ranks", str(ranks))
            assert done.returncode == 0, done.stderr
            told[ranks, kind] = {
                one["class"]: one["bytes"] for one in json.loads(done.stdout)["memory"]
            }
    for ranks, sums in ((1, 3), (2, 2)):
        plain, tree = told[ranks, True], told[ranks, "elastic"]
        assert tree["gradients"] == (1 + sums) * plain["gradients"]
    name = "gradients of other ranks, as they are summed"
    assert name not in told[1, "elastic"] and told[2, "elastic"][name] > 0


@pytest.mark.parametrize(
    "more, said",
    [
        (
            {"parallel": {"pp": 2, "pipeline": "zero_bubble"}},
            "trainer.parallel.pipeline: zero_bubble puts off gradients of weights",
        ),
        (
            {"parallel": "auto"},
            "trainer.deterministic: elastic keeps one layout for all numbers of ranks",
        ),
        (
            {"moments": "int8"},
            "trainer.moments: int8 doesn't go with deterministic: elastic",
        ),
        ({"micro_batch_size": 0}, "trainer.micro_batch_size: is missing"),
        (
            {"deterministic": "yes"},
            'trainer.deterministic: must be true, false or elastic; got "yes"',
        ),
    ],
    ids=["zero_bubble", "auto", "int8", "micro_batch_size", "word"],
)
def test_what_it_needs_is_said(trainer_bin, tokens, tmp_path, more, said):
    init = parity.make_init(tmp_path / "init")
    done = train(trainer_bin, tmp_path, config(init, tokens, 1, **more))
    assert done.returncode == 2 and said in done.stderr, done.stderr
