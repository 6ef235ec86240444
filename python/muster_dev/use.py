"""Whether an environment is used: by a kernel, a command in a terminal or beside the job, a job on its devices, or a GPU. Whether a browser looks on counts for nothing."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_GPU_ANSWER_S = 20.0


class Kernels:
    """Of one server. What a kernel did between two looks counts, too."""

    def __init__(self):
        self._newest = ""

    def use(self, kernels: list[dict] | None) -> str:
        """Empty: none is used."""
        if kernels is None:
            return "its server doesn't answer, so kernels may be busy"
        newest = max((kernel.get("last_activity") or "" for kernel in kernels), default="")
        was_active, self._newest = newest > self._newest, max(newest, self._newest)
        if any(kernel.get("execution_state") == "busy" for kernel in kernels):
            return "a kernel is busy"
        return "a kernel was busy" if was_active else ""


@dataclass
class Process:
    pid: int
    parent: int
    session: int
    has_terminal: bool

    def is_waiting_shell(self) -> bool:
        """The first process of a terminal: what it was told to do are others."""
        return self.has_terminal and self.pid == self.session


def processes(proc: Path = Path("/proc")) -> dict[int, Process]:
    found = {}
    for path in proc.glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        if fields[0] not in "ZX":
            pid = int(path.parent.name)
            found[pid] = Process(pid, int(fields[1]), int(fields[3]), fields[4] != "0")
    return found


def descends(found: Mapping[int, Process], pid: int, from_pid: int) -> bool:
    while pid in found and pid != from_pid:
        pid = found[pid].parent
    return pid == from_pid


def use_of_terminals(found: Mapping[int, Process], server: int) -> str:
    for process in found.values():
        if process.has_terminal and not process.is_waiting_shell():
            if descends(found, process.pid, server):
                return f"a command runs in a terminal (process {process.pid})"
    return ""


def has_token(pid: int, token: str, proc: Path = Path("/proc")) -> bool:
    try:
        return f"MUSTER_SHIM_TOKEN={token}".encode() in (
            proc / str(pid) / "environ"
        ).read_bytes().split(b"\0")
    except OSError:
        return False  # another user's, or ended


def use_beside(
    found: Mapping[int, Process], own: int, token: str, proc: Path = Path("/proc")
) -> str:
    """Commands of `muster exec`: processes of the attempt that `own` didn't start."""
    for process in found.values() if token else ():
        if process.is_waiting_shell() or descends(found, process.pid, own):
            continue
        if descends(found, own, process.pid):
            continue  # the shim
        if has_token(process.pid, token, proc):
            return f"a command runs beside it (process {process.pid})"
    return ""


def use_by_jobs(run_id: str, proc: Path = Path("/proc")) -> str:
    """Jobs on its devices (`on:`): their shims give a mark on the machine, as /proc hides processes of other attempts. `run_id`: UID.TASK.ATTEMPT."""
    uid, attempt = run_id.partition(".")[0], run_id.rpartition(".")[2]
    mark = f"@muster-on.{uid}.{attempt}."
    try:
        sockets = (proc / "net" / "unix").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    ours = any(line.rpartition(" ")[2].startswith(mark) for line in sockets)
    return "a job runs on its devices" if uid and ours else ""


class Gpus:
    """The attempt's own. Where nvidia-smi isn't there or can't tell, nothing is known of them."""

    def __init__(self, environment: Mapping[str, str] = os.environ):
        self._devices = environment.get("CUDA_VISIBLE_DEVICES", "")
        self._program = shutil.which("nvidia-smi")
        self.knows = bool(self._devices and self._program)

    def use(self) -> str:
        if not self.knows:
            return ""
        words = [self._program, "-i", self._devices, "--query-gpu=utilization.gpu"]
        words.append("--format=csv,noheader,nounits")
        try:
            run = subprocess.run(words, capture_output=True, text=True, timeout=_GPU_ANSWER_S)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        loads = [line.strip() for line in run.stdout.splitlines()] if run.returncode == 0 else []
        return "a GPU is busy" if any(load.isdigit() and int(load) > 0 for load in loads) else ""
