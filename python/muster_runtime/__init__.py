"""What a training program under Muster says and asks: progress, checkpoints, whether to stop (docs/programs.md has the protocol).

    import muster_runtime as muster

    step = load(muster.newest(usable))             # None at the first start
    while step < total and not stop:
        ...                                        # a step
        muster.report(step, total_steps=total, loss=loss)
        stop, save = muster.decide()               # the same answer on all ranks
        if stop or save:
            muster.checkpoint(write(muster.checkpoint_directory()), step)

Where Muster runs nothing, every call works and tells nobody: the same program runs by hand. No call of this module ends a training because
something can't be told; under Muster a place for checkpoints that is a URL does, as what is no file would be lost. Callbacks for transformers and Lightning are in muster_runtime.transformers and muster_runtime.lightning.
"""

import json
import math
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping

from muster_runtime.reports import EVERY_S, Reports

__all__ = [
    "checkpoint",
    "checkpoint_directory",
    "decide",
    "newest",
    "own_time",
    "report",
    "report_logged",
    "should_stop",
    "takes_figures",
    "under_muster",
]

MOST_BYTES = 8192  # of a line
# Names of a line that say what it is. What is logged under such a name is not told.
_RESERVED = {"rank", "step", "total_steps", "loaded", "checkpoint", "export", "own_time_s"}
_KNOWN = {
    "loss",
    "grad_norm",
    "tokens_per_s",
    "mfu_causal",
    "mfu",
    "mfu_full",
    "rows_per_s",
    "bad_rows",
}
# Of a line, while the socket's queue is full: it takes ten (net.unix.max_dgram_qlen), and the shim
# empties it in a millisecond.
_TRIES, _PAUSE_S, _LONG_PAUSE_S = 90, 0.001, 0.02

_URL = re.compile(r"[A-Za-z][\w+.-]+:/")  # one slash: pathlib takes away the second

_LOOK_S = 0.5  # between two looks for requests
_BARE_EVERY_S = 0.1  # between two reports of a step without figures
_PLAIN = (int, float, type(None))  # costs no time to read

_stopped = threading.Event()
_asked = threading.Event()  # for a checkpoint
_looking = False
_watching = False
_channel: socket.socket | None = None
_saved_at: float | None = None
_group = None  # of all ranks, for decide() and gather()
_reported_at = _figures_at = -math.inf


def under_muster() -> bool:
    return bool(os.environ.get("MUSTER_PROGRESS_SOCKET"))


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


# ---- telling ----


def report(
    step: int, *, total_steps: int | None = None, loss: float | None = None, **figures
) -> None:
    """The step that is done, and figures of it: grad_norm, tokens_per_s (of all ranks), mfu_causal. Numbers that aren't finite are left out. It goes within
    half a second, by a thread; it may be dropped."""
    report_logged(step, total_steps, {"loss": loss} | figures)


def report_logged(step: int, total_steps: int | None, figures: Mapping) -> None:
    """As report(), of figures with any names: what is no number, and what has the name of a field of the line ("step"), is left out. If all of it is too long
    for a line, the step goes with the figures that Muster knows. Without any figure it is told ten times a second at most, and at the end. Where the newest
    report alone counts, those of half a second go as one, and tensors are read twice a second (takes_figures)."""
    global _reported_at, _figures_at
    now_s = time.monotonic()
    if not _takes_figures(step, total_steps, now_s):
        figures = {name: value for name, value in figures.items() if isinstance(value, _PLAIN)}
    bare = all(value is None for value in figures.values())
    if bare and step != total_steps and now_s - _reported_at < _BARE_EVERY_S:
        return
    _reported_at = now_s
    if not bare:
        _figures_at = now_s
    line = {"rank": rank(), "step": int(step)}
    if total_steps is not None:
        line["total_steps"] = _whole(total_steps)
    if "MUSTER_TRIAL" in os.environ:  # muster_tune listens, to which a loss that is NaN is news
        line["not_finite"] = [name for name in figures if _is_not_finite(figures[name])]
    for name, value in figures.items():
        if value is not None and name not in _RESERVED:
            line[name] = _number(value)  # None takes away what an older one has
    _tell_soon(line, newest=_newest_counts())


def takes_figures(step: int, total_steps: int | None = None) -> bool:
    """Whether a report of this step should have figures that cost time to get, such as a tensor's on a GPU. Where only the newest report counts, twice a
    second are enough."""
    return _takes_figures(step, total_steps, time.monotonic())


