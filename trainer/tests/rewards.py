"""Reward models trained by muster-trainer, and by a plain transformers loop that has the loss of pairs written out."""

import json
from pathlib import Path

import preferences
import torch
import torch.nn.functional as F
from harness import TINY_MODEL, read_batches
from preferences import BATCH, LEARNING_RATE, LENGTH
from test_prepare import read_masked
from transformers import (
    AutoModelForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    Qwen2Config,
    Qwen2ForSequenceClassification,
)

PAD = 258  # the last token of the vocabulary of bytes, which no text has
SHOWN = ("loss", "grad_norm", "accuracy", "margin", "mean_reward")
CENTER = 0.05
SCORED = {
    "llama": (LlamaConfig, LlamaForSequenceClassification),
    "qwen2": (Qwen2Config, Qwen2ForSequenceClassification),
}


def make_init(folder: Path, family: str = "llama", **more) -> Path:
    """A directory of a model for sequence classification with one label."""
    torch.manual_seed(7)
    of_config, of_model = SCORED[family]
    shape = {key: value for key, value in TINY_MODEL.items() if key != "architectures"}
    shape |= {"model_type": family, "num_labels": 1, "pad_token_id": PAD} | more
    of_model(of_config(**shape)).save_pretrained(folder)
    return folder


def make_causal(folder: Path) -> Path:
    torch.manual_seed(7)
    LlamaForCausalLM(LlamaConfig(**TINY_MODEL, pad_token_id=PAD)).save_pretrained(folder)
    return folder


def settings(init: Path, pairs: Path, **more) -> dict:
    said = preferences.settings(init, pairs, reward={"center_rewards_coefficient": CENTER}) | more
    return {key: value for key, value in said.items() if key != "dpo" or key in more}


def documents(pairs: Path) -> list[list[list[int]]]:
    """Of each pair in the data's order, the chosen and the rejected ids."""
    ids = [one for one, _ in read_masked(pairs)]
    return [ids[at : at + 2] for at in range(0, len(ids), 2)]


def pairs_by_step(
    dump: Path, pairs: Path, batch: int = BATCH, length: int = LENGTH
) -> list[list[int]]:
    """The numbers of the pairs of each step, by what --dump-tokens wrote: a row, and once more its last token."""
    width = 2 * length + 1
    numbers = {}
    for number, (chosen, rejected) in enumerate(documents(pairs)):
        key = (*chosen, *rejected, rejected[-1])
        assert numbers.setdefault(key, number) == number, "two pairs alike"
    steps = []
    for ids in read_batches(dump, batch, width):
        rows = [ids[at : at + width] for at in range(0, len(ids), width)]
        steps.append([numbers[tuple(one for one in row if one >= 0)] for row in rows])
    return steps


def load(folder: Path):
    return AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)


def rewards(model, pair: list[list[int]]) -> list[torch.Tensor]:
    return [model(input_ids=torch.tensor([ids])).logits[0, 0].double() for ids in pair]


def cost(chosen, rejected, center: float) -> torch.Tensor:
    return -F.logsigmoid(chosen - rejected) + center * (chosen + rejected) ** 2


def transformers_loop(model, data, steps, center: float, rates=None) -> list[dict]:
    """Trains `model` with autograd; what each step's progress line should say."""
    torch.set_num_threads(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0)
    lines = []
    for step, numbers in enumerate(steps):
        optimizer.param_groups[0]["lr"] = rates[step] if rates else LEARNING_RATE
        line = dict.fromkeys(("loss", "accuracy", "margin", "mean_reward"), 0.0)
        optimizer.zero_grad()
        for number in numbers:
            chosen, rejected = rewards(model, data[number])
            loss = cost(chosen, rejected, center) / len(numbers)
            loss.backward()
            chosen, rejected = chosen.item(), rejected.item()
            told = (loss.item() * len(numbers), chosen > rejected, chosen - rejected)
            for name, value in zip(line, (*told, (chosen + rejected) / 2)):
                line[name] += value / len(numbers)
        line["grad_norm"] = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
        optimizer.step()
        lines.append(line)
    return lines


def config_of(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text())
