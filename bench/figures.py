"""Shared by the rows: where the programs are, how a figure is printed, and a program run."""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(os.environ.get("MUSTER_BIN_DIR", ROOT / "build/release/bin")).resolve()


_of_form = ""


def forms() -> list[str]:
    """Of `unix` and `tls` those that a row is asked for: both, if none is named."""
    return [form for form in ("unix", "tls") if f"--{form}" in sys.argv] or ["unix", "tls"]


@contextmanager
def of_form(words: str):
    """Each figure told within has these words behind its name: a row that measures the same in several forms."""
    global _of_form
    _of_form = f" ({words})" if words else ""
    try:
        yield
    finally:
        _of_form = ""


def figure(name: str, value, unit: str, bar=None, holds: bool = True, peer=None) -> bool:
    print(
        json.dumps(
            {
                "figure": f"{name}{_of_form}",
                "value": value,
                "unit": unit,
                "peer": peer,
                "bar": bar,
                "holds": bool(holds),
            },
            ensure_ascii=False,
        ),
        flush=True,
    )
    return bool(holds)


def at_most(name: str, value, unit: str, bar, peer=None, places: int | None = None) -> bool:
    """The value itself is held against the bar; it is told in so many places."""
    return figure(name, _told(value, places), unit, f"<= {bar}", value <= bar, peer)


def at_least(name: str, value, unit: str, bar, peer=None, places: int | None = None) -> bool:
    return figure(name, _told(value, places), unit, f">= {bar}", value >= bar, peer)


def none(name: str, count: int, unit: str = "") -> bool:
    return figure(name, count, unit, 0, count == 0)


def all_of(name: str, count: int, total: int) -> bool:
    return figure(name, count, f"of {total}", total, count == total)


def _told(value, places: int | None):
    return value if places is None else round(value, places or None)


def measure(program: str, *words, **flags) -> dict:
    """The JSON line that a measuring program prints last; all of it is shown. "STORE" among the words: a store in a folder that goes.
    `runtime_ms=100` stands for --runtime-ms 100; True for a flag without a value."""
    for name, value in flags.items():
        words += (f"--{name.replace('_', '-')}", *([] if value is True else [value]))
    with tempfile.TemporaryDirectory(prefix="mst-", dir="/tmp") as folder:
        command = [
            BIN / program,
            *(Path(folder) / "store" if word == "STORE" else str(word) for word in words),
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    print(f"{program} {' '.join(map(str, words))}: {done.stdout.strip()}", flush=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def shown(command: list, **options) -> tuple[int, str]:
    """Exit code of a program and what it said on stdout, which is shown as it comes."""
    said = []
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, **options
    ) as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            said.append(line)
    return process.returncode, "".join(said)


def say_failed(error: Exception) -> int:
    """The exit code of a row whose system did not do what it should."""
    print(json.dumps({"error": str(error)[:2000]}))
    return 1


def quantile(values, share: float):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
