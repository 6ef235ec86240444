"""muster_score: what goes in and what comes out, row by row."""

import datetime
import decimal
import json
import os
from pathlib import Path

import pytest
from muster_score import inputs
from muster_score.inputs import BadRow, InputError, Reader, find_files, shards_of
from muster_score.plan import Options, fingerprint_of_model, make_plan
from muster_score.prompts import Answer, Ask, Sampling, ask_of
from score_helpers import run_here, score, scored, write_rows


def same(prompts):
    return prompts


def write(folder: Path, *lines: dict) -> None:
    (folder / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def bad_rows(folder: Path) -> int:
    return json.loads((folder / "out/manifest.json").read_text())["bad_rows"]


# ---- rows that are read ----


@pytest.mark.parametrize("rows", [1, 4, 10, 11, 100])
@pytest.mark.parametrize("kind", ["jsonl", "txt", "parquet"])
def test_shards_are_all_rows_in_their_order(tmp_path, kind, rows):
    path = tmp_path / f"in.{kind}"
    if kind == "parquet":
        import pyarrow
        import pyarrow.parquet

        table = pyarrow.table({"text": [str(i) for i in range(10)]})
        pyarrow.parquet.write_table(table, path, row_group_size=3)
    elif kind == "txt":
        path.write_text("\n".join(str(i) for i in range(10)))  # no newline at the end
    else:
        path.write_text("".join(f'{{"text": "{i}"}}\r\n' for i in range(10)))
    shards, reader = shards_of(find_files(str(path)), rows), Reader()
    assert sum(shard.rows for shard in shards) == 10
    found = [row for shard in shards for row in reader.rows(shard)]
    assert not any(isinstance(row, BadRow) for row in found)
    assert [row["text"] for row in found] == [str(i) for i in range(10)]


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 100])
def test_a_byte_order_mark_is_skipped_and_blank_lines_at_the_end_are_no_rows(tmp_path, rows):
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"n": 0}\n\n{"n": 2}\n\n \r\n\n')
    reader = Reader()
    shards = shards_of(find_files(str(path)), rows)
    found = [row for shard in shards for row in reader.rows(shard)]
    assert found[0] == {"n": 0} and isinstance(found[1], BadRow) and found[2:] == [{"n": 2}]
    (tmp_path / "blank.txt").write_text("\n\n\n")
    assert shards_of(find_files(str(tmp_path / "blank.txt")), rows) == []


def test_what_cannot_be_read_is_a_bad_row_in_its_place(tmp_path):
    deep = '{"a":' * 100_000 + "1" + "}" * 100_000
    lines = ['{"prompt": "a"}', deep, '{"prompt": "x\\ud83d"}', "[1]", '{"prompt": 3}']
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    run_here(tmp_path, same)
    a, b, c, d, e = scored(tmp_path)
    assert a["answer"] == "a" and "recursion" in b["error"] and b["line"] == deep
    assert c["answer"] == c["prompt"] == "x\ud83d"  # half of a pair comes out as it went in
    assert "no JSON object" in d["error"] and "no text in column 'prompt'" in e["error"]
    assert bad_rows(tmp_path) == 3


@pytest.mark.parametrize("value", ["9223372036854775808", '"x\\ud83d"', '[1, "a"]'])
def test_what_a_table_cannot_hold_is_told_once_and_for_all(tmp_path, value):
    pytest.importorskip("pyarrow")
    (tmp_path / "in.jsonl").write_text(f'{{"prompt": "a", "key": {value}}}\n')
    with pytest.raises(InputError, match="Take jsonl"):
        run_here(tmp_path, same, output_format="parquet")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("in.jsonl.gz", b"\x1f\x8b", "gunzip"),
        ("in.csv", b"prompt\na\n", "no known kind"),
        ("in.json", b'\xef\xbb\xbf \n[{"prompt": "a"}]', "jq -c"),
        ("in", b"", "no known kind"),
    ],
)
def test_files_of_other_kinds_are_refused(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=says) as refused:
        run_here(tmp_path, same)
    assert str(tmp_path / name) in str(refused.value)


