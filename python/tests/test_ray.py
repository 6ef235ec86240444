"""muster_ray, with a stand-in for Ray: bench/run.sh ray has the real one."""

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from muster_ray import record
from muster_ray.logs import Logs
from muster_ray.ports import Ports, answers
from muster_ray.record import DONE, FAILED, STARTED, STOPPED, Head
from stand_in_ray import install, nodes

TESTS = Path(__file__).resolve().parent
HEAD = Head(2, STARTED, "10.0.0.1:7", "/t")


def await_(condition, what: str, seconds: float = 20):
    end_s = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end_s, what
        time.sleep(0.02)
    return found


# ---- ports ----

DRAW = """
import sys
from muster_ray.ports import Ports
ports = Ports(tuple("abcdefgh"))
print(*(ports[name] for name in "abcdefgh"), flush=True)
sys.stdin.read()
"""


def test_ports_are_drawn_once_by_all_users_of_a_host():
    environment = os.environ | {"PYTHONPATH": str(TESTS.parent)}
    users = [
        subprocess.Popen(
            [sys.executable, "-S", "-c", DRAW],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(20)
    ]
    own = [Ports(tuple("abcdefgh")) for _ in range(80)]
    drawn = [port for user in users for port in user.stdout.readline().split()]
    drawn += [str(ports[name]) for ports in own for name in "abcdefgh"]
    for user in users:
        user.communicate()
    for ports in own:
        ports.close()
    assert len(drawn) == 800 and len(set(drawn)) == 800


def test_a_held_port_is_rays_to_listen_on_and_answers_only_then():
    ports = Ports(("port",))
    address = f"127.0.0.1:{ports['port']}"
    assert ports.options() == [f"--port={ports['port']}"]
    assert not answers(address)
    with socket.create_server(("127.0.0.1", ports["port"])):
        assert answers(address)
    ports.close()


# ---- the head's file ----


@pytest.mark.parametrize("number", [17, 20])
def test_all_members_find_the_heads_directory_by_their_own(number):
    environment = {"MUSTER_JOB_DIR": f"/s/jobs/{number}-ab12cd34", "MUSTER_ARRAY_JOB": "17"}
    assert record.directory(environment) == Path("/s/jobs/17-ab12cd34/ray")


def test_an_older_attempt_of_the_head_says_nothing_any_more(tmp_path):
    assert record.read(tmp_path) is None
    record.write(tmp_path, HEAD)
    record.write(tmp_path, Head(1, DONE, "10.0.0.2:7", "/t"))
    assert record.read(tmp_path) == HEAD
    record.write(tmp_path, Head(2, STOPPED, "10.0.0.1:7", "/t"))
    assert record.read(tmp_path).state == STOPPED


def test_a_token_is_its_owners_alone_and_another_each_time(tmp_path):
    paths = [record.new_token(tmp_path, attempt) for attempt in (1, 2)]
    assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [0o600, 0o600]
    assert len({path.read_text() for path in paths}) == 2


# ---- logs ----


def test_logs_are_copied_as_they_grow_and_from_the_beginning_when_they_begin_anew(tmp_path):
    log = tmp_path / "tmp" / "session_2026" / "logs" / "old" / "a.log"
    log.parent.mkdir(parents=True)
    (log.parents[2] / "session.json").write_text("no log")
    logs = Logs(tmp_path / "tmp", tmp_path / "kept")
    copy = tmp_path / "kept" / "session_2026" / "logs" / "old" / "a.log"
    for text in ("one\n", "one\ntwo\n", "3\n"):
        log.write_text(text)
        logs.follow()
        assert copy.read_text() == text
    assert [path.name for path in (tmp_path / "kept").rglob("*") if path.is_file()] == ["a.log"]


# ---- a cluster ----


class Job:
    """Workers as Muster starts them: each the leader of a group, with a directory of its own."""

    def __init__(self, folder: Path):
        self.folder, self.go = folder, folder / "go"
        self.path = f"{install(folder)}:{os.environ['PATH']}"
        self.processes = []

    def start(self, index: int, attempt: int = 1, **more) -> subprocess.Popen:
        own = self.folder / "jobs" / f"{17 + index}-ab12cd34"
        own.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {
            "PATH": self.path,
            "PYTHONPATH": f"{TESTS.parent}:{TESTS}",
            "MUSTER_JOB": f"17_{index}",
            "MUSTER_JOB_DIR": str(own),
            "MUSTER_ATTEMPT": str(attempt),
            "MUSTER_ARRAY_JOB": "17",
            "MUSTER_ARRAY_INDEX": str(index),
        }
        words = ["-m", "muster_ray", "--cpus", "1", "--", sys.executable, TESTS / "ray_program.py"]
        process = subprocess.Popen(
            [sys.executable, *words, self.go],
            env=environment | more,
            stdout=(self.folder / f"said-{index}-{attempt}").open("w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    @property
    def head(self) -> Head | None:
        return record.read(self.folder / "jobs" / "17-ab12cd34" / "ray")

    def said(self, index: int, attempt: int = 1) -> str:
        return (self.folder / f"said-{index}-{attempt}").read_text()

    def await_nodes(self, count: int, attempt: int = 1) -> None:
        last = f"nodes {count}\n"
        await_(lambda: self.said(0, attempt).endswith(last), f"{last}: {self.said(0, attempt)}")

    def temporary(self, process: subprocess.Popen) -> Path:
        """Of the worker's Ray."""
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        words = [Path(f"/proc/{pid}/cmdline").read_text().split("\0") for pid in children]
        found = [w for line in words for w in line if w.startswith("--temp-dir=")]
        return Path(found[0].partition("=")[2])


@pytest.fixture
def job(tmp_path):
    job = Job(tmp_path)
    yield job
    for process in job.processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(20)


def test_workers_join_and_all_end_with_the_program(job):
    workers = [job.start(index) for index in range(3)]
    job.await_nodes(3)
    temporary = job.temporary(workers[1])
    job.go.write_text("")
    assert [worker.wait(20) for worker in workers] == [0, 0, 0]
    assert job.head.state == DONE and not temporary.exists()
    for index in range(3):
        kept = job.folder / "jobs" / f"{17 + index}-ab12cd34" / "ray" / "attempt-1"
        assert len(list(kept.glob("session_*/logs/raylet.out"))) == 1, "logs stay"


def test_whoever_has_no_token_is_not_let_in(job):
    job.start(0)
    job.await_nodes(1)
    with pytest.raises(ValueError):
        nodes(job.head.address, "0" * 64)


def test_a_worker_that_leaves_and_one_that_comes_touch_no_other(job):
    head, one, _ = (job.start(index) for index in range(3))
    job.await_nodes(3)
    os.killpg(one.pid, signal.SIGTERM)
    assert one.wait(20) == 143
    job.await_nodes(2)
    job.start(1, attempt=2)
    job.await_nodes(3)
    assert head.poll() is None and job.head.attempt == 1


@pytest.mark.parametrize("code", [3, 200])
def test_a_program_that_fails_ends_the_cluster_with_its_code(job, code):
    head, other = job.start(0), job.start(1)
    job.await_nodes(2)
    job.go.write_text(str(code))
    assert (head.wait(20), other.wait(20)) == (code, 0)
    assert job.head.state == FAILED and job.head.cause == f"the program ended with {code}"
    assert f"the head has ended: the program ended with {code}" in job.said(1)


def test_a_head_that_dies_ends_the_cluster_and_says_why(job):
    head, other = job.start(0), job.start(1)
    job.await_nodes(2)
    (job.temporary(head) / "fall").touch()
    assert (head.wait(20), other.wait(20)) == (1, 0)
    assert "`ray start` ended with 1: gcs_server [exit code=-9]" in job.head.cause
    assert job.head.cause in job.said(0) and job.head.cause in job.said(1)


def test_workers_wait_for_a_head_that_was_stopped_and_join_the_next_one(job):
    head, other = job.start(0), job.start(1)
    job.await_nodes(2)
    os.killpg(head.pid, signal.SIGTERM)
    assert head.wait(20) == 143
    assert job.head.state == STOPPED
    assert "saved beside 2\n" in job.said(0), "the program has its cluster until it ends"
    job.start(0, attempt=2)
    job.await_nodes(2, attempt=2)
    assert other.poll() is None
    assert job.head.attempt == 2


def test_a_worker_whose_node_dies_while_the_head_lives_fails(job):
    job.start(0)
    other = job.start(1)
    job.await_nodes(2)
    (job.temporary(other) / "fall").touch()
    assert other.wait(20) == 1
    assert "exit code=-9" in job.said(1)
    job.await_nodes(1)


def test_a_ray_that_takes_no_token_is_refused(job):
    head = job.start(0, STAND_IN_VERSION="2.51.1")
    assert head.wait(20) == 1
    assert "needs 2.52 or newer" in job.said(0) and job.head is None


def test_without_ray_it_says_what_to_do(job):
    head = job.start(0, PATH="/nonexistent")
    assert head.wait(20) == 1
    assert "Put an environment with ray into PATH" in job.said(0)


def test_outside_of_muster_it_says_so():
    done = subprocess.run(
        [sys.executable, "-m", "muster_ray", "--", "true"],
        env={"PYTHONPATH": str(TESTS.parent)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and "MUSTER_JOB_DIR isn't set" in done.stdout
