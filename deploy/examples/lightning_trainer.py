"""Lightning's Trainer under Muster: a small regression on made-up data. Three lines are Muster's; without them it is a script like any other.

python3 lightning_trainer.py --steps 60          # by hand: no Muster, no difference
"""

import argparse
import json
import os

import lightning.pytorch as pl
import torch
from muster_runtime.lightning import MusterCallback, newest_checkpoint


class Waves(torch.utils.data.Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        at = torch.arange(32) * 0.1 + index * 0.37
        return torch.sin(at), torch.cos(at[:8])


class Model(pl.LightningModule):
    def __init__(self, lr: float):
        super().__init__()
        self.lr = lr
        layers = [torch.nn.Linear(32, 256), torch.nn.GELU(), torch.nn.Linear(256, 8)]
        self.layers = torch.nn.Sequential(*layers)
        self.losses: dict[int, float] = {}

    def training_step(self, batch, index):
        inputs, wanted = batch
        loss = torch.nn.functional.mse_loss(self.layers(inputs), wanted)
        mean = self.all_gather(loss.detach()).mean()
        self.losses[self.global_step + 1] = float(mean)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=16, help="of all ranks together")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--losses", help="a JSON file for the loss of each step")
    options = parser.parse_args()

    pl.seed_everything(0)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    # The same rows at the same step with any number of ranks, which Lightning's own sampler doesn't keep.
    rows = Waves()
    sampler = torch.utils.data.DistributedSampler(
        rows, num_replicas=world, rank=int(os.environ.get("RANK", "0")), shuffle=False
    )
    data = torch.utils.data.DataLoader(rows, batch_size=options.batch // world, sampler=sampler)
    trainer = pl.Trainer(
        max_steps=options.steps,
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        strategy="ddp" if world > 1 else "auto",
        use_distributed_sampler=False,
        log_every_n_steps=1,
        logger=False,
        enable_checkpointing=False,  # Muster says when
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[MusterCallback()],  # Muster's
    )
    model = Model(options.lr)
    trainer.fit(model, data, ckpt_path=newest_checkpoint())  # Muster's
    if options.losses and trainer.is_global_zero:
        with open(options.losses, "w") as file:
            json.dump(model.losses, file)


if __name__ == "__main__":
    main()