def test_a_file_that_a_pattern_finds_twice_is_read_once(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    write_rows(tmp_path / "a/b/in.jsonl", 3)
    run_here(tmp_path, same, input=f"{tmp_path}/a/**/**/*.jsonl")
    assert [line["id"] for line in scored(tmp_path)] == [0, 1, 2]


@pytest.mark.parametrize("pattern", ["**/*.jsonl", "out/*.jsonl", "*/*", "**", "o*/**/*.json*"])
def test_an_output_that_the_pattern_takes_in_is_refused(tmp_path, pattern):
    (tmp_path / "out").mkdir()
    write_rows(tmp_path / "in.jsonl", 3)
    write_rows(tmp_path / "out/in.jsonl", 3)
    with pytest.raises(InputError, match="takes in what is written"):
        run_here(tmp_path, same, input=f"{tmp_path}/{pattern}")


def test_an_output_beside_the_input_is_taken(tmp_path):
    write_rows(tmp_path / "in.jsonl", 3)
    (tmp_path / "x.txt").write_text("a\n")
    run_here(tmp_path, same, input=f"{tmp_path}/**/*.txt", column="text")
    run_here(tmp_path, same, input=f"{tmp_path}/*.jsonl", output=f"{tmp_path}/other")


@pytest.mark.parametrize("content", [{"text": "a"}, {"prompt": ""}, {"prompt": None}])
def test_a_column_that_no_row_has_is_refused(tmp_path, content):
    write(tmp_path, *[content] * 30)
    with pytest.raises(InputError, match="no row can be scored.*column 'prompt'"):
        run_here(tmp_path, same)
    assert scored(tmp_path) == []


# ---- an input that changes ----


def test_an_input_that_changes_while_it_is_planned_or_read_is_refused(tmp_path, monkeypatch):
    for name in ("in1.jsonl", "in2.jsonl"):
        write_rows(tmp_path / name, 20)
    scan = inputs._shards_of_lines

    def grows(file, *more):
        if file.path.endswith("in2.jsonl"):
            with (tmp_path / "in1.jsonl").open("a") as first:
                first.write('{"id": 20, "prompt": "late"}\n')
        return scan(file, *more)

    monkeypatch.setattr(inputs, "_shards_of_lines", grows)
    with pytest.raises(InputError, match="in1.jsonl has changed"):
        run_here(tmp_path, same)
    monkeypatch.undo()

    def changes(prompts):
        (tmp_path / "in2.jsonl").write_text('{"id": 0, "prompt": "other"}\n')
        return prompts

    with pytest.raises(InputError, match="in2.jsonl has changed"):
        run_here(tmp_path, changes)
    assert all(line["answer"].startswith("p") for line in scored(tmp_path))


def test_a_file_that_becomes_shorter_while_a_shard_is_read_makes_no_bad_rows(tmp_path):
    path = tmp_path / "in.jsonl"
    write_rows(path, 10_000)
    rows = Reader().rows(shards_of(find_files(str(path)), 10_000)[0])
    next(rows)
    status = path.stat()
    path.write_text("")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(InputError, match="has become shorter"):
        list(rows)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_file_that_is_written_anew_while_a_shard_is_read_is_refused(tmp_path, kind):
    path = tmp_path / f"in.{kind}"
    if kind == "parquet":
        write_parquet(path, {"prompt": ["a", "b"]})
    else:
        write_rows(path, 2)
    rows = Reader().rows(shards_of(find_files(str(path)), 2)[0])
    next(rows)
    os.utime(path, ns=(0, 0))
    with pytest.raises(InputError, match="has changed since"):
        list(rows)


def test_another_input_other_settings_or_another_model_are_refused(tmp_path):
    write_rows(tmp_path / "in.jsonl", 20)
    model = tmp_path / "model"
    model.mkdir()
    (model / "weights").write_bytes(b"1")

    def settings():
        return {"model_files": fingerprint_of_model(str(model))}

    run_here(tmp_path, same, settings=settings())
    with pytest.raises(InputError, match="were made with temperature 0.0, and now it is 1"):
        run_here(tmp_path, same, sampling=Sampling(temperature=1), settings=settings())
    (model / "weights").write_bytes(b"2")  # trained again, and written to the same place
    with pytest.raises(InputError, match="were made with model_files"):
        run_here(tmp_path, same, settings=settings())
    rows = tmp_path / "in.jsonl"
    rows.write_text(rows.read_text().replace("p", "q"))  # as long as it was
    with pytest.raises(InputError, match="another input.*in.jsonl"):
        run_here(tmp_path, same, settings=settings())
    write_rows(rows, 21)
    with pytest.raises(InputError, match="another input.*in.jsonl"):
        run_here(tmp_path, same)
    with pytest.raises(InputError, match="no such file"):
        run_here(tmp_path / "nowhere", same)


def test_a_stop_is_heard_while_the_input_is_counted(tmp_path):
    class Told(Exception):
        pass

    def told():
        raise Told

    write_rows(tmp_path / "in.jsonl", 20)
    with pytest.raises(Told):
        make_plan(Options(f"{tmp_path}/in*", f"{tmp_path}/out", shard_rows=7), told)


# ---- parquet ----


def write_parquet(path: Path, columns: dict, **how) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), path, **how)


