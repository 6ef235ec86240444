"""The spool: what counts of what attempts told, and that nothing is taken twice."""

import json
import sqlite3
import time

import pytest
from muster_exporter.store import KEYS_MAX, Store

UID = "a" * 32


def lines(*reports):
    return [json.dumps({"at_ns": 1} | report) for report in reports]


def points(store):
    return {(key, step): value for key, step, value, _ in store.whole(UID)[0]}


def test_each_number_of_a_step_is_a_point_and_nothing_else_is(store):
    report = {"step": 3, "rank": 0, "total_steps": 9, "own_time_s": 1, "loss": 0.5, "lr": 1}
    odd = {"text": "x", "flag": True, "none": None, "list": [1], "huge": 10**400}
    store.take(UID, "main", "", 1, 10, lines(report | odd))
    store.take(UID, "main", "", 1, 20, ['{"step":4,"loss":NaN,"lr":Infinity,"ok":2}'])
    store.take(UID, "main", "", 1, 30, ["no JSON", "[]", "7", '{"step":"x"}', '{"step":-1,"a":1}'])
    assert points(store) == {("loss", 3): 0.5, ("lr", 3): 1.0, ("ok", 4): 2.0}


def test_what_was_read_before_changes_nothing(store):
    store.take(UID, "main", "", 1, 10, lines({"step": 1, "loss": 1}))
    store.take(UID, "main", "", 1, 10, lines({"step": 1, "loss": 2}))
    store.take(UID, "main", "", 2, 5, lines({"step": 2, "loss": 2}))
    store.take(UID, "main", "", 1, 99, lines({"step": 3, "loss": 3}))
    assert points(store) == {("loss", 1): 1.0, ("loss", 2): 2.0}
    assert store.place(UID, "main") == (2, 5, False)


def test_a_later_attempt_takes_the_place_of_what_it_does_again(store):
    first = lines(*({"step": step, "loss": step} for step in range(1, 9)))
    for told, left in (
        (lines({"loaded": {"step": 4}}), 4),  # and no step yet
        (lines({"loaded": {"step": 4}}, {"step": 8, "loss": -8}), 4),  # told every fourth step
        (lines({"step": 5, "loss": -5}), 4),  # it doesn't say what it loaded
        (lines({"step": 1, "loss": -1}), 0),  # from the beginning
    ):
        uid = json.dumps(told)
        store.take(uid, "main", "", 1, 100, first)
        store.take(uid, "main", "", 2, 10, told)
        kept = {step: value for _, step, value, _ in store.whole(uid)[0]}
        again = {r["step"]: r["loss"] for r in map(json.loads, told) if "loss" in r}
        assert kept == {step: float(step) for step in range(1, left + 1)} | again


def test_tasks_are_apart(store):
    store.take(UID, "a", "a/", 1, 10, lines({"step": 5, "loss": 1}))
    store.take(UID, "b", "b/", 1, 10, lines({"step": 1, "loss": 2}))
    store.take(UID, "b", "b/", 2, 10, lines({"step": 1, "loss": 3}))
    assert points(store) == {("a/loss", 5): 1.0, ("b/loss", 1): 3.0}


def test_keys_are_limited(store):
    many = {f"k{number}": 1 for number in range(KEYS_MAX + 9)}
    store.take(UID, "main", "", 1, 10, lines({"step": 1} | many | {"x" * 300: 1}))
    assert len(points(store)) == KEYS_MAX


def test_all_is_there_after_a_restart(tmp_path, store):
    store.take(UID, "main", "", 1, 10, lines({"step": 1, "loss": 1}))
    again = Store(tmp_path / "spool.db")
    again.take(UID, "main", "", 1, 20, lines({"step": 2, "loss": 2}))
    assert points(again) == {("loss", 1): 1.0, ("loss", 2): 2.0}
    again.close()


def test_after_a_restart_no_point_is_older_than_what_a_tracker_has(tmp_path, store, about):
    other = "b" * 32
    for uid in (UID, other):
        store.keep_job(uid, about | {"uid": uid}, ["mlflow"])
    store.take(UID, "main", "", 1, 10, lines({"step": 1, "loss": 1}))
    store.take(other, "main", "", 1, 10, lines(*({"step": i, "loss": i} for i in range(9))))
    points, position = store.whole(UID)
    store.rewrote(UID, "mlflow", points, position, {})  # as far as the other's points
    store.end_job(other, about | {"uid": other, "state": "SUCCEEDED"}, [], 5.0)
    store.finish_job(other)
    again = Store(tmp_path / "spool.db")
    again.take(UID, "main", "", 1, 20, lines({"step": 2, "loss": 2}))
    assert [point[:2] for point in again.changed(UID, "mlflow", position, 9)] == [("loss", 2)]
    again.close()


