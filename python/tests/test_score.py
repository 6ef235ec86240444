"""muster_score: every row once, whoever dies when."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from muster_score.engines import EngineDied, answer_all  # noqa: E402
from muster_score.inputs import BadRow, InputError, rows_of, shards_of  # noqa: E402
from muster_score.leases import Leases  # noqa: E402
from muster_score.worker import Options, Worker  # noqa: E402

ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{HERE}:{HERE.parent}"}


def write_rows(path: Path, count: int) -> None:
    path.write_text("".join(f'{{"id": {i}, "prompt": "p{i}"}}\n' for i in range(count)))


def words(folder: Path, *more: str) -> list[str]:
    # fmt: off
    return ["--input", f"{folder}/in*.jsonl", "--output", f"{folder}/out", "--engine", "score_engines:Shout",
            "--shard-rows", "7", "--batch-size", "3", *more]
    # fmt: on


def score(folder: Path, *more: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "muster_score", *words(folder, *more)],
        env=ENVIRONMENT | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def scored(folder: Path) -> list[dict]:
    lines = []
    for part in sorted((folder / "out").glob("part-*.jsonl")):
        lines += map(json.loads, part.read_text().splitlines())
    return lines


def every_row_once(folder: Path, count: int) -> None:
    lines = scored(folder)
    assert [line["id"] for line in lines] == list(range(count))
    assert all(line["answer"] == f"P{line['id']}" for line in lines)


def run_here(folder: Path, engine, owner: str = "1", **options) -> Worker:
    given = Options(f"{folder}/in*", f"{folder}/out", shard_rows=7, batch_size=3, **options)
    worker = Worker(given, engine, predicts=False, owner=owner)
    worker.run()
    return worker


def test_every_row_is_answered_in_its_order_and_told(tmp_path, agent):
    write_rows(tmp_path / "in.jsonl", 40)
    done = score(tmp_path, MUSTER_PROGRESS_SOCKET=str(agent.path), MUSTER_JOB="7_0")
    assert done.returncode == 0, done.stderr
    every_row_once(tmp_path, 40)
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert (manifest["rows"], manifest["bad_rows"], manifest["parts"]) == (40, 0, 6)
    told = agent.lines()[-1]
    assert (told["step"], told["total_steps"]) == (40, 40)
    assert score(tmp_path).returncode == 0  # nothing is left to do


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_death_at_any_of_its_writes_loses_no_row_and_doubles_none(tmp_path, when):
    for count in range(1, 200):
        folder = tmp_path / str(count)
        folder.mkdir()
        write_rows(folder / "in.jsonl", 10)
        died = subprocess.run(
            [sys.executable, HERE / "score_dies.py", when, str(count), *words(folder)],
            env=ENVIRONMENT | {"MUSTER_JOB": "7_0"},
            timeout=60,
        ).returncode
        log = folder / "log"
        again = score(folder, MUSTER_JOB="7_0", SHOUT_LOG=str(log))
        assert again.returncode == 0, again.stderr
        every_row_once(folder, 10)
        if died == 0:
            assert count > 10
            return
        assert died == 99
    raise AssertionError("it never came to its end")


def test_killed_and_stopped_again_and_again_three_workers_score_every_row_once(tmp_path):
    count, log = 600, tmp_path / "log"
    write_rows(tmp_path / "in.jsonl", count)
    dice = random.Random(1)
    workers: dict[str, subprocess.Popen] = {}
    hits = Counter()
    while True:
        for name in ("7_0", "7_1", "7_2"):
            worker = workers.get(name)
            if worker is None or (worker.poll() or 0) in (-signal.SIGKILL, -signal.SIGTERM, 143):
                if worker is not None and worker.poll() is None:
                    continue
                # fmt: off
                workers[name] = subprocess.Popen(
                    [sys.executable, "-m", "muster_score", *words(tmp_path, "--lease", "2")],
                    env=ENVIRONMENT | {"MUSTER_JOB": name, "SHOUT_S": "0.02", "SHOUT_LOG": str(log), "MUSTER_PROGRESS_SOCKET": "/nowhere"},
                    stderr=subprocess.DEVNULL)
                # fmt: on
        if all(worker.poll() == 0 for worker in workers.values()):
            break
        assert not any(worker.poll() not in (None, 0, -9, -15, 143) for worker in workers.values())
        if hits.total() < 12 and log.exists():
            name, hit = dice.choice(list(workers)), dice.choice([signal.SIGKILL, signal.SIGTERM])
            time.sleep(dice.random() * 0.3)
            if workers[name].poll() is None:
                workers[name].send_signal(hit)
                workers[name].wait(20)
                hits[hit] += 1
        else:
            time.sleep(0.05)
    every_row_once(tmp_path, count)
    assert hits.total() >= 6
    # What was done again is less than a shard each time.
    assert len(log.read_text().splitlines()) - count <= hits.total() * 7


def test_a_shard_is_taken_over_from_who_is_silent_and_from_nobody_else(tmp_path):
    now = [100.0]
    first, second = (
        Leases(tmp_path, owner, lease_s=60, clock=lambda: now[0]) for owner in ("1", "2")
    )
    lease = first.take(5)
    assert lease is not None and second.take(5) is None
    for _ in range(10):
        now[0] += 30
        first.renew(lease)
        assert second.take(5) is None
    now[0] += 59
    assert second.take(5) is None
    now[0] += 2
    taken = second.take(5)
    assert taken is not None and taken != lease
    now[0] += 1000
    assert first.take(5) is None  # seen for the first time
    assert second.take(5) is not None  # its own: of an attempt before
    second.give_back(second.take(5))
    assert first.take(5) is not None


def test_a_bad_row_costs_itself_alone_and_is_counted(tmp_path):
    write_rows(tmp_path / "in1.jsonl", 20)
    with (tmp_path / "in2.jsonl").open("w") as file:
        file.write(
            '{"id": 20, "prompt": "bad"}\n{"id": 21}\n[1]\n{"id": 2\n{"id": 24, "prompt": ""}\n'
        )
    assert score(tmp_path).returncode == 0
    lines = scored(tmp_path)
    assert len(lines) == 25
    assert [line.get("error", "")[:20] for line in lines[20:]] == [
        "ValueError: I don't ",
        "KeyError: 'prompt'",
        "the line is no JSON ",
        "the line can't be re",
        "",
    ]
    assert json.loads((tmp_path / "out/manifest.json").read_text())["bad_rows"] == 4
    other = tmp_path / "other"
    other.mkdir()
    (other / "in.jsonl").write_text('{"id": 0, "prompt": "a"}\n{"id": 1, "prompt": "bad"}\n')
    done = score(other, "--bad-rows", "fail", "--batch-size", "1")
    assert done.returncode == 2 and "I don't say that" in done.stderr


def test_an_engine_that_died_costs_a_shard_and_no_rows(tmp_path):
    write_rows(tmp_path / "in.jsonl", 20)
    done = score(tmp_path, "--engine", "score_engines:Dead")
    assert done.returncode == 1 and "device-side assert" in done.stderr
    assert scored(tmp_path) == []
    one_by_one = tmp_path / "one"
    one_by_one.mkdir()
    write_rows(one_by_one / "in.jsonl", 200)
    died = score(
        one_by_one, "--engine", "score_engines:Dead", "--batch-size", "1", "--shard-rows", "200"
    )
    assert died.returncode == 1 and scored(one_by_one) == []


@pytest.mark.parametrize(
    ("answers", "wanted"),
    [
        (lambda batch: [x + 1 for x in batch], [2, 3]),
        (lambda batch: batch[:1], [1, 2]),  # too few for both, enough for one
        (lambda batch: [1 // (x - 1) for x in batch], [ZeroDivisionError, 1]),
    ],
)
def test_what_fails_as_a_batch_is_asked_one_by_one(answers, wanted):
    found = answer_all(answers, [1, 2])
    assert [type(x) if isinstance(x, Exception) else x for x in found] == wanted


def test_an_engine_that_dies_in_the_midst_leaves_no_bad_rows(tmp_path):
    write_rows(tmp_path / "in.jsonl", 40)
    asked = 0

    def dies(prompts):
        nonlocal asked
        asked += len(prompts)
        if asked > 20:
            raise RuntimeError("CUDA error")
        return prompts

    with pytest.raises(EngineDied, match="answered before"):
        run_here(tmp_path, dies)
    assert 0 < len(scored(tmp_path)) <= 20
    assert not any("error" in line for line in scored(tmp_path))
    run_here(tmp_path, lambda prompts: prompts)
    assert [line["id"] for line in scored(tmp_path)] == list(range(40))


def test_shards_of_bad_rows_alone_wait_until_something_works(tmp_path):
    lines = [{"id": i, "prompt": "bad" if i < 14 else "good"} for i in range(21)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def picky(prompts):
        return [1 // (prompt != "bad") for prompt in prompts]

    run_here(tmp_path, picky, owner="b")
    assert ["error" in line for line in scored(tmp_path)] == [True] * 14 + [False] * 7


def test_openai_batches_are_answered_as_openai_does(tmp_path):
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    lines = [{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}]
    lines.append({"custom_id": "b", "body": {"model": "m", "prompt": "once"}})
    lines.append({"custom_id": "c", "body": {}})
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run_here(tmp_path, lambda prompts: [f"{len(prompt)}!" for prompt in prompts])
    a, b, c = scored(tmp_path)
    assert a["custom_id"] == "a" and a["error"] is None
    assert a["response"]["body"]["choices"][0]["message"]["content"] == "1!"
    assert b["response"]["body"]["choices"][0]["text"] == "4!"
    assert c["response"] is None and "neither messages" in c["error"]["message"]


def test_another_input_or_other_settings_are_refused(tmp_path):
    write_rows(tmp_path / "in.jsonl", 20)
    run_here(tmp_path, lambda prompts: prompts)
    with pytest.raises(InputError, match="were made with"):
        run_here(tmp_path, lambda prompts: prompts, settings={"temperature": 1})
    write_rows(tmp_path / "in.jsonl", 21)
    with pytest.raises(InputError, match="another input"):
        run_here(tmp_path, lambda prompts: prompts)
    with pytest.raises(InputError, match="no such file"):
        run_here(tmp_path / "nowhere", lambda prompts: prompts)


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
    shards = shards_of([str(path)], rows)
    assert sum(shard.rows for shard in shards) == 10
    found = [row for shard in shards for row in rows_of(shard)]
    assert not any(isinstance(row, BadRow) for row in found)
    assert [row["text"] for row in found] == [str(i) for i in range(10)]


def test_transformers_answers_as_its_own_loop_does(tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from muster_score.engines import Sampling, Transformers
    from score_model import make_model

    folder = make_model(tmp_path / "model")
    engine = Transformers(str(folder), Sampling(max_tokens=8))
    prompts = ["a b", "c", "d a b c"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    alone = []
    for prompt in prompts:
        given = tokenizer(prompt, return_tensors="pt")
        with torch.inference_mode():
            tokens = model.generate(**given, max_new_tokens=8, do_sample=False, pad_token_id=0)
        answer = tokens[0, given["input_ids"].shape[1] :]
        alone.append(tokenizer.decode(answer, skip_special_tokens=True))
    assert engine(prompts) == alone
    assert len(set(alone)) > 1