def test_a_row_group_is_read_once_by_shards_that_follow_each_other(tmp_path, monkeypatch):
    path = tmp_path / "in.parquet"
    write_parquet(path, {"n": list(range(5000))}, row_group_size=5000)
    shards, reader = shards_of(find_files(str(path)), 100), Reader()
    begun = []
    begin = inputs._parquet_from
    monkeypatch.setattr(inputs, "_parquet_from", lambda *a: begun.append(a) or begin(*a))
    order = [*range(10, 50), *range(10)]
    found = [row["n"] for i in order for row in reader.rows(shards[i])]
    assert found == [*range(1000, 5000), *range(1000)]
    assert len(begun) == 2


def test_a_damaged_page_of_parquet_is_told_with_its_file(tmp_path):
    path = tmp_path / "in.parquet"
    write_parquet(path, {"prompt": [str(i) for i in range(5000)]}, compression="zstd")
    raw = bytearray(path.read_bytes())
    raw[40:400] = bytes(360)
    path.write_bytes(raw)
    with pytest.raises(InputError, match="in.parquet can't be read after its row 0"):
        run_here(tmp_path, same)
    path.write_bytes(b"PAR1")
    with pytest.raises(InputError, match="in.parquet can't be read as parquet"):
        run_here(tmp_path, same, output=f"{tmp_path}/other")


def test_dates_and_decimals_are_texts_and_bytes_are_a_bad_row(tmp_path):
    columns = {"prompt": ["a", "b"], "when": [datetime.datetime(2020, 1, 2, 3)] * 2}
    columns |= {"cost": [decimal.Decimal("1.10")] * 2, "raw": [None, b"\x00\xff"]}
    write_parquet(tmp_path / "in.parquet", columns)
    run_here(tmp_path, same)
    a, b = scored(tmp_path)
    assert (a["when"], a["cost"], a["answer"]) == ("2020-01-02T03:00:00", "1.10", "a")
    assert "a bytes can't be written" in b["error"] and "raw" not in b and b["prompt"] == "b"


# ---- what an engine answers ----


