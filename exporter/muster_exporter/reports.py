"""One line of what a job reports, as the shim kept it: {"at_ns":TIME, then what the program wrote. Programs write what they like: whatever a line holds,
the others are read."""

import json
import math
import re
from dataclasses import dataclass, field

LIMIT = 2**53  # of a step
_NO_METRIC = {"at_ns", "step", "total_steps", "rank", "own_time_s"}
_AT = re.compile(r'\{"at_ns":(\d{1,18})[,}]')
_NO_NUMBER = re.compile(r"(?<=[:,\[\s])[+-]?(?:nan|inf|infinity)(?=[,}\]\s])", re.IGNORECASE)


@dataclass
class Report:
    at_ns: int = 0
    step: int | None = None
    loaded: int | None = None  # the step of the checkpoint that the attempt goes on from
    numbers: dict[str, float] = field(default_factory=dict)


def parse(line: str) -> Report | None:
    """None: it tells nothing."""
    told = _object(line)
    if told is None:
        return None
    at = _AT.match(line)  # the shim's own, whatever the program calls so
    report = Report(at_ns=int(at[1]) if at else 0)
    if "step" not in told:
        loaded = told.get("loaded")
        report.loaded = _step(loaded.get("step")) if isinstance(loaded, dict) else None
        return report if report.loaded is not None else None
    report.step = _step(told["step"])
    if report.step is None:
        return None
    for name, value in told.items():
        if name not in _NO_METRIC and _is_number(value) and _is_text(name):
            report.numbers[name] = float(value)
    return report


def _object(line: str) -> dict | None:
    try:
        told = _json(line)
    except (ValueError, RecursionError):
        return None
    return told if isinstance(told, dict) else None


def _json(line: str):
    try:
        return json.loads(line)
    except ValueError:
        return json.loads(_NO_NUMBER.sub("null", line))  # nan, as C and the agent write and take it


def _step(value) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    is_step = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LIMIT
    return value if is_step else None


def _is_number(value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and _finite(value)


def _finite(value) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _is_text(name: str) -> bool:
    """What UTF-8 can say: half of a surrogate pair is none."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
