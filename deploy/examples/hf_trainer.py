"""transformers' Trainer under Muster: a small model on made-up text. Three lines are Muster's; without them it is a script like any other.

python3 hf_trainer.py --steps 60          # by hand: no Muster, no difference
"""

import argparse
import json
import os

import muster_runtime
import torch
from muster_runtime.transformers import MusterCallback, newest_checkpoint
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed


class Counting(torch.utils.data.Dataset):
    """Rows that count upwards from anywhere: learnt in a few steps."""

    def __len__(self):
        return 4096

    def __getitem__(self, index):
        row = (torch.arange(32) + index * 7) % 64
        return {"input_ids": row, "labels": row}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=4, help="of all ranks together")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--losses", help="a JSON file for the loss of each step")
    options = parser.parse_args()

    set_seed(0)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            attention_dropout=options.dropout,  # random state has to go on, too
        )
    )
    arguments = TrainingArguments(
        output_dir=muster_runtime.checkpoint_directory("hf_trainer"),  # Muster's
        max_steps=options.steps,
        per_device_train_batch_size=options.batch // world,
        learning_rate=1e-3,
        use_cpu=not torch.cuda.is_available(),  # else several ranks would train each for itself
        logging_steps=1,
        save_strategy="no",  # Muster says when
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=Counting(),
        callbacks=[MusterCallback()],  # Muster's
    )
    trainer.train(resume_from_checkpoint=newest_checkpoint())  # Muster's
    if options.losses and trainer.is_world_process_zero():
        history = {row["step"]: row["loss"] for row in trainer.state.log_history if "loss" in row}
        with open(options.losses, "w") as file:
            json.dump(history, file)


if __name__ == "__main__":
    main()
