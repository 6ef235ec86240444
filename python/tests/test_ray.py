"""muster_ray, with a stand-in for Ray: bench/run.sh ray has the real one."""

import argparse
import errno
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from muster_ray import head as ray_head
from muster_ray import node as ray_node
from muster_ray import record, worker
from muster_ray.head import Cluster
from muster_ray.logs import Logs
from muster_ray.node import Node, RayError, Stopped
from muster_ray.ports import Ports, answers
from muster_ray.record import DEAD, DONE, FAILED, STARTED, STOPPED, Head
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
    assert answers(address) is False
    with socket.create_server(("127.0.0.1", ports["port"])):
        assert answers(address)
    ports.close()


def test_a_host_of_which_nothing_is_heard_does_not_refuse(monkeypatch):
    def silent(*_, **__):
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", silent)
    assert answers("10.0.0.1:7") is None


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


def failing(code: int):
    def fails(*_, **__):
        raise OSError(code, os.strerror(code))

    return fails


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO, errno.ENOENT])
def test_where_the_storage_cant_tell_the_head_is_as_before(tmp_path, monkeypatch, code):
    record.write(tmp_path, HEAD)
    monkeypatch.setattr(Path, "read_text", failing(code))
    assert record.read(tmp_path, HEAD) == HEAD and record.read(tmp_path) is None


def test_a_head_that_cant_tell_whether_it_is_the_newest_writes_nothing(tmp_path, monkeypatch):
    record.write(tmp_path, HEAD)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", failing(errno.ESTALE))
        with pytest.raises(OSError, match="[Ss]tale"):
            record.write(tmp_path, Head(1, DONE, "10.0.0.2:7", "/t"))
    assert record.read(tmp_path) == HEAD


