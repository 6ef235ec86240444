"""The models of rank_search.py in torch, and how they are trained and judged."""

import math

import numpy
import torch
from rank_clicks import Clicks
from rank_space import LAST_ROWS, NUMBERS_WIDTH, Block, blocks_of
from torch import nn


class Base(nn.Module):
    """What all models share: embeddings, the numbers as one more row, and a weight of each id alone. Takes ids and numbers of a batch, gives logits."""

    def __init__(self, sizes: tuple[int, ...], numbers: int, dim: int):
        super().__init__()
        starts = torch.tensor([0, *sizes[:-1]]).cumsum(0)
        self.register_buffer("starts", starts, persistent=False)
        self.rows, self.features = len(sizes) + 1, (len(sizes) + 1) * dim
        self.table, self.weights = nn.Embedding(sum(sizes), dim), nn.Embedding(sum(sizes), 1)
        self.number_row = nn.Sequential(
            nn.Linear(numbers, NUMBERS_WIDTH), nn.ReLU(), nn.Linear(NUMBERS_WIDTH, dim)
        )
        nn.init.normal_(self.table.weight, std=0.1)
        nn.init.zeros_(self.weights.weight)

    def embedded(self, ids, numbers):
        """[batch, rows, dim]"""
        return torch.cat([self.table(ids + self.starts), self.number_row(numbers)[:, None]], 1)

    def alone(self, ids):
        return self.weights(ids + self.starts).sum((1, 2))


def pairs_of(rows):
    """Dot products of all pairs of rows [batch, rows, dim]: [batch, rows (rows - 1) / 2]."""
    first, second = torch.triu_indices(rows.shape[1], rows.shape[1], 1)
    return torch.bmm(rows, rows.transpose(1, 2))[:, first, second]


class Interaction(nn.Module):
    """dot and fm: of rows."""

    def __init__(self, block: Block):
        super().__init__()
        self.block = block
        if block.makes_rows:
            self.of_last = nn.Linear(block.last, LAST_ROWS * block.dim)
        if block.operator == "fm":
            self.heads = nn.Parameter(1 + 0.5 * torch.randn(block.heads, block.rows))

    def forward(self, rows, last):
        rows = rows[:, rows.shape[1] - self.block.own_rows :]
        if self.block.makes_rows:
            rows = torch.cat([rows, self.of_last(last).view(len(rows), LAST_ROWS, -1)], 1)
        if self.block.operator == "dot":
            return pairs_of(rows)
        heads, squared = (
            weights.expand(len(rows), -1, -1) for weights in (self.heads, self.heads * self.heads)
        )
        sums, squares = torch.bmm(heads, rows), torch.bmm(squared, rows * rows)
        return (0.5 * (sums * sums - squares)).flatten(1)


class Layer(nn.Module):
    """fc, dcn and gate: of a vector."""

    def __init__(self, block: Block):
        super().__init__()
        self.block, within = block, block.width
        if block.operator == "fc":
            self.out = nn.Linear(block.reads, block.width)
        else:
            self.within = nn.Linear(block.reads, within, bias=block.operator == "gate")
            self.out = nn.Linear(within, block.features)

    def forward(self, rows, last):
        features = rows.flatten(1)
        read = rows[:, rows.shape[1] - self.block.own_rows :].flatten(1)
        if self.block.reads_last:
            read = torch.cat([read, last], 1)
        if self.block.operator == "fc":
            return self.out(read).relu()
        if self.block.operator == "gate":
            return features * self.out(self.within(read).relu()).sigmoid()
        goes_on = read if read.shape == features.shape else features
        return features * self.out(self.within(read)) + goes_on


class Searched(Base):
    def __init__(self, setting: dict, sizes: tuple[int, ...], numbers: int):
        super().__init__(sizes, numbers, setting["dim"])
        blocks = blocks_of(setting, self.rows)
        kinds = {"dot": Interaction, "fm": Interaction}
        self.blocks = nn.ModuleList(kinds.get(block.operator, Layer)(block) for block in blocks)
        self.end = nn.Linear(sum(block.outputs for block in blocks) or self.features, 1)

    def forward(self, ids, numbers):
        rows = self.embedded(ids, numbers)
        last, outputs = None, []
        for block in self.blocks:
            last = block(rows, last)
            outputs.append(last)
        read = torch.cat(outputs, 1) if outputs else rows.flatten(1)
        return self.end(read)[:, 0] + self.alone(ids)


def model_of(setting: dict, sizes: tuple[int, ...], numbers: int, seed: int) -> Searched:
    torch.manual_seed(seed)
    return Searched(setting, sizes, numbers)


def normalised_entropy(logits, clicks) -> float:
    """He et al. 2014, section 3. Of rows of which all or none were clicked it isn't defined."""
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits.double(), clicks.double())
    rate = float(clicks.double().mean())
    if not 0 < rate < 1:
        raise ValueError("all rows have the same label: normalised entropy needs some of both")
    return float(loss) / -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))


def tensors(clicks: Clicks):
    return (
        torch.from_numpy(clicks.ids.astype(numpy.int64)),
        torch.from_numpy(clicks.numbers),
        torch.from_numpy(clicks.clicks),
    )


def judged(model, clicks: Clicks) -> float:
    ids, numbers, labels = tensors(clicks)
    with torch.no_grad():
        pieces = zip(ids.split(10_000), numbers.split(10_000), strict=True)
        return normalised_entropy(torch.cat([model(*piece) for piece in pieces]), labels)


def train(model, clicks: Clicks, lr: float, steps: int, batch: int, after_step=None, state=None):
    """Adam, rows in their order, from the beginning again where they end: a step's rows hang on its number alone. `state`: of a checkpoint.
    `after_step(step, loss, model, optimizer)` may raise."""
    optimizer, first = torch.optim.Adam(model.parameters(), lr=lr, fused=True), 0
    if state is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    ids, numbers, labels = tensors(clicks)
    for step in range(first, steps):
        rows = torch.arange(step * batch, (step + 1) * batch) % len(labels)
        logits = model(ids[rows], numbers[rows])
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if after_step is not None:
            after_step(step + 1, loss, model, optimizer)
    return model
