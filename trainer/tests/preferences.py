"""Preferences trained by muster-trainer, and by a plain transformers loop that has DPO's losses written out."""

import json
import subprocess
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from harness import PREPARE, Gang, clean_environment, read_batches
from test_prepare import read_masked
from transformers import AutoModelForCausalLM

LENGTH, BATCH, STEPS, LEARNING_RATE, BETA, SMOOTHING = 40, 6, 5, 1e-3, 0.3, 0.1
LORA = {"rank": 4, "alpha": 12, "target_modules": ["q_proj", "v_proj", "down_proj", "lm_head"]}


def write_pairs(path: Path, count: int = 20) -> None:
    """Sums, of which one answer is right and the other isn't, of different lengths."""
    with open(path, "w") as file:
        for number in range(count):
            record = {
                "prompt": f"{number * 7} and {number} is ",
                "chosen": f"{number * 8}. " * (1 + number % 3),
                "rejected": f"{number * 8 + 3}? " * (1 + number % 4),
            }
            file.write(json.dumps(record) + "\n")


def prepare(source: Path, output: Path, *arguments) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, PREPARE, "--input", source, "--output", output]
        + ["--tokenizer", "bytes", "--max-length", str(LENGTH), *map(str, arguments)],
        capture_output=True,
        text=True,
        env=clean_environment(),
    )


def make_pairs(folder: Path, count: int = 20, *arguments) -> Path:
    """Token shards of `count` pairs."""
    folder.mkdir(parents=True)
    write_pairs(folder / "pairs.jsonl", count)
    done = prepare(folder / "pairs.jsonl", folder / "tokens", *arguments)
    assert done.returncode == 0, done.stderr
    return folder / "tokens"


def settings(init: Path, pairs: Path, **more) -> dict:
    return {
        "init": str(init),
        "data": str(pairs),
        "dpo": {"beta": BETA},
        "max_length": LENGTH,
        "global_batch_size": BATCH,
        "micro_batch_size": 2,
        "max_steps": STEPS,
        "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 1.0,
        "threads": 1,
    } | more


def sides(pairs: Path, length: int = LENGTH) -> list[list[tuple[list[int], list[int]]]]:
    """Of each pair in the data's order, the chosen and the rejected ids with their masks, cut at `length`."""
    documents = [(ids[:length], mask[:length]) for ids, mask in read_masked(pairs)]
    return [documents[at : at + 2] for at in range(0, len(documents), 2)]


def pairs_by_step(dump: Path, pairs: Path, batch: int = BATCH) -> list[list[int]]:
    """The numbers of the pairs of each step, by what --dump-tokens wrote."""
    width = 2 * (LENGTH - 1) + 1
    numbers = {}
    for number, (chosen, rejected) in enumerate(sides(pairs)):
        key = (*chosen[0][:-1], *rejected[0])
        assert numbers.setdefault(key, number) == number, "two pairs alike"
    steps = []
    for ids in read_batches(dump, batch, width):
        rows = [ids[at : at + width] for at in range(0, len(ids), width)]
        steps.append([numbers[tuple(one for one in row if one >= 0)] for row in rows])
    return steps


def logps(model, ids: list[int], mask: list[int]) -> torch.Tensor:
    """Of what counts of one document, as transformers computes it."""
    found = F.log_softmax(model(input_ids=torch.tensor([ids])).logits[0, :-1].double(), dim=-1)
    of_targets = found.gather(1, torch.tensor(ids[1:]).unsqueeze(1)).squeeze(1)
    return (of_targets * torch.tensor(mask[1:])).sum()


def cost(kind: str, chosen, rejected, counts: tuple[int, int]) -> torch.Tensor:
    """Of log-ratios to the reference."""
    z = BETA * (chosen - rejected)
    if kind == "hinge":
        return torch.clamp(1 - z, min=0)
    if kind == "ipo":
        return (chosen / counts[0] - rejected / counts[1] - 1 / (2 * BETA)) ** 2
    if kind == "robust":
        right, wrong = -F.logsigmoid(z), -F.logsigmoid(-z)
        return ((1 - SMOOTHING) * right - SMOOTHING * wrong) / (1 - 2 * SMOOTHING)
    return -F.logsigmoid(z)


def transformers_loop(
    model, base, data: list, steps: list[list[int]], kind: str, rates=None
) -> list[dict]:
    """Trains `model` with autograd; `base` is the reference. `rates`: each step's learning rate. What each step's progress line
    should say."""
    torch.set_num_threads(1)
    with torch.no_grad():
        reference = [[logps(base, *side).item() for side in pair] for pair in data]
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, weight_decay=0)
    lines = []
    for step, numbers in enumerate(steps):
        optimizer.param_groups[0]["lr"] = rates[step] if rates else LEARNING_RATE
        names = ("loss", "rewards/chosen", "rewards/rejected", "rewards/accuracies")
        line = dict.fromkeys((*names, "logps/chosen", "logps/rejected"), 0.0)
        optimizer.zero_grad()
        for number in numbers:
            found = [logps(model, *side) for side in data[number]]
            ratios = [one - its for one, its in zip(found, reference[number])]
            counts = tuple(sum(mask[1:]) for _, mask in data[number])
            loss = cost(kind, *ratios, counts) / len(numbers)
            loss.backward()
            told = (loss.item() * len(numbers), BETA * ratios[0].item(), BETA * ratios[1].item())
            told += (float(ratios[0] > ratios[1]), found[0].item(), found[1].item())
            for name, value in zip(line, told):
                line[name] += value / len(numbers)
        line["rewards/margins"] = line["rewards/chosen"] - line["rewards/rejected"]
        line["grad_norm"] = torch.nn.utils.clip_grad_norm_(trained, 1.0).item()
        optimizer.step()
        lines.append(line)
    return lines


def load(init: Path):
    return AutoModelForCausalLM.from_pretrained(init, dtype=torch.float32)


def run(trainer_bin: str, config: dict, ranks: int, folder: Path, **more) -> list[dict]:
    """Its metrics; a job's directory of its own, unless one is given."""
    job = more.pop("job", None) or folder.with_name(folder.name + "-job")
    job.mkdir(exist_ok=True)
    with Gang(trainer_bin, config, ranks, folder, MUSTER_JOB_DIR=str(job), **more) as gang:
        gang.finish()
    return gang.lines


def differences(ours: list[dict], wanted: list[dict]) -> dict[str, float]:
    """The largest of each figure, relative to what is above 1."""
    assert [line["step"] for line in ours] == list(range(1, len(wanted) + 1))
    return {
        name: max(
            abs(line[name] - its[name]) / max(1.0, abs(its[name]))
            for line, its in zip(ours, wanted)
        )
        for name in wanted[0]
        if name in ours[0]
    }
