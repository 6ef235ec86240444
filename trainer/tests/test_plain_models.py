"""What a machine with a GPU and torch, but without transformers, can do all the same."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from harness import TINY_MODEL
from transformers import AutoModelForCausalLM

TESTS = Path(__file__).resolve().parent
WITHOUT = """
import importlib, json, pathlib, sys
sys.modules["transformers"] = sys.modules["safetensors"] = sys.modules["peft"] = None
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2].split():
    importlib.import_module(name)
import plain_models, torch
plain_models.write(pathlib.Path(sys.argv[3]), json.loads(sys.argv[4]), getattr(torch, sys.argv[5]))
"""


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("tied", [False, True])
def test_what_a_bundle_runs_needs_no_transformers_and_writes_models_that_it_reads(
    tied, dtype, tmp_path
):
    config = TINY_MODEL | {"tie_word_embeddings": tied}
    modules = "bench_gpu gpu_all gpu_cases test_gpu test_bundle"
    command = [sys.executable, "-c", WITHOUT, TESTS, modules, tmp_path / "model"]
    subprocess.run([*map(str, command), json.dumps(config), dtype], check=True)
    model, said = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", dtype=getattr(torch, dtype), output_loading_info=True
    )
    assert not any(said.values()), said
    weights = dict(model.named_parameters())
    assert {weight.dtype for weight in weights.values()} == {getattr(torch, dtype)}
    for name, weight in weights.items():
        if "norm" in name:
            assert weight.eq(1).all(), name
        else:
            assert weight.float().std().item() == pytest.approx(0.02, rel=0.1), name
