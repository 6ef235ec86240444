"""What may be tried: knobs and their values.

A setting is a dict of every knob's value. A knob has a list of values, or a range (whole numbers, or floats, evenly by value or by logarithm).
"""

import itertools
import json
import math
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

MOST_LISTED = 100_000  # settings that are counted one by one; a larger space is drawn from


class SpaceError(Exception):
    """What is wrong with a knob, and what to write instead."""


@dataclass(frozen=True)
class Knob:
    name: str
    values: tuple = ()  # empty: it is a range
    low: float = 0
    high: float = 0
    whole: bool = False
    log: bool = False

    def draw(self, dice: random.Random):
        if self.values:
            return dice.choice(self.values)
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        drawn = dice.uniform(low, high)
        drawn = math.exp(drawn) if self.log else drawn
        drawn = min(max(drawn, self.low), self.high)  # exp(log(x)) may be beside x
        return round(drawn) if self.whole else drawn

    def has(self, value) -> bool:
        if self.values:
            return value in self.values
        return isinstance(value, (int, float)) and self.low <= value <= self.high


# Knobs of the trainer that may stand without values: the field, and what it may be.
TRAINER_KNOBS = {
    "zero_stage": ("zero_stage", (0, 1, 2, 3)),
    "micro_batch": ("micro_batch_size", ()),  # powers of two, up to a rank's share
    "recompute": ("recompute", ("none", "pointwise", "keep_attention", "full")),
    "offload": ("offload", ("none", "optimizer", "parameters")),
}
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"(log:)?({_NUMBER})\.\.({_NUMBER})")


def parse_knob(text: str) -> Knob:
    """NAME=VALUE,VALUE or NAME=[log:]LOW..HIGH. A value that is JSON (a number, true, null) is that, else text."""
    name, equals, rest = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][\w.]*", name):
        raise SpaceError(
            f"--knob {text}: write NAME=VALUE,VALUE or NAME=LOW..HIGH, such as lr=log:1e-5..1e-2"
        )
    if found := _RANGE.fullmatch(rest):
        return _range(text, name, bool(found[1]), found[2], found[3])
    words = rest.split(",")
    if "" in words:
        raise SpaceError(f"--knob {text}: one of its values is empty; take it out")
    values = tuple(_value(word) for word in words)
    if len({json.dumps(value) for value in values}) < len(values):
        raise SpaceError(f"--knob {text}: has a value twice; take one out")
    return Knob(name, values)


def _range(text: str, name: str, log: bool, low: str, high: str) -> Knob:
    whole = bool(re.fullmatch(r"[-+]?\d+", low) and re.fullmatch(r"[-+]?\d+", high))
    begin, end = float(low), float(high)
    if not (math.isfinite(begin) and math.isfinite(end) and begin < end):
        raise SpaceError(f"--knob {text}: LOW must be below HIGH")
    if log and begin <= 0:
        raise SpaceError(f"--knob {text}: of a range by logarithm LOW must be above 0")
    return Knob(name, (), int(low) if whole else begin, int(high) if whole else end, whole, log)


def _value(word: str):
    try:
        value = json.loads(word)
    except ValueError:
        return word
    if isinstance(value, float) and not math.isfinite(value):
        return word
    return value if isinstance(value, (bool, int, float, str)) or value is None else word


def trainer_knob(text: str, rows_a_rank: int) -> Knob:
    """NAME alone: a knob of the trainer whose values are known here. NAME=…: as parse_knob."""
    if "=" in text:
        knob = parse_knob(text)
        name = TRAINER_KNOBS.get(knob.name, (knob.name,))[0]
        return Knob(name, knob.values, knob.low, knob.high, knob.whole, knob.log)
    if text not in TRAINER_KNOBS:
        known = ", ".join(TRAINER_KNOBS)
        raise SpaceError(
            f"--knob {text}: has no values of its own here; write {text}=VALUE,VALUE, or take one of {known}"
        )
    name, values = TRAINER_KNOBS[text]
    if not values:
        values = tuple(2**n for n in range(20) if 2**n <= rows_a_rank)
    return Knob(name, values)


def parse_setting(text: str, space: "Space") -> dict:
    """KNOB=VALUE,KNOB=VALUE with each knob of the space, and a value that it may have."""
    given = {}
    for word in text.split(","):
        name, equals, value = word.partition("=")
        if not equals or name in given:
            raise SpaceError(f"--first {text}: write KNOB=VALUE,KNOB=VALUE, each knob once")
        given[name] = _value(value)
    names = {knob.name: knob for knob in space.knobs}
    if unknown := [name for name in given if name not in names]:
        raise SpaceError(f"--first {text}: {unknown[0]} is no knob; there are {', '.join(names)}")
    if missing := [name for name in names if name not in given]:
        raise SpaceError(f"--first {text}: {missing[0]} is missing; a setting has every knob")
    for name, value in given.items():
        if not names[name].has(value):
            raise SpaceError(f"--first {text}: {name}={value} is none of what its --knob tries")
    return {knob.name: given[knob.name] for knob in space.knobs}


class Space:
    def __init__(self, knobs: list[Knob]):
        if not knobs:
            raise SpaceError("there is nothing to try: give at least one --knob")
        names = [knob.name for knob in knobs]
        if twice := {name for name in names if names.count(name) > 1}:
            raise SpaceError(f"--knob {twice.pop()}: stands twice; keep one")
        self.knobs = knobs

    def size(self) -> int | None:
        """How many settings there are. None: without end, or too many to list."""
        if any(not knob.values for knob in self.knobs):
            return None
        size = math.prod(len(knob.values) for knob in self.knobs)
        return size if size <= MOST_LISTED else None

    def all(self) -> Iterator[dict]:
        """Of a space that has a size."""
        for values in itertools.product(*(knob.values for knob in self.knobs)):
            yield {knob.name: value for knob, value in zip(self.knobs, values, strict=True)}

    def draw(self, dice: random.Random) -> dict:
        return {knob.name: knob.draw(dice) for knob in self.knobs}

    def has(self, setting: dict) -> bool:
        """Whether it is one of this space."""
        return all(knob.name in setting and knob.has(setting[knob.name]) for knob in self.knobs)

    def content(self) -> list[dict]:
        return [vars(knob) | {"values": list(knob.values)} for knob in self.knobs]


def key_of(setting: dict) -> str:
    """The same for the same setting, whatever the order of its knobs."""
    return json.dumps(setting, sort_keys=True)
