"""Five ranking models after their papers, of row `tune-search`: its peers, each at any budget of FLOPs. They have rank_search.py's embeddings, its weight of each
id alone, and its training; what is theirs is between the embeddings and the logit.

FuxiCTR's zoo has the same five. Its package on PyPI (2.3.10) has the zoo's layers, but of the models only those of long sequences; so they are written here.
"""

import itertools
from collections import Counter

import torch
from rank_model import Base, pairs_of
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

RATES, DEPTHS = (8e-3, 1.6e-2, 3.2e-2), (1, 2)


def mlp(reads: int, width: int, depth: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(reads, width), nn.ReLU()]
        reads = width
    return nn.Sequential(*layers)


class Peer(Base):
    """Of one width: of its layers, and of all else that may be wide."""

    dims = (6, 8, 12, 16)

    def __init__(self, sizes: tuple[int, ...], numbers: int, dim: int, width: int, depth: int):
        super().__init__(sizes, numbers, dim)
        self.dim, self.width, self.depth = dim, width, depth
        self.end = nn.Linear(self.make(), 1)

    def make(self) -> int:
        """Makes its layers; how much the last one reads."""
        raise NotImplementedError

    def inner(self, rows):
        """[batch, what the last one reads] of rows [batch, rows, dim]"""
        raise NotImplementedError

    def forward(self, ids, numbers):
        return self.end(self.inner(self.embedded(ids, numbers)))[:, 0] + self.alone(ids)


class DeepFM(Peer):
    """arXiv 1703.04247: the factorization machine's sum beside layers."""

    def make(self) -> int:
        self.layers = mlp(self.features, self.width, self.depth)
        return self.width

    def inner(self, rows):
        return self.layers(rows.flatten(1))

    def forward(self, ids, numbers):
        rows = self.embedded(ids, numbers)
        sums = rows.sum(1)
        pairs = 0.5 * (sums * sums - (rows * rows).sum(1)).sum(1)
        return self.end(self.inner(rows))[:, 0] + self.alone(ids) + pairs


