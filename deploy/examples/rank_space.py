"""What rank_search.py may try: its knobs, the blocks that they make, and how many FLOPs those are. Needs no torch, so that what is refused costs nothing."""

import math
from dataclasses import dataclass

OPERATORS = ("none", "fc", "dot", "dcn", "fm", "gate")
# What a block reads: embeddings, the block before, both, or the block before and the numbers' row.
SOURCES = ("features", "last", "both", "numbers")
LAST_ROWS = 4  # as so many rows of `dim` dot and fm read the block before
NUMBERS_WIDTH = 16  # of the layer between a sample's numbers and the row that they are
HEAD_WIDTH = 16  # of an fm's width, one head
MOST_WIDE = 4096  # of a block that fills what a budget leaves
DEFAULTS = {"dim": 8, "lr": 1.6e-2, "op1": "fm", "op2": "fc", "op3": "none"}
DEFAULTS |= {f"from{i}": "features" for i in (1, 2, 3)} | {f"width{i}": 32 for i in (1, 2, 3)}


@dataclass(frozen=True)
class Block:
    operator: str
    source: str
    width: int  # fc: outputs; dcn: rank; gate: its hidden layer; fm: HEAD_WIDTH a head; dot: none
    dim: int
    feature_rows: int
    last: int  # outputs of the block before

    @property
    def features(self) -> int:
        return self.feature_rows * self.dim

    @property
    def heads(self) -> int:
        return max(1, self.width // HEAD_WIDTH)

    @property
    def own_rows(self) -> int:
        """Of the embeddings and the numbers that it reads; the numbers' is the last one."""
        return {"last": 0, "numbers": 1}.get(self.source, self.feature_rows)

    @property
    def reads_last(self) -> bool:
        return self.source != "features"

    @property
    def makes_rows(self) -> bool:
        """Of the block before, by a layer."""
        return self.reads_last and self.operator in ("dot", "fm")

    @property
    def reads(self) -> int:
        """Of fc, dcn and gate."""
        return self.own_rows * self.dim + self.last * self.reads_last

    @property
    def rows(self) -> int:
        """That dot and fm read."""
        return self.own_rows + LAST_ROWS * self.reads_last

    @property
    def outputs(self) -> int:
        if self.operator == "fc":
            return self.width
        if self.operator == "dot":
            return self.rows * (self.rows - 1) // 2
        return self.heads * self.dim if self.operator == "fm" else self.features

    def flops(self) -> int:
        count = (2 * self.last + 1) * LAST_ROWS * self.dim if self.makes_rows else 0
        if self.operator == "fc":  # with bias and ReLU
            return count + 2 * self.reads * self.width + 2 * self.width
        if self.operator == "dot":
            return count + 2 * self.rows * self.rows * self.dim
        if self.operator == "fm":
            # squares of the rows; sums of rows and of squares; a sum's square, difference, half
            sums = 2 * 2 * self.heads * self.rows * self.dim
            return count + self.rows * self.dim + sums + 3 * self.heads * self.dim
        # dcn: bias, times the features, plus what goes on. gate: bias and ReLU within; bias, sigmoid, times the features
        within = 2 * self.width if self.operator == "gate" else 0
        return count + 2 * self.width * (self.reads + self.features) + within + 3 * self.features


def blocks_of(setting: dict, feature_rows: int) -> list[Block]:
    """Those that are any, in their order. The first reads the features, whatever it was to read."""
    blocks: list[Block] = []
    for i in (1, 2, 3):
        operator, source, width = (setting[f"{name}{i}"] for name in ("op", "from", "width"))
        if operator != "none":
            last = blocks[-1].outputs if blocks else 0
            source = source if blocks else "features"
            blocks.append(Block(operator, source, width, setting["dim"], feature_rows, last))
    return blocks


def flops_of(setting: dict, fields: int, numbers: int) -> int:
    """Of one sample forwards, up to its logit. A product of matrices m x k and k x n counts 2 m k n, and each element that is added, multiplied, squared, or
    goes through ReLU or sigmoid, 1. Looking up an embedding counts nothing."""
    rows, dim = fields + 1, setting["dim"]
    number_row = 2 * NUMBERS_WIDTH * (numbers + 1 + dim) + dim
    blocks = blocks_of(setting, rows)
    end = 2 * (sum(block.outputs for block in blocks) or rows * dim) + 1
    alone = fields  # a weight each, added
    return number_row + sum(block.flops() for block in blocks) + end + alone


def filled(setting: dict, fields: int, numbers: int, budget: int) -> dict:
    """The setting with its widths for shares: each as wide as all together fit into the budget. What is too dear with widths of 1 has those."""
    greatest = max(setting[f"width{i}"] for i in (1, 2, 3))

    def scaled(to: int) -> dict:
        return setting | {
            name: max(1, setting[name] * to // greatest) for name in ("width1", "width2", "width3")
        }

    low, high = 1, MOST_WIDE
    while high - low > 1:
        middle = (low + high) // 2
        fits = flops_of(scaled(middle), fields, numbers) <= budget
        low, high = (middle, high) if fits else (low, middle)
    return scaled(low)


def setting_of(words: list[str], environment: dict[str, str]) -> dict:
    """The defaults, over them what the worker tells, over them the words KNOB=VALUE."""
    setting = dict(DEFAULTS)
    prefix = "MUSTER_TRIAL_"
    told = {
        name.removeprefix(prefix).lower(): value
        for name, value in environment.items()
        if name.startswith(prefix)
    }
    told |= dict(word.split("=", 1) if "=" in word else (word, None) for word in words)
    for name, text in told.items():
        if name not in DEFAULTS or (text is None and name in words):
            raise ValueError(f"{name}: is no knob; write KNOB=VALUE with one of {[*DEFAULTS]}")
        if text is None:
            continue
        try:
            setting[name] = type(DEFAULTS[name])(text)
        except ValueError:
            raise ValueError(f"{name}={text}: is no number; one like {DEFAULTS[name]} is") from None
        known = OPERATORS if name.startswith("op") else SOURCES if name.startswith("from") else None
        if known and text not in known:
            raise ValueError(f"{name}={text}: takes {', '.join(known)}")
        if known is None and not 0 < setting[name] < math.inf:
            raise ValueError(f"{name}={text}: must be above 0")
    return setting


def told_setting(setting: dict) -> str:
    blocks = []
    for block in blocks_of(setting, 0):
        width = "" if block.operator == "dot" else f" {block.width}"
        blocks.append(f"{block.operator}{width} of {block.source}")
    return f"dim {setting['dim']}, lr {setting['lr']:g}: {', '.join(blocks) or 'no blocks'}"


def front_of(points: list[tuple[float, int]]) -> list[int]:
    """Of (normalised entropy, FLOPs) the places of those that none beats in one without being worse in the other, the cheapest first. Of equals the first."""
    order = sorted(range(len(points)), key=lambda i: (points[i][1], points[i][0], i))
    front, best = [], math.inf
    for i in order:
        if points[i][0] < best:
            front.append(i)
            best = points[i][0]
    return front
