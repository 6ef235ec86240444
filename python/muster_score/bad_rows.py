"""How many rows may be bad before the whole counts as failed."""

import argparse
from dataclasses import dataclass


@dataclass(frozen=True)
class Limit:
    """So many rows, or so many of a hundred."""

    text: str  # as it was given
    rows: int | None = None
    percent: int = 100

    def exceeded(self, bad: int, total: int) -> bool:
        return bad > self.rows if self.rows is not None else bad * 100 > self.percent * total


def limit_of(text: str) -> Limit:
    number = text.removesuffix("%")
    if not (number.isascii() and number.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text}: must be a number of rows, or a percentage: 50%")
    if number == text:
        return Limit(text, rows=int(number))
    if int(number) > 100:
        raise argparse.ArgumentTypeError(f"{text}: must be at most 100%")
    return Limit(text, percent=int(number))
