"""Who reads when, when it is given up, and whose reports the spool has room for."""

import json
import sqlite3
import sys
import time
from types import SimpleNamespace

import pytest
from muster_exporter import reader
from muster_exporter.config import from_dict
from muster_exporter.exporter import Exporter
from muster_exporter.reader import GIVE_UP_S, Reader, Readers
from muster_exporter.room import Room

ABOUT = {"id": "1", "tasks": ["main"]}


class Clock:
    def __init__(self, monkeypatch):
        self.now_s = 1000.0
        monkeypatch.setattr(reader, "time", SimpleNamespace(monotonic=lambda: self.now_s))


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


class Pretended:
    """A reader that ends as the test says."""

    def __init__(self, clock, key):
        self.began_s, self.key = clock.now_s, key
        self.code, self.stopped, self.moved, self.error = None, False, False, "lab/h1 is away"

    def stop(self):
        self.stopped, self.code = True, 130  # what muster gives when it is asked to stop

    def ended(self):
        return self.code is not None

    def join(self, _):
        pass


class Reading:
    def __init__(self, store, clock, most):
        self.clock, self.store, self.made = clock, store, []
        self.readers = Readers(store, "muster", most, self._start)

    def _start(self, _store, _muster, uid, _about, task):
        self.made.append(Pretended(self.clock, (uid, task)))
        return self.made[-1]

    def live(self):
        return {one.key[0] for one in self.made if one.code is None}

    def turn(self, jobs, ended=False, answers=True, pass_s=2.0):
        wanted = {(uid, "main"): (ABOUT, ended) for uid in jobs}
        self.readers.turn(wanted, answers)
        self.clock.now_s += pass_s

    def over(self, uid):
        return self.store.place(uid, "main")[2]


def test_readers_take_turns_and_that_is_no_failure(store, clock):
    reading = Reading(store, clock, 2)
    turns = dict.fromkeys("abcde", 0)
    for _ in range(200):
        reading.turn("abcde", ended=True)
        assert len(reading.live()) <= 2
    for one in reading.made:
        turns[one.key[0]] += 1
    assert min(turns.values()) > 10 and max(turns.values()) - min(turns.values()) <= 1
    assert not reading.readers._trouble and not any(map(reading.over, "abcde"))


def test_what_is_wanted_no_more_is_stopped_and_forgotten(store, clock):
    reading = Reading(store, clock, 2)
    reading.turn("ab")
    reading.turn("b")
    assert reading.live() == {"b"}
    reading.turn("")
    reading.turn("")
    assert not reading.readers._turns and not reading.readers._active


def fail(reading, uid, hours, answers=True, ended=True, moved_at=None):
    """The host of it can't be reached for so long."""
    until_s = reading.clock.now_s + hours * 3600
    while reading.clock.now_s < until_s and not reading.over(uid):
        reading.turn(uid, ended, answers, 300.0)
        for one in reading.made:
            if one.code is None:
                one.code, one.moved = 6, one.began_s == moved_at


def test_the_rest_of_an_ended_job_is_given_up_after_a_day_of_definite_answers(store, clock):
    reading = Reading(store, clock, 4)
    fail(reading, "r", 100, ended=False)
    assert not reading.over("r"), "it runs"
    fail(reading, "a", 23)
    assert not reading.over("a")
    fail(reading, "a", 0.5, answers=False)  # musterd is away: its agents are back a while after it
    fail(reading, "a", 23)
    assert not reading.over("a")
    fail(reading, "a", 2)
    assert reading.over("a")
    fail(reading, "b", 100, answers=False)
    assert not reading.over("b"), "nobody said that it is gone"
    assert GIVE_UP_S >= 6 * 3600


def test_what_came_since_makes_the_waiting_begin_anew(store, clock):
    reading = Reading(store, clock, 4)
    fail(reading, "a", 23)
    reading.turn("a", True)
    reading.made[-1].code, reading.made[-1].moved = 6, True
    fail(reading, "a", 23)
    assert not reading.over("a")


# As `muster logs`: gives what it has, then waits; ends with 130 when it is asked to.
MUSTER = """#!{python}
import base64, json, os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: os._exit(130))
at = int(sys.argv[sys.argv.index("--from") + 1])
assert sys.argv[2] == "{uid}", "numbers may be another's after a new store"
for step in range(at, 3):
    line = json.dumps({{"at_ns": 1, "step": step, "loss": step}}) + "\\n"
    data = base64.b64encode(line.encode()).decode()
    print(json.dumps({{"rank": -2, "attempt": 1, "data": data, "next_offset": step + 1}}), flush=True)
if {waits}:
    time.sleep(60)
"""


