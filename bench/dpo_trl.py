"""What row `dpo` compares with: TRL's DPOTrainer on the pairs of JSON lines, in the order given.

dpo_trl.py SETTINGS.json RESULT.json   (written by bench/dpo.py; run by the python of bench/requirements-dpo.txt)
"""

import json
import sys

import torch
from datasets import Dataset
from peft import LoraConfig
from safetensors.torch import load_file
from torch.utils.data import SequentialSampler
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer

SHOWN = ("rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins")
SHOWN += ("logps/chosen", "logps/rejected")


class InOrder(DPOTrainer):
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


def begin_as(model, adapter: str) -> None:
    """Gives TRL's new adapter the weights that ours began with."""
    weights = load_file(f"{adapter}/adapter_model.safetensors")
    found = 0
    for name, parameter in model.named_parameters():
        if "lora_" not in name:
            continue
        its = weights[name.replace(".default", "")]
        parameter.data.copy_(its if "lora_A" in name else torch.zeros_like(its))
        found += 1
    assert found == len(weights), (found, len(weights))


def main(settings: dict) -> list[dict]:
    torch.set_num_threads(1)
    with open(settings["pairs"]) as file:
        records = [json.loads(line) for line in file]
    lora = settings.get("lora")
    trainer = InOrder(
        model=AutoModelForCausalLM.from_pretrained(settings["init"], dtype=torch.float32),
        ref_model=None
        if lora
        else AutoModelForCausalLM.from_pretrained(settings["init"], dtype=torch.float32),
        args=DPOConfig(
            output_dir=settings["output"],
            beta=settings["beta"],
            max_length=settings["max_length"],
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
        peft_config=LoraConfig(
            r=lora["rank"],
            lora_alpha=lora["alpha"],
            target_modules=lora["target_modules"],
            task_type="CAUSAL_LM",
        )
        if lora
        else None,
    )
    if lora:
        begin_as(trainer.model, settings["adapter"])
    trainer.train()
    return trainer.steps


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        found = main(json.load(file))
    with open(sys.argv[2], "w") as file:
        json.dump(found, file)
