"""Reads what jobs report, by `muster logs --reports`: it has the user's credentials, goes on after a restart of musterd or of an agent, and gives a place."""

import base64
import json
import logging
import subprocess
import threading
import time
from collections.abc import Callable

from muster_exporter.store import Store

log = logging.getLogger("muster-exporter")
GIVE_UP_S = 300.0  # after a job's end, of what its host can't give


class Reader:
    """One task's reports, from its place in the store on, in a thread of its own."""

    def __init__(self, store: Store, muster: str, uid: str, about: dict, task: str):
        self.began_s = time.monotonic()
        self.code: int | None = None
        self._store, self._uid, self._task = store, uid, task
        self._prefix = f"{task}/" if len(about["tasks"]) > 1 else ""
        attempt, offset, _ = store.place(uid, task)
        self._process = subprocess.Popen(
            [muster, "logs", about["id"], "--reports", "--follow", "-o", "jsonl"]
            + ["--task", task, "--attempt", str(max(1, attempt)), "--from", str(offset)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        self.error = ""
        self._told = threading.Thread(target=self._listen, daemon=True)
        self._told.start()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
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
            self.stop()
            self._process.stdout.close()
            self._process.wait()
            self.code = 1
            return
        self.code = self._process.wait()

    def _take(self, line: str) -> None:
        chunk = json.loads(line)
        if chunk.get("rank") != -2 or not chunk.get("next_offset"):
            return
        data = base64.b64decode(chunk.get("data", "")).decode(errors="replace")
        missing = chunk.get("dropped_bytes", 0)
        if missing:
            log.warning("%s: %d bytes of reports are gone: they came too late", self._uid, missing)
        lines = data.splitlines()
        offset = chunk["next_offset"]
        self._store.take(
            self._uid, self._task, self._prefix, chunk["attempt"], offset, lines, missing
        )


class Readers:
    """So many at once; where more want to read, they take turns."""

    TURN_S = 10.0

    def __init__(self, store: Store, muster: str, most: int, start: Callable = Reader):
        self._store, self._muster, self._most, self._start = store, muster, most, start
        self._active: dict[tuple[str, str], Reader] = {}
        self._failed: dict[tuple[str, str], tuple[float, float]] = {}  # since, not before
        self._turns: dict[tuple[str, str], float] = {}

    def turn(self, wanted: dict[tuple[str, str], tuple[dict, bool]]) -> None:
        """`wanted`: (uid, task) to (about, ended)."""
        now_s = time.monotonic()
        for key in list(self._active):
            if self._active[key].ended():
                self._over(key, self._active.pop(key), wanted.get(key, ({}, False))[1], now_s)
        waiting = [
            key
            for key in wanted
            if key not in self._active
            and self._failed.get(key, (0.0, 0.0))[1] <= now_s
            and not self._store.place(*key)[2]
        ]
        waiting.sort(key=lambda key: self._turns.get(key, 0.0))
        self._make_room(len(waiting), now_s)
        for key in waiting[: max(0, self._most - len(self._active))]:
            self._turns[key] = now_s
            self._active[key] = self._start(
                self._store, self._muster, key[0], wanted[key][0], key[1]
            )

    def stop(self) -> None:
        for reader in self._active.values():
            reader.stop()
        for reader in self._active.values():
            reader.join(5)

    def _make_room(self, waiting: int, now_s: float) -> None:
        too_many = len(self._active) + waiting - self._most
        oldest = sorted(self._active.values(), key=lambda reader: reader.began_s)
        for reader in oldest[: max(0, too_many)]:
            if now_s - reader.began_s >= self.TURN_S:
                reader.stop()

    def _over(self, key: tuple[str, str], reader: Reader, ended: bool, now_s: float) -> None:
        if reader.code == 0:
            self._failed.pop(key, None)
            self._store.set_over(*key)
            return
        if reader.code is not None and reader.code < 0:  # its turn was over
            return
        since_s = self._failed.get(key, (now_s, 0.0))[0]
        self._failed[key] = (since_s, now_s + 5)
        if ended and now_s - since_s > GIVE_UP_S:
            log.warning("%s, task %s: its last reports are missing: %s", *key, reader.error)
            self._store.set_over(*key)
