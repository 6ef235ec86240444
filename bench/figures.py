"""Shared by the rows: how a figure is printed."""

import json


def figure(name: str, value, unit: str, bar, holds: bool, peer=None) -> bool:
    print(json.dumps({"figure": name, "value": value, "unit": unit, "peer": peer, "bar": bar, "holds": bool(holds)}, ensure_ascii=False), flush=True)
    return bool(holds)


def say_failed(error: Exception) -> int:
    """The exit code of a row whose system did not do what it should."""
    print(json.dumps({"error": str(error)[:2000]}))
    return 1


def quantile(values, share: float):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