def _takes_figures(step: int, total_steps: int | None, now_s: float) -> bool:
    return step == total_steps or now_s - _figures_at >= EVERY_S or not _newest_counts()


def _newest_counts() -> bool:
    """Whether nobody but screens takes the reports. Trackers and muster_tune take each."""
    return os.environ.get("MUSTER_REPORTS") == "newest"


def own_time(step: int, seconds: float) -> None:
    """What this rank itself took for the step before it waited for others: slow hosts are found by it. From every rank."""
    _tell_soon({"rank": rank(), "step": int(step), "own_time_s": _number(seconds)})


def checkpoint(path: str | os.PathLike, step: int) -> None:
    """A later attempt may go on from `path`, a file or a directory that is written completely. Syncs it first. One rank says so. ValueError: it is a URL."""
    global _saved_at
    if not under_muster():
        return
    path = os.path.abspath(_file(path))
    size = _sync(path)
    _tell({"checkpoint": {"step": int(step), "path": path, "bytes": size}})
    _saved_at = time.monotonic()


def checkpoint_directory(otherwise: str = "checkpoints") -> str:
    """Where this attempt's checkpoints belong. ValueError: in an object store."""
    return _file(os.environ.get("MUSTER_CHECKPOINT_DIR") or otherwise)


def _file(path: str | os.PathLike) -> str:
    """As a file's path a URL would be a directory of the program's own, which goes with it. By hand the program says what is one."""
    path = os.fspath(path)
    if under_muster() and _URL.match(path):
        raise ValueError(
            f"checkpoints belong to {path}, and muster_runtime writes files: name another checkpoint.storage, which is a file system (docs/programs.md)"
        )
    return path


def checkpoints_kept(otherwise: int | None = None) -> int | None:
    kept = os.environ.get("MUSTER_CHECKPOINT_KEEP")
    return int(kept) if kept else otherwise


def newest(step_of: Callable[[str], int]) -> str | None:
    """The newest checkpoint that can be used. `step_of` gives the step of one, and raises OSError, ValueError or KeyError for what is gone or damaged."""
    skipped = []
    for path in filter(None, os.environ.get("MUSTER_RESUME_FROM", "").split(",")):
        try:
            step = step_of(path)
        except (OSError, ValueError, KeyError) as error:
            skipped.append({"path": path, "why": str(error)[:200]})
            continue
        if rank() == 0:
            told = {"step": int(step), "path": path}
            _tell({"loaded": told | ({"skipped": skipped} if skipped else {})})
        return path
    return None


# ---- being told ----


def should_stop() -> bool:
    """Whether this rank was told to stop (SIGTERM). From the first call on; to be called in the main thread first."""
    _watch()
    return _stopped.is_set()


def decide() -> tuple[bool, bool]:
    """(stop, save): whether any rank was told to stop, and whether a checkpoint is due, by Muster's interval or as a user asked for one. The same on all ranks
    of torch.distributed, by one all-reduce of two numbers: all of them have to call it after the same step."""
    global _saved_at
    stop, save = should_stop(), rank() == 0 and (_due() or _is_asked())
    distributed = _distributed()
    if distributed is not None:
        stop, save = _agree(distributed, stop, save)
    if save:
        _asked.clear()
        _saved_at = time.monotonic()  # from its beginning to the next one's
    return stop, save


def _due() -> bool:
    global _saved_at
    interval_s = float(os.environ.get("MUSTER_CHECKPOINT_INTERVAL_S") or 0)
    if _saved_at is None:
        _saved_at = time.monotonic()
    return interval_s > 0 and time.monotonic() - _saved_at >= interval_s


def _is_asked() -> bool:
    """Whether `muster checkpoints now` asked for a checkpoint. A thread looks for it: a storage that doesn't answer holds up no step."""
    global _looking
    directory = os.environ.get("MUSTER_REQUEST_DIR")
    if directory and not _looking:
        _looking = True
        threading.Thread(target=_look, args=(directory,), daemon=True).start()
    return _asked.is_set()


def _look(directory: str) -> None:
    while True:
        try:
            os.unlink(os.path.join(directory, "save"))
            _asked.set()
        except OSError:
            pass  # nobody asks
        time.sleep(_LOOK_S)


def _distributed():
    import sys

    torch = sys.modules.get("torch")  # who hasn't imported it has no process group
    if (
        torch is None
        or not torch.distributed.is_available()
        or not torch.distributed.is_initialized()
    ):
        return None
    return torch.distributed if torch.distributed.get_world_size() > 1 else None


