"""muster_score with an object store that answers otherwise than it would: what is asked again, what ends a worker, and what is put."""

import muster_runtime
import pytest
from muster_score import objects, stopping
from muster_score.__main__ import main
from muster_score.errors import StoreFailed
from muster_score.inputs import InputError
from score_store import Body, answer, bodies, put_rows, words

exceptions = pytest.importorskip(
    "botocore.exceptions", reason="s3:// needs boto3, which isn't here"
)
urllib3 = pytest.importorskip("urllib3")

URL = "s3://rows/in/a.txt"
AWAY = exceptions.EndpointConnectionError(endpoint_url="http://here")
SILENT = exceptions.ReadTimeoutError(endpoint_url="http://here")
BROKEN = urllib3.exceptions.ProtocolError("Connection broken")
HUNG = urllib3.exceptions.ReadTimeoutError(None, "http://here", "Read timed out.")
BUSY, INTERNAL = (503, "SlowDown"), (500, "InternalError")
UNHEARD = (501, "NotImplemented")  # of a condition
CONFLICT, THERE = (409, "ConditionalRequestConflict"), (412, "PreconditionFailed")


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """It is tried again without a pause, and as rarely as it may be."""
    monkeypatch.setattr(stopping, "wait", lambda seconds: stopping.stop_if_told())
    monkeypatch.setattr(objects, "TRY_S", 0)


# ---- any request ----


@pytest.mark.parametrize(
    ("answers", "tries", "error", "says"),
    [
        ([], 1, None, ""),
        ([BUSY], 2, None, ""),
        ([INTERNAL, (429, "TooManyRequests")], 3, None, ""),
        ([(400, "RequestTimeout"), AWAY], 3, None, ""),
        ([SILENT], 2, None, ""),
        ([BUSY] * 9, 3, StoreFailed, "SlowDown: so it is"),
        ([AWAY] * 9, 3, StoreFailed, "Could not connect"),
        ([UNHEARD], 1, StoreFailed, "NotImplemented"),
        ([(400, "InvalidRequest")], 1, StoreFailed, "InvalidRequest"),
        ([(403, "AccessDenied")], 1, InputError, "s3:ListBucket, s3:GetObject, s3:PutObject"),
        ([(404, "NoSuchBucket")], 1, InputError, "See bucket, credentials"),
        ([exceptions.NoCredentialsError()], 1, InputError, "Give the job secrets"),
        ([exceptions.ParamValidationError(report="no")], 1, InputError, "no"),
    ],
)
def test_what_may_work_later_is_asked_again_and_what_can_never_isnt(
    store, answers, tries, error, says
):
    put_rows(store, "in/a.txt", range(3))
    asked = answer(store, "ListObjectsV2", *answers)
    if error is None:
        assert [one.url for one in objects.below("s3://rows/in/")] == [URL]
    else:
        with pytest.raises(error, match=says):
            list(objects.below("s3://rows/in/"))
    assert len(asked) == tries


def test_it_is_asked_again_for_a_minute(store, monkeypatch):
    now_s = 0.0

    def wait(seconds):
        nonlocal now_s
        now_s += seconds

    monkeypatch.setattr(stopping, "wait", wait)
    monkeypatch.setattr(objects.time, "monotonic", lambda: now_s)
    monkeypatch.setattr(objects, "TRY_S", 60)
    asked = answer(store, "HeadObject", *[(503, "")] * 1000)
    with pytest.raises(StoreFailed):
        objects.head(URL)
    assert 60 <= now_s < 71 and 9 < len(asked) < 25


def test_sigterm_is_heard_between_two_tries(store, monkeypatch):
    asked = answer(store, "HeadObject", *[BUSY] * 9)
    monkeypatch.setattr(muster_runtime, "should_stop", lambda: len(asked) == 2)
    with pytest.raises(stopping.Stopped):
        objects.head(URL)
    assert len(asked) == 2


