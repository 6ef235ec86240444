"""The exporter's loop: which jobs there are, who reads them, who writes them, whom to tell."""

import json
import logging
import sqlite3
import subprocess
import time
from collections.abc import Callable

from muster_exporter import notices
from muster_exporter.config import Config, Reach
from muster_exporter.reader import Readers
from muster_exporter.room import Room
from muster_exporter.sinks import (
    GIVE_UP_S,
    Destination,
    NotAllowed,
    Sink,
    check,
    destination,
    make_tracker,
)
from muster_exporter.store import Store

log = logging.getLogger("muster-exporter")
ENDED = {"SUCCEEDED", "FAILED", "CANCELLED"}
OVERLAP_NS = 600 * 10**9  # jobs that ended shortly before the last look are looked at once more
KEPT_NS = 30 * 24 * 3600 * 10**9
# Of a disk that is full, a musterd that is away, a `muster` that is being replaced, a limit on threads.
TROUBLE = (OSError, ValueError, KeyError, RuntimeError, subprocess.SubprocessError, sqlite3.Error)
TRACKERS = ("tensorboard", "mlflow", "wandb")


def about_job(job: dict, is_array: bool) -> dict:
    """What is kept of a job."""
    spec = job["spec"]
    track, notify = spec.get("track") or {}, spec.get("notify") or {}
    member = job.get("member") or {}
    return {
        "uid": job["uid"],
        "id": str(job["number"]) if is_array else member.get("id") or str(job["number"]),
        "name": spec.get("name") or "job",
        "owner": job.get("owner", ""),
        "queue": spec.get("queue", ""),
        "labels": spec.get("labels") or {},
        "values": {one["name"]: one["values"][0] for one in member.get("values") or []},
        "tasks": [task["name"] for task in job["tasks"]],
        "started": [task["name"] for task in job["tasks"] if task.get("attempts")],
        "track": {} if is_array else {name: track[name] for name in TRACKERS if track.get(name)},
        "notify": {name: value for name, value in notify.items() if value}
        if is_array or not member
        else {},  # of an array the whole one's end is told
        "state": job["state"],
        "cause": job.get("cause", ""),
        "detail": job.get("detail", ""),
        "submit_ns": job.get("submit_ns", 0),
        "start_ns": job.get("start_ns", 0),
        "end_ns": (job.get("array") or {}).get("end_ns") or job.get("end_ns", 0),
    }


def _uid(job: dict) -> str:
    """Of a row of a list: an array has its first member's."""
    return f"array-{job['uid']}" if job.get("array") else job["uid"]


