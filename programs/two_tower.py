#!/usr/bin/env python3
"""Two towers that learn which items are for which queries, with Lightning and DDP, under Muster or by hand (docs/programs.md, "Two towers").

    two_tower.py [--steps N] [--encoder DIRECTORY] [--lora-rank R] [--tables row-wise] [--export DIRECTORY]

A query and an item each become a vector: a Hugging Face encoder reads the text, TorchRec's tables the ids, and DCN-v2 crosses them with numbers. The loss is a
softmax over the batch's items. Items that are taken often are in many batches; log Q makes good for that.
"""

import argparse
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import lightning.pytorch as pl
import torch
import two_tower_sharding as sharding
from lightning.pytorch.strategies import DDPStrategy
from muster_runtime.lightning import MusterCallback, newest_checkpoint
from two_tower_data import World, recall, shares_of
from two_tower_model import Features, Tower, bags_of, item_tables, load_encoder, query_tables

TEMPERATURE = 0.1
OPTIMIZERS = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adagrad": torch.optim.Adagrad,
    "sgd": torch.optim.SGD,
}
RECALL_AT, TEST_USERS = 10, 1000
STOPPED = 143  # exit code after SIGTERM


@dataclass
class Settings:
    """What a model is made from, and made again from."""

    users: int = 1000
    items: int = 500
    seed: int = 0
    encoder: str = ""
    lora_rank: int = 0
    optimizer: str = "adam"
    lr: float = 3e-3


class Gather(torch.autograd.Function):
    """All ranks' rows, in the ranks' order. A row's gradient is the sum over the ranks, whose losses all use it."""

    @staticmethod
    def forward(context, rows):
        all_rows = [torch.empty_like(rows) for _ in range(torch.distributed.get_world_size())]
        torch.distributed.all_gather(all_rows, rows.contiguous())
        return torch.cat(all_rows)

    @staticmethod
    def backward(context, gradient):
        gradient = gradient.contiguous()
        torch.distributed.all_reduce(gradient)
        return gradient.chunk(torch.distributed.get_world_size())[torch.distributed.get_rank()]


def batch_softmax(queries, items, log_shares, ids, own_ids, first: int):
    """The mean loss of `queries`, whose items are those from `first` on. [rows, width], [all, width], [all], [all], [rows].

    An item is in a batch in proportion to its share, so its score is lowered by that share's logarithm (sampled softmax with log Q). An item that is the query's
    own one, and is in the batch a second time, is no wrong answer.
    """
    scores = queries @ items.T / TEMPERATURE - log_shares
    right = torch.arange(first, first + len(queries))
    again = (ids == own_ids.unsqueeze(1)) & (torch.arange(len(ids)) != right.unsqueeze(1))
    return torch.nn.functional.cross_entropy(scores.masked_fill(again, -torch.inf), right)


class TwoTower(pl.LightningModule):
    def __init__(self, settings: Settings, row_wise: bool = False):
        super().__init__()
        self.settings, self.row_wise = settings, row_wise
        self.losses: dict[int, float] = {}
        self.tokenizer, encoder = load_encoder(settings.encoder, settings.lora_rank)
        self.query = Tower(encoder, query_tables(settings.users, settings.items))
        self.item = Tower(encoder, item_tables(settings.items))
        self.log_shares = torch.zeros(settings.items)

    def configure_model(self):
        if self.row_wise:
            sharding.shard(self, self.query)
            sharding.shard(self, self.item)

    def training_step(self, batch, _):
        queries, items = self.query(batch["query"]), self.item(batch["item"])
        ids = own = batch["ids"]
        if torch.distributed.is_initialized():
            items = Gather.apply(items)
            ids = Gather.apply(own)
        first = len(own) * self.global_rank
        loss = batch_softmax(queries, items, self.log_shares[ids], ids, own, first)
        self.log("loss", loss)
        self._keep(loss.detach().clone())  # the sum over the ranks is made in its place
        return loss

    def _keep(self, loss) -> None:
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(loss)
            loss = loss / torch.distributed.get_world_size()
        self.losses[self.global_step + 1] = float(loss)

    def configure_optimizers(self):
        trained = [p for p in self.parameters() if p.requires_grad]
        return OPTIMIZERS[self.settings.optimizer](trained, lr=self.settings.lr)

    def on_save_checkpoint(self, checkpoint):
        checkpoint["losses"] = self.losses
        if self.row_wise:
            sharding.gather_into(self, checkpoint)

    def on_load_checkpoint(self, checkpoint):
        self.losses = checkpoint["losses"]
        if self.row_wise:
            sharding.cut_out_of(self, checkpoint)


# ---- data ----


