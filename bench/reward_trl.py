"""What row `reward` compares with: TRL's RewardTrainer on the pairs of JSON lines, in the order given.

reward_trl.py SETTINGS.json RESULT.json   (written by bench/reward.py; run by the python of bench/requirements-dpo.txt)
"""

import json
import sys

import torch
from datasets import Dataset
from torch.utils.data import SequentialSampler
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from trl import RewardConfig, RewardTrainer

SHOWN = ("accuracy", "margin", "mean_reward")


class InOrder(RewardTrainer):
    """Takes the pairs as they come, and keeps each step's figures with all their digits."""

    steps: list[dict] = []

    def _get_train_sampler(self, dataset=None):
        return SequentialSampler(dataset if dataset is not None else self.train_dataset)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        found = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        loss = found[0] if return_outputs else found
        told = {name: self._metrics["train"][name][-1] for name in SHOWN}
        self.steps.append({"loss": loss.item()} | told)
        return found


def main(settings: dict) -> dict:
    torch.set_num_threads(1)
    with open(settings["pairs"]) as file:
        records = [json.loads(line) for line in file]
    model = AutoModelForSequenceClassification.from_pretrained(
        settings["init"], dtype=torch.float32
    )
    trainer = InOrder(
        model=model,
        args=RewardConfig(
            output_dir=settings["output"],
            max_length=settings["max_length"],
            center_rewards_coefficient=settings["center"] or None,
            per_device_train_batch_size=settings["batch"],
            max_steps=settings["steps"],
            learning_rate=settings["learning_rate"],
            lr_scheduler_type="linear",
            warmup_steps=settings["warmup_steps"],
            weight_decay=0.0,
            max_grad_norm=1.0,
            bf16=False,
            gradient_checkpointing=False,
            optim="adamw_torch",
            save_strategy="no",
            report_to="none",
            use_cpu=True,
        ),
        train_dataset=Dataset.from_list([records[number] for number in settings["order"]]),
        processing_class=AutoTokenizer.from_pretrained(settings["tokenizer"]),
    )
    trainer.train()
    model.save_pretrained(settings["output"])
    return {"steps": trainer.steps, "pad": model.config.pad_token_id}


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        found = main(json.load(file))
    with open(sys.argv[2], "w") as file:
        json.dump(found, file)
