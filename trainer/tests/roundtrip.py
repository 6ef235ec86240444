"""Hugging Face directories in and out again."""

import subprocess
import sys
from pathlib import Path

import families
import parity
import torch
from harness import Gang
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM


def convert(trainer_bin: str, source: Path, target: Path, *arguments) -> int:
    """Runs `muster-trainer convert`; returns its peak resident memory in bytes."""
    # Behind a small process: a child begins with the peak of the one that it was forked from.
    small = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=2); print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    done = subprocess.run(
        [
            sys.executable,
            "-S",
            "-c",
            small,
            trainer_bin,
            "convert",
            "--input",
            source,
            "--output",
            target,
            *arguments,
        ],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return int(done.stdout) * 1024


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return {
        name: tensor
        for path in sorted(folder.glob("*.safetensors"))
        for name, tensor in load_file(path).items()
    }


def roundtrip(
    trainer_bin: str, folder: Path, family: str, dtype: torch.dtype, max_shard_size: str = "50GB"
) -> dict:
    """tensors_differ: that aren't byte-identical, or are missing or new; logits: largest difference."""
    source = families.make(folder / "source", family, dtype, max_shard_size)
    convert(trainer_bin, source, folder / "checkpoint")
    convert(trainer_bin, folder / "checkpoint", folder / "again")
    before, after = tensors_of(source), tensors_of(folder / "again")
    differ = set(before) ^ set(after) | {
        name
        for name in set(before) & set(after)
        if before[name].dtype != after[name].dtype
        or not torch.equal(before[name].view(torch.uint8), after[name].view(torch.uint8))
    }
    first = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    again, loading = AutoModelForCausalLM.from_pretrained(
        folder / "again", dtype=torch.float32, output_loading_info=True
    )
    assert not any(loading.values()), loading
    ids = torch.randint(0, 259, (2, 64), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits = (first(input_ids=ids).logits - again(input_ids=ids).logits).abs().max().item()
    return {"tensors": len(before), "tensors_differ": len(differ), "logits": logits}


def adapter_logits(trainer_bin: str, tokens: Path, folder: Path, family: str) -> dict:
    """A few steps of LoRA. merged: largest difference between the logits of the exported model and of peft's with the adapter
    beside the model it began with; moved: what the training changed."""
    source = families.make(folder / "source", family)
    modules = ["all-linear"] + (
        [] if (families.SHAPE | families.FAMILIES[family])["tie_word_embeddings"] else ["lm_head"]
    )
    settings = parity.config(source, tokens, 5, folder / "model") | {
        "lora": {"rank": 4, "alpha": 12, "target_modules": modules},
        "learning_rate": 1e-3,
    }
    with Gang(trainer_bin, settings, 1, folder / "run") as gang:
        gang.finish()
    ids = torch.randint(0, 259, (2, 64), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        base = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
        untrained = base(input_ids=ids).logits
        merged = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)(
            input_ids=ids
        ).logits
        adapted = PeftModel.from_pretrained(base, folder / "model" / "adapter")(
            input_ids=ids
        ).logits
    return {
        "merged": (merged - adapted).abs().max().item(),
        "moved": (untrained - adapted).abs().max().item(),
    }
