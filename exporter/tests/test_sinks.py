"""Trackers that hang, refuse, fill up and die: nothing is lost or doubled, and nobody else waits."""

import json
import random
import re
import sqlite3
import struct
import sys
import threading
import time

import pytest
from muster_exporter import http_client, mlflow, sinks, tensorboard
from muster_exporter.mlflow import MLflow
from muster_exporter.sinks import Destination, Sink
from muster_exporter.tensorboard import TensorBoard
from muster_exporter.wandb import Wandb

UID = "a" * 32


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(http_client, "LIMIT_S", 0.3)
    original = http_client.request

    def request(*words, **named):
        return original(*words, **{"limit_s": 0.3} | named)

    monkeypatch.setattr(http_client, "request", request)


def tell(store, attempt, offset, steps, loss=lambda step: step / 8, **more):
    reports = [{"at_ns": 10**18, "step": step, "loss": loss(step)} | more for step in steps]
    store.take(UID, "main", "", attempt, offset, [json.dumps(report) for report in reports])


def bring_up(sink, about, ended):
    """Until there is no more to do."""
    while sink.visit(about, ended):
        pass


def mine(store, server, uid=UID):
    return Sink(store, lambda *_: MLflow(server.url, ""), uid, "mlflow")


def in_files(store, directory, tracker=TensorBoard):
    return Sink(store, lambda *_: tracker(directory), UID, "tensorboard")


def truth(store):
    return {(key, step): value for key, step, value, _ in store.whole(UID)[0]}


@pytest.fixture
def sink(store, server, about):
    store.keep_job(UID, about, ["mlflow"])
    return mine(store, server)


def ended(about):
    return about | {"state": "SUCCEEDED", "end_ns": 2 * 10**18}


def test_one_run_has_all_points_and_the_jobs_end(sink, store, server, about):
    tell(store, 1, 10, range(1, 2501))
    bring_up(sink, about, False)
    tell(store, 1, 20, range(2501, 2600))
    bring_up(sink, about, False)
    bring_up(sink, ended(about), True)
    assert server.points() == truth(store) and len(server.points()) == 2599
    assert server.active()[0]["status"] == "FINISHED"


def test_points_that_come_again_as_they_were_are_left_alone(sink, store, server, about):
    tell(store, 1, 10, range(1, 11), tokens_per_s=100.0)
    bring_up(sink, about, False)
    tell(store, 2, 10, range(6, 21), tokens_per_s=90.0)
    bring_up(sink, about, False)
    bring_up(sink, ended(about), True)
    assert len(server.runs) == 1
    assert server.points()["tokens_per_s", 7] == 100.0, "speed keeps its first value"
    losses = {step: value for (key, step), value in server.points().items() if key == "loss"}
    assert losses == {step: step / 8 for step in range(1, 21)}


def test_a_members_values_are_parameters_of_its_run_and_of_a_rewritten_one(
    sink, store, server, about
):
    about["values"] = {"lr": "1e-4", "seed": "2"}
    tell(store, 1, 10, range(1, 11))
    bring_up(sink, about, False)
    tell(store, 2, 10, range(6, 9), loss=lambda step: -step)
    bring_up(sink, ended(about), True)
    assert len(server.runs) == 2, "one was rewritten"
    assert all(run["params"] == {"lr": "1e-4", "seed": "2"} for run in server.runs.values())


def test_values_that_differ_make_a_new_run_and_the_last_ones_win(sink, store, server, about):
    tell(store, 1, 10, range(1, 11))
    bring_up(sink, about, False)
    tell(store, 2, 10, range(6, 9), loss=lambda step: -step)
    bring_up(sink, about, False)
    assert server.points() == truth(store) and len(server.points()) == 8
    tell(store, 2, 20, range(9, 12), loss=lambda step: -step)
    bring_up(sink, ended(about), True)
    assert server.points() == truth(store) and len(server.points()) == 11
    (run,) = server.active()
    assert run["tags"]["muster.uid"] == UID and "muster.rewrites" not in run["tags"]


def test_what_no_attempt_that_counts_has_told_goes_at_the_end(sink, store, server, about):
    tell(store, 1, 10, range(1, 11))
    bring_up(sink, about, False)
    tell(store, 2, 10, range(6, 8))  # and it is cancelled there
    bring_up(sink, about, False)
    assert len(server.points()) == 10, "as long as it goes on, it may come again"
    bring_up(sink, about | {"state": "CANCELLED"}, True)
    assert server.points() == truth(store) and len(server.points()) == 7


