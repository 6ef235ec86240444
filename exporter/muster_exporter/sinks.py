"""Brings each tracker of each job up to date with the spool. One thread a destination: one that hangs holds up nobody else's."""

import http.client
import logging
import threading
import time
from collections.abc import Callable

from muster_exporter import http_client
from muster_exporter.config import Config, Reach, secret, server
from muster_exporter.mlflow import MLflow
from muster_exporter.store import Store
from muster_exporter.tensorboard import TensorBoard
from muster_exporter.wandb import Wandb

log = logging.getLogger("muster-exporter")
BATCH = 2000  # points at once; then it's the next run's turn
PAUSES_S = (1, 2, 5, 10, 20, 30)
GIVE_UP_S = 7 * 24 * 3600.0  # after a job's end
TRIES_MIN = 10  # before it is given up, whenever the job ended
TROUBLE = (OSError, ValueError, KeyError, http.client.HTTPException, http_client.Refused)


class NotAllowed(Exception):
    """The exporter's settings don't let this job do it; or it lacks what it takes."""


def check(config: Config, reach: Reach, name: str, about: dict) -> None:
    """NotAllowed: that tracker isn't for this job."""
    given, owner, why = about["track"][name], about["owner"], ""
    if name == "tensorboard":
        try:
            reach.directory(given, owner, "run")
        except ValueError as error:
            why = f"{given}: {error}"
    elif name == "mlflow":
        why = reach.why_not_url(given, owner)
    elif not config.wandb_python:
        why = "the exporter has no wandb_python; docs/tracking.md says how to make its environment"
    else:
        why = reach.why_not_project(given, owner)
    if why:
        raise NotAllowed(f"{name}: {why}")


def make_tracker(config: Config, reach: Reach, name: str, about: dict):
    check(config, reach, name, about)
    given = about["track"][name]
    if name == "tensorboard":
        run = f"{about['name']}-{about['id']}"
        return TensorBoard(reach.directory(given, about["owner"], run))
    if name == "mlflow":
        return MLflow(given, reach.key(given))
    key = secret(config.keys["wandb"]) if "wandb" in config.keys else ""
    return Wandb(given, config.data_dir / "wandb", config.wandb_python, config.wandb_url, key)


def destination(name: str, about: dict) -> str:
    """What may hang as one: a server; an owner's directories; an owner's runs of W&B, which take minutes."""
    whose = server(about["track"][name]) if name == "mlflow" else about["owner"]
    return f"{name} {whose}"


class Sink:
    """One job's run in one tracker."""

    def __init__(self, store: Store, make: Callable, uid: str, name: str):
        self.store, self._make, self._uid, self._name = store, make, uid, name

    def visit(self, about: dict, ended: bool) -> bool:
        """Does one piece of what the tracker lacks of the spool; `ended`: nothing comes any more, so that it is finished, too. True: there is more to do."""
        state = self.store.sink(self._uid, self._name)
        if state is None:
            return False
        position, place, unsure = state
        tracker = self._make(self._name, about)
        if place.get("old"):
            place = tracker.settle(place, about)
            self.store.wrote(self._uid, self._name, [], position, place)
        if unsure:
            may_be = self.store.unsure(self._uid, self._name)
            place, there = tracker.held(place, about, may_be)
            self.store.wrote(self._uid, self._name, there, position, place)
        if rows := self.store.changed(self._uid, self._name, position, BATCH):
            self._bring(tracker, about, place, rows)
            return True
        if not ended:
            return False
        if self.store.has_leftovers(self._uid, self._name):
            self._rewrite(tracker, about, place)
            return True
        tracker.finish(place, about, lambda: self.store.whole(self._uid)[0])
        self.store.sink_done(self._uid, self._name)
        return False

    def _bring(self, tracker, about: dict, place: dict, rows: list[tuple]) -> None:
        differs = [row for row in rows if row[5] is not None and row[5] != row[2]]
        if any(not tracker.keeps_first(row[0]) for row in differs):
            self._rewrite(tracker, about, place)
            return
        new = [row[:4] for row in rows if row[5] is None]
        if new:
            if tracker.may_have_unsure:
                self.store.begin_write(self._uid, self._name, new)
            place = tracker.write(place, about, new)
        self.store.wrote(self._uid, self._name, new, rows[-1][4], place)

    def _rewrite(self, tracker, about: dict, place: dict) -> None:
        points, position = self.store.whole(self._uid)
        place = tracker.rewrite(place, about, points)
        self.store.rewrote(self._uid, self._name, points, position, place)
        place = tracker.settle(place, about)
        self.store.wrote(self._uid, self._name, [], position, place)


Key = tuple[str, str]  # a job's uid, a tracker


class Destination:
    """A thread that visits sinks in turn, and pauses for longer and longer after what fails."""

    def __init__(self, name: str, interval_s: float = 1.0):
        self.name = name
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._jobs: dict[Key, tuple[Sink, dict, bool]] = {}
        self._failures: dict[Key, tuple[int, float]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def want(self, key: Key, sink: Sink, about: dict, ended: bool) -> None:
        with self._lock:
            self._jobs[key] = (sink, about, ended)

    def stop(self) -> None:
        self._stop.set()

    def join(self, limit_s: float) -> None:
        self._thread.join(limit_s)

    def _run(self) -> None:
        pause_s = self._interval_s
        while not self._stop.wait(pause_s):
            with self._lock:
                wanted, self._jobs = self._jobs, {}
            more = {}
            for key, job in wanted.items():
                if self._stop.is_set():
                    return
                if self._visit(key, *job):
                    more[key] = job
            with self._lock:
                self._jobs = more | self._jobs
            pause_s = 0 if more else self._interval_s

    def _visit(self, key: Key, sink: Sink, about: dict, ended: bool) -> bool:
        failures, due_s = self._failures.get(key, (0, 0.0))
        if time.monotonic() < due_s:
            return False
        try:
            more = sink.visit(about, ended)
            self._failures.pop(key, None)
            return more
        except Exception as error:  # whatever a tracker or the disk does, the thread goes on
            pause_s = PAUSES_S[min(failures, len(PAUSES_S) - 1)]
            self._failures[key] = (failures + 1, time.monotonic() + pause_s)
            try:
                self._failed(key, sink.store, about, error, failures)
            except Exception as another:
                log.warning("job %s: %s: %s: %s", about["id"], self.name, error, another)
        return False

    def _failed(self, key: Key, store: Store, about: dict, error, failures: int) -> None:
        said = f"{type(error).__name__}: {error}"
        if isinstance(error, NotAllowed):
            log.warning("job %s: %s; its points are dropped", about["id"], error)
            self._failures.pop(key, None)
            return store.sink_done(*key, str(error))
        ended_s = about["end_ns"] / 1e9
        if failures + 1 >= TRIES_MIN and 0 < ended_s < time.time() - GIVE_UP_S:
            log.warning(
                "job %s: %s: given up, its points are dropped: %s", about["id"], key[1], said
            )
            self._failures.pop(key, None)
            return store.sink_done(*key, said)
        if failures == 0:
            log.warning("job %s: %s: %s; it is tried again", about["id"], self.name, error)
        if not isinstance(error, TROUBLE):
            log.error("job %s: %s", about["id"], self.name, exc_info=error)
        return store.sink_failed(*key, said)