def test_arrays_of_an_engine_are_numbers_and_lists(tmp_path):
    numpy, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    write_rows(tmp_path / "in.jsonl", 2)
    answer = {"a": numpy.float32(0.5), "b": numpy.int64(3), "c": torch.tensor(0.25)}
    answer |= {"d": numpy.arange(2000.0), "e": torch.ones(2, 2)}
    run_here(tmp_path, lambda rows: [answer] * len(rows), predicts=True)
    line = scored(tmp_path)[0]
    assert (line["a"], line["b"], line["c"], line["e"]) == (0.5, 3, 0.25, [[1.0, 1.0], [1.0, 1.0]])
    assert line["d"] == [float(i) for i in range(2000)]


@pytest.mark.parametrize("value", [float("nan"), b"x", object(), {1, 2}])
def test_what_json_cannot_say_is_a_bad_row(tmp_path, value):
    write_rows(tmp_path / "in.jsonl", 2)

    def answers(rows):
        return [{"score": value if row["id"] else 1.0} for row in rows]

    run_here(tmp_path, answers, predicts=True)
    good, bad = scored(tmp_path)
    assert good["score"] == 1.0 and "can't be written" in bad["error"] and "score" not in bad
    with pytest.raises(InputError, match="no row can be scored: it can't be written"):
        run_here(
            tmp_path,
            lambda rows: [{"score": value}] * len(rows),
            predicts=True,
            output=f"{tmp_path}/other",
        )


def test_columns_of_the_input_are_not_written_over(tmp_path):
    write(tmp_path, {"prompt": "a", "answer": "gold"})
    with pytest.raises(InputError, match="'answer' already.*--answer-column"):
        run_here(tmp_path, same)
    with pytest.raises(InputError, match="'answer' already.*--answer-column"):
        run_here(tmp_path, lambda rows: [1] * len(rows), predicts=True, output=f"{tmp_path}/b")
    run_here(tmp_path, same, answer_column="ours", output=f"{tmp_path}/c")
    write(tmp_path, {"prompt": "a", "error": "gold"})
    with pytest.raises(InputError, match="'error' already.*--error-column"):
        run_here(tmp_path, same, output=f"{tmp_path}/d")
    run_here(tmp_path, same, error_column="why", output=f"{tmp_path}/e")
    write(tmp_path, {"prompt": "a"})
    with pytest.raises(InputError, match="'error' already.*--error-column"):
        run_here(
            tmp_path,
            lambda rows: [{"error": 0.5}] * len(rows),
            predicts=True,
            output=f"{tmp_path}/f",
        )


def test_an_engine_may_change_the_rows_that_it_is_given(tmp_path):
    write(tmp_path, *({"id": i, "prompt": "bad" if i == 4 else f"p{i}"} for i in range(6)))

    def pops(rows):
        prompts = [row.pop("prompt") for row in rows]
        if "bad" in prompts:
            raise ValueError("I don't say that")
        return [{"score": prompt} for prompt in prompts]

    run_here(tmp_path, pops, predicts=True)
    lines = scored(tmp_path)
    assert [line.get("score") for line in lines] == ["p0", "p1", "p2", "p3", None, "p5"]
    assert lines[4] == {"id": 4, "prompt": "bad", "error": "ValueError: I don't say that"}


# ---- chats and OpenAI's batch files ----

CHAT = [{"role": "user", "content": "hi"}]


def test_texts_in_parts_are_put_together_and_other_parts_are_bad_rows():
    def ask(prompt):
        return ask_of({"prompt": prompt}, "prompt", Sampling())

    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert ask([{"role": "user", "content": parts}]).prompt == [{"role": "user", "content": "a\nb"}]
    assert ask(CHAT).prompt == CHAT
    for wrong, why in (
        ([{"role": "user", "content": [{"type": "image_url"}]}], "other parts than texts"),
        ([{"role": "user", "content": None}], "is no text"),
        ([{"content": "a"}], "no message"),
        ([1, 2], "no message"),
        (["a", "b"], "list of texts"),
        ([], "no messages"),
        (" ", "empty"),
    ):
        assert why in ask(wrong).why


