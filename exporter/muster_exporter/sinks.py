"""Brings each tracker of each job up to date with the spool. One thread a destination: one that hangs holds up nobody else's."""

import http.client
import logging
import threading
import time
from collections.abc import Callable

from muster_exporter import http_client
from muster_exporter.config import Config, Reach, secret
from muster_exporter.mlflow import Differs, MLflow
from muster_exporter.store import Store
from muster_exporter.tensorboard import TensorBoard
from muster_exporter.wandb import Wandb

log = logging.getLogger("muster-exporter")
BATCH = 5000  # points at once
PAUSES_S = (1, 2, 5, 10, 20, 30)
TROUBLE = (OSError, ValueError, KeyError, http.client.HTTPException, http_client.Refused)


class NotAllowed(Exception):
    """The exporter's settings don't let this job do it; or it lacks what it takes."""


def make_tracker(config: Config, reach: Reach, name: str, about: dict):
    given = about["track"][name]
    if name == "tensorboard":
        try:
            return TensorBoard(
                reach.directory(given, about["owner"], f"{about['name']}-{about['id']}")
            )
        except ValueError as error:
            raise NotAllowed(f"tensorboard: {given}: {error}") from error
    if name == "mlflow":
        if why := reach.why_not_url(given, about["owner"]):
            raise NotAllowed(f"mlflow: {why}")
        return MLflow(given, reach.key(given))
    if not config.wandb_python:
        raise NotAllowed(
            "wandb: the exporter has no wandb_python; docs/tracking.md says how to make its environment"
        )
    key = secret(config.keys["wandb"]) if "wandb" in config.keys else ""
    return Wandb(given, config.data_dir / "wandb", config.wandb_python, config.wandb_url, key)


def destination(name: str, about: dict) -> str:
    return f"{name} {about['track'][name]}" if name == "mlflow" else name


class Sink:
    """One job's run in one tracker."""

    def __init__(self, store: Store, make: Callable, uid: str, name: str):
        self._store, self._make, self._uid, self._name = store, make, uid, name

    def bring_up(self, about: dict, ended: bool) -> None:
        """Until the tracker has what the spool has; `ended`: nothing comes any more, so that it is finished, too."""
        state = self._store.sink(self._uid, self._name)
        if state is None:
            return
        position, place, unsure = state
        tracker = self._make(self._name, about)
        if place.get("old"):
            place = tracker.settle(place, about)
            self._store.wrote(self._uid, self._name, [], position, place)
        while rows := self._store.changed(self._uid, self._name, position, BATCH):
            differs = [r for r in rows if r[5] is not None and r[5] != r[2]]
            if any(not tracker.keeps_first(row[0]) for row in differs):
                position, place = self._rewrite(tracker, about, place)
                unsure = False
                continue
            new = [row[:4] for row in rows if row[5] is None]
            position = rows[-1][4]
            if new:
                self._store.begin_write(self._uid, self._name)
                try:
                    place = tracker.write(place, about, new, unsure)
                except Differs:
                    position, place = self._rewrite(tracker, about, place)
                    unsure = False
                    continue
            self._store.wrote(self._uid, self._name, new, position, place)
            unsure = False
        if not ended:
            return
        if self._store.has_leftovers(self._uid, self._name):
            position, place = self._rewrite(tracker, about, place)
        tracker.finish(place, about, self._store.whole(self._uid)[0])
        self._store.sink_done(self._uid, self._name)

    def _rewrite(self, tracker, about: dict, place: dict) -> tuple[int, dict]:
        points, position = self._store.whole(self._uid)
        place = tracker.rewrite(place, about, points)
        self._store.rewrote(self._uid, self._name, points, position, place)
        place = tracker.settle(place, about)
        self._store.wrote(self._uid, self._name, [], position, place)
        return position, place


class Destination:
    """A thread that brings up sinks one after the other, and pauses for longer and longer after what fails."""

    def __init__(self, name: str, interval_s: float = 1.0):
        self.name = name
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._jobs: dict[tuple[str, str], tuple[Sink, dict, bool]] = {}
        self._failures: dict[tuple[str, str], tuple[int, float]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def want(self, key: tuple[str, str], sink: Sink, about: dict, ended: bool) -> None:
        with self._lock:
            self._jobs[key] = (sink, about, ended)

    def stop(self) -> None:
        self._stop.set()

    def join(self, limit_s: float) -> None:
        self._thread.join(limit_s)

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            with self._lock:
                wanted, self._jobs = self._jobs, {}
            for key, (sink, about, ended) in wanted.items():
                if self._stop.is_set():
                    return
                failures, due_s = self._failures.get(key, (0, 0.0))
                if time.monotonic() < due_s:
                    continue
                self._failures.pop(key, None)
                self._one(key, sink, about, ended, failures)

    def _one(self, key, sink: Sink, about: dict, ended: bool, failures: int) -> None:
        store, (uid, name) = sink._store, key
        try:
            sink.bring_up(about, ended)
        except NotAllowed as error:
            log.warning("job %s: %s; its points are dropped", about["id"], error)
            store.sink_done(uid, name, str(error))
        except Exception as error:  # whatever a tracker does, the others go on
            if not isinstance(error, TROUBLE):
                log.exception("job %s: %s", about["id"], name)
            pause_s = PAUSES_S[min(failures, len(PAUSES_S) - 1)]
            self._failures[key] = (failures + 1, time.monotonic() + pause_s)
            if failures == 0:
                log.warning("job %s: %s: %s; it is tried again", about["id"], self.name, error)
            store.sink_failed(uid, name, f"{type(error).__name__}: {error}")
