"""muster_score with an object store: what is read in ranges, what is put, and who dies between the two."""

import io
import subprocess
import sys

import pytest
from muster_score import inputs, objects, outputs
from muster_score.__main__ import main
from muster_score.errors import StoreFailed
from muster_score.inputs import InputError, Reader, find_files, shards_of
from muster_score.plan import Options, make_plan
from muster_score.worker import Worker
from score_helpers import HERE
from score_store import bodies, environment, manifest, plan_of, put_rows, score, scored, words

# ---- rows ----


def test_every_row_is_put_once_in_its_order_and_counted(store, tmp_path):
    put_rows(store, "in/1.jsonl", range(20))
    store.put_object(Bucket="rows", Key="in/2.jsonl", Body=b'{"id": 20, "prompt": "bad"}\n')
    store.put_object(Bucket="rows", Key="in/below/3.jsonl", Body=b'{"id": 21, "prompt": "a"}\n')
    done = score(*words(tmp_path / "work"))
    assert done.returncode == 0, done.stderr
    lines = scored(store)
    assert [line["id"] for line in lines] == list(range(21))  # * stays within its folder
    assert [line["answer"] for line in lines[:20]] == [f"P{i}" for i in range(20)]
    assert "I don't say that" in lines[20]["error"]
    told = manifest(store)
    assert (told["rows"], told["bad_rows"], told["parts"]) == (21, 1, 4)
    assert told["bad_rows_by_part"] == {"part-00000003.jsonl": 1}
    assert score(*words(tmp_path / "work")).returncode == 0  # nothing is left to do


@pytest.mark.parametrize("kind", ["jsonl", "txt", "parquet"])
@pytest.mark.parametrize("buffer", [16, 1 << 20])
def test_shards_of_objects_are_all_rows_in_their_order(store, kind, buffer, monkeypatch):
    monkeypatch.setattr(inputs, "COUNT_BUFFER", buffer)
    monkeypatch.setattr(inputs, "SHARD_BUFFER", buffer)
    if kind == "parquet":
        pytest.importorskip("pyarrow")
        import pyarrow
        import pyarrow.parquet

        body = io.BytesIO()
        table = pyarrow.table({"text": [str(i) for i in range(100)]})
        pyarrow.parquet.write_table(table, body, row_group_size=30)
        text = body.getvalue()
    elif kind == "txt":
        text = "\n".join(str(i) for i in range(100)).encode()
    else:
        text = "".join(f'{{"text": "{i}"}}\n' for i in range(100)).encode()
    store.put_object(Bucket="rows", Key=f"in/a.{kind}", Body=text)
    shards, reader = shards_of(find_files(f"s3://rows/in/*.{kind}"), 7), Reader()
    rows = [row["text"] for shard in shards for row in reader.rows(shard)]
    assert rows == [str(i) for i in range(100)]


def test_an_object_is_read_in_ranges_and_what_was_read_serves_the_next_shard(store, monkeypatch):
    put_rows(store, "in/1.jsonl", range(10_000))
    shards, reader = shards_of(find_files("s3://rows/in/1.jsonl"), 100), Reader()
    monkeypatch.setattr(inputs, "SHARD_BUFFER", 1 << 16)
    size, asked, read = shards[0].file.size, [], objects._range
    monkeypatch.setattr(objects, "_range", lambda *a: asked.append(a[2]) or read(*a))
    assert sum(len(list(reader.rows(shard))) for shard in shards) == 10_000
    assert max(asked) <= 1 << 16 and sum(asked) == size


def test_parts_as_parquet_go_into_a_store_too(store, tmp_path):
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    put_rows(store, "in/1.jsonl", range(10))
    assert score(*words(tmp_path, "--output-format", "parquet")).returncode == 0
    found = [pyarrow.parquet.read_table(io.BytesIO(body)) for body in bodies(store).values()]
    assert [row["answer"] for one in found for row in one.to_pylist()] == [
        f"P{i}" for i in range(10)
    ]


@pytest.mark.parametrize(
    ("url", "pattern", "wanted"),
    [
        ("s3://rows/in/a.jsonl", "s3://rows/in/*.jsonl", True),
        ("s3://rows/in/x/a.jsonl", "s3://rows/in/*.jsonl", False),
        ("s3://rows/in/x/y/a.jsonl", "s3://rows/in/**/*.jsonl", True),
        ("s3://rows/in/a.jsonl", "s3://rows/in/**/*.jsonl", True),
        ("s3://rows/in/x/a.jsonl", "s3://rows/**", True),
        ("s3://rows/in/.a.jsonl", "s3://rows/in/*", False),
        ("s3://rows/in/", "s3://rows/in/*", False),
        ("s3://rows/in/A.jsonl", "s3://rows/in/a.jsonl", False),
    ],
)
def test_patterns_are_those_of_files(url, pattern, wanted):
    assert objects.matches(url, pattern) == wanted


# ---- what is refused ----


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (["--work", ""], "name a directory that all workers see with --work"),
        (["--output", "OUT"], "is for an --output in an object store"),
        (["--input", "s3://rows/none/*.jsonl"], "there is no such object"),
        (["--input", "s3://nowhere/*.jsonl"], "NoSuchBucket"),
        (["--output", "s3:///out"], "there is no bucket in it"),
        (["--output", "s3://rows/in"], "takes in what is written"),
        (["--model", "s3://rows/model"], "Copy it to a directory that all workers see"),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_scored(store, tmp_path, changed, says):
    put_rows(store, "in/1.jsonl", range(3))
    changed = [word if word != "OUT" else str(tmp_path / "out") for word in changed]
    done = score(*words(tmp_path / "work", *changed))
    assert done.returncode == 2 and says in done.stderr, done.stderr
    assert bodies(store) == {}