def test_openai_batches_are_answered_as_openai_does(tmp_path):
    lines = [{"custom_id": "a", "url": "/v1", "body": {"model": "m", "messages": CHAT}}]
    lines.append({"custom_id": "b", "body": {"model": "m", "prompt": "once"}})
    lines.append({"custom_id": "c", "body": {}})
    lines.append({"custom_id": 5, "body": "an email's text", "prompt": "hello"})
    write(tmp_path, *lines)
    given = [Answer("long", "length", 3, 4), Answer("text"), Answer("own")]
    run_here(tmp_path, lambda prompts: [given[len(prompt) // 4] for prompt in prompts])
    a, b, c, d = scored(tmp_path)
    assert a["custom_id"] == "a" and a["error"] is None and a["id"] != b["id"]
    body = a["response"]["body"]
    assert body["id"] and body["created"] > 1e9 and body["object"] == "chat.completion"
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "long"}
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    assert b["response"]["body"]["choices"][0]["text"] == "text"
    assert "usage" not in b["response"]["body"]
    assert c["response"] is None and "neither messages" in c["error"]["message"]
    assert d["prompt"] == "hello" and d["answer"] == "text"  # no line of OpenAI's


def test_a_body_says_how_it_is_sampled_and_what_is_not_there_is_refused():
    def ask(**body):
        row = {"custom_id": "a", "body": {"messages": CHAT} | body}
        return ask_of(row, "prompt", Sampling(seed=7))

    usual = {"n": 1, "stop": None, "tools": [], "stream": False, "user": "u", "model": "m"}
    assert ask(**usual) == Ask(CHAT, Sampling(seed=7))
    assert ask(max_tokens=5, temperature=1, top_p=0.5).sampling == Sampling(5, 1, 0.5, 7)
    assert ask(max_tokens=5, max_completion_tokens=6, seed=1).sampling == Sampling(6, seed=1)
    for name, value in (("n", 3), ("stop", ["x"]), ("tools", [{}]), ("logit_bias", {"1": 1})):
        assert f"body.{name} isn't supported" in ask(**{name: value}).why
    for name, value in (("max_tokens", 0), ("temperature", "hot"), ("top_p", 2), ("seed", True)):
        assert f"body.{name} is" in ask(**{name: value}).why
    assert "list of texts" in ask(messages=None, prompt=["a", "b"]).why


# ---- parquet that is written ----


def test_parts_as_parquet_have_the_same_rows(tmp_path):
    import pyarrow.parquet

    write_rows(tmp_path / "in.jsonl", 20)
    done = score(tmp_path, "--output-format", "parquet")
    assert done.returncode == 0, done.stderr
    parts = sorted((tmp_path / "out").glob("part-*.parquet"))
    rows = [row for part in parts for row in pyarrow.parquet.read_table(part).to_pylist()]
    assert len(parts) == 3 and rows == [
        {"id": i, "prompt": f"p{i}", "answer": f"P{i}"} for i in range(20)
    ]
    assert "'parquet', and now it is 'jsonl'" in score(tmp_path).stderr, "nothing is mixed"


def test_a_column_that_only_some_rows_have_is_null_in_the_others(tmp_path):
    import pyarrow.parquet
    from muster_score.files import write_parquet

    with (tmp_path / "part").open("wb") as file:
        write_parquet([b'{"a": 1}\n', b'{"a": null, "b": [0.5]}\n'], file)
    rows = pyarrow.parquet.read_table(tmp_path / "part").to_pylist()
    assert rows == [{"a": 1, "b": None}, {"a": None, "b": [0.5]}]


def test_rows_that_make_no_table_are_refused_with_the_reason(tmp_path):
    with (tmp_path / "in.jsonl").open("w") as file:
        file.write('{"prompt": "a", "x": 1}\n{"prompt": "b", "x": "one"}\n')
    done = score(tmp_path, "--output-format", "parquet")
    assert done.returncode == 2
    assert "--output-format parquet: a shard's rows make no table" in done.stderr