def test_a_list_of_several_pages_is_read_to_its_end(store, monkeypatch):
    for number in range(5):
        put_rows(store, f"in/{number}.txt", range(1))
    real = store.list_objects_v2
    monkeypatch.setattr(store, "list_objects_v2", lambda **named: real(**named, MaxKeys=2))
    asked = answer(store, "ListObjectsV2", None, BUSY)
    assert [one.url[-5:] for one in objects.below("s3://rows/in/")] == [
        f"{number}.txt" for number in range(5)
    ]
    assert len(asked) == 4


def test_what_was_told_is_found_in_whichever_letters(store):
    store.put_object(Bucket="rows", Key="in/a.txt", Body=b"", Metadata={"muster-plan": "Ab"})

    def capitals(parsed, **_):
        parsed["Metadata"] = {name.title(): value for name, value in parsed["Metadata"].items()}

    store.meta.events.register("after-call.s3.HeadObject", capitals)
    assert objects.head(URL).told == {"muster-plan": "Ab"}


def test_a_store_that_is_away_ends_with_what_to_look_at(store, tmp_path, capsys):
    put_rows(store, "in/1.jsonl", range(3))
    answer(store, "PutObject", *[AWAY] * 9)
    assert main(words(tmp_path / "work")) == 75  # another try is made
    told = capsys.readouterr().err
    assert "Could not connect" in told and "max_restarts" in told and "AWS_ENDPOINT_URL" in told


# ---- ranges ----


@pytest.mark.parametrize(
    ("answers", "tries", "error", "says"),
    [
        ([Body(b"ab", BROKEN)], 2, None, ""),
        ([Body(b"", HUNG)], 2, None, ""),
        ([Body(b"ab"), BUSY], 3, None, ""),
        ([Body(b"ab"), Body(b"ab"), Body(b"ab")], 3, StoreFailed, "2 bytes came where 3 were"),
        ([Body(b"", HUNG), BUSY, Body(b"a", BROKEN)], 3, StoreFailed, "broken"),
        ([SILENT] * 9, 3, StoreFailed, "Read timeout"),
        ([THERE], 1, InputError, "has changed since the shards were planned"),
        ([(416, "InvalidRange")], 1, InputError, "has changed since the shards were planned"),
        ([(404, "NoSuchKey")], 1, InputError, "has changed since the shards were planned"),
    ],
)
def test_a_range_that_breaks_off_is_read_again(store, answers, tries, error, says):
    store.put_object(Bucket="rows", Key="in/a.txt", Body=b"abcdef")
    file = objects.head(URL)
    asked = answer(store, "GetObject", *answers)
    if error is None:
        assert objects._range(file, 1, 3) == b"bcd"
    else:
        with pytest.raises(error, match=says):
            objects._range(file, 1, 3)
    assert len(asked) == tries


# ---- what is put ----


@pytest.mark.parametrize(
    ("before", "answers", "stays", "conditions"),
    [
        (None, [], "new", [True]),
        ("old", [], "old", [True]),
        (None, [BUSY], "new", [True, True]),
        (None, [CONFLICT], "new", [True, True]),
        ("old", [CONFLICT], "old", [True]),
        (None, [THERE, CONFLICT], "new", [True, True, True]),  # it was there, and was removed
        (None, [UNHEARD], "new", [True, False]),
        ("old", [UNHEARD], "old", [True]),
        (None, [UNHEARD, BUSY], "new", [True, False, False]),
    ],
)
def test_the_first_that_is_put_stays(store, before, answers, stays, conditions):
    if before is not None:
        objects.put("s3://rows/out/part-1", b"old", {"muster-plan": "old"})
    asked = answer(store, "PutObject", *answers)
    there = objects.put_new("s3://rows/out/part-1", b"new", {"muster-plan": "new"})
    assert there.told == {"muster-plan": stays} and there.size == 3
    assert bodies(store) == {"out/part-1": stays.encode()}
    assert there.etag == objects.head(there.url).etag
    assert ["If-None-Match" in request.headers for request in asked] == conditions


def test_what_is_there_and_isnt_is_given_up(store):
    asked = answer(store, "PutObject", *[THERE] * 99)
    with pytest.raises(StoreFailed, match="as it is there, and isn't there"):
        objects.put_new("s3://rows/out/part-1", b"new", {})
    assert len(asked) == objects.CONFLICT_TRIES
