"""SIGTERM, which a worker hears between two steps of its work."""

import time

import muster_runtime

STOPPED = 143  # exit code after SIGTERM


class Stopped(Exception):
    pass


def stop_if_told() -> None:
    if muster_runtime.should_stop():
        raise Stopped


def wait(seconds: float) -> None:
    """Stopped: it was told to stop meanwhile."""
    end_s = time.monotonic() + seconds
    while True:
        stop_if_told()
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            return
        time.sleep(min(0.05, left_s))
