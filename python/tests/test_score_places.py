"""muster_score's outputs in an object store: whose place it is, and what is made again when it is gone."""

import json

import pytest
from muster_score import objects, outputs
from muster_score.__main__ import main
from muster_score.errors import StoreFailed
from muster_score.inputs import InputError
from muster_score.plan import Options
from muster_score.worker import Worker
from score_store import answer, bodies, manifest, plan_of, put_rows, scored, words

pytest.importorskip("boto3", reason="s3:// needs boto3, which isn't here")

PART, MARK = "out/part-00000001.jsonl", "out/_muster_score.json"
STRANGERS = {"told": {"muster-plan": "0" * 32}, "untold": {}}


def put(store, key: str, told: dict) -> None:
    store.put_object(Bucket="rows", Key=key, Body=b'{"id": 1}\n', Metadata=told)


def remove(store, *keys: str) -> None:
    for key in keys:
        store.delete_object(Bucket="rows", Key=key)


def worker_of(work, engine) -> Worker:
    options = Options("s3://rows/in/*.jsonl", "s3://rows/out", work=str(work), shard_rows=7)
    return Worker(options, plan_of(work), engine, True, "1")


def echo(rows: list[dict]) -> list[str]:
    return [row["prompt"] for row in rows]


# ---- what is gone ----


@pytest.mark.parametrize(
    ("gone", "local", "asked_again"),
    [
        ([], [], 0),
        (["out/part-00000000.jsonl", PART, "out/part-00000002.jsonl"], [], 20),
        ([PART], [], 7),
        ([PART], ["manifest.json"], 7),
        ([PART, "out/manifest.json", MARK], [], 7),
        (["out/manifest.json"], [], 0),
        ([MARK], [], 0),
        ([], ["manifest.json"], 0),
        ([], ["manifest.json", "done/00000001"], 0),
        ([], ["done/00000001"], 0),
    ],
)
def test_what_is_gone_is_made_again_and_nothing_else(
    store, tmp_path, monkeypatch, gone, local, asked_again
):
    put_rows(store, "in/1.jsonl", range(20))
    given, work = words(tmp_path / "work"), tmp_path / "work"
    assert main(given) == 0
    before = bodies(store, "out/")
    remove(store, *gone)
    for name in local:
        (work / name).unlink()
    monkeypatch.setenv("SHOUT_LOG", str(tmp_path / "log"))
    assert main(given) == 0
    assert bodies(store, "out/") == before
    log = tmp_path / "log"
    assert len(log.read_text().splitlines() if log.exists() else []) == asked_again
    monkeypatch.setenv("SHOUT_LOG", str(tmp_path / "later"))
    assert main(given) == 0 and not (tmp_path / "later").exists()


def test_all_objects_gone_are_all_rows_again(store, tmp_path):
    put_rows(store, "in/1.jsonl", range(20))
    assert main(words(tmp_path / "work")) == 0
    remove(store, *bodies(store, "out/"))
    assert main(words(tmp_path / "work")) == 0
    assert [line["id"] for line in scored(store)] == list(range(20))
    assert manifest(store)["rows"] == 20


def test_a_new_directory_of_work_beside_whole_parts_asks_no_engine(store, tmp_path, monkeypatch):
    put_rows(store, "in/1.jsonl", range(20))
    store.put_object(Bucket="rows", Key="in/2.jsonl", Body=b'{"id": 20, "prompt": "bad"}\n')
    assert main(words(tmp_path / "work")) == 0
    before = bodies(store, "out/")
    monkeypatch.setenv("SHOUT_LOG", str(tmp_path / "log"))
    assert main(words(tmp_path / "new")) == 0
    assert bodies(store, "out/") == before and not (tmp_path / "log").exists()
    assert json.loads((tmp_path / "new/manifest.json").read_text())["bad_rows"] == 1


def test_parts_that_go_while_the_job_runs_are_written_by_the_next_start(store, tmp_path):
    put_rows(store, "in/1.jsonl", range(20))
    worker = worker_of(tmp_path, echo)
    worker.run()
    remove(store, PART)
    with pytest.raises(StoreFailed, match="part-00000001.jsonl is gone, .*of 3 parts 1 are"):
        worker._finish()
    parts = outputs.parts_of(plan_of(tmp_path))
    assert list(parts.found()) and not parts.has(1) and not parts.finished()
    worker_of(tmp_path, echo).run()
    assert [line["id"] for line in scored(store)] == list(range(20)) and parts.finished()