def test_a_write_of_the_file_that_breaks_off_leaves_what_was_there(tmp_path, monkeypatch):
    record.write(tmp_path, HEAD)
    write_text = Path.write_text

    def half(path, text):
        write_text(path, text[: len(text) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", half)
        with pytest.raises(OSError, match="No space left"):
            record.write(tmp_path, Head(2, STOPPED, "10.0.0.1:7", "/t"))
    assert record.read(tmp_path) == HEAD


def test_a_token_is_its_owners_alone_and_another_each_time(tmp_path):
    paths = [record.new_token(tmp_path, attempt) for attempt in (1, 2)]
    assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [0o600, 0o600]
    assert len({path.read_text() for path in paths}) == 2


# ---- waiting for a head ----


class StopAfter:
    """As Stop, told after so many seconds."""

    def __init__(self, seconds: float):
        self.end_s = time.monotonic() + seconds

    @property
    def told(self) -> bool:
        return time.monotonic() >= self.end_s


REACHED = {"here:1": True, "refuses:1": False, "silent:1": None}


@pytest.fixture
def waiting(monkeypatch):
    """The addresses that were tried."""
    tried = []
    monkeypatch.setenv("MUSTER_ARRAY_JOB", "17")
    monkeypatch.setattr(
        worker, "answers", lambda address: tried.append(address) or REACHED[address]
    )
    return tried


def head_of(state: str, address: str, attempt: int = 1) -> Head:
    return Head(attempt, state, address, "/t")


MAY_COME_AGAIN = [head_of(FAILED, "here:1"), head_of(DEAD, "here:1"), head_of(STARTED, "refuses:1")]
COMES_AGAIN = [head_of(STOPPED, "here:1"), head_of(STARTED, "silent:1"), None]


def test_behind_a_head_that_has_done_its_work_nothing_is_waited_for(tmp_path, waiting):
    record.write(tmp_path, head_of(DONE, "here:1"))
    assert worker.await_head(tmp_path, StopAfter(20)) is None
    assert waiting == []


@pytest.mark.parametrize("head", MAY_COME_AGAIN)
def test_a_head_that_may_be_tried_again_is_waited_for_and_not_for_ever(
    tmp_path, waiting, monkeypatch, head
):
    monkeypatch.setattr(worker, "AGAIN_S", 0.4)
    monkeypatch.setattr(worker, "RECORD_S", 0.02)
    record.write(tmp_path, head)
    with pytest.raises(Stopped):
        worker.await_head(tmp_path, StopAfter(0.2))
    assert worker.await_head(tmp_path, StopAfter(20)) is None


@pytest.mark.parametrize("head", COMES_AGAIN)
def test_a_head_that_comes_again_is_waited_for_as_long_as_it_takes(
    tmp_path, waiting, monkeypatch, head
):
    monkeypatch.setattr(worker, "AGAIN_S", 0.05)
    monkeypatch.setattr(worker, "RECORD_S", 0.02)
    if head is not None:
        record.write(tmp_path, head)
    with pytest.raises(Stopped):
        worker.await_head(tmp_path, StopAfter(0.4))


@pytest.mark.parametrize("head", MAY_COME_AGAIN + COMES_AGAIN)
def test_the_next_head_is_found_wherever_it_is(tmp_path, waiting, monkeypatch, head):
    following = head_of(STARTED, "here:1", attempt=2)
    monkeypatch.setattr(worker, "RECORD_S", 0.02)
    if head is not None:
        record.write(tmp_path, head)
    begun_s, pause = time.monotonic(), worker._pause

    def later(stop, seconds):
        pause(stop, seconds)
        if time.monotonic() - begun_s > 0.2:
            record.write(tmp_path, following)

    monkeypatch.setattr(worker, "_pause", later)
    assert worker.await_head(tmp_path, StopAfter(20)) == following


def test_the_file_and_the_address_are_looked_at_once_a_second(tmp_path, waiting):
    record.write(tmp_path, head_of(STARTED, "silent:1"))
    with pytest.raises(Stopped):
        worker.await_head(tmp_path, StopAfter(0.5))
    assert waiting == ["silent:1"]


def test_who_waits_for_the_first_head_is_told_where_to_look(tmp_path, waiting):
    told = worker._what_it_waits_for(tmp_path, None)
    assert "muster show 17_0" in told and "name one in clusters:" in told


# ---- a node ----

HEARS = """
import signal, sys, time
from pathlib import Path
logs, kept = map(Path, sys.argv[1:])
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(True))
print("hears", flush=True)
while not told:
    time.sleep(0.01)
logs.mkdir(parents=True)
(logs / "raylet.out").write_text("drains")
end_s = time.monotonic() + 20
while not (kept / "session_2026" / "logs" / "raylet.out").exists():
    if time.monotonic() > end_s:
        sys.exit(1)
    time.sleep(0.01)
"""


def test_logs_are_copied_while_ray_drains(tmp_path, monkeypatch):
    monkeypatch.setattr(ray_node, "FOLLOW_S", 0.05)
    node = Node(tmp_path / "kept", tmp_path / "token")
    node.ports = Ports(("port",))
    places = [node.temporary / "session_2026" / "logs", node.kept]
    node.process = subprocess.Popen(
        [sys.executable, "-c", HEARS, *places], stdout=subprocess.PIPE, start_new_session=True
    )
    assert node.process.stdout.readline() == b"hears\n"
    node.stop(drain=True)
    node.process.stdout.close()
    assert node.process.returncode == 0, "it ended once its log was there"


def test_a_node_tells_its_own_cause_and_not_that_of_one_before_it(tmp_path, monkeypatch):
    ray = tmp_path / "bin" / "ray"
    ray.parent.mkdir()
    ray.write_text("#!/bin/sh\necho its own cause\nexit 1\n")
    ray.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ray.parent}:{os.environ['PATH']}")
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "start.log").write_text(f"{ray_node.READY}\n  raylet [exit code=-9]\n")
    node = Node(kept, tmp_path / "token")
    node.join("127.0.0.1:1")
    node.process.wait(20)
    assert not node.ready()
    with pytest.raises(RayError, match="ended with 1: its own cause$"):
        node.check()
    node.stop(drain=False)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"cpus": 3}, ["--num-cpus=3"]),
        ({"memory_bytes": 1 << 30}, [f"--object-store-memory={(1 << 30) * 3 // 10}"]),
        ({"memory_bytes": 1 << 20}, [f"--object-store-memory={80 << 20}"]),
        ({}, []),  # Ray finds out by itself
    ],
)
def test_a_node_has_what_its_worker_has_and_is_of_no_other_cluster(
    tmp_path, monkeypatch, given, said
):
    ray = tmp_path / "bin" / "ray"
    ray.parent.mkdir()
    ray.write_text(f'#!/bin/sh\necho "$@" "${{RAY_ADDRESS:-none}}" > {tmp_path}/said\n')
    ray.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ray.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.9:6379")  # of the user's own profile
    node = Node(tmp_path / "kept", tmp_path / "token", **given)
    node.join("127.0.0.1:1")
    node.process.wait(20)
    node.stop(drain=False)
    words = (tmp_path / "said").read_text().split()
    limits = ("--num-cpus=", "--object-store-memory=")
    assert [word for word in words if word.startswith(limits)] == said
    assert words[-1] == "none"


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("drain", [True, False])
def test_what_ray_has_started_ends_with_its_node(tmp_path, drain):
    node = Node(tmp_path / "kept", tmp_path / "token")
    node.ports = Ports(("port",))
    node.process = subprocess.Popen(
        ["sh", "-c", "sleep 600 & echo $!; exec sleep 600"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    child = int(node.process.stdout.readline())
    node.process.stdout.close()
    node.stop(drain=drain)
    await_(lambda: not alive(child), "a child that outlives its node")


@pytest.mark.parametrize(("told", "raised"), [(True, Stopped), (False, RayError)])
def test_a_stop_that_ends_the_question_for_the_version_is_a_stop(
    tmp_path, monkeypatch, told, raised
):
    ray = tmp_path / "ray"
    ray.write_text("#!/bin/sh\nkill -TERM $$\n")
    ray.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(raised):
        ray_node.check_version(SimpleNamespace(told=told))


def test_logs_are_copied_while_the_program_saves(tmp_path, monkeypatch):
    monkeypatch.setenv("MUSTER_JOB_DIR", str(tmp_path))
    monkeypatch.setenv("MUSTER_ATTEMPT", "1")
    given = argparse.Namespace(cpus=1, memory_bytes=0, dashboard=False, program=["sleep", "0.5"])
    cluster = Cluster(tmp_path / "ray", given, SimpleNamespace(told=True))
    followed = []
    monkeypatch.setattr(cluster.node, "follow", lambda now=False: followed.append(now))
    with pytest.raises(Stopped):
        cluster._run_program()
    assert len(followed) > 1 and record.read(tmp_path / "ray").state == STOPPED
    cluster.node.stop(drain=False)


class NodeStub:
    """A head's node that is up, until `dies` says that Ray is gone."""

    address, environment, kept = "10.0.0.1:7", os.environ, Path("/nowhere")

    def __init__(self, dies=lambda: False):
        self.dies, self.drained = dies, []

    def start_head(self, dashboard):
        pass

    def ready(self):
        return True

    def check(self):
        if self.dies():
            raise RayError("raylet [exit code=-9]")

    check_soon = check

    def join(self, address):
        pass

    def stop(self, drain):
        self.drained.append(drain)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    monkeypatch.setenv("MUSTER_JOB_DIR", str(tmp_path))
    monkeypatch.setenv("MUSTER_ATTEMPT", "1")
    monkeypatch.setattr(ray_head, "answers", lambda address: True)

    def make(node, *program: str) -> Cluster:
        given = argparse.Namespace(cpus=1, memory_bytes=0, dashboard=False, program=program)
        made = Cluster(tmp_path / "ray", given, SimpleNamespace(told=False))
        made.node.stop(drain=False)
        made.node = node
        return made

    return make


@pytest.mark.parametrize(
    ("program", "code", "state"),
    [("exit 0", 0, DONE), ("exit 3", 3, FAILED), ("kill -9 $$", 137, FAILED)],
)
def test_a_heads_code_is_its_programs_as_a_shell_tells_it(tmp_path, cluster, program, code, state):
    assert cluster(NodeStub(), "sh", "-c", program).run() == code
    assert record.read(tmp_path / "ray").state == state


def test_a_program_ends_with_its_ray(tmp_path, cluster):
    pid = tmp_path / "pid"
    dies = NodeStub(lambda: pid.exists() and pid.read_text().endswith("\n"))
    made = cluster(dies, "sh", "-c", f"echo $$ > {pid}; exec sleep 600")
    assert made.run() == 1
    assert made.program.poll() is not None and not alive(int(pid.read_text()))
    assert record.read(tmp_path / "ray").state == DEAD


@pytest.mark.parametrize("told", [True, False])
def test_a_worker_drains_if_it_leaves_and_not_once_the_head_is_gone(
    tmp_path, waiting, monkeypatch, told
):
    monkeypatch.setenv("MUSTER_JOB_DIR", str(tmp_path))
    monkeypatch.setenv("MUSTER_ATTEMPT", "1")
    record.write(tmp_path, head_of(STARTED, "here:1"))
    stop, node = SimpleNamespace(told=False), NodeStub()

    def joins(address):
        stop.told = told
        if not told:
            record.write(tmp_path, head_of(DONE, "here:1"))

    node.join = joins
    monkeypatch.setattr(worker, "Node", lambda *_, **__: node)
    given = argparse.Namespace(cpus=1, memory_bytes=0)
    if told:
        with pytest.raises(Stopped):
            worker.run(tmp_path, given, stop)
    else:
        assert worker.run(tmp_path, given, stop) == 0
    assert node.drained == [told]


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


LAUNCHER = """
import sys
from muster_ray import worker
worker.AGAIN_S = float(sys.argv.pop(1))
from muster_ray.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


class Job:
    """Workers as Muster starts them: each the leader of a group, with a directory of its own."""

    def __init__(self, folder: Path):
        self.folder, self.go = folder, folder / "go"
        self.again_s = 1.0
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
        words = [sys.executable, "-c", LAUNCHER, str(self.again_s), "--cpus", "1", "--"]
        process = subprocess.Popen(
            [*words, sys.executable, TESTS / "ray_program.py", self.go],
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


def test_a_head_that_is_tried_again_after_a_failure_finds_its_workers(job):
    job.again_s = 60.0
    head, other = job.start(0), job.start(1)
    job.await_nodes(2)
    job.go.write_text("3")
    assert head.wait(20) == 3
    job.go.unlink()
    job.start(0, attempt=2)
    job.await_nodes(2, attempt=2)
    assert other.poll() is None


def test_a_head_that_dies_ends_the_cluster_and_says_why(job):
    head, other = job.start(0), job.start(1)
    job.await_nodes(2)
    (job.temporary(head) / "fall").touch()
    assert (head.wait(20), other.wait(20)) == (1, 0)
    assert "`ray start` ended with 1: gcs_server [exit code=-9]" in job.head.cause
    assert job.head.state == DEAD
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


def test_the_ray_that_is_started_is_asked_and_not_another_one_of_the_launchers_python(job):
    other = job.folder / "site" / "ray-2.60.0.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: ray\nVersion: 2.60.0\n")
    path = f"{TESTS.parent}:{TESTS}:{other.parent}"
    head = job.start(0, STAND_IN_VERSION="2.51.1", PYTHONPATH=path)
    assert head.wait(20) == 1
    assert "needs 2.52 or newer" in job.said(0)


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
