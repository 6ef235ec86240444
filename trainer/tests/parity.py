"""The same training twice: by muster-trainer, and by a plain transformers loop that reads the same token windows."""

import json
import subprocess
from pathlib import Path

import families
import torch
from harness import TINY_MODEL, Gang, read_batches, relative
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

LENGTH, BATCH, LEARNING_RATE, WEIGHT_DECAY, MAX_GRAD_NORM = 64, 16, 1e-4, 0.1, 1.75


def make_init(folder: Path) -> Path:
    """A Hugging Face directory with random weights."""
    torch.manual_seed(7)
    LlamaForCausalLM(LlamaConfig(**TINY_MODEL)).save_pretrained(folder)
    return folder


def config(init: Path, tokens: Path, steps: int, export: Path, dtype: str = "fp32") -> dict:
    return {
        "init": str(init),
        "data": str(tokens),
        "max_length": LENGTH,
        "global_batch_size": BATCH,
        "micro_batch_size": 4,
        "max_steps": steps,
        "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "weight_decay": WEIGHT_DECAY,
        "max_grad_norm": MAX_GRAD_NORM,
        "dtype": dtype,
        "export": str(export),
        "threads": 1,
    }


def transformers_loop(
    init: Path,
    batches: list[tuple[int, ...]],
    dtype: str = "fp32",
    auxiliary=None,
    watch=lambda model: lambda: None,
) -> tuple[torch.nn.Module, list[float], list[float]]:
    """Returns (model, losses, grad norms). `auxiliary`: of the routers' logits by layer, a loss that is added. `watch` is given the model, and returns what is called after each step. Weight decay leaves norms and biases out, as transformers' Trainer does. bf16: a
    model of that type, whose fp32 masters are updated and rounded into it again."""
    model = AutoModelForCausalLM.from_pretrained(init, dtype=torch.float32)
    masters = list(model.parameters())
    if dtype == "bf16":
        masters = [torch.nn.Parameter(parameter.detach().clone()) for parameter in masters]
        model = families.to_dtype(model, torch.bfloat16)
    after_step = watch(model)
    optimizer = torch.optim.AdamW(
        [
            {
                "params": [master for master in masters if master.dim() > 1],
                "weight_decay": WEIGHT_DECAY,
            },
            {"params": [master for master in masters if master.dim() == 1], "weight_decay": 0.0},
        ],
        lr=LEARNING_RATE,
    )
    losses, norms = [], []
    for batch in batches:
        ids = torch.tensor(batch).view(BATCH, LENGTH + 1)
        routers = {"output_router_logits": True} if auxiliary else {}
        out = model(input_ids=ids[:, :-1], **routers)
        logits = out.logits.float()  # [batch, length, vocab]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        model.zero_grad()
        (loss + auxiliary(out.router_logits) if auxiliary else loss).backward()
        for master, parameter in zip(masters, model.parameters()):
            master.grad = parameter.grad.float()
        norm = torch.nn.utils.clip_grad_norm_(masters, MAX_GRAD_NORM)
        optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(masters, model.parameters()):
                parameter.copy_(master)
        after_step()
        losses.append(loss.item())
        norms.append(norm.item())
    return model, losses, norms


def compare(
    trainer_bin: str,
    tokens: Path,
    folder: Path,
    steps: int,
    ranks: int,
    init: Path | None = None,
    dtype: str = "fp32",
    auxiliary=None,
    watch=lambda model: lambda: None,
    **more,
) -> dict[str, float]:
    """Largest differences: relative of loss and grad_norm over all steps, absolute of the trained models' logits. `init`: the
    directory to begin with; without one a tiny Llama. `auxiliary`, `watch`: as transformers_loop has it. `more` of the trainer's
    settings."""
    torch.set_num_threads(1)  # two spin against each other for ever on a busy machine
    init = init or make_init(folder / "init")
    with Gang(
        trainer_bin,
        config(init, tokens, steps, folder / "model", dtype) | more,
        ranks,
        folder / "run",
        dump_tokens=folder / "tokens.bin",
    ) as gang:
        gang.finish()
    batches = read_batches(folder / "tokens.bin", BATCH, LENGTH + 1)
    loss, norm = gang.metric("loss"), gang.metric("grad_norm")
    assert len(batches) == steps and list(loss) == list(range(1, steps + 1)), (
        len(batches),
        sorted(loss),
    )
    model, losses, norms = transformers_loop(init, batches, dtype, auxiliary, watch)
    exported, loading = AutoModelForCausalLM.from_pretrained(
        folder / "model", dtype=model.dtype, output_loading_info=True
    )
    assert not any(loading.values()), loading
    ids = torch.tensor(batches[-1]).view(BATCH, LENGTH + 1)
    with torch.no_grad():
        untrained = AutoModelForCausalLM.from_pretrained(init, dtype=model.dtype)(
            input_ids=ids
        ).logits
        wanted = model(input_ids=ids).logits
        logits = (exported(input_ids=ids).logits - wanted).abs().max().item()
        moved = (wanted - untrained).abs().max().item()
    return {
        "loss": max(relative(loss[step + 1], losses[step]) for step in range(steps)),
        "grad_norm": max(relative(norm[step + 1], norms[step]) for step in range(steps)),
        "logits": logits,
        "logits_moved_by_training": moved,
        "clipped_steps": sum(one > MAX_GRAD_NORM for one in norms),
    }


def export_checkpoint(trainer_bin: str, checkpoint: Path, tokenizer: Path, output: Path) -> None:
    words = [trainer_bin, "export", "--checkpoint", checkpoint, "--output", output]
    subprocess.run([*words, "--tokenizer", tokenizer], check=True, capture_output=True)
    json.loads((output / "config.json").read_text())