@pytest.mark.parametrize("mode", ["hang", "refuse", "full", "deaf", "redirect"])
def test_nothing_is_lost_or_doubled_by_a_server_that_doesnt_take_it(
    sink, store, server, about, mode
):
    tell(store, 1, 10, range(1, 50))
    bring_up(sink, about, False)
    server.mode = mode
    tell(store, 1, 20, range(50, 90))
    with pytest.raises((OSError, http_client.Refused, http_client.http.client.HTTPException)):
        bring_up(sink, about, False)
    server.mode = "well"
    bring_up(sink, about, False)
    bring_up(sink, ended(about), True)
    assert server.points() == truth(store) and len(server.points()) == 89
    assert server.redirected == 0, "it goes nowhere else"


def test_a_value_that_changed_while_nobody_knew_what_was_written_is_mended(
    sink, store, server, about
):
    tell(store, 1, 10, [1])
    bring_up(sink, about, False)
    server.mode = "deaf"
    tell(store, 1, 20, [2, 3])
    with pytest.raises(http_client.http.client.HTTPException):
        bring_up(sink, about, False)
    server.mode = "well"
    tell(store, 2, 10, [2], loss=lambda step: 99)
    bring_up(sink, ended(about), True)
    assert server.points() == truth(store) == {("loss", 1): 1 / 8, ("loss", 2): 99.0}


def test_killed_at_any_call_it_goes_on(store, server, about, monkeypatch):
    """The exporter dies after each of its calls to the server in turn, answered or not: 40 histories."""

    class Killed(BaseException):
        pass

    for seed in range(40):
        dice = random.Random(seed)
        uid = f"{seed:032}"
        its = about | {"uid": uid, "name": f"job{seed}"}
        store.keep_job(uid, its, ["mlflow"])
        original = MLflow._post

        def post(self, path, body, dice=dice, original=original):
            if dice.random() < 0.15:
                raise Killed
            answer = original(self, path, body)
            if dice.random() < 0.15:
                raise Killed
            return answer

        step, left = 0, 60
        for attempt in range(1, 6):
            step = max(0, step - dice.randrange(8))
            values = dice.choice([lambda s: s, lambda s, a=attempt: s * a])
            for number in range(1, 5):
                steps = range(step + 1, step + 1 + dice.randrange(1, 6))
                told = [json.dumps({"step": s, "loss": values(s), "at_ns": 10**18}) for s in steps]
                store.take(uid, "main", "", attempt, number, told)
                step = steps[-1]
                with monkeypatch.context() as patched:
                    patched.setattr(MLflow, "_post", post)
                    try:
                        bring_up(mine(store, server, uid), its, False)
                    except Killed:
                        left -= 1
        bring_up(mine(store, server, uid), ended(its), True)
        runs = [r for r in server.active() if r["tags"].get("muster.uid") == uid]
        assert len(runs) == 1, seed
        assert not [r for r in server.active() if r["tags"].get("muster.rewrites") == uid], seed
        metrics = runs[0]["metrics"]
        found = {(m["key"], m["step"]): m["value"] for m in metrics}
        assert len(found) == len(metrics), f"seed {seed}: doubled"
        assert found == {(k, s): v for k, s, v, _ in store.whole(uid)[0]}, seed


def events(directory):
    """{(key, step): value} of the one event file there; each record's form is checked by its length."""
    (file,) = [path for path in directory.iterdir() if "tfevents" in path.name]
    data, found, at = file.read_bytes(), [], 0
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        found.append(data[at + 12 : at + 12 + size])
        at += size + 16
    assert at == len(data)
    points = {}
    for event in found[2:]:
        step, shift, i = 0, 0, 10
        while True:
            step |= (event[i] & 0x7F) << shift
            shift, i = shift + 7, i + 1
            if event[i - 1] < 0x80:
                break
        value = event[i + 4 :]  # past two lengths
        key = value[2 : 2 + value[1]].decode()
        (number,) = struct.unpack("<f", value[-4:])
        assert (key, step) not in points, "doubled"
        points[key, step] = number
    return points