class DCNv2(Peer):
    """arXiv 2008.13535, side by side: `depth` cross layers, of a rank of a quarter of the width (its section 3.4) or of full rank where that isn't dearer."""

    def make(self) -> int:
        features, rank = self.features, max(1, self.width // 4)
        full = 2 * rank >= features
        self.crosses = nn.ModuleList(
            nn.Linear(features, features)
            if full
            else nn.Sequential(nn.Linear(features, rank, bias=False), nn.Linear(rank, features))
            for _ in range(self.depth)
        )
        self.layers = mlp(features, self.width, self.depth)
        return features + self.width

    def inner(self, rows):
        first = last = rows.flatten(1)
        for cross in self.crosses:
            last = first * cross(last) + last
        return torch.cat([last, self.layers(first)], 1)


class DLRM(Peer):
    """arXiv 1906.00091: dot products of all pairs, beside the numbers' row, into layers. Its bottom layers are Base's."""

    def make(self) -> int:
        self.layers = mlp(self.rows * (self.rows - 1) // 2 + self.dim, self.width, self.depth)
        return self.width

    def inner(self, rows):
        return self.layers(torch.cat([rows[:, -1], pairs_of(rows)], 1))


class AutoInt(Peer):
    """arXiv 1810.11921, with layers beside it (AutoInt+): one layer of self-attention with two heads over the rows. Its dimensions are less than others': of
    12 it alone is above the row's budget."""

    dims = (2, 4, 6, 8)

    def make(self) -> int:
        self.query, self.key, self.value, self.past = (
            nn.Linear(self.dim, self.dim, bias=False) for _ in range(4)
        )
        self.layers = mlp(self.features, self.width, self.depth)
        return self.features + self.width

    def inner(self, rows):
        heads = [
            of(rows).unflatten(2, (2, -1)).transpose(1, 2)
            for of in (self.query, self.key, self.value)
        ]
        query, key, value = (part.flatten(0, 1) for part in heads)
        shares = torch.bmm(query, key.transpose(1, 2)).softmax(2)
        read = torch.bmm(shares, value).unflatten(0, (-1, 2)).transpose(1, 2).flatten(2)
        return torch.cat(
            [(read + self.past(rows)).relu().flatten(1), self.layers(rows.flatten(1))], 1
        )


class MaskNet(Peer):
    """arXiv 2102.07619, side by side: two MaskBlocks on the embeddings, whose masks have half the width within, into layers."""

    def make(self) -> int:
        features, width = self.features, self.width
        within = max(1, width // 2)
        self.norm = nn.LayerNorm(self.dim)
        self.masks = nn.ModuleList(
            nn.Sequential(nn.Linear(features, within), nn.ReLU(), nn.Linear(within, features))
            for _ in range(2)
        )
        self.hidden = nn.ModuleList(
            nn.Sequential(nn.Linear(features, width, bias=False), nn.LayerNorm(width), nn.ReLU())
            for _ in range(2)
        )
        self.layers = mlp(2 * width, width, self.depth)
        return width

    def inner(self, rows):
        flat, normed = rows.flatten(1), self.norm(rows).flatten(1)
        pairs = zip(self.masks, self.hidden, strict=True)
        return self.layers(torch.cat([hidden(mask(flat) * normed) for mask, hidden in pairs], 1))


PEERS = (DeepFM, DCNv2, DLRM, AutoInt, MaskNet)


# ---- FLOPs ----

# A layer norm: sum and sum of squares, difference, division, and the two weights. A softmax: exp, sum, division.
_AN_OUTPUT = {"add": 1, "sub": 1, "mul": 1, "relu": 1, "sigmoid": 1}
_AN_OUTPUT |= {"_softmax": 3, "native_layer_norm": 7}


class _Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.count = Counter()

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        made = function(*arguments, **(keywords or {}))
        name = function.__name__.partition(".")[0].rstrip("_")
        of = made[0] if isinstance(made, tuple) else made
        if not isinstance(of, torch.Tensor) or not of.is_floating_point():
            return made  # where a row of the table is
        if name in ("mm", "bmm"):
            self.count[name] += 2 * made.numel() * arguments[0].shape[-1]
        elif name == "addmm":
            self.count[name] += made.numel() * (2 * arguments[1].shape[-1] + 1)
        elif name == "pow" and arguments[1] == 2:
            self.count[name] += made.numel()
        elif name == "sum":
            self.count[name] += arguments[0].numel() - made.numel()
        elif name in _AN_OUTPUT:
            self.count[name] += _AN_OUTPUT[name] * of.numel()
        return made


def counted_flops(model, fields: int, numbers: int) -> int:
    """As rank_space.flops_of counts, of what torch is really asked to do: of a batch of three less a batch of two."""
    counts = []
    for batch in (2, 3):
        ids = torch.zeros(batch, fields, dtype=torch.int64)
        with torch.no_grad(), _Counting() as counting:
            model(ids, torch.zeros(batch, numbers))
        counts.append(counting.count.total())
    return counts[1] - counts[0]


def widest(peer: type, fields: int, numbers: int, dim: int, depth: int, budget: int) -> int:
    """The greatest width whose FLOPs aren't above the budget. 0: not even 1 is possible."""
    low, high = 0, 4096
    while high - low > 1:
        width = (low + high) // 2
        model = peer((1,) * fields, numbers, dim, width, depth)
        within = counted_flops(model, fields, numbers) <= budget
        low, high = (width, high) if within else (low, width)
    return low


def grid(peer: type, fields: int, numbers: int, budget: int) -> list[dict]:
    """All that is tried of it, each as wide as the budget allows."""
    found = []
    for dim, depth in itertools.product(peer.dims, DEPTHS):
        width = widest(peer, fields, numbers, dim, depth, budget)
        if width:
            found += [{"dim": dim, "width": width, "depth": depth, "lr": lr} for lr in RATES]
    return found