class Batches:
    """Makes features of rows; what a user or an item has is made once."""

    def __init__(self, world: World, tokenizer):
        self.world = world
        self.user_tokens = tokenizer(world.user_text, return_tensors="pt", padding=True)
        self.item_tokens = tokenizer(world.item_text, return_tensors="pt", padding=True)
        self.user_dense, self.item_dense = map(
            torch.from_numpy, (world.user_dense, world.item_dense)
        )

    def queries(self, users) -> Features:
        history = [self.world.user_history[user] for user in users]
        bags = bags_of({"user": [[int(user)] for user in users], "history": history})
        return _features(self.user_tokens, users, bags, self.user_dense)

    def items(self, items) -> Features:
        categories = [self.world.item_categories[item] for item in items]
        bags = bags_of({"item": [[int(item)] for item in items], "categories": categories})
        return _features(self.item_tokens, items, bags, self.item_dense)

    def __call__(self, rows) -> dict:
        """Of pairs (user, item)."""
        users, items = (torch.tensor(column) for column in zip(*rows, strict=True))
        return {"query": self.queries(users), "item": self.items(items), "ids": items}


def _features(tokens, rows, bags, dense) -> Features:
    rows = torch.as_tensor(rows)
    return Features(tokens["input_ids"][rows], tokens["attention_mask"][rows], bags, dense[rows])


def loader(pairs, batches: Batches, batch: int, world: int, rank: int):
    """The same pairs at the same step with any number of ranks, which Lightning's own sampler doesn't keep."""
    sampler = torch.utils.data.DistributedSampler(
        pairs, num_replicas=world, rank=rank, shuffle=False
    )
    return torch.utils.data.DataLoader(
        pairs, batch_size=batch // world, sampler=sampler, collate_fn=batches, drop_last=True
    )


# ---- what it is worth ----


@torch.no_grad()
def item_vectors(model: TwoTower, batches: Batches) -> torch.Tensor:  # [items, WIDTH]
    parts = torch.arange(model.settings.items).split(256)
    return torch.cat([model.item(batches.items(part)) for part in parts])


@torch.no_grad()
def recall_of(model: TwoTower, batches: Batches, items: torch.Tensor) -> float:
    """`items`: their vectors. All ranks have to call it: with row-wise tables each has a part."""
    users = torch.arange(min(TEST_USERS, model.settings.users))
    scores = model.query(batches.queries(users)) @ items.T
    wanted = [batches.world.relevant(int(user), RECALL_AT) for user in users]
    return recall(scores.topk(RECALL_AT).indices.numpy(), wanted)


def export(model: TwoTower, directory: Path) -> None:
    """For two_tower_score. With row-wise tables from all ranks."""
    state = sharding.whole_state(model) if model.row_wise else model.state_dict()
    if model.global_rank != 0:
        return
    directory.mkdir(parents=True, exist_ok=True)
    whole = {"settings": asdict(model.settings), "state": state}  # of two files one could be older
    replace(directory / "model.pt", lambda file: torch.save(whole, file))


def replace(path: Path, write) -> None:
    """By a rename: what is there stays good until the new one is whole."""
    draft = path.with_name(path.name + ".new")
    try:
        with draft.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def load(directory: Path) -> TwoTower:
    whole = torch.load(directory / "model.pt", weights_only=True)
    model = TwoTower(Settings(**whole["settings"]))
    model.load_state_dict(whole["state"])
    return model.eval()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains two towers on made data.")
    for name, value in asdict(Settings()).items():
        choices = list(OPTIMIZERS) if name == "optimizer" else None
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=type(value), default=value, choices=choices
        )
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=128, help="of all ranks together")
    parser.add_argument("--tables", choices=("replicated", "row-wise"), default="replicated")
    parser.add_argument("--out", help="a JSON file: losses, recall, items' vectors")
    parser.add_argument("--export", help="a directory for the model")
    return parser.parse_args()


def main() -> None:
    options = parse()
    settings = Settings(**{name: getattr(options, name) for name in asdict(Settings())})
    pl.seed_everything(settings.seed)
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    truth = World(settings.users, settings.items, settings.seed)
    pairs = truth.interactions(options.steps * options.batch)
    model = TwoTower(settings, row_wise=options.tables == "row-wise" and world > 1)
    model.log_shares = torch.from_numpy(shares_of(pairs[:, 1], settings.items))
    batches = Batches(truth, model.tokenizer)
    muster = MusterCallback()  # Muster's
    trainer = pl.Trainer(
        max_steps=options.steps,
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        strategy=DDPStrategy(process_group_backend="gloo") if world > 1 else "auto",
        use_distributed_sampler=False,
        log_every_n_steps=1,
        logger=False,
        enable_checkpointing=False,  # Muster says when
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[muster],  # Muster's
    )
    data = loader(pairs, batches, options.batch, world, rank)
    trainer.fit(model, data, ckpt_path=newest_checkpoint())  # Muster's
    if muster.stopped and trainer.global_step < options.steps:
        sys.exit(STOPPED)  # Muster's: another attempt goes on, and exports what is whole
    model.eval()
    items = item_vectors(model, batches)
    found = recall_of(model, batches, items)
    if options.export:
        export(model, Path(options.export))
    if trainer.is_global_zero:
        print(f"recall@{RECALL_AT} {found:.4f} after {trainer.global_step} steps", flush=True)
        if options.out:
            told = {"recall": found, "losses": model.losses, "items": items.tolist()}
            Path(options.out).write_text(json.dumps(told))


if __name__ == "__main__":
    main()
