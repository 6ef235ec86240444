"""Worker processes. The parent hands out shard numbers, takes results and progress, and notices a dead worker.

multiprocessing.Pool waits for ever when a worker is killed (out of memory), hence this page. Workers are forked, so
the tokenizer is loaded once. They ignore SIGINT and die of SIGTERM; without a parent they leave at the next batch.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable
from multiprocessing.connection import wait

from muster_prepare.errors import InputError, write_problem


class _Worker:
    def __init__(self, context, work: Callable, earlier: list["_Worker"]):
        self.connection, theirs = context.Pipe()
        parents_ends = [self.connection, *(worker.connection for worker in earlier)]
        self.process = context.Process(
            target=_serve, args=(theirs, parents_ends, work, os.getpid()), daemon=True
        )
        self.process.start()
        theirs.close()
        self.item: int | None = None


def run(
    items: Iterable[int],
    processes: int,
    work: Callable,
    on_progress: Callable[[int, int], None],
    what: str = "shard",
) -> dict:
    """Calls work(item, on_progress) for every item in up to `processes` processes; returns {item: result}.

    Raises InputError with the first failure, after stopping every worker; whatever is raised here meanwhile (a
    signal handler's exception) stops them too. None is left behind.
    """
    context = multiprocessing.get_context("fork")
    waiting = sorted(items, reverse=True)
    results: dict = {}
    workers: list[_Worker] = []
    try:
        for _ in range(min(processes, len(waiting))):
            workers.append(_Worker(context, work, workers))
            _hand_out(workers[-1], waiting)
        while any(worker.item is not None for worker in workers):
            ready = wait([worker.connection for worker in workers if worker.item is not None])
            for worker in workers:
                if worker.connection in ready:
                    _take(worker, waiting, results, on_progress, what)
        for worker in workers:
            worker.connection.close()
            worker.process.join()
        return results
    except BaseException:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.process.join()
        raise


def apart(work: Callable):
    """work()'s result, from a process of its own: what it opens and starts doesn't stay in this one. Raises as run()."""
    return run([0], 1, lambda _item, _told: work(), lambda *_: None, what="a look at the inputs,")[
        0
    ]


def _hand_out(worker: _Worker, waiting: list[int]) -> None:
    worker.item = waiting.pop() if waiting else None
    if worker.item is not None:
        worker.connection.send(worker.item)


def _take(
    worker: _Worker, waiting: list[int], results: dict, on_progress: Callable, what: str
) -> None:
    try:
        kind, value = worker.connection.recv()
    except (EOFError, ConnectionError):
        worker.process.join()
        code = worker.process.exitcode
        how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
        raise InputError(
            f"a worker process {how} at {what} {worker.item}"
            + ("; out of memory? --processes lowers the need" if code == -signal.SIGKILL else "")
        ) from None
    if kind == "progress":
        on_progress(*value)
    elif kind == "done":
        results[worker.item] = value
        _hand_out(worker, waiting)
    else:
        raise value


def _serve(connection, parents_ends: list, work: Callable, parent_pid: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for end in parents_ends:  # forked along: while one is open here, its worker would see no end
        end.close()

    def on_progress(*amounts: int) -> None:
        if os.getppid() != parent_pid:
            raise SystemExit(1)
        connection.send(("progress", amounts))

    while True:
        try:
            item = connection.recv()
        except EOFError:
            return
        try:
            connection.send(("done", work(item, on_progress)))
        except InputError as error:
            connection.send(("failed", error))
        except OSError as error:
            connection.send(("failed", InputError(write_problem(error, f"shard {item}"))))
