"""Any worker but 0: a node that joins the head, and leaves when there is none any more."""

import argparse
import os
import time
from pathlib import Path

from muster_ray import record
from muster_ray.node import LOOK_S, Node, RayError, Stop, Stopped, kept_directory, say
from muster_ray.ports import answers
from muster_ray.record import Head

RECORD_S = 1.0  # between two looks at the head's file
# So long another head is waited for, once one has ended that may be tried again. Where none is to come, Muster stops this worker (docs/ray.md).
AGAIN_S = 120.0
SAY_S = 60.0


def run(folder: Path, given: argparse.Namespace, stop: Stop) -> int:
    """The exit code. Stopped: it was told to stop."""
    while (head := await_head(folder, stop)) is not None:
        node = Node(
            kept_directory(), Path(head.token), cpus=given.cpus, memory_bytes=given.memory_bytes
        )
        try:
            say(f"joins the head at {head.address}")
            node.join(head.address)
            _stay(node, folder, head, stop)
        except RayError as error:
            say(str(error))
            if answers(head.address):  # so it wasn't the head's end that ended this node
                return 1
        finally:
            node.stop(drain=stop.told)
    return 0


def await_head(folder: Path, stop: Stop) -> Head | None:
    """One that answers, of whichever attempt; None: it has ended. Stopped: it was told to stop."""
    head, gone, gone_s, said_s = None, None, 0.0, time.monotonic()
    while True:
        head = record.read(folder, head)
        reached = _reached(head)
        if reached:
            return head
        now_s, cause = time.monotonic(), _end_of(head, reached)
        if not cause:
            gone = None
        elif head != gone:
            gone, gone_s = head, now_s
            say(f"the head has ended: {cause}")
        if gone is not None and (gone.state == record.DONE or now_s - gone_s >= AGAIN_S):
            return None
        if now_s - said_s >= SAY_S:
            said_s = now_s
            say(_what_it_waits_for(folder, head))
        _pause(stop, RECORD_S)


def _reached(head: Head | None) -> bool | None:
    """As answers()."""
    return answers(head.address) if head is not None and head.state == record.STARTED else None


def _end_of(head: Head | None, reached: bool | None) -> str:
    """Why it is no more. Empty: it may be, as where nothing is heard of its host; or Muster starts another."""
    if head is None or head.state == record.STOPPED:
        return ""
    if head.state == record.STARTED:
        gone = f"nothing listens at {head.address} any more. See: muster logs {_worker_0()}"
        return gone if reached is False else ""
    return head.cause or head.state


def _what_it_waits_for(folder: Path, head: Head | None) -> str:
    if head is None:
        return (
            f"waits for the head, whose address comes into {folder}/head.json. How it is: muster "
            f"show {_worker_0()}. If it runs in another cluster than this worker, name one in "
            "clusters:"
        )
    if head.state == record.STARTED:
        return f"waits for the head at {head.address}, of which nothing is heard, or for another"
    return f"waits for another head: muster show {_worker_0()} says when"


def _pause(stop: Stop, seconds: float) -> None:
    """Stopped: it was told to stop."""
    end_s = time.monotonic() + seconds
    while not stop.told and (left_s := end_s - time.monotonic()) > 0:
        time.sleep(min(LOOK_S, left_s))
    if stop.told:
        raise Stopped


def _worker_0() -> str:
    return f"{os.environ['MUSTER_ARRAY_JOB']}_0"


def _stay(node: Node, folder: Path, head: Head, stop: Stop) -> None:
    """Until the head has said something else. RayError: the node died."""
    looked_s = 0.0
    while True:
        if stop.told:
            raise Stopped
        node.check()
        if time.monotonic() - looked_s >= RECORD_S:
            if record.read(folder, head) != head:
                return
            looked_s = time.monotonic()
        time.sleep(LOOK_S)
