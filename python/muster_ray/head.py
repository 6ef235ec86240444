"""Worker 0: Ray's head, and the program that uses the cluster."""

import argparse
import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

from muster_ray import record
from muster_ray.node import LOOK_S, Node, RayError, Stop, Stopped, kept_directory, say
from muster_ray.ports import answers


class Cluster:
    def __init__(self, folder: Path, given: argparse.Namespace, stop: Stop):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.given, self.stop = folder, given, stop
        attempt = int(os.environ["MUSTER_ATTEMPT"])
        token = record.new_token(folder, attempt)
        self.head = record.Head(attempt, record.STARTED, "", str(token))
        self.node = Node(kept_directory(), token, cpus=given.cpus, memory_bytes=given.memory_bytes)
        self.program: subprocess.Popen | None = None

    def run(self) -> int:
        """The exit code: the program's, or 1 when Ray has ended before it. Stopped: it was told to stop."""
        try:
            self.node.start_head(self.given.dashboard)
            self.head = replace(self.head, address=self.node.address)
            self._await_node()
            code = self._run_program()
            self._tell(record.FAILED if code else record.DONE, f"the program ended with {code}")
            return code if code >= 0 else 128 - code
        except (RayError, OSError) as error:
            self._tell(record.DEAD, str(error))
            say(f"the head has ended: {error}")
            return 1
        finally:
            if self.program is not None and self.program.poll() is None:
                self.program.kill()
                self.program.wait()
            self.node.stop(drain=True)

    def _tell(self, state: str, cause: str = "") -> None:
        failed = state in (record.FAILED, record.DEAD)
        record.write(self.folder, replace(self.head, state=state, cause=cause if failed else ""))

    def _raise_if_stopped(self) -> None:
        if self.stop.told:
            self._tell(record.STOPPED)
            raise Stopped

    def _await_node(self) -> None:
        """Others may join as soon as the address answers, which is seconds before the head's own node is up."""
        told = False
        while not (told and self.node.ready()):
            self.node.check()
            self._raise_if_stopped()
            if not told and answers(self.head.address):
                self._tell(record.STARTED)
                told = True
            time.sleep(LOOK_S)

    def _run_program(self) -> int:
        say(f"the head is {self.head.address}; token: {self.head.token}; logs: {self.node.kept}")
        if self.given.dashboard:
            port = self.node.ports["dashboard-port"]
            say(f"dashboard: muster forward {os.environ['MUSTER_JOB']} {port}")
        environment = self.node.environment | {"RAY_ADDRESS": self.head.address}
        self.program = subprocess.Popen(self.given.program, env=environment)
        while self.program.poll() is None and not self.stop.told:
            self.node.check()
            time.sleep(LOOK_S)
        if self.stop.told:
            # It was told, too, being of this process's group, and may save as long as it is let. The others wait: what comes after a stop is another head.
            self._tell(record.STOPPED)
            self.node.follow_until_end(self.program)
            raise Stopped
        if self.program.returncode != 0:
            self.node.check_soon()  # a program whose Ray has died fails, too, and is not the cause
        return self.program.returncode
