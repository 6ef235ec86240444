"""muster_runtime without any framework."""

import ast
import errno
import math
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import muster_runtime
import pytest
from muster_runtime.reports import Reports

PACKAGE = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """As a process that has just started, with none of Muster's variables."""
    for name in [name for name in os.environ if name.startswith("MUSTER_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(muster_runtime, "_channel", None)
    monkeypatch.setattr(muster_runtime, "_saved_at", None)
    monkeypatch.setattr(muster_runtime, "_watching", False)
    monkeypatch.setattr(muster_runtime, "_reported_at", -math.inf)
    monkeypatch.setattr(muster_runtime, "_figures_at", -math.inf)
    muster_runtime._stopped.clear()
    before = signal.signal(
        signal.SIGTERM, signal.SIG_DFL
    )  # another file's tests may have changed it
    yield
    signal.signal(signal.SIGTERM, before)


def said(agent) -> list[dict]:
    """All that was reported until now."""
    muster_runtime._reports.flush()
    return agent.lines()


def test_where_muster_runs_nothing_every_call_works(tmp_path):
    muster_runtime.report(3, total_steps=9, loss=1.5)
    muster_runtime.checkpoint(tmp_path, 3)
    assert muster_runtime.newest(lambda path: 1) is None
    assert muster_runtime.checkpoint_directory("here") == "here"
    assert muster_runtime.decide() == (False, False)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, "Ctrl+C and kill work as ever"


def test_a_report_leaves_out_what_is_not_a_number(agent, monkeypatch):
    monkeypatch.setenv("MUSTER_PROGRESS_SOCKET", str(agent.path))
    muster_runtime.report(3, total_steps=9, loss=float("nan"), grad_norm=0.5)
    muster_runtime.own_time(3, 0.25)
    assert said(agent) == [
        {"rank": 0, "step": 3, "total_steps": 9, "grad_norm": 0.5},
        {"rank": 0, "step": 3, "own_time_s": 0.25},
    ]


def test_what_is_logged_under_a_name_of_the_line_is_not_told(agent, monkeypatch):
    monkeypatch.setenv("MUSTER_PROGRESS_SOCKET", str(agent.path))
    reserved = ["step", "total_steps", "rank", "checkpoint", "loaded", "export", "own_time_s"]
    logged = {"loss": 1.5, "acc": 0.5, "note": "x"} | dict.fromkeys(reserved, 7.0)
    muster_runtime.report_logged(3, 9, logged)
    muster_runtime.report(4, rank=7, export=1)
    assert said(agent) == [
        {"rank": 0, "step": 3, "total_steps": 9, "loss": 1.5, "acc": 0.5},
        {"rank": 0, "step": 4},
    ]


def test_a_line_that_is_too_long_goes_without_what_muster_does_not_know(agent, monkeypatch):
    monkeypatch.setenv("MUSTER_PROGRESS_SOCKET", str(agent.path))
    logged = {f"val/metric_of_some_name_{i:03}": i / 7 for i in range(200)}
    muster_runtime.report_logged(3, 9, logged | {"loss": 0.5, "grad_norm": 2.0})
    assert said(agent) == [{"rank": 0, "step": 3, "total_steps": 9, "loss": 0.5, "grad_norm": 2.0}]


def test_what_is_no_number_is_told_however_many_figures_there_are(agent, monkeypatch):
    monkeypatch.setenv("MUSTER_PROGRESS_SOCKET", str(agent.path))
    monkeypatch.setenv("MUSTER_TRIAL", "1")
    logged = {f"val/metric_of_some_name_{i:03}": float("nan") for i in range(400)}
    muster_runtime.report_logged(3, 9, logged | {"loss": float("nan")})
    muster_runtime.report_logged(4, 9, {"loss": 0.5})
    first, second = said(agent)
    assert first["step"] == 3 and first["not_finite"][0] == "loss"
    assert 1 < len(first["not_finite"]) < 400
    assert second["loss"] == 0.5, "a line that is too long keeps none behind it back"


def test_an_agent_that_is_away_ends_no_training(agent, monkeypatch):
    monkeypatch.setenv("MUSTER_PROGRESS_SOCKET", str(agent.path) + ".gone")
    muster_runtime.report(1)
    assert said(agent) == []
    monkeypatch.setenv("MUSTER_PROGRESS_SOCKET", str(agent.path))
    for step in range(10_000):  # nobody reads: the socket is full soon
        muster_runtime.report(step, loss=1.0)
    assert 0 < len(said(agent)) < 100


def test_a_process_that_may_open_no_more_files_reports_nothing_until_it_may(
    agent, monkeypatch, tmp_path
):
    monkeypatch.setenv("MUSTER_PROGRESS_SOCKET", str(agent.path))

    folder = tmp_path / "step-1"
    folder.mkdir()

    def full(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(socket, "socket", full)
        muster_runtime.report(1, loss=1.0)
        muster_runtime._reports.flush()
        muster_runtime.checkpoint(folder, 1)
    muster_runtime.report(2, loss=1.0)
    assert [line["step"] for line in said(agent)] == [2]


def test_steps_without_figures_are_told_ten_times_a_second_and_at_the_end(agent, monkeypatch):
    monkeypatch.setenv("MUSTER_PROGRESS_SOCKET", str(agent.path))
    now_s = [100.0]
    monkeypatch.setattr(muster_runtime.time, "monotonic", lambda: now_s[0])
    for step in range(1, 41):
        now_s[0] += 0.011
        muster_runtime.report(step, total_steps=40, loss=1.0 if step == 15 else None)
    assert [line["step"] for line in said(agent)] == [1, 11, 15, 25, 35, 40]


class Slow:
    """A figure that takes time to read."""

    read = 0

    def __init__(self, value: float):
        self.value = value

    def __float__(self):
        Slow.read += 1
        return self.value


@pytest.mark.parametrize(
    "reports, lines, read",
    [
        ("each", [(step, step / 8) for step in range(1, 9)], 8),
        # The loss of step 1 is half a second old at step 6, and the last step's is always read.
        ("newest", [(8, 1.0)], 3),
    ],
)
def test_where_the_newest_counts_reports_go_as_one(agent, monkeypatch, reports, lines, read):
    monkeypatch.setenv("MUSTER_PROGRESS_SOCKET", str(agent.path))
    monkeypatch.setenv("MUSTER_REPORTS", reports)
    monkeypatch.setattr(Slow, "read", 0)
    now_s = [100.0]
    monkeypatch.setattr(muster_runtime.time, "monotonic", lambda: now_s[0])
    with muster_runtime._reports._sending:  # so that all of them wait together
        for step in range(1, 9):
            muster_runtime.report(step, total_steps=8, loss=Slow(step / 8))
            now_s[0] += 0.11
    assert [(line["step"], line["loss"]) for line in said(agent)] == lines
    assert Slow.read == read


def test_reports_that_go_as_one_have_the_newest_of_each_figure(agent, monkeypatch):
    monkeypatch.setenv("MUSTER_PROGRESS_SOCKET", str(agent.path))
    monkeypatch.setenv("MUSTER_REPORTS", "newest")
    with muster_runtime._reports._sending:
        muster_runtime.report(1, total_steps=9, loss=1.5, grad_norm=0.5)
        muster_runtime.own_time(1, 0.25)
        muster_runtime.report(2, loss=1.25, acc=0.75)
        muster_runtime.report(3, grad_norm=float("nan"))
        muster_runtime.own_time(3, 0.5)
    assert said(agent) == [
        {"rank": 0, "step": 1, "own_time_s": 0.25},
        {"rank": 0, "step": 3, "own_time_s": 0.5},
        {"rank": 0, "step": 3, "total_steps": 9, "loss": 1.25, "acc": 0.75},
    ]


def test_a_burst_arrives_whole_where_somebody_reads(agent, monkeypatch):
    """The queue of a socket takes ten lines."""
    monkeypatch.setenv("MUSTER_PROGRESS_SOCKET", str(agent.path))
    steps = []

    def read():
        while len(steps) < 500:
            steps.extend(line["step"] for line in agent.lines())

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    for step in range(500):
        muster_runtime.report(step, loss=1.0)
    reader.join(10)
    assert steps == list(range(500))


def test_no_report_waits_where_nobody_reads_and_the_oldest_give_way():
    begun, go_on, sent = threading.Event(), threading.Event(), []

    def send(line):
        begun.set()
        assert go_on.wait(10)
        sent.append(line["step"])
        return True

    reports = Reports(send)
    reports.add({"step": -1})
    assert begun.wait(10)
    for step in range(1500):
        reports.add({"step": step})
    go_on.set()
    reports.flush()
    assert sent == [-1, *range(500, 1500)]


def test_a_line_that_cannot_be_sent_takes_those_behind_it_along():
    sent = []
    reports = Reports(lambda line: sent.append(line["step"]) or line["step"] != 2)
    with reports._sending:  # so that all of them wait together
        for step in range(1, 6):
            reports.add({"step": step})
    reports.flush()
    reports.add({"step": 6})
    reports.flush()
    assert sent == [1, 2, 6]


def test_what_was_reported_last_is_told_when_the_program_ends_and_once(agent):
    """A child of a fork says nothing of its parent's."""
    program = """
import os, muster_runtime
with muster_runtime._reports._sending:
    muster_runtime.report(1, loss=1.0)
    child = os.fork()
    if child == 0:
        muster_runtime.report(2, loss=1.0)
        muster_runtime._reports.flush()
        os._exit(0)
    os.waitpid(child, 0)
muster_runtime.report(3, loss=1.0)
"""
    environment = os.environ | {
        "MUSTER_PROGRESS_SOCKET": str(agent.path),
        "PYTHONPATH": str(PACKAGE),
    }
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=60)
    assert [line["step"] for line in agent.lines()] == [2, 1, 3]


def test_a_checkpoint_is_told_behind_the_steps_before_it(agent, monkeypatch, tmp_path):
    monkeypatch.setenv("MUSTER_PROGRESS_SOCKET", str(agent.path))
    for step in range(1, 6):
        muster_runtime.report(step, loss=1.0)
    (tmp_path / "step-5").mkdir()
    muster_runtime.checkpoint(tmp_path / "step-5", 5)
    told = agent.lines()
    assert [line["step"] for line in told[:-1]] == [1, 2, 3, 4, 5] and "checkpoint" in told[-1]


def test_a_checkpoint_is_told_whole_with_its_size(agent, monkeypatch, tmp_path):
    monkeypatch.setenv("MUSTER_PROGRESS_SOCKET", str(agent.path))
    folder = tmp_path / "step-7"
    (folder / "part").mkdir(parents=True)
    (folder / "weights").write_bytes(b"x" * 100)
    (folder / "part" / "more").write_bytes(b"y" * 11)
    muster_runtime.checkpoint(folder, 7)
    muster_runtime.checkpoint(folder / "weights", 8)
    assert [line["checkpoint"] for line in agent.lines()] == [
        {"step": 7, "path": str(folder), "bytes": 111},
        {"step": 8, "path": str(folder / "weights"), "bytes": 100},
    ]


@pytest.mark.parametrize("name", ["step-7", "step-7/weights"])
def test_a_checkpoint_is_told_once_it_is_on_disk(monkeypatch, agent, tmp_path, name):
    monkeypatch.setenv("MUSTER_PROGRESS_SOCKET", str(agent.path))
    folder = tmp_path / "step-7"
    (folder / "part").mkdir(parents=True)
    for file in (folder / "weights", folder / "part" / "more"):
        file.write_bytes(b"x")
    checkpoint = tmp_path / name
    whole = [checkpoint, checkpoint.parent, *checkpoint.rglob("*")]
    synced, unsynced = set(), []
    monkeypatch.setattr(os, "fsync", lambda file: synced.add(os.fstat(file).st_ino))
    send = muster_runtime._send

    def sends(data):
        unsynced.append([path for path in whole if path.stat().st_ino not in synced])
        return send(data)

    monkeypatch.setattr(muster_runtime, "_send", sends)
    muster_runtime.checkpoint(checkpoint, 7)
    assert unsynced == [[]]


@pytest.mark.parametrize("url", ["s3://acme/7/attempt-1", Path("s3://acme/7/attempt-1")])
def test_an_object_store_is_no_place_for_files(agent, monkeypatch, tmp_path, url):
    monkeypatch.setenv("MUSTER_PROGRESS_SOCKET", str(agent.path))
    monkeypatch.setenv("MUSTER_CHECKPOINT_DIR", str(url))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="s3:/.*name another checkpoint.storage"):
        muster_runtime.checkpoint_directory("here")
    with pytest.raises(ValueError, match="s3:/.*name another checkpoint.storage"):
        muster_runtime.checkpoint(url, 7)
    monkeypatch.setenv("MUSTER_CHECKPOINT_DIR", "/data/step:/7")
    assert muster_runtime.checkpoint_directory() == "/data/step:/7"


@pytest.mark.parametrize("url", ["s3://acme/7", Path("s3://acme/7")])
def test_by_hand_a_url_is_the_programs_to_write_to(monkeypatch, url):
    monkeypatch.delenv("MUSTER_PROGRESS_SOCKET", raising=False)
    monkeypatch.delenv("MUSTER_CHECKPOINT_DIR", raising=False)
    assert muster_runtime.checkpoint_directory(str(url)) == str(url)
    muster_runtime.checkpoint(url, 7)


def test_own_time_is_one_of_its_names():
    assert "own_time" in muster_runtime.__all__


@pytest.mark.parametrize("rank", ["0", "1"])
def test_the_newest_that_can_be_used_is_told_by_one_rank(agent, monkeypatch, rank):
    monkeypatch.setenv("MUSTER_PROGRESS_SOCKET", str(agent.path))
    monkeypatch.setenv("MUSTER_RESUME_FROM", "/gone,/damaged,/good,/older")
    monkeypatch.setenv("RANK", rank)

    def step_of(path):
        if path == "/gone":
            raise FileNotFoundError("no such file")
        return {"/good": 5, "/older": 4}[path]

    assert muster_runtime.newest(step_of) == "/good"
    told = [line["loaded"] for line in agent.lines()]
    skipped = [{"path": "/gone", "why": "no such file"}, {"path": "/damaged", "why": "'/damaged'"}]
    expected = [{"step": 5, "path": "/good", "skipped": skipped}]
    assert told == (expected if rank == "0" else [])


def test_a_checkpoint_is_due_by_the_interval_from_one_to_the_next(monkeypatch, agent):
    monkeypatch.setenv("MUSTER_PROGRESS_SOCKET", str(agent.path))
    now = [100.0]
    monkeypatch.setattr(muster_runtime.time, "monotonic", lambda: now[0])
    monkeypatch.setenv("MUSTER_CHECKPOINT_INTERVAL_S", "10")
    due = []
    for second in range(25):
        now[0] = 100.0 + second
        due.append(muster_runtime.decide()[1])
    assert [second for second, is_due in enumerate(due) if is_due] == [10, 20]
    monkeypatch.setenv("MUSTER_CHECKPOINT_INTERVAL_S", "0")
    now[0] += 1000
    assert muster_runtime.decide() == (False, False)


def test_a_checkpoint_is_due_once_for_each_request(monkeypatch, agent, tmp_path):
    monkeypatch.setenv("MUSTER_PROGRESS_SOCKET", str(agent.path))
    monkeypatch.setenv("MUSTER_CHECKPOINT_INTERVAL_S", "0")
    monkeypatch.setenv("MUSTER_REQUEST_DIR", str(tmp_path / "requests"))
    monkeypatch.setattr(muster_runtime, "_LOOK_S", 0.001)
    monkeypatch.setattr(muster_runtime, "_looking", False)
    assert muster_runtime.decide() == (False, False)
    for _ in range(2):
        (tmp_path / "requests").mkdir(exist_ok=True)  # whoever asks makes it
        (tmp_path / "requests" / "save").touch()
        assert muster_runtime._asked.wait(20)
        assert not (tmp_path / "requests" / "save").exists()
        assert [muster_runtime.decide()[1] for _ in range(3)] == [True, False, False]
    monkeypatch.setenv("RANK", "1")
    (tmp_path / "requests" / "save").touch()
    assert muster_runtime._asked.wait(20)
    assert muster_runtime.decide() == (False, False)  # rank 0 tells the others
    muster_runtime._asked.clear()


def test_a_stop_is_heard_and_what_heard_it_before_hears_it_still(monkeypatch, agent):
    monkeypatch.setenv("MUSTER_PROGRESS_SOCKET", str(agent.path))
    heard = []
    signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    assert not muster_runtime.should_stop()
    os.kill(os.getpid(), signal.SIGTERM)
    assert muster_runtime.decide() == (True, False) and heard == [signal.SIGTERM]


RANKS = """
import os, sys, torch
import muster_runtime
torch.distributed.init_process_group("gloo")
answers = []
for step in range(6):
    if step == 3 and muster_runtime.rank() == 1:
        os.kill(os.getpid(), 15)
    answers.append(muster_runtime.decide())
print(answers, flush=True)
torch.distributed.destroy_process_group()
os._exit(0)
"""


def test_all_ranks_stop_and_save_after_the_same_step(agent, tmp_path):
    pytest.importorskip("torch")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    base = os.environ | {
        "PYTHONPATH": str(PACKAGE),
        "MUSTER_PROGRESS_SOCKET": str(agent.path),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "MUSTER_CHECKPOINT_INTERVAL_S": "1e-9",  # over at each step
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANKS],
            env=base | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=120)[0] for rank in ranks]
    answers = [ast.literal_eval(text) for text in said]
    assert answers[0] == answers[1]
    assert [stop for stop, _ in answers[0]] == [False, False, False, True, True, True]
    assert all(save for _, save in answers[0])


@pytest.mark.parametrize("bad", [{"total_steps": object()}, {"total_steps": "x"}, {3: 1.0}])
def test_what_is_no_number_costs_no_line_but_its_own(agent, monkeypatch, bad):
    monkeypatch.setenv("MUSTER_PROGRESS_SOCKET", str(agent.path))
    figures = {"loss": 0.5} | {name: value for name, value in bad.items() if name != "total_steps"}
    muster_runtime.report_logged(1, bad.get("total_steps"), figures)
    muster_runtime.own_time(2, object())
    muster_runtime.report(3, loss=0.25)
    assert said(agent)[-1] == {"rank": 0, "step": 3, "loss": 0.25}


def test_where_no_thread_is_to_be_had_reports_go_without(agent, monkeypatch):
    monkeypatch.setenv("MUSTER_PROGRESS_SOCKET", str(agent.path))
    reports = muster_runtime.Reports(muster_runtime._send_report)
    monkeypatch.setattr(threading.Thread, "start", lambda _: (_ for _ in ()).throw(RuntimeError()))
    reports.add({"step": 1})
    reports.add({"step": 2})
    assert agent.lines() == [{"step": 1}, {"step": 2}]
