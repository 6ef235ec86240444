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
GONE_S = 30.0  # a head that doesn't answer for so long, and has said nothing, is no more
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
    """One that answers; None: it has ended. Stopped: it was told to stop."""
    silent_s = said_s = time.monotonic()
    while True:
        if stop.told:
            raise Stopped
        now_s, head = time.monotonic(), record.read(folder)
        if head is None or head.state == record.STOPPED:
            silent_s = now_s
        elif head.state != record.STARTED:
            say(f"the head has ended: {head.cause or head.state}")
            return None
        elif answers(head.address):
            return head
        elif now_s - silent_s >= GONE_S:
            say(f"the head at {head.address} is silent. See: muster logs {_worker_0()}")
            return None
        if now_s - said_s >= SAY_S:
            said_s = now_s
            say(
                f"waits for the head, whose address comes into {folder}/head.json. If {_worker_0()} "
                "runs in another cluster than this worker, name one in clusters:"
            )
        time.sleep(LOOK_S)


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
            if record.read(folder) != head:
                return
            looked_s = time.monotonic()
        time.sleep(LOOK_S)