def test_tensorboards_file_has_each_point_once_whatever_died(tmp_path, store, about):
    store.keep_job(UID, about, ["tensorboard"])
    directory = tmp_path / "tb"

    class Dies(TensorBoard):
        def write(self, *words):
            super().write(*words)
            raise OSError("killed before it could say so")

    for attempt, offset, steps, tracker in (
        (1, 10, range(1, 200), TensorBoard),
        (1, 20, range(200, 400), Dies),
        (1, 30, range(400, 500), TensorBoard),
        (2, 10, range(450, 600), TensorBoard),
    ):
        tell(store, attempt, offset, steps)
        try:
            bring_up(in_files(store, directory, tracker), about, False)
        except OSError:
            pass
    assert events(directory) == truth(store) and len(truth(store)) == 599
    tell(store, 3, 10, range(500, 520), loss=lambda step: -step)
    bring_up(in_files(store, directory), ended(about), True)
    assert events(directory) == truth(store) and len(truth(store)) == 519


def test_records_have_the_sums_that_tensorboard_checks():
    # CRC-32C of "123456789" is e3069283; then rotated by 15 bits and a constant added.
    assert tensorboard._masked_crc(b"123456789") == 0xC78AB0E5


@pytest.mark.parametrize("rewrites", [False, True])
def test_killed_between_its_new_file_and_the_commit_no_second_file_is_left(
    tmp_path, store, about, rewrites
):
    store.keep_job(UID, about, ["tensorboard"])
    directory = tmp_path / "tb"
    other = directory / "events.out.tfevents.1.muster.another"
    directory.mkdir()
    other.write_bytes(b"")

    class Dies(TensorBoard):
        def _new(self, *words):
            super()._new(*words)
            raise OSError("killed")

    tell(store, 1, 10, range(1, 9))
    if rewrites:
        bring_up(in_files(store, directory), about, False)
        tell(store, 2, 10, range(4, 7), loss=lambda step: -step)
    for _ in range(2):
        with pytest.raises(OSError):
            bring_up(in_files(store, directory, Dies), about, False)
    bring_up(in_files(store, directory), about, False)
    other.unlink()  # it isn't this job's
    assert events(directory) == truth(store)


def test_what_isnt_committed_is_gone_at_the_end_even_if_nothing_is_to_be_written(
    tmp_path, store, about
):
    store.keep_job(UID, about, ["tensorboard"])
    tell(store, 1, 10, range(1, 9))
    bring_up(in_files(store, tmp_path), about, False)
    (tmp_path / f"events.out.tfevents.9.muster.{UID}").write_bytes(b"of a rewrite that broke off")
    bring_up(in_files(store, tmp_path), ended(about), True)
    assert events(tmp_path) == truth(store)


def test_an_unsure_write_is_cleared_up_whatever_was_told_since(
    sink, store, server, about, monkeypatch
):
    monkeypatch.setattr(sinks, "BATCH", 10)
    tell(store, 1, 10, [1])
    bring_up(sink, about, False)
    tell(store, 1, 20, range(2, 12))
    server.mode = "deaf"
    with pytest.raises(http_client.http.client.HTTPException):
        bring_up(sink, about, False)
    server.mode = "well"
    # It resumes from 5, and more than a batch comes before what is told again.
    many = {f"k{number}": number for number in range(12)}
    again = [{"loaded": {"step": 5}}, {"step": 6} | many] + [
        {"step": step, "loss": -step} for step in range(6, 9)
    ]
    store.take(UID, "main", "", 2, 10, [json.dumps(report) for report in again])
    bring_up(sink, about, False)
    bring_up(sink, ended(about), True)
    assert server.points() == truth(store) and len(truth(store)) == 5 + 12 + 3


def test_points_of_an_unsure_write_that_are_gone_go(sink, store, server, about):
    tell(store, 1, 10, [1])
    bring_up(sink, about, False)
    tell(store, 1, 20, range(2, 6))
    server.mode = "deaf"
    with pytest.raises(http_client.http.client.HTTPException):
        bring_up(sink, about, False)
    server.mode = "well"
    tell(store, 2, 10, [2])
    bring_up(sink, ended(about), True)
    assert server.points() == truth(store) == {("loss", 1): 1 / 8, ("loss", 2): 2 / 8}