class Exporter:
    def __init__(self, config: Config):
        config.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._config, self._reach = config, Reach(config)
        self.store = Store(config.data_dir / "spool.db")
        self._readers = Readers(self.store, config.muster, config.readers)
        self._messenger = notices.Messenger(self.store, config)
        self._destinations: dict[str, Destination] = {}
        self._first, self._answers = True, False
        self._troubles: set[str] = set()
        self._crowded: set[str] = set()  # jobs that the spool has no room for
        if not self.store.fact("looked_ns", 0):
            log.info(
                "a new spool: jobs that ended more than %d minutes ago are left alone",
                OVERLAP_NS // (60 * 10**9),
            )
            self.store.set_fact("looked_ns", time.time_ns())

    def stop(self) -> None:
        self._readers.stop()
        for one in self._destinations.values():
            one.stop()
        for one in self._destinations.values():
            one.join(15)

    def turn(self) -> float:
        """Seconds until the next one."""
        began_s = time.monotonic()
        self._answers = self._try("musterd can't be asked", self._look)
        self._try("reports can't be read", self._read)
        self._try("trackers can't be written", self._write)
        self._try("notices can't be sent", self._messenger.turn)
        took_s = time.monotonic() - began_s
        return max(self._config.poll_s, 10 * took_s if took_s > 1 else 0)

    def _try(self, what: str, do: Callable[[], None]) -> bool:
        """Whatever becomes of one part, the others go on; it is told once."""
        try:
            do()
        except TROUBLE as error:
            if what not in self._troubles:
                log.warning("%s: %s; it is tried again", what, error)
            self._troubles.add(what)
            return False
        self._troubles.discard(what)
        return True

    # ---- jobs ----

    def _ask(self, *words: str) -> dict:
        done = subprocess.run(
            [self._config.muster, *words, "-o", "json"], capture_output=True, text=True, timeout=120
        )
        if done.returncode != 0:
            raise OSError(done.stderr.strip() or f"exit {done.returncode}")
        return json.loads(done.stdout or "{}")

    def _look(self) -> None:
        now_ns = time.time_ns()
        since_ns = self.store.fact("looked_ns", now_ns) - OVERLAP_NS
        words = ["jobs", "--all", "--exported", "--limit", "1000000"]
        if not self._first:
            words += ["--ended-after", str(since_ns)]
        found = self._ask(*words).get("jobs", [])
        listed: set[str] = set()
        # In the order of their ends: so notices are told.
        for job in sorted(found, key=lambda job: about_job(job, bool(job.get("array")))["end_ns"]):
            long_ago = about_job(job, bool(job.get("array")))["end_ns"] <= since_ns
            if job["state"] in ENDED and long_ago and not self.store.knows(_uid(job)):
                continue
            listed.update(self._take(job))
        for uid, _about, ended in self.store.unfinished():
            if not ended and uid not in listed:
                self._ask_for(uid)
        self.store.set_fact("looked_ns", now_ns)
        self.store.forget_done(now_ns - KEPT_NS)
        self._first = False

    def _take(self, job: dict) -> list[str]:
        """A row of a list; the uids that it stands for."""
        if not job.get("array"):
            return [self._take_one(job["uid"], about_job(job, False), job)]
        whole = _uid(job)
        known = [whole]
        if self.store.is_done(whole):
            return known
        if job["spec"].get("track"):
            words = ("jobs", str(job["number"]), "--limit", "1000000")
            for member in self._ask(*words).get("jobs", []):
                known.append(self._take_one(member["uid"], about_job(member, False), member))
        # Last: once its end is known, members are listed no more.
        self._take_one(whole, about_job(job, True), job)
        return known

    def _take_one(self, uid: str, about: dict, job: dict) -> str:
        about["uid"] = uid
        if about["state"] in ENDED and not about["end_ns"]:
            about["state"] = "RUNNING"  # an array whose members haven't all ended
        ended = about["state"] in ENDED
        if not self.store.knows(uid) or not ended:
            self.store.keep_job(uid, about, list(about["track"]))
        if ended:
            self.store.end_job(uid, about, notices.wanted(about), time.time())
        return uid

    def _ask_for(self, uid: str) -> None:
        """One that is in no list any more: it ended, and others since."""
        try:
            job = self._ask("show", uid.removeprefix("array-"))
        except OSError as error:
            if "no job" not in str(error).lower():
                raise
            log.warning("%s: musterd knows it no longer", uid)
            self.store.finish_job(uid)
            return
        self._take_one(uid, about_job(job, uid.startswith("array-")), job)

    # ---- reading, writing ----

    def _read(self) -> None:
        room = Room(self.store, self._config.spool_bytes)
        wanted, crowded = {}, set()
        for uid, about, ended in self.store.unfinished():
            left = [task for task in about["started"] if not self.store.place(uid, task)[2]]
            if not about["track"] or not left:
                continue
            if not room.has(uid, about):
                crowded.add(uid)
                self._crowd(uid, about, left, ended and (room.never_has(uid) or _is_old(about)))
                continue
            for task in left:
                wanted[uid, task] = (about, ended)
        self._crowded = crowded
        self._readers.turn(wanted, self._answers)

    def _crowd(self, uid: str, about: dict, tasks: list[str], for_good: bool) -> None:
        """The spool has no room for more of it now."""
        if for_good:
            log.warning("job %s: its last reports are missing: the spool is full", about["id"])
            for task in tasks:
                self.store.set_over(uid, task)
        elif uid not in self._crowded:
            log.warning(
                "job %s: the spool has no room for more of it: it is read later", about["id"]
            )

    def _write(self) -> None:
        jobs = {uid: (about, ended) for uid, about, ended in self.store.unfinished()}
        left: set[str] = set()
        used: set[str] = set()
        for uid, tracker in self.store.sinks():
            if uid not in jobs:
                continue
            about, ended = jobs[uid]
            if self._refuses(uid, tracker, about):
                continue
            left.add(uid)
            to = destination(tracker, about)
            used.add(to)
            if to not in self._destinations:
                self._destinations[to] = Destination(to)
            sink = Sink(self.store, self._make, uid, tracker)
            whole = ended and all(self.store.place(uid, task)[2] for task in about["started"])
            self._destinations[to].want((uid, tracker), sink, about, whole)
        for unused in self._destinations.keys() - used:
            self._destinations.pop(unused).stop()
        for uid, (_about, ended) in jobs.items():
            if ended and uid not in left:
                self.store.finish_job(uid)

    def _refuses(self, uid: str, tracker: str, about: dict) -> bool:
        """Before a thread is made for it."""
        try:
            check(self._config, self._reach, tracker, about)
        except NotAllowed as error:
            log.warning("job %s: %s; its points are dropped", about["id"], error)
            self.store.sink_done(uid, tracker, str(error))
            return True
        return False

    def _make(self, name: str, about: dict):
        return make_tracker(self._config, self._reach, name, about)


def _is_old(about: dict) -> bool:
    """It ended so long ago that what it still lacks is given up."""
    return 0 < about["end_ns"] / 1e9 < time.time() - GIVE_UP_S