def test_a_manifest_of_before_parts_were_lost_is_replaced(store, tmp_path):
    put_rows(store, "in/1.jsonl", range(3))
    parts = outputs.parts_of(plan_of(tmp_path))
    for wanted in ({"bad_rows": 1}, {"bad_rows": 0}):
        parts.finish(wanted)
        assert manifest(store) == wanted
    asked = answer(store, "PutObject")
    parts.finish({"bad_rows": 0})
    assert [request.headers["If-None-Match"] for request in asked] == [b"*"]


# ---- whose place it is ----


@pytest.mark.parametrize("told", STRANGERS.values(), ids=STRANGERS)
@pytest.mark.parametrize(
    "key", ["out/manifest.json", MARK, PART, "out/part-00000009.jsonl", "out/part-00000000.parquet"]
)
def test_what_is_of_another_job_is_refused_before_anything_is_put(store, tmp_path, key, told):
    put_rows(store, "in/1.jsonl", range(20))
    put(store, key, told)
    asked = answer(store, "PutObject")
    parts = outputs.parts_of(plan_of(tmp_path / "work"))
    with pytest.raises(InputError, match=f"{key} is there, and of another input"):
        parts.check()
    assert asked == []


@pytest.mark.parametrize("told", STRANGERS.values(), ids=STRANGERS)
@pytest.mark.parametrize("key", [MARK, PART, "out/part-00000009.jsonl", "out/manifest.json"])
def test_what_another_job_puts_later_is_refused_at_the_end(store, tmp_path, key, told):
    put_rows(store, "in/1.jsonl", range(20))
    parts = outputs.parts_of(plan_of(tmp_path))
    parts.check()
    for shard in range(3):
        parts.put(shard, "a", [b'{"id": 0}\n'], bad=0)
    put(store, key, told | {"muster-bad-rows": "0"})
    before = bodies(store, "out/")
    with pytest.raises(InputError, match=f"{key} is there, and of another input"):
        parts.finish({"bad_rows_by_part": parts.bad_rows()})
    assert bodies(store, "out/") == before
    assert not parts.finished()


@pytest.mark.parametrize("act", ["take_over", "put"])
@pytest.mark.parametrize("told", STRANGERS.values(), ids=STRANGERS)
def test_a_part_of_another_job_that_comes_after_the_check_is_not_taken(store, tmp_path, act, told):
    put_rows(store, "in/1.jsonl", range(20))
    parts = outputs.parts_of(plan_of(tmp_path))
    parts.check()
    put(store, PART, told)
    words = (1,) if act == "take_over" else (1, "a", [b'{"id": 0}\n'], 0)
    with pytest.raises(InputError, match=f"{PART} is there, and of another input"):
        getattr(parts, act)(*words)
    assert bodies(store) == {PART: b'{"id": 1}\n'} and not parts.has(1)


@pytest.mark.parametrize("conditions", [True, False])
def test_of_two_jobs_that_begin_together_the_second_puts_nothing(store, tmp_path, conditions):
    put_rows(store, "in/1.jsonl", range(20))
    first, second = (
        outputs.parts_of(plan_of(tmp_path / name, column=name)) for name in ("one", "two")
    )
    if not conditions:
        answer(store, "PutObject", (501, "NotImplemented"), None, (501, "NotImplemented"))
    first.check()
    with pytest.raises(InputError, match="_muster_score.json is there, and of another"):
        second.check()
    first.check()
    assert list(bodies(store, "out/")) == [MARK]


def test_where_a_store_knows_no_conditions_one_of_two_marks_stays(store, tmp_path, monkeypatch):
    put_rows(store, "in/1.jsonl", range(7))
    real, head = objects._put, objects.head
    monkeypatch.setattr(objects, "_put", lambda url, body, told, _: real(url, body, told, {}))
    first, second = (
        outputs.parts_of(plan_of(tmp_path / name, column=name)) for name in ("one", "two")
    )
    first.check()
    unseen = [None] * 2  # of manifest and mark: both have looked before either has put
    monkeypatch.setattr(objects, "head", lambda url: unseen.pop() if unseen else head(url))
    second.check()
    first.put(0, "a", [b'{"id": 0}\n'], bad=0)
    with pytest.raises(InputError, match="_muster_score.json is there, and of another"):
        first.bad_rows()
    with pytest.raises(InputError, match="part-00000000.jsonl is there, and of another"):
        second.check()
