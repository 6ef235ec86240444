"""Progress: a line for people on stderr, datagrams for Muster. A step is 64 KiB of input."""

import json
import os
import socket
import sys
import time

STEP_BYTES = 64 << 10
INTERVAL_S = 0.5


def size_text(size: int) -> str:
    """812 B, 45.1 kB, 2.3 MB."""
    return (
        f"{size} B"
        if size < 1000
        else f"{size / 1e3:.1f} kB"
        if size < 1e6
        else f"{size / 1e6:.1f} MB"
    )


class Progress:
    """report() often; it is told at most twice a second, and always at the start and the end."""

    def __init__(self, total_bytes: int, json_progress: bool):
        self._total_bytes = total_bytes
        self._json_stdout = False
        self._socket = None
        path = os.environ.get("MUSTER_PROGRESS_SOCKET")
        if path:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
            try:
                self._socket.connect(path)
            except OSError as error:
                print(
                    f"muster-trainer prepare: {path}: {error.strerror}; going on without progress",
                    file=sys.stderr,
                )
                self._socket = None
        else:
            self._json_stdout = json_progress
        self._tty = sys.stderr.isatty()
        self._started = time.monotonic()
        self._told = float("-inf")

    def report(self, done_bytes: int, tokens: int, last: bool = False) -> None:
        now = time.monotonic()
        if now - self._told < INTERVAL_S and not last:
            return
        self._told = now
        total_steps = -(-self._total_bytes // STEP_BYTES)
        step = total_steps if last else done_bytes // STEP_BYTES
        tokens_per_s = tokens / max(now - self._started, 1e-3)
        line = json.dumps(
            {"step": step, "total_steps": total_steps, "tokens_per_s": round(tokens_per_s, 1)}
        )
        if self._socket is not None:
            try:
                self._socket.send(line.encode())
            except OSError:
                pass  # a full or closed socket must never stop the work
        elif self._json_stdout:
            print(line, flush=True)
        share = 100 if last else 100 * done_bytes // max(self._total_bytes, 1)
        rate = f"{tokens_per_s / 1e3:.0f}k" if tokens_per_s >= 10_000 else f"{tokens_per_s:.0f}"
        text = f"prepare {share:3d}%  {size_text(done_bytes)} of {size_text(self._total_bytes)}  {rate} tok/s"
        if self._tty:
            print("\r" + text + ("\n" if last else ""), end="", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)
