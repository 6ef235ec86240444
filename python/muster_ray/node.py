"""One node of Ray: `ray start --block`, its ports, its temporary directory and its logs."""

import contextlib
import math
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from muster_ray.logs import Logs
from muster_ray.ports import Ports, own_address

OLDEST = (2, 52)  # the first that takes a token
READY = "Ray runtime started."  # what `ray start` says once the node is up
FOLLOW_S = 2.0  # between two copies of what is new in the logs
PATH_REMEDY = "Put an environment with ray into PATH, by setup: or env:"
LEAST_STORE_BYTES = 80 << 20  # Ray refuses less than 75 MiB

NODE_PORTS = (
    "node-manager-port",
    "object-manager-port",
    "dashboard-agent-listen-port",
    "dashboard-agent-grpc-port",
    "runtime-env-agent-port",
    "metrics-export-port",
)
HEAD_PORTS = ("port", "dashboard-port", *NODE_PORTS)


LOOK_S = 0.1  # between two looks at what is waited for
BLAME_S = 3.0  # `ray start` looks once a second whether what it has started is alive
STOP_S = 45.0  # Ray moves tasks away for 30 s, then ends


class RayError(Exception):
    """What kept Ray from starting, or ended it."""


class Stopped(Exception):
    pass


class Stop:
    """Whether SIGTERM has come."""

    def __init__(self):
        self.told = False
        signal.signal(signal.SIGTERM, self._hear)

    def _hear(self, number, frame) -> None:
        self.told = True


def say(text: str) -> None:
    print(f"muster_ray: {text}", flush=True)


def kept_directory() -> Path:
    """For the logs of this attempt."""
    return Path(os.environ["MUSTER_JOB_DIR"]) / "ray" / f"attempt-{os.environ['MUSTER_ATTEMPT']}"


def check_version(stop: Stop) -> None:
    """An older one would take no notice of the token, and let everybody in. The program is asked: it may be of another environment than this python. Stopped: so was
    the program, which is of the same group, before it could answer."""
    try:
        text = _version_of_program()
    except RayError as error:
        if stop.told:
            raise Stopped from error
        raise
    numbers = re.search(r"version (\d+)\.(\d+)", text)
    if numbers is None or tuple(map(int, numbers.groups())) < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        raise RayError(
            f"Ray {text.strip() or '(version unknown)'}: needs {wanted} or newer, which takes a "
            f"token: pip install 'ray>={wanted}'"
        )


def _version_of_program() -> str:
    try:
        words = ["ray", "--version"]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise RayError(f"`ray --version`: {error}. {PATH_REMEDY}") from error


def store_bytes(memory_bytes: int) -> int:
    """Of Ray's object store, where a node has so much memory."""
    return max(LEAST_STORE_BYTES, memory_bytes * 3 // 10)


class Node:
    def __init__(self, kept: Path, token: Path, *, cpus: int = 0, memory_bytes: int = 0):
        """`kept`: a directory for its logs."""
        self.kept, self.cpus, self.memory_bytes = kept, cpus, memory_bytes
        # Short: sockets lie below, and a socket's path has at most 107 bytes.
        self.temporary = Path(tempfile.mkdtemp(prefix="mr-", dir="/tmp"))
        self.environment = os.environ | {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": os.environ.get("RAY_USAGE_STATS_ENABLED", "0"),
        }
        self.environment.pop("RAY_ADDRESS", None)  # `ray start` would take it for its head's
        self.host = own_address()
        self.ports: Ports | None = None
        self.process: subprocess.Popen | None = None
        self.said = kept / "start.log"
        self._said_from = 0  # what stands before is of nodes before this one
        self._logs = Logs(self.temporary, kept)
        self._followed_s = 0.0

    def start_head(self, dashboard: bool) -> None:
        self.ports = Ports(HEAD_PORTS)
        self._start("--head", f"--include-dashboard={str(dashboard).lower()}")

    def join(self, address: str) -> None:
        self.ports = Ports(NODE_PORTS)
        self._start(f"--address={address}")

    @property
    def address(self) -> str:
        """Of a head: what others join."""
        return f"{self.host}:{self.ports['port']}"

    def _start(self, *words: str) -> None:
        self.kept.mkdir(parents=True, exist_ok=True)
        command = ["ray", "start", "--block", *words, f"--node-ip-address={self.host}"]
        command += self.ports.options()
        # 0: the kernel gives each process of Ray's a port of its own, not one of a range that all users have in common.
        command += ["--min-worker-port=0", "--max-worker-port=0", f"--temp-dir={self.temporary}"]
        if self.cpus:
            command.append(f"--num-cpus={self.cpus}")
        if self.memory_bytes:
            command.append(f"--object-store-memory={store_bytes(self.memory_bytes)}")
        with self.said.open("ab") as said:
            self._said_from = said.seek(0, os.SEEK_END)
            try:
                # In a session of its own: a stop goes to the program's whole group, and Ray has to stay until the program has saved.
                self.process = subprocess.Popen(
                    command,
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    start_new_session=True,
                )
            except OSError as error:
                raise RayError(f"`ray start`: {error}. {PATH_REMEDY}") from error

    def ready(self) -> bool:
        return READY in self._own_words()

    def _own_words(self) -> str:
        with self.said.open("rb") as said:
            said.seek(self._said_from)
            return said.read().decode(errors="replace")

    def check(self) -> None:
        """RayError: the node is gone."""
        self.follow()
        if self.process.poll() is not None:
            raise RayError(f"`ray start` ended with {self.process.returncode}: {self._last_said()}")

    def check_soon(self) -> None:
        """As check(), of a node that may be about to end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(BLAME_S)
        self.check()

    def follow(self, now: bool = False) -> None:
        if now or time.monotonic() - self._followed_s >= FOLLOW_S:
            self._logs.follow()
            self._followed_s = time.monotonic()

    def follow_until_end(self, process: subprocess.Popen, most_s: float = math.inf) -> None:
        """Of a process of this node's, or of its program."""
        end_s = time.monotonic() + most_s
        while process.poll() is None and time.monotonic() < end_s:
            self.follow()
            time.sleep(LOOK_S)

    def _last_said(self, lines: int = 6) -> str:
        text = [line.strip() for line in self._own_words().splitlines()]
        died = [line for line in text if "exit code" in line]
        return " | ".join(died or [line for line in text if line][-lines:]) or "it said nothing"

    def stop(self, drain: bool) -> None:
        """`drain`: Ray moves away what runs here, which it can't once the head is gone."""
        if self.process is not None:
            if drain and self.process.poll() is None:
                self.process.send_signal(signal.SIGTERM)
                self.follow_until_end(self.process, STOP_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)  # what `ray start` has started, too
            self.process.wait()
            self.follow(now=True)
            self.ports.close()
        shutil.rmtree(self.temporary, ignore_errors=True)
