"""The spool: one SQLite file with what was read, how far, and what each tracker has. All that is acknowledged anywhere is committed here first.

A point is (key, step) of a job. The newest value wins. A point of an attempt that another one replaced, beyond the step that that one went on from,
is `gone` until it is told again. `written` has what a tracker holds; what differs from it is what is left to do. `unsure` has what a tracker may hold or not,
as the end of a write is unknown.
"""

import json
import sqlite3
import threading
from contextlib import contextmanager
from pathlib import Path

from muster_exporter.reports import parse

SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs(
  uid TEXT PRIMARY KEY, about TEXT NOT NULL, ended INTEGER NOT NULL, done INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS places(
  uid TEXT, task TEXT, attempt INTEGER NOT NULL, next_offset INTEGER NOT NULL, begun INTEGER NOT NULL,
  over INTEGER NOT NULL, missing INTEGER NOT NULL, PRIMARY KEY(uid, task)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS points(
  uid TEXT, key TEXT, step INTEGER, value REAL NOT NULL, at_ns INTEGER NOT NULL, seq INTEGER NOT NULL,
  gone INTEGER NOT NULL, PRIMARY KEY(uid, key, step)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS points_by_seq ON points(uid, seq);
CREATE TABLE IF NOT EXISTS written(
  uid TEXT, tracker TEXT, key TEXT, step INTEGER, value REAL NOT NULL,
  PRIMARY KEY(uid, tracker, key, step)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS unsure(
  uid TEXT, tracker TEXT, key TEXT, step INTEGER, PRIMARY KEY(uid, tracker, key, step)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sinks(
  uid TEXT, tracker TEXT, position INTEGER NOT NULL, place TEXT NOT NULL, unsure INTEGER NOT NULL,
  done INTEGER NOT NULL, error TEXT NOT NULL, PRIMARY KEY(uid, tracker)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS notices(
  id INTEGER PRIMARY KEY AUTOINCREMENT, uid TEXT NOT NULL, kind TEXT NOT NULL, target TEXT NOT NULL,
  owner TEXT NOT NULL, text TEXT NOT NULL, tries INTEGER NOT NULL, since_s REAL NOT NULL,
  due_s REAL NOT NULL, error TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS facts(name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""
KEYS_MAX = 500  # of a job
KEY_BYTES = 200


class Store:
    """Thread-safe."""

    def __init__(self, file: Path):
        self._lock = threading.RLock()
        self._db = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.executescript(SCHEMA)
        self._keys: dict[str, set[str]] = {}
        self._counts: dict[str, int] | None = None  # of points, by job; None: to be counted
        # Behind all that a tracker is told to have, too, though those points may be gone: what comes next is new to it.
        (self._seq,) = self._db.execute(
            "SELECT max((SELECT coalesce(max(seq), 0) FROM points), (SELECT coalesce(max(position), 0) FROM sinks))"
        ).fetchone()

    def close(self) -> None:
        with self._lock:
            self._db.close()

    @contextmanager
    def _commit(self):
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # not where SQLite has taken it back by itself
                    self._db.execute("ROLLBACK")
                self._keys.clear()
                self._counts = None
                raise

    def _all(self, query: str, *values) -> list[tuple]:
        with self._lock:
            return self._db.execute(query, values).fetchall()

    def bytes(self) -> int:
        """What is in use: the file keeps the pages that are free again."""
        with self._lock:
            pages, free, size = (
                self._db.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("page_count", "freelist_count", "page_size")
            )
            return (pages - free) * size

    def bytes_by_job(self) -> dict[str, int]:
        """Of those that have points, about: by how many they have."""
        with self._lock:
            counts = self._counted()
            total, size = sum(counts.values()), self.bytes()
            return {uid: size * count // total for uid, count in counts.items() if count}

    def _counted(self) -> dict[str, int]:
        if self._counts is None:
            self._counts = dict(self._all("SELECT uid, count(*) FROM points GROUP BY uid"))
        return self._counts

    # ---- facts ----

    def fact(self, name: str, otherwise: int) -> int:
        rows = self._all("SELECT value FROM facts WHERE name = ?", name)
        return rows[0][0] if rows else otherwise

    def set_fact(self, name: str, value: int) -> None:
        with self._commit() as db:
            db.execute("INSERT OR REPLACE INTO facts VALUES(?, ?)", (name, value))

    # ---- jobs ----

    def knows(self, uid: str) -> bool:
        return bool(self._all("SELECT 1 FROM jobs WHERE uid = ?", uid))

    def is_done(self, uid: str) -> bool:
        return bool(self._all("SELECT 1 FROM jobs WHERE uid = ? AND done = 1", uid))

    def keep_job(self, uid: str, about: dict, trackers: list[str]) -> None:
        text = json.dumps(about)
        if self._all("SELECT 1 FROM jobs WHERE uid = ? AND about = ?", uid, text):
            return
        with self._commit() as db:
            db.execute(
                "INSERT INTO jobs VALUES(?, ?, 0, 0) ON CONFLICT DO UPDATE SET about = excluded.about",
                (uid, text),
            )
            for tracker in trackers:
                db.execute(
                    "INSERT OR IGNORE INTO sinks VALUES(?, ?, 0, '', 0, 0, '')", (uid, tracker)
                )

    def end_job(self, uid: str, about: dict, notices: list[tuple[str, str]], now_s: float) -> None:
        """Once: what it ended with, and whom to tell, as (kind, target)."""
        with self._commit() as db:
            row = db.execute("SELECT ended FROM jobs WHERE uid = ?", (uid,)).fetchone()
            if row is None or row[0]:
                return
            text = json.dumps(about)
            db.execute("UPDATE jobs SET ended = 1, about = ? WHERE uid = ?", (text, uid))
            for kind, target in notices:
                db.execute(
                    "INSERT INTO notices(uid, kind, target, owner, text, tries, since_s, due_s, error) "
                    "VALUES(?, ?, ?, ?, ?, 0, ?, ?, '')",
                    (uid, kind, target, about["owner"], text, now_s, now_s),
                )

    def unfinished(self) -> list[tuple[str, dict, bool]]:
        """(uid, about, ended) of jobs that are not done."""
        rows = self._all("SELECT uid, about, ended FROM jobs WHERE done = 0 ORDER BY uid")
        return [(uid, json.loads(about), bool(ended)) for uid, about, ended in rows]

    def finish_job(self, uid: str) -> None:
        """All that is left of it is that it is done."""
        with self._commit() as db:
            for table in ("points", "written", "unsure", "places", "sinks"):
                db.execute(f"DELETE FROM {table} WHERE uid = ?", (uid,))
            db.execute("UPDATE jobs SET done = 1 WHERE uid = ?", (uid,))
            self._keys.pop(uid, None)
            self._counted().pop(uid, None)

    def forget_done(self, ended_before_ns: int) -> None:
        with self._commit() as db:
            db.execute(
                "DELETE FROM jobs WHERE done = 1 AND coalesce(json_extract(about, '$.end_ns'), 0) < ?",
                (ended_before_ns,),
            )

    # ---- reading ----

    def place(self, uid: str, task: str) -> tuple[int, int, bool]:
        """(attempt, offset to go on from, whether all was read)."""
        rows = self._all(
            "SELECT attempt, next_offset, over FROM places WHERE uid = ? AND task = ?", uid, task
        )
        return (rows[0][0], rows[0][1], bool(rows[0][2])) if rows else (1, 0, False)

    def take(
        self,
        uid: str,
        task: str,
        prefix: str,
        attempt: int,
        next_offset: int,
        lines: list[str],
        missing: int = 0,
    ) -> bool:
        """What was read, with the place behind it: both or none. False: it was read before."""
        with self._commit() as db:
            row = db.execute(
                "SELECT attempt, next_offset, begun, missing FROM places WHERE uid = ? AND task = ?",
                (uid, task),
            ).fetchone()
            was, offset, begun, lost = row or (0, 0, 0, 0)
            if attempt < was or (attempt == was and next_offset <= offset):
                return False
            for line in lines:
                begun = self._take_line(db, uid, prefix, attempt, begun, line)
            db.execute(
                "INSERT OR REPLACE INTO places VALUES(?, ?, ?, ?, ?, 0, ?)",
                (uid, task, attempt, next_offset, begun, lost + missing),
            )
            return True

    def _take_line(self, db, uid, prefix, attempt, begun, line) -> int:
        """Returns the attempt of which it is known where it began."""
        report = parse(line)
        if report is None:
            return begun
        if attempt != begun:  # what an earlier one did from here on is done again
            self._drop(db, uid, prefix, report.loaded + 1 if report.step is None else report.step)
        for name, value in report.numbers.items():
            if self._is_key(db, uid, prefix + name):
                self._put(db, uid, prefix + name, report.step, value, report.at_ns)
        return attempt

    def _keys_of(self, db, uid: str) -> set[str]:
        if uid not in self._keys:
            rows = db.execute("SELECT DISTINCT key FROM points WHERE uid = ?", (uid,))
            self._keys[uid] = {row[0] for row in rows}
        return self._keys[uid]

    def _is_key(self, db, uid: str, key: str) -> bool:
        keys = self._keys_of(db, uid)
        if key not in keys and (len(keys) >= KEYS_MAX or len(key.encode()) > KEY_BYTES):
            return False
        keys.add(key)
        return True

    def _drop(self, db, uid: str, prefix: str, step: int) -> None:
        for key in self._keys_of(db, uid):  # so that only what is dropped is looked at
            if key.startswith(prefix):
                db.execute(
                    "UPDATE points SET gone = 1 WHERE uid = ? AND key = ? AND step >= ?",
                    (uid, key, step),
                )

    def _put(self, db, uid: str, key: str, step: int, value: float, at_ns: int) -> None:
        self._seq += 1
        counts = self._counted()
        row = (uid, key, step, value, at_ns, self._seq)
        if db.execute("INSERT OR IGNORE INTO points VALUES(?, ?, ?, ?, ?, ?, 0)", row).rowcount:
            counts[uid] = counts.get(uid, 0) + 1
            return
        db.execute(
            "UPDATE points SET value = ?, at_ns = ?, seq = ?, gone = 0 "
            "WHERE uid = ? AND key = ? AND step = ? AND (value <> ? OR gone = 1)",
            (value, at_ns, self._seq, uid, key, step, value),
        )

    def set_over(self, uid: str, task: str) -> None:
        with self._commit() as db:
            db.execute("INSERT OR IGNORE INTO places VALUES(?, ?, 0, 0, 0, 0, 0)", (uid, task))
            db.execute("UPDATE places SET over = 1 WHERE uid = ? AND task = ?", (uid, task))

    # ---- writing ----

    def sinks(self) -> list[tuple[str, str]]:
        return self._all("SELECT uid, tracker FROM sinks WHERE done = 0")

    def sink(self, uid: str, tracker: str) -> tuple[int, dict, bool] | None:
        """(position, what the tracker says of its run, whether a write's end is unknown). None: it is done."""
        rows = self._all(
            "SELECT position, place, unsure FROM sinks WHERE uid = ? AND tracker = ? AND done = 0",
            uid,
            tracker,
        )
        if not rows:
            return None
        position, place, unsure = rows[0]
        return position, json.loads(place) if place else {}, bool(unsure)

    def changed(self, uid: str, tracker: str, position: int, most: int) -> list[tuple]:
        """(key, step, value, at_ns, seq, value that the tracker has or None), by seq."""
        return self._all(
            "SELECT p.key, p.step, p.value, p.at_ns, p.seq, w.value FROM points p LEFT JOIN written w ON w.uid = p.uid "
            "AND w.tracker = ? AND w.key = p.key AND w.step = p.step "
            "WHERE p.uid = ? AND p.seq > ? AND p.gone = 0 ORDER BY p.seq LIMIT ?",
            tracker,
            uid,
            position,
            most,
        )

    def whole(self, uid: str) -> tuple[list[tuple], int]:
        """All points as (key, step, value, at_ns), by step; and the position behind them."""
        with self._lock:
            rows = self._all(
                "SELECT key, step, value, at_ns FROM points WHERE uid = ? AND gone = 0 ORDER BY step, key",
                uid,
            )
            return rows, self._seq

    def has_leftovers(self, uid: str, tracker: str) -> bool:
        """Whether the tracker has points that no attempt that counts has told."""
        return bool(
            self._all(
                "SELECT 1 FROM written w LEFT JOIN points p ON p.uid = w.uid AND p.key = w.key AND p.step = w.step "
                "WHERE w.uid = ? AND w.tracker = ? AND (p.gone IS NULL OR p.gone = 1) LIMIT 1",
                uid,
                tracker,
            )
        )

    def begin_write(self, uid: str, tracker: str, points: list[tuple]) -> None:
        """From now on the tracker may have these."""
        with self._commit() as db:
            db.executemany(
                "INSERT OR REPLACE INTO unsure VALUES(?, ?, ?, ?)",
                [(uid, tracker, point[0], point[1]) for point in points],
            )
            db.execute("UPDATE sinks SET unsure = 1 WHERE uid = ? AND tracker = ?", (uid, tracker))

    def unsure(self, uid: str, tracker: str) -> set[tuple[str, int]]:
        """(key, step) of points that the tracker may have."""
        rows = self._all("SELECT key, step FROM unsure WHERE uid = ? AND tracker = ?", uid, tracker)
        return set(rows)

    def wrote(
        self, uid: str, tracker: str, points: list[tuple], position: int, place: dict
    ) -> None:
        with self._commit() as db:
            self._add_written(db, uid, tracker, points, position, place)

    def rewrote(
        self, uid: str, tracker: str, points: list[tuple], position: int, place: dict
    ) -> None:
        with self._commit() as db:
            db.execute("DELETE FROM written WHERE uid = ? AND tracker = ?", (uid, tracker))
            self._add_written(db, uid, tracker, points, position, place)

    def _add_written(self, db, uid, tracker, points, position, place) -> None:
        db.executemany(
            "INSERT OR REPLACE INTO written VALUES(?, ?, ?, ?, ?)",
            [(uid, tracker, point[0], point[1], point[2]) for point in points],
        )
        db.execute("DELETE FROM unsure WHERE uid = ? AND tracker = ?", (uid, tracker))
        db.execute(
            "UPDATE sinks SET position = ?, place = ?, unsure = 0, error = '' WHERE uid = ? AND tracker = ?",
            (position, json.dumps(place), uid, tracker),
        )

    def sink_failed(self, uid: str, tracker: str, error: str) -> None:
        with self._commit() as db:
            db.execute(
                "UPDATE sinks SET error = ? WHERE uid = ? AND tracker = ?",
                (error[:500], uid, tracker),
            )

    def sink_done(self, uid: str, tracker: str, error: str = "") -> None:
        with self._commit() as db:
            db.execute(
                "UPDATE sinks SET done = 1, error = ? WHERE uid = ? AND tracker = ?",
                (error[:500], uid, tracker),
            )

    # ---- notices ----

    def notices(self) -> list[tuple]:
        """(id, uid, kind, target, owner, text, tries, since_s), oldest first."""
        return self._all(
            "SELECT id, uid, kind, target, owner, text, tries, since_s FROM notices ORDER BY id"
        )

    def told(self, notice: int) -> None:
        with self._commit() as db:
            db.execute("DELETE FROM notices WHERE id = ?", (notice,))

    def put_off(self, notice: int, due_s: float, error: str) -> None:
        with self._commit() as db:
            db.execute(
                "UPDATE notices SET tries = tries + 1, due_s = ?, error = ? WHERE id = ?",
                (due_s, error[:500], notice),
            )

    # ---- for people ----

    def status(self) -> list[dict]:
        rows = self._all(
            "SELECT j.about, s.tracker, s.done, s.error, "
            "(SELECT count(*) FROM written w WHERE w.uid = s.uid AND w.tracker = s.tracker), "
            "(SELECT count(*) FROM points p WHERE p.uid = s.uid AND p.gone = 0), "
            "(SELECT coalesce(sum(missing), 0) FROM places WHERE uid = s.uid) "
            "FROM sinks s JOIN jobs j ON j.uid = s.uid WHERE s.done = 0 OR s.error <> '' ORDER BY j.uid, s.tracker"
        )
        names = ("tracker", "done", "error", "written", "points", "missing_bytes")
        found = [
            {"job": json.loads(row[0])["id"], **dict(zip(names, row[1:], strict=True))}
            for row in rows
        ]
        for row in self._all("SELECT text, kind, tries, due_s, error FROM notices ORDER BY id"):
            names = ("notice", "tries", "due_s", "error")
            found.append(
                {"job": json.loads(row[0])["id"], **dict(zip(names, row[1:], strict=True))}
            )
        return found
