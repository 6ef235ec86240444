"""muster_score: every row once, whoever dies when."""

import argparse
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest
from muster_score.__main__ import main
from muster_score.bad_rows import limit_of
from muster_score.engines import EngineDied
from muster_score.errors import AGAIN, WRONG
from muster_score.leases import Leases
from muster_score.worker import Pace
from score_helpers import (
    ENVIRONMENT,
    HERE,
    every_row_once,
    run_here,
    score,
    scored,
    words,
    write_rows,
)


def test_every_row_is_answered_in_its_order_and_told(tmp_path, agent):
    write_rows(tmp_path / "in.jsonl", 40)
    more = ["--shard-rows", "20", "--batch-size", "10"]
    done = score(tmp_path, *more, MUSTER_PROGRESS_SOCKET=str(agent.path), MUSTER_JOB="7_0")
    assert done.returncode == 0, done.stderr
    every_row_once(tmp_path, 40)
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert (manifest["rows"], manifest["bad_rows"], manifest["parts"]) == (40, 0, 2)
    told = agent.lines()
    assert {line["total_steps"] for line in told} == {40}
    # Before each batch, so that one that hangs is a job that reports nothing; and after each shard.
    assert [line["step"] for line in told] == [0, 10, 20, 20, 30, 40, 40, 40]
    assert told[-1]["bad_rows"] == 0 and "all 40 rows are scored" in done.stdout
    assert score(tmp_path).returncode == 0  # nothing is left to do


def test_several_processes_of_a_worker_are_refused(tmp_path, capsys, monkeypatch):
    write_rows(tmp_path / "in.jsonl", 4)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert main(words(tmp_path)) == 2
    assert "write processes_per_worker: 1 into the job" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_pace_is_of_the_last_minute():
    now_s = [0.0]
    pace = Pace(lambda: now_s[0])
    assert pace.of(500) == 0  # others' rows that were there before
    for now_s[0] in range(1, 101):
        found = pace.of(500 + 10 * now_s[0])
    assert found == 10
    for now_s[0] in range(101, 201):
        found = pace.of(1500 + 30 * (now_s[0] - 100))
    assert found == pytest.approx(30)
    now_s[0] = 1000
    assert pace.of(4500) == 0  # a batch that took long


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_death_at_any_of_its_writes_loses_no_row_and_doubles_none(tmp_path, when, monkeypatch):
    monkeypatch.setenv("MUSTER_JOB", "7_0")
    for count in range(1, 200):
        folder = tmp_path / str(count)
        folder.mkdir()
        write_rows(folder / "in.jsonl", 10)
        died = subprocess.run(
            [sys.executable, HERE / "dies.py", "muster_score", when, str(count), *words(folder)],
            env=ENVIRONMENT | {"MUSTER_JOB": "7_0"},
            timeout=60,
        ).returncode
        assert main(words(folder)) == 0
        every_row_once(folder, 10)
        left = [str(path) for path in (folder / "out").rglob(".*")]
        left += list((folder / "out/_muster_score/parts").iterdir())
        assert left == []
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


def test_more_bad_rows_than_allowed_fail_the_whole_and_may_be_kept_nevertheless(tmp_path, agent):
    prompts = ["ok", *["bad"] * 24, "ok", *["bad"] * 24]
    lines = [json.dumps({"id": i, "prompt": prompt}) for i, prompt in enumerate(prompts)]
    (tmp_path / "in.jsonl").write_text("".join(line + "\n" for line in lines))
    done = score(tmp_path, "--shard-rows", "25")
    assert done.returncode == WRONG, done.stderr
    assert "48 of 50 rows could not be scored, more than --max-bad-rows 50% allows" in done.stderr
    assert "I don't say that" in done.stderr and "--max-bad-rows 100%" in done.stderr
    assert len(scored(tmp_path)) == 50 and not (tmp_path / "out/manifest.json").exists()
    kept = score(
        tmp_path,
        "--shard-rows",
        "25",
        "--max-bad-rows",
        "48",
        MUSTER_PROGRESS_SOCKET=str(agent.path),
    )
    assert kept.returncode == 0, kept.stderr
    assert "48 of 50 rows could not be scored: error says why" in kept.stdout
    told = agent.lines()[-1]
    assert (told["step"], told["total_steps"], told["bad_rows"]) == (50, 50, 48)


def test_a_worker_stops_once_its_own_rows_are_more_than_are_allowed(tmp_path):
    prompts = ["ok", *["bad"] * 13, *["ok"] * 14]
    lines = [json.dumps({"id": i, "prompt": prompt}) for i, prompt in enumerate(prompts)]
    (tmp_path / "in.jsonl").write_text("".join(line + "\n" for line in lines))
    done = score(tmp_path, "--max-bad-rows", "5")
    assert done.returncode == WRONG
    assert any(f"{bad} of 28 rows" in done.stderr for bad in (6, 7)), done.stderr


def test_limits_are_of_rows_or_of_a_hundred():
    cases = [("0", 1, 9, True), ("0", 0, 9, False), ("2", 2, 9, False), ("50%", 5, 10, False)]
    cases += [("50%", 6, 10, True), ("0%", 1, 10, True), ("100%", 10, 10, False)]
    for text, bad, total, exceeded in cases:
        assert limit_of(text).exceeded(bad, total) == exceeded, (text, bad, total)
    for text in ("", "-1", "50.5%", "101%", "%", "many"):
        with pytest.raises(argparse.ArgumentTypeError):
            limit_of(text)


def test_what_no_other_try_makes_better_ends_with_another_code(tmp_path, capsys):
    for number, (more, code, says) in enumerate(
        (
            (
                ["--engine", "transformers", "--model", "/nowhere/sft"],
                WRONG,
                "there is no such directory",
            ),
            (["--engine", "no_such_module:Engine"], WRONG, "Is its directory in PYTHONPATH?"),
            (["--engine-options", '{"no": "such"}'], WRONG, "can't be made: TypeError"),
            (["--engine", "score_engines:Unable"], AGAIN, "CUDA error"),
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_rows(folder / "in.jsonl", 7)
        assert main(words(folder, *more)) == code, more
        assert says in capsys.readouterr().err


def test_an_engine_that_died_costs_a_shard_and_no_rows(tmp_path):
    write_rows(tmp_path / "in.jsonl", 20)
    done = score(tmp_path, "--engine", "score_engines:Dead")
    assert done.returncode == AGAIN and "device-side assert" in done.stderr
    assert scored(tmp_path) == []
    one_by_one = tmp_path / "one"
    one_by_one.mkdir()
    write_rows(one_by_one / "in.jsonl", 200)
    died = score(
        one_by_one, "--engine", "score_engines:Dead", "--batch-size", "1", "--shard-rows", "200"
    )
    assert died.returncode == AGAIN and scored(one_by_one) == []


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