def real(tmp_path, store, waits):
    program = tmp_path / "muster"
    program.write_text(MUSTER.format(python=sys.executable, uid="u", waits=waits))
    program.chmod(0o755)
    return Readers(store, str(program), 4)


def await_true(done):
    until_s = time.monotonic() + 10
    while not done():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_a_real_reader_that_is_stopped_has_not_failed_and_one_that_ends_has_read_all(
    tmp_path, store
):
    wanted = {("u", "main"): (ABOUT, True)}
    readers = real(tmp_path, store, True)
    readers.turn(wanted, True)
    await_true(lambda: store.place("u", "main")[1] == 3)
    one = readers._active["u", "main"]
    readers.turn({}, True)
    await_true(one.ended)
    assert one.code == 130 and one.stopped and one.moved
    readers.turn(wanted, True)
    assert not readers._trouble and not store.place("u", "main")[2]
    readers.stop()
    readers = real(tmp_path, store, False)
    readers.turn(wanted, True)
    await_true(readers._active["u", "main"].ended)
    readers.turn(wanted, True)
    assert store.place("u", "main")[2] and len(store.whole("u")[0]) == 3


def test_a_reader_keeps_lines_apart_at_newlines_alone(store):
    one = Reader.__new__(Reader)
    one._store, one._uid, one._task, one._prefix, one.moved = store, "u", "main", "", False
    text = '{"at_ns":1,"step":1,"a":1,"x":"\u2028\x85"}\n{"at_ns":1,"step":2,"a":2}\n'
    data = reader.base64.b64encode(text.encode()).decode()
    one._take(json.dumps({"rank": -2, "attempt": 1, "data": data, "next_offset": 9}))
    assert [row[1] for row in store.whole("u")[0]] == [1, 2] and one.moved


# ---- the spool's room ----


def fill(store, uid, owner, points, about):
    its = about | {"uid": uid, "id": uid, "owner": owner, "track": {"tensorboard": "true"}}
    store.keep_job(uid, its, ["tensorboard"])
    for begin in range(0, points, 1000):
        place = store.place(uid, "main")
        told = [
            json.dumps({"at_ns": 1, "step": step, "loss": step})
            for step in range(begin, begin + 1000)
        ]
        store.take(uid, "main", "", 1, place[1] + 1, told)
    return its


def test_bytes_are_those_in_use(store, about):
    empty = store.bytes()
    fill(store, "a", "ann", 20000, about)
    full = store.bytes()
    assert full > empty + 500_000
    assert sum(store.bytes_by_job().values()) <= full
    store.finish_job("a")
    assert store.bytes() < empty + 50_000 and store.bytes_by_job() == {}


def test_a_job_may_hold_as_much_as_is_free_and_an_owners_together_twice_that(store, about):
    eve = [fill(store, f"eve{i}", "eve", 10000, about) for i in range(2)]
    ann = fill(store, "ann", "ann", 1000, about)
    used, one = store.bytes(), store.bytes_by_job()["eve0"]
    room = Room(store, used + one + 1)
    assert room.has("eve0", eve[0]) and room.has("ann", ann)
    room = Room(store, used + one - 1)
    assert not room.has("eve0", eve[0]) and room.has("ann", ann)
    third = fill(store, "eve2", "eve", 1000, about)
    free = store.bytes_by_job()["eve0"]
    assert not Room(store, store.bytes() + free).has("eve2", third), "its owner has enough"
    assert Room(store, store.bytes() + 1).has("new", ann | {"owner": "new"})
    assert not Room(store, store.bytes() - 1).has("new", ann | {"owner": "new"})


@pytest.fixture
def exporter(tmp_path, monkeypatch):
    config = from_dict({"data_dir": str(tmp_path / "data")}, "x")
    config.user = "ann"
    made = Exporter(config)
    made.started, made.stopped = [], []

    class Endless(Pretended):
        def stop(self):
            made.stopped.append(self.key[0])

    def start(_store, _muster, uid, _about, task):
        made.started.append(uid)
        return Endless(SimpleNamespace(now_s=0.0), (uid, task))

    made._readers._start = start
    yield made
    made._readers._active.clear()
    made.stop()


