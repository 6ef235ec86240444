"""What row `dpo` compares with: TRL's DPOTrainer on the pairs of JSON lines, in the order given (trl_in_order.py).

dpo_trl.py SETTINGS.json RESULT.json   (written by bench/dpo.py; run by the python of bench/requirements-dpo.txt)
"""

import torch
import trl_in_order
from peft import LoraConfig
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from trl import DPOConfig, DPOTrainer

SHOWN = ("rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins")
SHOWN += ("logps/chosen", "logps/rejected")


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
    lora = settings.get("lora")
    trainer = trl_in_order.in_order(DPOTrainer, SHOWN)(
        model=AutoModelForCausalLM.from_pretrained(settings["init"], dtype=torch.float32),
        ref_model=None
        if lora
        else AutoModelForCausalLM.from_pretrained(settings["init"], dtype=torch.float32),
        args=DPOConfig(beta=settings["beta"], **trl_in_order.arguments(settings)),
        peft_config=LoraConfig(
            r=lora["rank"],
            lora_alpha=lora["alpha"],
            target_modules=lora["target_modules"],
            task_type="CAUSAL_LM",
        )
        if lora
        else None,
        **trl_in_order.data(settings),
    )
    if lora:
        begin_as(trainer.model, settings["adapter"])
    trainer.train()
    return trainer.steps


if __name__ == "__main__":
    trl_in_order.answer(main)
