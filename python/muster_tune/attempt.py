"""One attempt at a trial: the user's command, or the trainer's ranks, as processes of this worker.

The program finds what a job's does (docs/programs.md): a progress socket, which is this worker's own, a directory for checkpoints, and those of attempts
before to go on from. Its processes die with the worker.
"""

import ctypes
import json
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from muster_tune.reports import NoObjective, Objective, objective_of, read_lines, value_in

_LIBC = ctypes.CDLL(None)
PAST_JOBS = "TUNE_PAST_JOBS"  # the worker's variable: speeds of jobs, as `muster tune` knows them
_PR_SET_PDEATHSIG = 1
_PEERS_S = 5  # for the other ranks to end, once one has failed
_MEMORY = re.compile(
    r"out of memory|OutOfMemory|std::bad_alloc|can(?:no|')t allocate memory|MemoryError", re.I
)


@dataclass
class Run:
    """How each trial runs."""

    command: list[str]  # {NAME} in a word is a knob's value
    objective: Objective
    trainer: dict | None = None  # its configuration; a trial's goes beside its output
    ranks: int = 1
    time_limit_s: float = 600
    grace_s: float = 30


@dataclass
class Outcome:
    value: float | None = None
    cause: str = ""
    memory: bool = False
    stopped: bool = False  # the worker was told to stop, and the trial is open again


@dataclass
class Processes:
    ranks: list[subprocess.Popen]
    deadline_s: float
    stop_by_s: float | None = None
    partial: bytes = b""


