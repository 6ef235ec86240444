"""Lines that may be dropped, on their way to Muster: a training adds them, a thread sends them."""

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable

_MOST = 1000  # lines that wait; the oldest give way
EVERY_S = 0.5  # between two sendings: each wakes shim, agent and musterd, a millisecond of which a step feels


class Reports:
    """The first line goes at once, what comes in the half second after a sending goes together. A line that can't be sent takes those with it that wait behind it."""

    def __init__(self, send: Callable[[dict], bool]):
        """`send` may take its time: no training waits for it."""
        self._send = send
        self._waiting: deque[dict] = deque(maxlen=_MOST)
        self._begin()
        atexit.register(self.flush)
        os.register_at_fork(after_in_child=self._forget)

    def add(self, line: dict) -> None:
        self._waiting.append(line)
        self._wake()

    def put(self, line: dict) -> None:
        """As add(), of a line that stands for those that were put before it: those that still wait become one with it. What it has no value of stays theirs."""
        with self._slot:
            self._newest = line if self._newest is None else self._newest | line
        self._wake()

    def _wake(self) -> None:
        if self._news.is_set():
            return
        if self._thread is None and not self._start():
            self.flush()
            return
        self._news.set()

    def flush(self) -> None:
        """Returns when all that was added has been sent or dropped."""
        with self._sending:
            with self._slot:
                newest, self._newest = self._newest, None
            if newest is not None:
                self._waiting.append(newest)
            while self._waiting:
                if not self._send(self._waiting.popleft()):
                    self._waiting.clear()

    def _start(self) -> bool:
        """False: there is no thread to be had (too many, or Python is ending)."""
        thread = threading.Thread(target=self._run, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        self._thread = thread
        return True

    def _run(self) -> None:
        while True:
            self._news.wait()
            self._news.clear()
            self.flush()
            time.sleep(EVERY_S)

    def _begin(self) -> None:
        self._news, self._sending = threading.Event(), threading.Lock()
        self._slot = threading.Lock()  # of what was put
        self._newest: dict | None = None
        self._thread: threading.Thread | None = None

    def _forget(self) -> None:
        """A child has neither the thread nor the right to say its parent's lines again."""
        self._waiting.clear()
        self._begin()
