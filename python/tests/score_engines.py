"""Engines of tests, which answer at once."""

import os
import signal
import sys
import time
from pathlib import Path


class Shout:
    """Answers with the prompt in capitals. A prompt that begins with "bad" can't be answered."""

    def __call__(self, rows: list[dict]) -> list[dict]:
        if any(row["prompt"].startswith("bad") for row in rows):
            raise ValueError("I don't say that")
        time.sleep(float(os.environ.get("SHOUT_S", "0")))
        log = os.environ.get("SHOUT_LOG")
        if log:
            with Path(log).open("a") as file:
                file.write("".join(f"{row['id']}\n" for row in rows))
        return [{"answer": row["prompt"].upper()} for row in rows]


class Lengths:
    """By Arrow: a table for a table."""

    arrow = True

    def __call__(self, table):
        import pyarrow
        import pyarrow.compute

        return pyarrow.table({"length": pyarrow.compute.utf8_length(table["prompt"])})


class Dead:
    def __call__(self, rows: list[dict]) -> list[dict]:
        raise RuntimeError("device-side assert")


class Unable:
    def __init__(self):
        raise RuntimeError("CUDA error: uncorrectable ECC error")


class Leaves:
    def __init__(self):
        sys.exit(0)


class Deadly:
    """A prompt that begins with "kill" ends its process, and one that begins with "assert" breaks the engine for good."""

    def __init__(self):
        self.broken = False

    def __call__(self, rows: list[dict]) -> list[dict]:
        if any(row["prompt"].startswith("kill") for row in rows):
            os.kill(os.getpid(), signal.SIGKILL)
        self.broken |= any(row["prompt"].startswith("assert") for row in rows)
        if self.broken:
            raise RuntimeError("device-side assert")
        return [{"answer": row["prompt"].upper()} for row in rows]