class Attempt:
    def __init__(self, run: Run, setting: dict, number: int, folder: Path):
        """`folder`: its own, TRIAL/GENERATION."""
        self.run_, self.setting, self.number, self.folder = run, setting, number, folder
        folder.mkdir(parents=True, exist_ok=True)
        self.attempts = sorted(
            (path for path in folder.parent.iterdir() if path.name.isdigit()),
            key=lambda path: int(path.name),
        )
        self.steps = 0  # of lines that name none

    def run(self, told_to_stop: Callable[[], bool], beat: Callable[[], None]) -> Outcome:
        """`beat` is called every now and then."""
        place = Path(tempfile.mkdtemp(prefix="mtune-"))
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        channel.setblocking(False)
        try:
            channel.bind(str(place / "progress"))
            with open(self.folder / "reports.jsonl", "a") as self.kept:
                return self._watch(channel, self._start(place / "progress"), told_to_stop, beat)
        finally:
            channel.close()
            shutil.rmtree(place, ignore_errors=True)

    # ---- the processes ----

    def _start(self, progress: Path) -> Processes:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [self._filled(word) for word in self.run_.command]
        if self.run_.trainer is not None:
            path = self.folder / "config.json"
            path.write_text(json.dumps(with_fields(self.run_.trainer, self.setting), indent=1))
            command += ["--config", str(path)]
        ranks: list[subprocess.Popen] = []
        try:
            for rank in range(self.run_.ranks):
                ranks.append(self._start_rank(rank, port, command, progress))
        except OSError:
            _end(ranks)
            raise
        return Processes(ranks, time.monotonic() + self.run_.time_limit_s)

    def _start_rank(self, rank: int, port: int, command: list[str], progress: Path):
        with open(self.folder / f"rank-{rank}.err", "ab") as errors:
            with open(self.folder / f"rank-{rank}.log", "ab") as log:
                return subprocess.Popen(
                    command,
                    env=self._environment(rank, port, progress),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE if rank == 0 else log,
                    stderr=errors,
                    start_new_session=True,
                    preexec_fn=_die_with_parent,
                )

    def _environment(self, rank: int, port: int, progress: Path) -> dict[str, str]:
        own = {
            "MUSTER_PROGRESS_SOCKET": str(progress),
            "MUSTER_CHECKPOINT_DIR": str(self.folder / "checkpoints"),
            "MUSTER_RESUME_FROM": ",".join(self._checkpoints()),
            "MUSTER_TRIAL": str(self.number),
            "MUSTER_REPORTS": "each",
            "PYTHONUNBUFFERED": "1",
        }
        (self.folder / "checkpoints").mkdir(exist_ok=True)
        for name, value in self.setting.items():
            own[f"MUSTER_TRIAL_{name.replace('.', '_').upper()}"] = text_of(value)
        if self.run_.ranks > 1 or self.run_.trainer is not None:
            own |= self._rank_variables(rank, port)
        environment = {**os.environ, **own}
        for name in ("MUSTER_EXPORT_STAGING", PAST_JOBS):  # the worker's own
            environment.pop(name, None)
        return environment

    def _rank_variables(self, rank: int, port: int) -> dict[str, str]:
        """torchrun's, all of them: as one worker of the agent's has them (docs/programs.md)."""
        ranks, run = str(self.run_.ranks), os.environ.get("MUSTER_RUN_ID", "trial")
        number = {"RANK": str(rank), "LOCAL_RANK": str(rank), "ROLE_RANK": str(rank)}
        world = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "ROLE_WORLD_SIZE": ranks}
        group = {"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1"}
        meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        elastic = {
            "TORCHELASTIC_RUN_ID": f"{run}.{self.number}.{self.folder.name}",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
        }
        return number | world | group | meet | elastic

    def _filled(self, word: str) -> str:
        for name, value in self.setting.items():
            word = word.replace("{" + name + "}", text_of(value))
        return word

    def _checkpoints(self) -> list[str]:
        """Of attempts before, the newest first."""
        found = []
        for attempt in self.attempts:
            told = read_lines(attempt / "reports.jsonl")
            found += [line["checkpoint"] for line in told if "checkpoint" in line]
        return [path for path in reversed(found) if os.path.exists(path)][:20]

    # ---- watching them ----

    def _watch(self, channel, processes: Processes, told_to_stop, beat) -> Outcome:
        ranks = processes.ranks
        output = ranks[0].stdout
        os.set_blocking(output.fileno(), False)
        stopped, cause = False, ""
        try:
            with selectors.DefaultSelector() as ready, open(self._log(0), "ab") as log:
                ready.register(channel, selectors.EVENT_READ)
                ready.register(output, selectors.EVENT_READ)
                while any(rank.poll() is None for rank in ranks):
                    for key, _ in ready.select(0.05):
                        if key.fileobj is channel:
                            self._hear(channel)
                        elif self._read(output, log, processes) == b"":
                            ready.unregister(output)
                    beat()
                    if told_to_stop() and not stopped:
                        stopped = True
                        _tell(ranks, signal.SIGTERM)
                        processes.stop_by_s = time.monotonic() + self.run_.grace_s
                    cause = cause or self._overdue(processes, stopped)
                self._hear(channel)
                while self._read(output, log, processes):
                    pass
                self._take(processes.partial)
        finally:
            _end(ranks)
            output.close()
        # Whatever it ended with once it was told to stop: what it told is kept, and the next attempt
        # goes on. The signal may have come to both at once, and the trial been the faster.
        if stopped or (told_to_stop() and any(rank.returncode for rank in ranks)):
            return Outcome(stopped=True)
        return self._outcome(ranks, cause)

    def _overdue(self, processes: Processes, stopped: bool) -> str:
        """Ends them where it is time to; why, if that is the trial's own fault."""
        now_s = time.monotonic()
        failed = any(rank.poll() for rank in processes.ranks)
        if failed and processes.stop_by_s is None:
            processes.stop_by_s = now_s + _PEERS_S
        if now_s >= processes.deadline_s and not stopped:
            _end(processes.ranks)
            return f"it took longer than --trial-time-limit {self.run_.time_limit_s:g} s"
        if processes.stop_by_s is not None and now_s >= processes.stop_by_s:
            _end(processes.ranks)
        return ""

    def _log(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.log"

    def _outcome(self, ranks: list[subprocess.Popen], cause: str) -> Outcome:
        codes = [rank.returncode for rank in ranks]
        if not cause and any(codes):
            # Of several the one that failed first; those that were ended for it have -9.
            rank = next((i for i, code in enumerate(codes) if code not in (0, -9)), None)
            rank = rank if rank is not None else next(i for i, code in enumerate(codes) if code)
            last = self._last_words(rank)
            code = codes[rank]
            how = f"exit {code}" if code > 0 else signal.Signals(-code).name
            return Outcome(
                cause=f"{how}: {last}" if last else how, memory=bool(_MEMORY.search(last))
            )
        if cause:
            return Outcome(cause=cause)
        try:
            return Outcome(value=objective_of(self.attempts, self.run_.objective))
        except NoObjective as error:
            return Outcome(cause=str(error))

    def _last_words(self, rank: int) -> str:
        for kind in ("err", "log"):
            path = self.folder / f"rank-{rank}.{kind}"
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - 4096))
                lines = file.read().decode(errors="replace").split("\n")
            if words := [line.strip() for line in lines if line.strip()]:
                return words[-1][:300]
        return ""

    # ---- what they say ----

    def _hear(self, channel: socket.socket) -> None:
        while True:
            try:
                data = channel.recv(65536)
            except BlockingIOError:
                return
            self._take(data)

    def _read(self, output, log, processes: Processes) -> bytes | None:
        """Of rank 0's output, at most 64 KiB. None: there is nothing now; empty: there will be no more."""
        try:
            data = os.read(output.fileno(), 65536)
        except BlockingIOError:
            return None
        log.write(data)
        log.flush()
        *lines, processes.partial = (processes.partial + data).split(b"\n")
        processes.partial = processes.partial[-65536:]
        for line in lines:
            self._take(line)
        return data

    def _take(self, data: bytes) -> None:
        """A line of either, if it is a JSON object."""
        if not data.lstrip().startswith(b"{"):
            return
        try:
            line = json.loads(data)
        except (ValueError, RecursionError):
            return
        if not isinstance(line, dict) or line.get("rank", 0) != 0:
            return
        told = line.get("checkpoint")
        if isinstance(told, dict) and isinstance(told.get("path"), str):
            self._keep({"checkpoint": os.path.join(self.folder, told["path"])})
        value = value_in(line, self.run_.objective.name)
        if value is None:
            return
        step = line.get("step")
        if isinstance(step, bool) or not isinstance(step, int):
            step = self.steps + 1
        self.steps = step
        self._keep({"step": step, "value": value})

    def _keep(self, line: dict) -> None:
        self.kept.write(json.dumps(line) + "\n")
        self.kept.flush()


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _tell(ranks: list[subprocess.Popen], number: int) -> None:
    for rank in ranks:
        try:
            os.killpg(rank.pid, number)
        except ProcessLookupError:
            continue


def _end(ranks: list[subprocess.Popen]) -> None:
    """Them, and what they have started."""
    _tell(ranks, signal.SIGKILL)
    for rank in ranks:
        rank.wait()


def with_fields(config: dict, setting: dict) -> dict:
    """A copy with each of these fields set; a dot leads into a map."""
    changed = json.loads(json.dumps(config))
    for name, value in setting.items():
        at = changed
        *parts, last = name.split(".")
        for part in parts:
            at = at.setdefault(part, {})
        at[last] = value
    return changed


def text_of(value) -> str:
    return value if isinstance(value, str) else json.dumps(value)