def test_without_boto3_the_remedy_is_told(monkeypatch):
    objects.client.cache_clear()
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(InputError, match="pip install -U boto3"):
        find_files("s3://rows/*.jsonl")


def test_an_object_that_changes_is_refused(store, tmp_path):
    put_rows(store, "in/1.jsonl", range(20))
    plan = plan_of(tmp_path / "work")
    put_rows(store, "in/1.jsonl", range(1, 21))
    with pytest.raises(InputError, match="1.jsonl has changed since"):
        list(Reader().rows(plan.shards[0]))
    with pytest.raises(InputError, match="another input"):
        plan_of(tmp_path / "work")


def test_parts_of_something_else_are_neither_replaced_nor_taken(store, tmp_path):
    put_rows(store, "in/1.jsonl", range(20))
    assert score(*words(tmp_path / "work")).returncode == 0
    before = bodies(store)
    for more in (["--work", str(tmp_path / "other"), "--seed", "1"], ["--seed", "1"]):
        done = score(*words(tmp_path / "work", *more))
        assert done.returncode == 2 and "Take another --output" in done.stderr, done.stderr
    assert bodies(store) == before


# ---- who dies, and who is first ----


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_death_at_any_write_or_put_loses_no_row_and_doubles_none(
    store, tmp_path, when, monkeypatch
):
    monkeypatch.setenv("MUSTER_JOB", "7_0")
    for count in range(1, 100, 2):  # behind one act is before the next
        for key in bodies(store, ""):
            store.delete_object(Bucket="rows", Key=key)
        put_rows(store, "in/1.jsonl", range(10))
        work = tmp_path / str(count)
        died = subprocess.run(
            [sys.executable, HERE / "dies.py", "muster_score", when, str(count), *words(work)],
            env=environment(),
            timeout=60,
        ).returncode
        assert main(words(work)) == 0
        assert [line["id"] for line in scored(store)] == list(range(10))
        assert manifest(store)["rows"] == 10
        assert not [path for path in work.rglob(".*")]
        if died == 0:
            assert count > 10
            return
        assert died == 99
    raise AssertionError("it never came to its end")


def test_of_two_that_put_a_part_the_first_stays_and_is_counted(store, tmp_path):
    put_rows(store, "in/1.jsonl", range(7))
    first, second = (outputs.parts_of(plan_of(tmp_path / name)) for name in ("1", "2"))
    first.put(0, "a", [b'{"id": 0}\n'], bad=3)
    second.put(0, "b", [b'{"id": 1}\n'], bad=0)
    assert scored(store) == [{"id": 0}]
    assert first.bad_rows() == second.bad_rows() == {"part-00000000.jsonl": 3}


def test_where_a_store_knows_no_conditions_the_part_that_is_there_is_counted(
    store, tmp_path, monkeypatch
):
    put_rows(store, "in/1.jsonl", range(7))
    put = objects._put
    monkeypatch.setattr(objects, "_put", lambda url, body, told, _: put(url, body, told, {}))
    first, second = (outputs.parts_of(plan_of(tmp_path / name)) for name in ("1", "2"))
    first.put(0, "a", [b'{"id": 0}\n'], bad=3)
    second.put(0, "b", [b'{"id": 1}\n'], bad=2)
    assert first.bad_rows() == second.bad_rows() == {"part-00000000.jsonl": 2}


def test_a_part_without_its_record_is_taken_and_not_made_again(store, tmp_path):
    put_rows(store, "in/1.jsonl", range(14))
    asked = []

    def engine(rows):
        asked.extend(row["id"] for row in rows)
        return [row["prompt"] for row in rows]

    options = Options("s3://rows/in/*", "s3://rows/out", shard_rows=7, work=str(tmp_path / "work"))
    plan = make_plan(options)
    Worker(options, plan, engine, True, "1").run()
    (tmp_path / "work/manifest.json").unlink()
    (tmp_path / "work/done/00000001").unlink()
    Worker(options, plan, engine, True, "1").run()
    assert sorted(asked) == list(range(14))


def test_a_store_that_is_away_ends_a_worker_that_may_be_started_again(store, tmp_path, monkeypatch):
    put_rows(store, "in/1.jsonl", range(14))
    plan, put = plan_of(tmp_path / "work"), objects.put_new

    def away(*_):
        raise StoreFailed("it is away")

    options = Options(
        "s3://rows/in/*.jsonl", "s3://rows/out", shard_rows=7, work=str(tmp_path / "work")
    )
    monkeypatch.setattr(objects, "put_new", away)
    with pytest.raises(StoreFailed):
        Worker(options, plan, lambda rows: [row["id"] for row in rows], True, "1").run()
    assert all('"owner": ""' in lease.read_text() for lease in (plan.own / "leases").iterdir())
    monkeypatch.setattr(objects, "put_new", put)
    Worker(options, plan, lambda rows: [row["id"] for row in rows], True, "2").run()
    assert [line["answer"] for line in scored(store)] == list(range(14))
