"""Reads what jobs report, by `muster logs --reports`: it has the user's credentials, goes on after a restart of musterd or of an agent, and gives a place."""

import base64
import json
import logging
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from muster_exporter.store import Store

log = logging.getLogger("muster-exporter")
GIVE_UP_S = (
    24 * 3600.0
)  # of answers of musterd, after a job's end, that its host can't give the rest
PAUSES_S = (5, 10, 20, 40, 60)
Key = tuple[str, str]  # a job's uid, a task


class Reader:
    """One task's reports, from its place in the store on, in a thread of its own."""

    def __init__(self, store: Store, muster: str, uid: str, about: dict, task: str):
        self.began_s = time.monotonic()
        self.code: int | None = None
        self.stopped = False  # its turn is over: its end is no failure
        self.moved = False  # something came
        self.error = ""
        self._store, self._uid, self._task = store, uid, task
        self._prefix = f"{task}/" if len(about["tasks"]) > 1 else ""
        attempt, offset, _ = store.place(uid, task)
        self._process = subprocess.Popen(
            [muster, "logs", uid, "--reports", "--follow", "-o", "jsonl"]
            + ["--task", task, "--attempt", str(max(1, attempt)), "--from", str(offset)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        self._told = threading.Thread(target=self._listen, daemon=True)
        self._told.start()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.stopped = True
        if self._process.poll() is None:
            self._process.terminate()

    def ended(self) -> bool:
        return not self._thread.is_alive()

    def join(self, limit_s: float) -> None:
        self._thread.join(limit_s)

    def _listen(self) -> None:
        for line in self._process.stderr:
            self.error = line.strip() or self.error

    def _run(self) -> None:
        try:
            for line in self._process.stdout:
                self._take(line)
        except Exception as error:  # a full disk, say: what wasn't kept is read again
            self.error = f"{type(error).__name__}: {error}"
            self._process.terminate()
            self._process.stdout.close()
            self._process.wait()
            self.code = 1
            return
        self.code = self._process.wait()

    def _take(self, line: str) -> None:
        chunk = json.loads(line)
        if chunk.get("rank") != -2 or not chunk.get("next_offset"):
            return
        missing = chunk.get("dropped_bytes", 0)
        if missing:
            log.warning("%s: %d bytes of reports are gone: they came too late", self._uid, missing)
        data = base64.b64decode(chunk.get("data", ""))
        lines = [line.decode(errors="replace") for line in data.split(b"\n") if line]
        offset = chunk["next_offset"]
        self.moved |= self._store.take(
            self._uid, self._task, self._prefix, chunk["attempt"], offset, lines, missing
        )


@dataclass
class Trouble:
    """Of a task that could not be read to its end, since something last came of it."""

    tries: int = 0
    not_before_s: float = 0.0
    since_s: float | None = None  # the first time after the job's end that musterd said so


class Readers:
    """So many at once; where more want to read, they take turns."""

    TURN_S = 10.0

    def __init__(self, store: Store, muster: str, most: int, start: Callable = Reader):
        self._store, self._muster, self._most, self._start = store, muster, most, start
        self._active: dict[Key, Reader] = {}
        self._trouble: dict[Key, Trouble] = {}
        self._turns: dict[Key, int] = {}  # the number of each one's newest
        self._begun = 0

    def turn(self, wanted: dict[Key, tuple[dict, bool]], answers: bool) -> None:
        """`wanted`: (uid, task) to (about, ended); who isn't among them is read no more. `answers`: musterd does."""
        now_s = time.monotonic()
        for key in [key for key in self._active if self._active[key].ended()]:
            reader = self._active.pop(key)
            if key in wanted:
                self._over(key, reader, wanted[key][1], answers, now_s)
        for key, reader in self._active.items():
            if key not in wanted:
                reader.stop()
        self._forget(wanted, answers)
        waiting = [key for key in wanted if self._waits(key, now_s)]
        waiting.sort(key=lambda key: self._turns.get(key, 0))
        self._make_room(len(waiting), now_s)
        for key in waiting[: max(0, self._most - len(self._active))]:
            self._begun += 1
            self._turns[key] = self._begun
            self._active[key] = self._start(
                self._store, self._muster, key[0], wanted[key][0], key[1]
            )

    def stop(self) -> None:
        for reader in self._active.values():
            reader.stop()
        for reader in self._active.values():
            reader.join(5)

    def _waits(self, key: Key, now_s: float) -> bool:
        is_due = self._trouble.get(key, Trouble()).not_before_s <= now_s
        return is_due and key not in self._active and not self._store.place(*key)[2]

    def _forget(self, wanted: dict, answers: bool) -> None:
        for kept in (self._turns, self._trouble):
            for key in [key for key in kept if key not in wanted and key not in self._active]:
                del kept[key]
        if not answers:  # nor do its agents, for a while after
            for trouble in self._trouble.values():
                trouble.since_s = None

    def _make_room(self, waiting: int, now_s: float) -> None:
        too_many = len(self._active) + waiting - self._most
        oldest = sorted(self._active.values(), key=lambda reader: reader.began_s)
        for reader in oldest[: max(0, too_many)]:
            if now_s - reader.began_s >= self.TURN_S:
                reader.stop()

    def _over(self, key: Key, reader: Reader, ended: bool, answers: bool, now_s: float) -> None:
        if reader.code == 0:
            self._trouble.pop(key, None)
            self._store.set_over(*key)
            return
        if reader.moved:
            self._trouble.pop(key, None)
        if reader.stopped:
            return
        trouble = self._trouble.setdefault(key, Trouble())
        trouble.not_before_s = now_s + PAUSES_S[min(trouble.tries, len(PAUSES_S) - 1)]
        trouble.tries += 1
        if not ended or not answers or reader.code == 1:  # 1: what came could not be kept
            return
        trouble.since_s = now_s if trouble.since_s is None else trouble.since_s
        if now_s - trouble.since_s > GIVE_UP_S:
            log.warning("%s, task %s: its last reports are missing: %s", *key, reader.error)
            self._store.set_over(*key)