def test_a_full_spool_stops_its_readers_and_goes_on_once_there_is_room(exporter, about):
    store = exporter.store
    fill(store, "big", "ann", 10000, about)
    small = fill(store, "small", "bob", 1000, about)
    exporter._config.spool_bytes = store.bytes() + 1_000_000_000
    exporter._read()
    assert sorted(exporter.started) == ["big", "small"]
    exporter._config.spool_bytes = store.bytes() + 200_000
    exporter._read()
    assert exporter.stopped == ["big"], "the small one's owner isn't held up"
    exporter._config.spool_bytes = store.bytes() - 1
    exporter._read()
    assert "small" in exporter.stopped
    store.finish_job("big")
    exporter.started.clear()
    exporter._readers._active.clear()
    exporter._read()
    assert exporter.started == ["small"], small["uid"]


def test_an_ended_job_that_the_spool_can_never_hold_is_finished_with_what_was_read(
    exporter, about, caplog
):
    store = exporter.store
    its = fill(store, "big", "ann", 10000, about)
    store.end_job("big", its | {"state": "FAILED", "end_ns": time.time_ns()}, [], 0.0)
    exporter._config.spool_bytes = store.bytes() + 200_000
    exporter._read()
    assert store.place("big", "main")[2]
    exporter._read()
    assert caplog.text.count("the spool is full") == 1
    await_true(lambda: exporter._write() or store.unfinished() == [])
    assert store.bytes_by_job() == {} and store.is_done("big")


# ---- a turn ----


@pytest.mark.parametrize(
    "trouble",
    [
        OSError("disk"),
        sqlite3.OperationalError("database or disk is full"),
        RuntimeError("threads"),
    ],
)
def test_a_turn_goes_on_whatever_breaks(exporter, monkeypatch, caplog, trouble):
    exporter._config.muster = "/nonexistent"  # it is being replaced
    told = []

    def breaks():
        raise trouble

    monkeypatch.setattr(exporter, "_read", breaks)
    monkeypatch.setattr(exporter, "_write", breaks)
    monkeypatch.setattr(exporter._messenger, "turn", lambda: told.append(1))
    for _ in range(2):
        assert exporter.turn() >= 0
    assert told == [1, 1]
    for said in ("musterd can't be asked", "reports can't be read", "trackers can't be written"):
        assert caplog.text.count(said) == 1


def job(number, uid, member=None, array_end=None, state="SUCCEEDED"):
    told = {"number": number, "uid": uid, "state": state, "owner": "ann", "end_ns": time.time_ns()}
    told["spec"] = {"name": "a", "track": {"tensorboard": "true"}}
    told["tasks"] = [{"name": "main", "attempts": [{}]}]
    if member is not None:
        told["member"] = {"id": f"{number}_{member}"}
    if array_end is not None:
        told["array"] = {"end_ns": array_end}
    return told


def test_members_of_an_array_that_is_done_are_listed_no_more(exporter):
    asked = []
    rows = [job(1, "m0", array_end=0, state="RUNNING")]

    def ask(*words):
        asked.append(words)
        return {"jobs": rows if "--exported" in words else [job(1, f"m{m}", m) for m in range(3)]}

    exporter._ask = ask
    exporter._look()
    rows[0] = job(1, "m0", array_end=time.time_ns())
    exporter._look()
    assert sum("--exported" not in words for words in asked) == 2
    for member in ("m0", "m1", "m2"):
        assert exporter.store.knows(member)
        exporter.store.finish_job(member)
    exporter._write()
    asked.clear()
    exporter._look()
    assert len(asked) == 1


def test_what_isnt_allowed_takes_no_thread_and_unused_ones_end(exporter, about):
    store = exporter.store
    for number in range(20):
        uid = f"{number:032}"
        its = about | {"uid": uid, "owner": "eve", "track": {"mlflow": f"http://evil/{number}"}}
        store.keep_job(uid, its, ["mlflow"])
    odd = about | {"uid": "odd", "owner": "ann", "track": {"mlflow": "http://[::1/"}}
    store.keep_job("odd", odd, ["mlflow"])
    own = about | {"uid": "own", "track": {"tensorboard": "true"}}
    store.keep_job("own", own, ["tensorboard"])
    exporter._write()
    assert store.sinks() == [("own", "tensorboard")]
    (one,) = exporter._destinations.values()
    store.sink_done("own", "tensorboard")
    exporter._write()
    assert not exporter._destinations
    one.join(5)
    assert not one._thread.is_alive()
