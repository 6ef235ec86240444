"""Prompts with completions, trained packed and apart, beside transformers on the same documents."""

import json
import subprocess
import sys
from pathlib import Path

import torch
from harness import PREPARE, Gang, clean_environment, relative
from parity import make_init
from test_prepare import read_masked
from transformers import AutoModelForCausalLM

LENGTH = 64


def make_pairs(folder: Path, count: int = 40, *arguments) -> Path:
    """Token shards of `count` small sums: prompts that don't count, completions that do."""
    folder.mkdir(parents=True)
    with open(folder / "pairs.jsonl", "w") as file:
        for number in range(count):
            file.write(
                json.dumps(
                    {
                        "prompt": f"{number * 7} and {number} is ",
                        "completion": f"{number * 8}, " * (1 + number * 5 % 7),
                    }
                )
                + "\n"
            )
    subprocess.run(
        [
            sys.executable,
            PREPARE,
            "--input",
            folder / "pairs.jsonl",
            "--tokenizer",
            "bytes",
            "--max-length",
            str(LENGTH),
            "--output",
            folder / "tokens",
            *map(str, arguments),
        ],
        check=True,
        capture_output=True,
        env=clean_environment(),
    )
    return folder / "tokens"


def settings(init: Path, tokens: Path, batch: int, **more) -> dict:
    return {
        "init": str(init),
        "data": str(tokens),
        "max_length": LENGTH,
        "global_batch_size": batch,
        "micro_batch_size": 4,
        "max_steps": 3,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "dtype": "fp32",
        "threads": 1,
    } | more


def rows_of_an_epoch(tokens: Path) -> int:
    """Best fit decreasing by its definition."""
    room: list[int] = []
    for length in sorted((len(ids) - 1 for ids, _ in read_masked(tokens)), reverse=True):
        fits = [(left, row) for row, left in enumerate(room) if left >= length]
        if fits:
            room[min(fits)[1]] -= length
        else:
            room.append(LENGTH - length)
    return len(room)


def transformers_loss(
    model: Path, documents: list[tuple[list[int], list[int]]], train: bool = False
) -> tuple[float, float]:
    """(mean loss over the tokens that count, gradient norm) of documents run one at a time."""
    torch.set_num_threads(1)
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    count = sum(sum(mask[1:]) for _, mask in documents)
    total = 0.0
    with torch.set_grad_enabled(train):
        for ids, mask in documents:
            logits = network(input_ids=torch.tensor([ids[:-1]])).logits[0]
            targets = torch.tensor(
                [token if counts else -100 for token, counts in zip(ids[1:], mask[1:])]
            )
            loss = (
                torch.nn.functional.cross_entropy(
                    logits, targets, ignore_index=-100, reduction="sum"
                )
                / count
            )
            total += loss.item()
            if train and any(mask[1:]):
                loss.backward()
    norm = (
        torch.nn.utils.clip_grad_norm_(network.parameters(), float("inf")).item() if train else 0.0
    )
    return total, norm


def compare_packing(trainer_bin: str, folder: Path) -> dict[str, float]:
    """Three steps, each of the whole data: a document a row on one rank, against packed on one and on two; and the first
    step against transformers. Largest relative differences."""
    tokens = make_pairs(folder / "pairs")
    documents = read_masked(tokens)
    init = make_init(folder / "init")
    runs = {}
    for name, packing, batch, ranks in (
        ("apart", "none", len(documents), 1),
        ("packed", "bfd", rows_of_an_epoch(tokens), 1),
        ("packed2", "bfd", rows_of_an_epoch(tokens), 2),
    ):
        with Gang(
            trainer_bin, settings(init, tokens, batch, packing=packing), ranks, folder / name
        ) as gang:
            gang.finish()
        runs[name] = (gang.metric("loss"), gang.metric("grad_norm"))
    reference, reference_norm = transformers_loss(init, documents, train=True)
    found = {"rows": rows_of_an_epoch(tokens), "documents": len(documents)}
    for index, what in enumerate(("loss", "grad_norm")):
        found[what] = max(
            relative(runs[name][index][step], runs["apart"][index][step])
            for name in ("packed", "packed2")
            for step in (1, 2, 3)
        )
    found["loss_transformers"] = relative(runs["packed"][0][1], reference)
    found["grad_norm_transformers"] = relative(runs["packed"][1][1], reference_norm)
    return found