def test_a_job_ends_once_and_leaves_nothing_but_that(store, about):
    store.keep_job(UID, about, ["mlflow"])
    store.take(UID, "main", "", 1, 10, lines({"step": 1, "loss": 1}))
    for _ in range(2):
        store.end_job(UID, about | {"state": "FAILED"}, [("mail", "ann@example.org")], 5.0)
    assert len(store.notices()) == 1
    store.finish_job(UID)
    assert points(store) == {} and store.unfinished() == [] and store.knows(UID)
    assert len(store.notices()) == 1, "who is to be told is told all the same"
    store.end_job(UID, about, [("mail", "ann@example.org")], 6.0)
    assert len(store.notices()) == 1


def test_whatever_a_line_holds_the_others_are_read(store):
    odd = [
        '{"at_ns":5,"step":1,"loss":1,"at_ns":99999999999999999999}',
        '{"at_ns":99999999999999999999,"step":2,"loss":2}',
        '{"at_ns":5,"loaded":{"step":9223372036854775807,"path":"p"}}',
        '{"at_ns":5,"loaded":{"step":1000000000000000000000000000000}}',
        '{"at_ns":5,"loaded":{"step":-1}}',
        '{"at_ns":5,"step":3,"\\ud800":1,"loss":3}',
        '{"at_ns":5,"step":4,"loss":nan,"lr":1,"a":[inf, -Infinity]}',
        '{"at_ns":5,"step":5,"x":' + "[" * 7000 + "]" * 7000 + "}",
        '{"at_ns":5,"step":true,"loss":1}',
        '{"at_ns":5,"step":99999999999999999999,"loss":1}',
        '{"at_ns":5,"step":6.0,"loss":6}',
    ]
    store.take(UID, "main", "", 1, 10, odd)
    found = {(key, step): at_ns for key, step, _, at_ns in store.whole(UID)[0]}
    assert found == {("loss", 1): 5, ("loss", 2): 0, ("loss", 3): 5, ("lr", 4): 5, ("loss", 6): 5}


def test_loaded_counts_once_an_attempt_and_looks_only_at_what_it_drops(store):
    for part in range(40):
        steps = range(part * 1000, part * 1000 + 1000)
        store.take(UID, "main", "", 1, part + 1, lines(*({"step": s, "loss": 1} for s in steps)))
    began_s = time.monotonic()
    store.take(UID, "main", "", 2, 1, lines(*[{"loaded": {"step": 39_000}}] * 5000))
    took_s = time.monotonic() - began_s
    assert len(points(store)) == 39_001 and took_s < 2
    again = lines({"step": 39_001, "loss": 2}, {"loaded": {"step": 5}}, {"step": 39_002, "loss": 2})
    store.take(UID, "main", "", 2, 2, again)
    assert len(points(store)) == 39_003


def test_what_was_kept_as_it_is_costs_no_commit(store, about):
    store.keep_job(UID, about, ["mlflow"])
    before = store._db.total_changes
    store.keep_job(UID, dict(about), ["mlflow"])
    assert store._db.total_changes == before
    store.keep_job(UID, about | {"started": []}, ["mlflow"])
    assert store._db.total_changes > before


def test_points_are_counted_once(tmp_path, store):
    for attempt in (1, 2):
        store.take(UID, "main", "", attempt, 10, lines(*({"step": s, "a": 1} for s in range(9))))
    assert store._counted() == {UID: 9}
    again = Store(tmp_path / "spool.db")
    assert again._counted() == {UID: 9}
    again.close()


def test_a_commit_that_fails_leaves_no_transaction_open(store):
    store.take(UID, "main", "", 1, 10, lines({"step": 1, "loss": 1}))
    store._db.execute("CREATE TEMP TABLE parents(id INTEGER PRIMARY KEY)")
    store._db.execute("PRAGMA foreign_keys = ON")
    store._db.execute(
        "CREATE TEMP TABLE children(id REFERENCES parents DEFERRABLE INITIALLY DEFERRED)"
    )
    with pytest.raises(sqlite3.IntegrityError):
        with store._commit() as db:
            db.execute("INSERT INTO children VALUES(1)")  # told only by COMMIT
    store.take(UID, "main", "", 1, 20, lines({"step": 2, "loss": 2}))
    assert points(store) == {("loss", 1): 1.0, ("loss", 2): 2.0}
