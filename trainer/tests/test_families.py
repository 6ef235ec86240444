"""Every family of models that can be trained: the same numbers as transformers, in and out."""

import families
import parity
import pytest
from bench_parity_families import BARS


@pytest.mark.parametrize(
    "dtype,family",
    [("fp32", family) for family in families.FAMILIES]
    + [("bf16", family) for family in ("qwen2", "qwen3", "phi3", "gemma3", "gemma2")],
)
def test_a_family_trains_as_transformers_does(dtype, family, trainer_bin, tokens, tmp_path):
    init = families.make(tmp_path / "init", family)
    found = parity.compare(trainer_bin, tokens, tmp_path, steps=6, ranks=1, init=init, dtype=dtype)
    assert found["logits_moved_by_training"] > 0.01, (
        "the training did nothing; the comparison would mean nothing"
    )
    assert found["loss"] <= BARS[dtype]["loss"]
    assert found["grad_norm"] <= BARS[dtype]["grad_norm"]
    assert found["logits"] <= (1e-5 if dtype == "fp32" else 0.05)
