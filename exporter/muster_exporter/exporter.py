"""The exporter's loop: which jobs there are, who reads them, who writes them, whom to tell."""

import json
import logging
import subprocess
import time

from muster_exporter import notices
from muster_exporter.config import Config, Reach
from muster_exporter.reader import Readers
from muster_exporter.sinks import Destination, Sink, destination, make_tracker
from muster_exporter.store import Store

log = logging.getLogger("muster-exporter")
ENDED = {"SUCCEEDED", "FAILED", "CANCELLED"}
OVERLAP_NS = 600 * 10**9  # jobs that ended shortly before the last look are looked at once more
KEPT_NS = 30 * 24 * 3600 * 10**9
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
        self._first, self._failures, self._full = True, 0, False
        if not self.store.fact("looked_ns", 0):
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
        try:
            self._look()
            self._failures = 0
        except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
            if self._failures == 0:
                log.warning("musterd can't be asked: %s; it is tried again", error)
            self._failures += 1
        self._read()
        self._write()
        self._messenger.turn()
        took_s = time.monotonic() - began_s
        return max(self._config.poll_s, 10 * took_s if took_s > 1 else 0)

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
        known = [self._take_one(whole, about_job(job, True), job)]
        if not job["spec"].get("track"):
            return known
        words = ("jobs", str(job["number"]), "--limit", "1000000")
        for member in self._ask(*words).get("jobs", []):
            known.append(self._take_one(member["uid"], about_job(member, False), member))
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
        full = self.store.bytes() > self._config.spool_bytes
        if full and not self._full:
            log.warning("the spool is full: nothing is read until trackers take what it holds")
        self._full = full
        wanted = {}
        for uid, about, ended in self.store.unfinished():
            for task in about["started"] if about["track"] and not full else []:
                wanted[uid, task] = (about, ended)
        self._readers.turn(wanted)

    def _write(self) -> None:
        jobs = {uid: (about, ended) for uid, about, ended in self.store.unfinished()}
        left: set[str] = set()
        for uid, tracker in self.store.sinks():
            if uid not in jobs:
                continue
            left.add(uid)
            about, ended = jobs[uid]
            to = destination(tracker, about)
            if to not in self._destinations:
                self._destinations[to] = Destination(to)
            sink = Sink(self.store, self._make, uid, tracker)
            whole = ended and all(self.store.place(uid, task)[2] for task in about["started"])
            self._destinations[to].want((uid, tracker), sink, about, whole)
        for uid, (_about, ended) in jobs.items():
            if ended and uid not in left:
                self.store.finish_job(uid)

    def _make(self, name: str, about: dict):
        return make_tracker(self._config, self._reach, name, about)
