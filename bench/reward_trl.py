"""What row `reward` compares with: TRL's RewardTrainer on the pairs of JSON lines, in the order given (trl_in_order.py).

reward_trl.py SETTINGS.json RESULT.json   (written by bench/reward.py; run by the python of bench/requirements-dpo.txt)
"""

import torch
import trl_in_order
from transformers import AutoModelForSequenceClassification
from trl import RewardConfig, RewardTrainer

SHOWN = ("accuracy", "margin", "mean_reward")


def main(settings: dict) -> dict:
    model = AutoModelForSequenceClassification.from_pretrained(
        settings["init"], dtype=torch.float32
    )
    trainer = trl_in_order.in_order(RewardTrainer, SHOWN)(
        model=model,
        args=RewardConfig(
            center_rewards_coefficient=settings["center"] or None,
            **trl_in_order.arguments(settings),
        ),
        **trl_in_order.data(settings),
    )
    trainer.train()
    model.save_pretrained(settings["output"])
    return {"steps": trainer.steps, "pad": model.config.pad_token_id}


if __name__ == "__main__":
    trl_in_order.answer(main)
