"""muster_score: who is to blame, the row, the engine, or another worker; and what never happens whoever it is."""

import json
import os
import threading
import time
from pathlib import Path

import muster_runtime
import pytest
from muster_score import files, leases, outputs
from muster_score.__main__ import main, owner_of
from muster_score.engines import EngineDied
from muster_score.errors import AGAIN
from muster_score.inputs import InputError
from muster_score.leases import Leases
from muster_score.plan import Options, make_plan
from muster_score.prompts import Sampling
from muster_score.stopping import Stopped
from muster_score.worker import Worker
from score_helpers import every_row_once, run_here, score, scored, words, write_rows


def write_prompts(folder: Path, *prompts: str) -> None:
    lines = [json.dumps({"id": i, "prompt": prompt}) for i, prompt in enumerate(prompts)]
    (folder / "in.jsonl").write_text("".join(line + "\n" for line in lines))


def picky(prompts):
    return [prompt.upper() if prompt[:3] != "bad" else 1 // 0 for prompt in prompts]


def same(prompts):
    return prompts


def errors(folder: Path) -> list[bool]:
    return ["error" in line for line in scored(folder)]


# ---- the row or the engine ----


@pytest.mark.parametrize("count", [12, 30])
def test_an_engine_that_dies_while_rows_are_asked_one_by_one_makes_no_bad_rows(tmp_path, count):
    write_prompts(tmp_path, *("bad" if i == 6 else f"p{i:02}" for i in range(count)))
    dead = False

    def dies(prompts):
        nonlocal dead
        if dead:
            raise RuntimeError("it is gone")
        if "bad" in prompts:
            raise ValueError("I don't say that")
        dead = "p08" in prompts
        return [prompt.upper() for prompt in prompts]

    how = {"shard_rows": 12, "batch_size": 6}
    with pytest.raises(EngineDied, match="answered before.*it is gone"):
        run_here(tmp_path, dies, **how)
    assert not any(errors(tmp_path))
    run_here(tmp_path, picky, **how)
    assert errors(tmp_path) == [i == 6 for i in range(count)]


def test_a_bad_row_at_a_batchs_end_does_no_harm(tmp_path):
    write_prompts(tmp_path, "a", "b", "bad", "c", "d", "bad")
    run_here(tmp_path, picky)
    assert errors(tmp_path) == [False, False, True] * 2


def test_bad_rows_at_the_beginning_of_the_only_shard_are_kept(tmp_path):
    write_prompts(tmp_path, *["bad"] * 8, *["ok"] * 12)
    run_here(tmp_path, picky, shard_rows=100)
    assert errors(tmp_path) == [True] * 8 + [False] * 12


def test_a_worker_that_finds_only_bad_shards_left_knows_what_worked_before(tmp_path):
    write_prompts(tmp_path, *["bad"] * 14, *["ok"] * 7)

    class Killed(BaseException):
        pass

    def killed_at_the_first(prompts):
        if prompts[0] == "bad" and (tmp_path / "out/part-00000002.jsonl").exists():
            raise Killed
        return picky(prompts)

    with pytest.raises(Killed):
        run_here(tmp_path, killed_at_the_first, owner="b")
    assert errors(tmp_path) == [False] * 7
    with pytest.raises(EngineDied):  # it knows what to ask such an engine, too
        run_here(tmp_path, lambda prompts: 1 // 0, owner="b")
    run_here(tmp_path, picky, owner="b")
    assert errors(tmp_path) == [True] * 14 + [False] * 7


def test_an_engine_that_never_works_costs_three_shards(tmp_path):
    write_rows(tmp_path / "in.jsonl", 700)
    calls = []

    def dead(prompts):
        calls.append(prompts)
        raise RuntimeError("device-side assert")

    with pytest.raises(EngineDied, match="no row works at all.*device-side"):
        run_here(tmp_path, dead)
    assert len({prompt for prompts in calls for prompt in prompts}) == 21
    assert scored(tmp_path) == []


def test_rows_without_a_prompt_put_off_shards_until_a_row_has_one(tmp_path):
    lines = [{"id": i} for i in range(35)] + [{"id": 35, "prompt": "a"}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run_here(tmp_path, same, owner="b")
    assert errors(tmp_path) == [True] * 35 + [False]


def test_an_engine_that_exits_ends_no_worker_in_peace(tmp_path):
    write_rows(tmp_path / "in.jsonl", 7)
    assert main(words(tmp_path, "--engine", "score_engines:Leaves")) == AGAIN

    def leaves(prompts):
        raise SystemExit(0)

    with pytest.raises(EngineDied, match="sys.exit"):
        run_here(tmp_path, leaves, output=f"{tmp_path}/other")


def test_a_plan_is_made_before_a_model_is_loaded_and_the_end_needs_none(tmp_path):
    engine = ["--engine", "score_engines:Leaves"]
    assert main(words(tmp_path, *engine)) == 2  # there is no input
    write_rows(tmp_path / "in.jsonl", 7)
    assert main(words(tmp_path)) == 0
    (tmp_path / "out/_muster_score/.plan.json.h01.7.1").write_text("left")
    assert main(words(tmp_path)) == 0
    assert not list((tmp_path / "out").rglob(".*"))


# ---- a row that kills ----


@pytest.mark.parametrize(("kind", "code"), [("kill", -9), ("assert", AGAIN)])
def test_a_row_that_kills_its_process_again_and_again_is_a_bad_row(tmp_path, kind, code):
    write_prompts(tmp_path, "p0", "p1", "p2", f"{kind} 3", "p4", "p5")
    how = ["--engine", "score_engines:Deadly", "--batch-size", "1"]
    ends = []
    while not ends or ends[-1] != 0:
        ends.append(score(tmp_path, *how, MUSTER_JOB="7_0").returncode)
        assert len(ends) <= 5
    assert ends == [code] * (leases.CAREFUL_AFTER + leases.DEADLY) + [0]
    assert errors(tmp_path) == [False] * 3 + [True] + [False] * 2


def lease_after(folder: Path, rows: list) -> leases.Lease:
    """Of a shard whose workers died with these rows in hand."""
    for row in rows:
        own = Leases(folder, "1", 60)
        lease = own.take(5)
        if lease.careful:
            own.hold(lease, row)
    return Leases(folder, "1", 60).take(5)


def test_a_row_is_to_blame_only_for_two_deaths_and_a_shard_given_back_for_none(tmp_path):
    for name, rows, careful, deadly in (
        ("a", [3], False, False),
        ("b", [3, 3], True, False),
        ("c", [3, 3, 3], True, False),
        ("d", [3, 3, 3, 4], True, False),
        ("e", [3, 3, 3, 4, 3], True, True),
    ):
        (tmp_path / name).mkdir()
        lease = lease_after(tmp_path / name, rows)
        assert (lease.careful, lease.deadly(3)) == (careful, deadly), name
    (tmp_path / "f").mkdir()
    own = Leases(tmp_path / "f", "1", 60)
    for _ in range(9):
        own.give_back(own.take(5))
    assert not own.take(5).careful
    for _ in range(2):
        own.give_back(own.take(5), died=True)  # the lease just taken was lost: that counts once
    assert own.take(5).deaths == 3


def test_an_engine_that_is_broken_from_the_start_blames_no_row(tmp_path):
    write_prompts(tmp_path, *(f"p{i}" for i in range(6)))
    how = {"shard_rows": 3, "batch_size": 3}

    def works(times):
        left = [None] * times

        def answers(prompts):
            if not left:
                raise RuntimeError("device-side assert")
            left.pop()
            return picky(prompts)

        return answers

    for times in (1, 0, 0, 0, 0, 0):
        with pytest.raises(EngineDied):
            run_here(tmp_path, works(times), **how)
    run_here(tmp_path, picky, **how)
    assert errors(tmp_path) == [False] * 6


def test_a_stop_that_reaches_the_engines_own_processes_first_is_no_death_of_the_shard(
    tmp_path, monkeypatch
):
    write_prompts(tmp_path, *(f"p{i}" for i in range(6)))
    told, answered = [], []
    monkeypatch.setattr(muster_runtime, "should_stop", lambda: bool(told))

    def stopped(prompts):
        if not answered:
            answered.append(prompts)
            return prompts
        told.append(1)
        raise RuntimeError("a process of mine was ended")

    for _ in range(3):
        told.clear()
        answered.clear()
        with pytest.raises(Stopped):
            run_here(tmp_path, stopped, shard_rows=6, batch_size=3)
    told.clear()
    folder = next((tmp_path / "out").rglob("leases"))
    assert not Leases(folder, "1", 60).take(0).careful


# ---- another worker ----


def test_of_two_that_publish_a_part_the_second_replaces_nothing(tmp_path):
    target, won, ready = tmp_path / "part", [], threading.Barrier(8)

    def race(i):
        written = tmp_path / f"written-{i}"
        written.write_text(str(i))
        ready.wait()
        if files.publish(written, target):
            won.append(i)

    for _ in range(20):
        racing = [threading.Thread(target=race, args=(i,)) for i in range(8)]
        for one in racing:
            one.start()
        for one in racing:
            one.join()
        assert len(won) == 1 and target.read_text() == str(won.pop())
        assert list(tmp_path.iterdir()) == [target]
        target.unlink()


def slow_beside(folder: Path, engine, **options) -> None:
    """A worker that is silent amid its first batch while another takes over and finishes."""
    began = []

    def stalls(prompts):
        if not began:
            began.append(prompts)
            run_here(folder, engine, owner="other", lease_s=1e-9)
        return engine(prompts)

    run_here(folder, stalls, owner="slow", **options)


def test_a_worker_that_stalls_while_another_finishes_all_ends_in_peace(tmp_path, monkeypatch):
    write_prompts(tmp_path, *(["a", "bad", "c"] * 6))
    slow_beside(tmp_path, picky)
    assert errors(tmp_path) == [False, True, False] * 6
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert manifest["bad_rows"] == 6  # counted once, of the parts that are there


def test_so_does_one_whose_file_was_tidied_up_when_it_was_written(tmp_path, monkeypatch):
    write_prompts(tmp_path, *(["a", "bad", "c"] * 6))
    identity = outputs.identity

    def late(path):
        monkeypatch.setattr(outputs, "identity", identity)
        run_here(tmp_path, picky, owner="other", lease_s=1e-9)
        return identity(path)

    monkeypatch.setattr(outputs, "identity", late)
    run_here(tmp_path, picky, owner="slow")
    assert errors(tmp_path) == [False, True, False] * 6


def test_bad_rows_are_counted_of_the_part_that_is_there(tmp_path):
    """The loser of a race counted otherwise, and its file is gone: the winner's may have its inode."""
    write_prompts(tmp_path, "a", "bad", "c")

    def loses(prompts):
        (tmp_path / "out/part-00000000.jsonl").write_text('{"id": 0, "prompt": "a"}\n')
        return picky(prompts)

    run_here(tmp_path, loses)
    assert scored(tmp_path) == [{"id": 0, "prompt": "a"}]
    assert len(list((tmp_path / "out/_muster_score/bad").iterdir())) == 1
    assert json.loads((tmp_path / "out/manifest.json").read_text())["bad_rows"] == 0
    part = tmp_path / "part"
    part.write_text("1")
    before = outputs.identity(part)
    part.unlink()
    part.write_text("2")
    assert outputs.identity(part) != before  # though the inode may be the same


def test_leases_are_renewed_whatever_the_file_server_says(tmp_path, monkeypatch):
    write_rows(tmp_path / "in.jsonl", 7)
    renewed = threading.Event()
    renew, calls, beats = Leases.renew, [], []

    def stale_at_first(self, lease):
        calls.append(lease)
        if len(calls) == 1:
            raise OSError(116, "Stale file handle")
        renew(self, lease)
        renewed.set()

    monkeypatch.setattr(Leases, "renew", stale_at_first)

    def waits(prompts):
        if not beats:
            renewed.wait(5)
            lease = next((tmp_path / "out/_muster_score/leases").iterdir())
            beats.append(json.loads(lease.read_text())["beat"])
        return [prompt.upper() for prompt in prompts]

    run_here(tmp_path, waits, lease_s=0.1)
    assert beats[0] >= 1
    every_row_once(tmp_path, 7)
    assert not list((tmp_path / "out/_muster_score/leases").iterdir())  # forgotten


def test_jobs_of_one_number_in_two_clusters_are_two_owners():
    first = owner_of({"MUSTER_JOB": "7_0", "MUSTER_JOB_DIR": "/a/7"})
    assert first == owner_of({"MUSTER_JOB": "7_0", "MUSTER_JOB_DIR": "/a/7"})
    assert first != owner_of({"MUSTER_JOB": "7_0", "MUSTER_JOB_DIR": "/b/7"})
    assert owner_of({}) != owner_of({"MUSTER_JOB": "7_0"})


def test_bad_rows_fail_ends_the_job_only_once_the_engine_is_known_to_work(tmp_path):
    write_prompts(tmp_path, "bad", "a", "b")
    with pytest.raises(InputError, match="--bad-rows keep"):
        run_here(tmp_path, picky, keep_bad_rows=False, batch_size=1)
    with pytest.raises(EngineDied):
        run_here(tmp_path, lambda prompts: 1 // 0, keep_bad_rows=False, output=f"{tmp_path}/b")


# ---- a worker that is stopped ----


def test_a_stop_is_heard_amid_a_shard_which_is_free_at_once_and_has_no_death(tmp_path, monkeypatch):
    write_rows(tmp_path / "in.jsonl", 7)
    asked = []
    monkeypatch.setattr(muster_runtime, "should_stop", lambda: len(asked) > 0)

    def answers(prompts):
        asked.extend(prompts)
        return prompts

    with pytest.raises(Stopped):
        run_here(tmp_path, answers)
    assert len(asked) == 3, "the batch in hand"
    lease = Leases(tmp_path / "out/_muster_score/leases", "other", 60).take(0)
    assert lease is not None and lease.deaths == 0


def test_who_works_keeps_its_shard_however_long_a_batch_takes(tmp_path):
    write_rows(tmp_path / "in.jsonl", 7)
    lease_s, taken = 1.0, []

    def long(prompts):
        other = Leases(tmp_path / "out/_muster_score/leases", "other", lease_s)
        end_s = time.monotonic() + 2.5 * lease_s
        while time.monotonic() < end_s:
            taken.append(other.take(0))
            time.sleep(0.05)
        return prompts

    run_here(tmp_path, long, lease_s=lease_s, batch_size=7)
    assert len(taken) > 5 and not any(taken)


# ---- what is on disk ----


class Killed(BaseException):
    pass


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_death_as_a_part_appears_loses_no_count_of_its_bad_rows(tmp_path, monkeypatch, when):
    write_prompts(tmp_path, "a", "bad", "c")
    link = os.link

    def dies(source, target):
        if Path(target).name.startswith("part-"):
            if when == "after":
                link(source, target)
            raise Killed
        link(source, target)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(os, "link", dies)
        run_here(tmp_path, picky)
    assert len(scored(tmp_path)) == (3 if when == "after" else 0)
    run_here(tmp_path, picky)
    assert errors(tmp_path) == [False, True, False]
    assert json.loads((tmp_path / "out/manifest.json").read_text())["bad_rows"] == 1


def test_parts_plan_and_manifest_get_their_names_once_they_are_on_disk(tmp_path, monkeypatch):
    write_prompts(tmp_path, "a", "bad", "c")
    synced, named = set(), set()
    sync, link = os.fsync, os.link

    def syncs(file):
        sync(file)
        synced.add(os.fstat(file).st_ino)

    def links(source, target):
        if os.stat(source).st_ino in synced:
            named.add(Path(target))
        link(source, target)

    monkeypatch.setattr(os, "fsync", syncs)
    monkeypatch.setattr(os, "link", links)
    run_here(tmp_path, picky)
    out = tmp_path / "out"
    wanted = [out / "part-00000000.jsonl", out / "manifest.json", out / "_muster_score/plan.json"]
    assert [path for path in wanted if path not in named] == []


# ---- seeds ----


def seeds(folder: Path, seed: int) -> list[int]:
    """Of the rows, in their order, as the engine is given them."""
    options = Options(f"{folder}/in*", f"{folder}/out-{seed}", shard_rows=3, batch_size=2)
    options.sampling = Sampling(seed=seed)
    found = {}

    def answers(asks):
        found.update({int(ask.prompt[1:]): ask.sampling.seed for ask in asks})
        return [ask.prompt for ask in asks]

    Worker(options, make_plan(options), answers, False, "1").run()
    return [found[row] for row in sorted(found)]


def test_each_row_has_a_seed_of_its_own_which_follows_from_the_jobs(tmp_path):
    write_rows(tmp_path / "in.jsonl", 7)
    first, other = seeds(tmp_path, 0), seeds(tmp_path, 1)
    assert len(set(first + other)) == 14, "of each row, and of another --seed"
    for path in tmp_path.glob("out-0/part-*"):
        path.unlink()
    (tmp_path / "out-0/manifest.json").unlink()
    assert seeds(tmp_path, 0) == first