def test_a_name_that_mlflow_refuses_is_told_once_and_the_others_are_written(
    sink, store, server, about, caplog
):
    server.refused_names = {"bad"}
    for offset in (10, 20):
        tell(store, 1, offset, range(offset, offset + 10), bad=1, good=2)
        bring_up(sink, about, False)
    calls = server.calls
    tell(store, 1, 30, [30], bad=1)
    bring_up(sink, about, False)
    assert server.calls == calls + 1, "it isn't tried again"
    assert caplog.text.count("takes no metric called bad") == 1
    bring_up(sink, ended(about), True)
    assert {key for key, _ in server.points()} == {"loss", "good"} and len(server.points()) == 41


def test_a_refusal_that_is_no_names_is_tried_again(sink, store, server, about):
    tell(store, 1, 10, [1], good=2)
    server.mode = "inactive"
    with pytest.raises(http_client.Refused):
        bring_up(sink, about, False)
    server.mode = "well"
    bring_up(sink, ended(about), True)
    assert server.points() == truth(store)


class Pretended:
    """A tracker that takes what it is given."""

    may_have_unsure = False

    def __init__(self, does=lambda points: None):
        self.does = does

    def keeps_first(self, key):
        return False

    def write(self, place, about, points):
        self.does(points)
        return place

    def finish(self, place, about, points):
        pass


def await_true(done):
    until = time.monotonic() + 10
    while not done():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_job_that_always_has_more_lets_others_of_its_tracker_pass(store, about, monkeypatch):
    monkeypatch.setattr(sinks, "BATCH", 1)
    wrote = []
    destination = Destination("x", 0.01)

    def want(uid, does=lambda points: None):
        store.keep_job(uid, about | {"uid": uid}, ["x"])
        tracker = Pretended(lambda points: (wrote.append(uid), does(points)))
        destination.want((uid, "x"), Sink(store, lambda *_: tracker, uid, "x"), about, False)

    def say(uid, number):
        store.take(uid, "main", "", 1, number, [json.dumps({"step": number, "l": 1})])

    say("greedy", 1)
    want("greedy", lambda _: say("greedy", len(wrote) + 1))
    await_true(lambda: len(wrote) > 5)
    say("meek", 1)
    want("meek")
    before = len(wrote)
    await_true(lambda: "meek" in wrote)
    assert wrote.index("meek") - before < 20
    destination.stop()
    destination.join(5)


def test_a_destinations_thread_survives_a_spool_that_cant_be_written(store, about, monkeypatch):
    store.keep_job(UID, about, ["x"])
    tell(store, 1, 10, [1])
    destination, tried = Destination("x", 0.01), []
    monkeypatch.setattr(sinks, "PAUSES_S", (0.01,))

    def broken(*_):
        tried.append(1)
        raise sqlite3.OperationalError("database is locked")

    with monkeypatch.context() as patched:
        for name in ("wrote", "sink_failed"):
            patched.setattr(store, name, broken)
        one = Sink(store, lambda *_: Pretended(), UID, "x")
        destination.want((UID, "x"), one, about, False)
        await_true(lambda: len(tried) >= 2)
    time.sleep(0.02)
    destination.want((UID, "x"), one, about, True)
    await_true(lambda: store.sinks() == [])
    destination.stop()
    destination.join(5)


def test_a_tracker_that_never_takes_it_is_given_up_a_week_after_the_jobs_end(
    store, about, monkeypatch, caplog
):
    def refuses(_):
        raise OSError("no")

    monkeypatch.setattr(sinks, "PAUSES_S", (0,))
    for uid, end_ns, gives_up in (("a", 0, False), ("b", time.time_ns(), False), ("c", 1, True)):
        store.keep_job(uid, about, ["x"])
        store.take(uid, "main", "", 1, 1, ['{"step":1,"l":1}'])
        destination = Destination("x", 1e9)
        its = about | {"end_ns": end_ns}
        one = Sink(store, lambda *_: Pretended(refuses), uid, "x")
        for _ in range(sinks.TRIES_MIN):
            assert store.sink(uid, "x") is not None
            destination._visit((uid, "x"), one, its, True)
        assert (store.sink(uid, "x") is None) == gives_up
        destination.stop()
    assert caplog.text.count("given up") == 1


