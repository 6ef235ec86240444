"""The objective of a trial, from what its program reported: in each attempt's reports.jsonl, a line a report.

A line has the step, the objective if the report had it, and says whether it was no finite number.
"""

import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path

REDUCE = ("last", "median", "best")


class NoObjective(Exception):
    """Why a trial has no value."""


@dataclass
class Objective:
    name: str
    minimize: bool
    reduce: str = "last"
    skip: int = 0  # steps at the beginning of each attempt that don't count


def value_in(line: dict, name: str) -> float | None:
    """NaN where the report said that it is none; None: it doesn't tell the objective."""
    if name in (line.get("not_finite") or []):
        return math.nan
    value = line.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def read_lines(path: Path) -> list[dict]:
    """What was written whole."""
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return []
    lines = []
    for line in text.splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue  # of a worker that died as it wrote
    return [line for line in lines if isinstance(line, dict)]


def objective_of(attempts: list[Path], wanted: Objective) -> float:
    """`attempts`: its directories in their order. What a later one did again, from a checkpoint before, takes the place of what the one before had told."""
    values: list[tuple[int, float]] = []
    for attempt in attempts:
        lines = read_lines(attempt / "reports.jsonl")
        told = {line["step"]: line["value"] for line in lines if "step" in line}
        if not told:
            continue
        first = min(told)
        values = [one for one in values if one[0] < first]
        values += [one for one in told.items() if one[0] - first >= wanted.skip]
    if not values:
        raise NoObjective(
            f"the program told no {wanted.name}: by muster_runtime.report(step, {wanted.name}=…), or a line of JSON"
        )
    numbers = [value for _, value in values]
    if not math.isfinite(numbers[-1]) or (
        wanted.reduce != "last" and not all(map(math.isfinite, numbers))
    ):
        raise NoObjective(f"{wanted.name} was no finite number")
    if wanted.reduce == "last":
        return numbers[-1]
    if wanted.reduce == "median":
        return statistics.median(numbers)
    return min(numbers) if wanted.minimize else max(numbers)
