"""The clicks of rank_search.py: made up from a seed, or a file of yours."""

import math
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy

# Of the clicks that are made up: ids of each field, numbers a row, rows, and how strong each part of the truth is (standard deviation of the logit).
FIELDS = (1000, 500, 200, 100, 50, 50, 20, 20, 10, 10)
NUMBERS = 3
ROWS = {"train": 100_000, "validation": 30_000, "test": 50_000}
PAIRS, TRIPLES, RANK = 8, 3, 3
ALONE, TOGETHER, NOISE, BIAS = 0.3, 0.45, 0.5, -1.8


@dataclass
class Clicks:
    ids: numpy.ndarray  # [rows, fields], each field's from 0
    numbers: numpy.ndarray  # [rows, numbers], float32
    clicks: numpy.ndarray  # [rows], 0 or 1
    sizes: tuple[int, ...]  # ids of each field

    def part(self, name: str) -> "Clicks":
        """train, validation or test: of the file's order as many rows as ROWS has shares."""
        ends = numpy.cumsum(list(ROWS.values())) * len(self.clicks) // sum(ROWS.values())
        at = list(ROWS).index(name)
        rows = slice(0 if at == 0 else int(ends[at - 1]), int(ends[at]))
        return Clicks(self.ids[rows], self.numbers[rows], self.clicks[rows], self.sizes)


def made_up(seed: int, rows: int = sum(ROWS.values())) -> Clicks:
    """Ids by Zipf's law. The logit: each id alone, pairs and triples of fields by products of vectors, curves of numbers, a number times an id, noise. Which
    fields go together is drawn, too."""
    dice = numpy.random.default_rng(seed)
    ids = numpy.stack([_zipf(dice, size, rows) for size in FIELDS], axis=1)
    numbers = dice.normal(size=(rows, NUMBERS)).astype(numpy.float32)
    logit = BIAS + NOISE * dice.normal(size=rows)
    for field, size in enumerate(FIELDS):
        logit += ALONE * dice.normal(size=size)[ids[:, field]]
    for together in [2] * PAIRS + [3] * TRIPLES:
        product = numpy.ones((rows, RANK))
        for field in dice.choice(len(FIELDS), together, replace=False):
            product *= dice.normal(size=(FIELDS[field], RANK))[ids[:, field]]
        logit += TOGETHER * product.sum(axis=1) / math.sqrt(RANK)
    logit += ALONE * (numpy.sin(2 * numbers[:, 0]) + numpy.abs(numbers[:, 1]) - 0.8)
    field = dice.integers(len(FIELDS))
    logit += ALONE * numbers[:, 2] * dice.normal(size=FIELDS[field])[ids[:, field]]
    clicks = (dice.random(rows) < 1 / (1 + numpy.exp(-logit))).astype(numpy.float32)
    return Clicks(ids.astype(numpy.int32), numbers, clicks, FIELDS)


def _zipf(dice, size: int, rows: int) -> numpy.ndarray:
    shares = numpy.cumsum(1 / numpy.arange(1, size + 1))
    return numpy.searchsorted(shares, dice.random(rows) * shares[-1])


def read(path: Path) -> Clicks:
    """An .npz file with ids [rows, fields], numbers [rows, any number], clicks [rows]; rows in the order of time."""
    try:
        with numpy.load(path) as file:
            ids, numbers, clicks = (file[name] for name in ("ids", "numbers", "clicks"))
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, BadZipFile) as error:
        raise ValueError(
            f"--data {path}: is no .npz file with ids, numbers and clicks: {error}"
        ) from error
    if not len(ids) == len(numbers) == len(clicks) or ids.ndim != 2 or numbers.ndim != 2:
        raise ValueError(f"--data {path}: ids, numbers and clicks must have a row a sample")
    whole = len(ids) > 0 and ids.dtype.kind in "iu" and ids.min() >= 0
    if not whole or not numpy.isin(clicks, (0, 1)).all():
        raise ValueError(f"--data {path}: takes some rows, ids from 0 on, and clicks of 0 or 1")
    sizes = tuple(int(size) for size in ids.max(axis=0) + 1)
    return Clicks(ids, numbers.astype(numpy.float32), clicks.astype(numpy.float32), sizes)


def shape_of(clicks: Clicks | None) -> tuple[int, int]:
    """How many fields and numbers a sample has; None: of what is made up."""
    return (len(clicks.sizes), clicks.numbers.shape[1]) if clicks else (len(FIELDS), NUMBERS)
