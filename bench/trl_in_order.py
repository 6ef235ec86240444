"""What the peers of rows `dpo` and `reward` share: a trainer of TRL that takes the pairs in the order given.

Run by the python of bench/requirements-dpo.txt: PROGRAM.py SETTINGS.json RESULT.json, written by the row.
"""

import json
import sys

import torch
from datasets import Dataset
from torch.utils.data import SequentialSampler
from transformers import AutoTokenizer


def in_order(trainer: type, shown: tuple[str, ...]) -> type:
    """The trainer, which takes the pairs as they come, and keeps each step's figures with all their digits."""

    class InOrder(trainer):
        steps: list[dict] = []

        def _get_train_sampler(self, dataset=None):
            return SequentialSampler(dataset if dataset is not None else self.train_dataset)

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            found = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
            loss = found[0] if return_outputs else found
            told = {name: self._metrics["train"][name][-1] for name in shown}
            self.steps.append({"loss": loss.item()} | told)
            return found

    return InOrder


def arguments(settings: dict) -> dict:
    """Of the trainer's configuration."""
    return {
        "output_dir": settings["output"],
        "max_length": settings["max_length"],
        "per_device_train_batch_size": settings["batch"],
        "max_steps": settings["steps"],
        "learning_rate": settings["learning_rate"],
        "lr_scheduler_type": "linear",
        "warmup_steps": settings["warmup_steps"],
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "bf16": False,
        "gradient_checkpointing": False,
        "optim": "adamw_torch",
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
    }


def data(settings: dict) -> dict:
    """Of the trainer: the pairs of JSON lines, and the tokenizer."""
    with open(settings["pairs"]) as file:
        records = [json.loads(line) for line in file]
    return {
        "train_dataset": Dataset.from_list([records[number] for number in settings["order"]]),
        "processing_class": AutoTokenizer.from_pretrained(settings["tokenizer"]),
    }


def answer(main) -> None:
    """Gives main() the settings, and writes what it returns."""
    torch.set_num_threads(1)
    with open(sys.argv[1]) as file:
        found = main(json.load(file))
    with open(sys.argv[2], "w") as file:
        json.dump(found, file)