def _gloo(distributed):
    global _group
    if _group is None:
        _group = distributed.new_group(backend="gloo")
    return _group


def _agree(distributed, stop: bool, save: bool) -> tuple[bool, bool]:
    """Between hosts' memories: a GPU isn't waited for."""
    import torch

    told = torch.tensor([int(stop), int(save)])
    distributed.all_reduce(told, op=distributed.ReduceOp.MAX, group=_gloo(distributed))
    stop, save = (bool(value) for value in told.tolist())
    return stop, save


def gather(value) -> list:
    """What each rank has, in the ranks' order, on all of them. All have to call it."""
    distributed = _distributed()
    if distributed is None:
        return [value]
    values = [None] * distributed.get_world_size()
    distributed.all_gather_object(values, value, group=_gloo(distributed))
    return values


def _watch() -> None:
    global _watching
    if _watching or threading.current_thread() is not threading.main_thread():
        return
    _watching = True
    before = signal.getsignal(signal.SIGTERM)

    def told(number, frame):
        _stopped.set()
        if callable(before):
            before(number, frame)

    if under_muster() or callable(before):
        signal.signal(signal.SIGTERM, told)


def hear_alone() -> None:
    """From now on a stop that Muster sends does nothing but make should_stop() true: for a framework whose own handler would end the training at once."""
    global _watching
    if under_muster() and threading.current_thread() is threading.main_thread():
        _watching = True
        signal.signal(signal.SIGTERM, lambda number, frame: _stopped.set())


# ---- the socket and the disk ----


def _finite(value):
    return not (isinstance(value, float) and not math.isfinite(value)) and value is not None


def _is_not_finite(value) -> bool:
    try:
        return value is not None and not math.isfinite(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return False


def _whole(value) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


def _number(value) -> int | float | None:
    """None: it is none, or not finite. Of a tensor with one element, its value."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (int, float)):
        return value if _finite(value) else None
    try:
        value = float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return value if _finite(value) else None


def _encoded(line: dict) -> bytes:
    return json.dumps({key: value for key, value in line.items() if _finite(value)}).encode()


def _tell_soon(line: dict, newest: bool = False) -> None:
    if under_muster():
        (_reports.put if newest else _reports.add)(line)


def _tell(line: dict) -> bool:
    """Behind what was reported before."""
    _reports.flush()
    return _send(_encoded(line))


def _send_report(line: dict) -> bool:
    try:
        data = _encoded(line)
    except (TypeError, ValueError):  # a name that is no text: it costs its own line
        return True
    if len(data) > MOST_BYTES:
        data = _encoded(_shortened(line))
    # One that is too long all the same costs itself alone, and none of those behind it.
    return len(data) > MOST_BYTES or _send(data)


def _shortened(line: dict) -> dict:
    """With the figures that Muster knows; of those that are no number these first, and as many others as a third of a line holds."""
    kept = {name: value for name, value in line.items() if name in _RESERVED | _KNOWN}
    if "not_finite" in line:
        names = sorted(line["not_finite"], key=lambda name: name not in _KNOWN)
        room, told = MOST_BYTES // 3, []
        for name in names:
            room -= len(json.dumps(name)) + 2
            if room < 0:
                break
            told.append(name)
        kept["not_finite"] = told
    return kept


def _send(data: bytes) -> bool:
    """Waits for room in the socket's queue, a second at most."""
    global _channel
    address = os.environ.get("MUSTER_PROGRESS_SOCKET")
    if not address or len(data) > MOST_BYTES:
        return False
    channel = _channel
    if channel is None:
        try:
            channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        except OSError:
            return False  # it may open no more files now; the thread that reports has to live on
        channel.setblocking(False)
        _channel = channel
    for tried in range(_TRIES):
        try:
            channel.sendto(data, address)
            return True
        except BlockingIOError:
            time.sleep(_PAUSE_S if tried < _TRIES // 2 else _LONG_PAUSE_S)
        except OSError:
            return False  # the agent's side is gone: the training isn't
    return False


_reports = Reports(_send_report)


def _sync(path: str) -> int:
    """Bytes of all files there, which are on disk when this returns."""
    if not os.path.isdir(path):
        _sync_one(path)
        _sync_one(os.path.dirname(path))
        return os.path.getsize(path)
    size = 0
    for directory, _, files in os.walk(path):
        for name in files:
            file = os.path.join(directory, name)
            _sync_one(file)
            size += os.path.getsize(file)
        _sync_one(directory)
    _sync_one(os.path.dirname(path))
    return size


def _sync_one(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