def test_a_destination_that_hangs_holds_up_no_other(store, server, about):
    other = "b" * 32
    store.keep_job(UID, about, ["mlflow"])
    store.keep_job(other, about | {"uid": other}, ["mlflow"])
    hangs = threading.Event()

    class Hangs:
        may_have_unsure = False

        def keeps_first(self, key):
            return False

        def write(self, *_):
            hangs.wait(30)
            raise OSError

    for uid in (UID, other):
        store.take(uid, "main", "", 1, 10, ['{"step":1,"loss":1,"at_ns":1}'])
    bad, good = Destination("bad", 0.01), Destination("good", 0.01)
    bad.want((UID, "mlflow"), Sink(store, lambda *_: Hangs(), UID, "mlflow"), about, False)
    mine = Sink(store, lambda *_: MLflow(server.url, ""), other, "mlflow")
    good.want((other, "mlflow"), mine, about | {"uid": other}, False)
    until = time.monotonic() + 10
    while not server.runs or not server.active()[0]["metrics"]:
        assert time.monotonic() < until
        time.sleep(0.01)
    hangs.set()
    for one in (bad, good):
        one.stop()
        one.join(5)


def test_times_differ_with_each_attempt_and_make_no_new_run():
    mlflow = MLflow("http://127.0.0.1:1", "")
    for key in ("tokens_per_s", "main/step_s", "eval_runtime", "eval_samples_per_second"):
        assert mlflow.keeps_first(key), key
    for key in ("loss", "eval_loss", "runtime_error_rate"):
        assert not mlflow.keeps_first(key), key


def test_names_are_what_mlflow_takes():
    for key in ("loss", "eval/loss", "a b.c-d_e/f"):
        assert mlflow.metric_name(key) == key
    for key, name in (
        ("eval/loss (ä):1", "eval/loss ____1"),
        ("/a//b/", "a/b"),
        ("./a/../b", "a/b"),
        ("//", "_"),
    ):
        assert re.fullmatch(re.escape(name) + r"\.[0-9a-f]{6}", mlflow.metric_name(key)), key
    assert len({mlflow.metric_name(key) for key in ("a:b", "a_b", "a?b", "/a_b")}) == 4


# A stand-in for wandb in a folder on PYTHONPATH: what it is told goes into a file.
WANDB = """
import json, os
class Settings:
    def __init__(self, **given): pass
class Run:
    def __init__(self, given):
        self.given, self.rows = given, []
        self.dir = given["dir"] + "/wandb/offline-run-1"
    def log(self, row, step):
        assert not self.rows or self.rows[-1][0] < step, "steps only grow"
        self.rows.append((step, row))
    def finish(self, exit_code):
        os.makedirs(self.dir)
        told = {name: self.given[name] for name in ("id", "name", "project", "entity")}
        json.dump(told | {"rows": self.rows, "exit": exit_code}, open(self.dir + "/told", "w"))
def init(**given):
    del given["settings"]
    return Run(given)
"""
SYNC = """
import os, sys
assert sys.argv[1:3] == ["sync", "--yes"], sys.argv
with open(os.environ["HOME"] + "/synced", "a") as file:
    print(open(sys.argv[3] + "/told").read(), file=file)
    print(os.environ["WANDB_API_KEY"], file=file)
"""


def test_a_run_of_wandb_is_written_whole_at_the_end_and_sent_where_there_is_a_key(
    tmp_path, store, about, monkeypatch
):
    package = tmp_path / "lib" / "wandb"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(WANDB)
    (package / "__main__.py").write_text(SYNC)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}/lib exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    folder = tmp_path / "runs"
    for uid, key in ((UID, ""), ("b" * 32, "secret")):
        store.keep_job(uid, about | {"uid": uid}, ["wandb"])
        for offset, steps in ((10, (1, 2, 3)), (20, (2, 4))):
            told = [json.dumps({"at_ns": 1, "step": step, "loss": offset}) for step in steps]
            store.take(uid, "main", "", 1, offset, told)
        made = Wandb("team/p", folder, str(python), "", key)
        sink = Sink(store, lambda *_, made=made: made, uid, "wandb")
        bring_up(sink, about | {"uid": uid}, False)
        assert not (folder / uid).exists()
        bring_up(sink, ended(about | {"uid": uid}), True)
    kept = json.loads((folder / UID / "wandb" / "offline-run-1" / "told").read_text())
    rows = [[1, {"loss": 10}], [2, {"loss": 20}], [3, {"loss": 10}], [4, {"loss": 20}]]
    assert kept["rows"] == rows and kept["project"] == "p" and kept["entity"] == "team"
    sent, used = (folder / "synced").read_text().splitlines()
    assert json.loads(sent)["rows"] == rows and used == "secret"
    assert not (folder / ("b" * 32)).exists()
