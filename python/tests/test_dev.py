"""muster_dev: who enters an environment, and when it is idle."""

import http.client
import json
import os
import secrets
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from muster_dev import server, session, use
from muster_dev.__main__ import Watch, duration, watch_over

PYTHON = Path(__file__).resolve().parent.parent
STAND_IN = Path(__file__).resolve().parent / "stand_in_jupyter"


class Environment:
    """One that runs, with the stand-in as its JupyterLab."""

    def __init__(self, folder: Path, *words: str, **more: str):
        self.folder, self.kernels = folder, folder / "kernels.json"
        here = folder / "main" / "attempt-1"
        here.mkdir(parents=True)
        self.environment = os.environ | more
        self.environment |= {
            "PYTHONPATH": f"{PYTHON}:{STAND_IN}",
            "STAND_IN_KERNELS": str(self.kernels),
        }
        self.environment |= {
            "MUSTER_JOB_DIR": str(folder),
            "MUSTER_JOB": "17",
            "MUSTER_ATTEMPT": "1",
        }
        self.environment |= {"MUSTER_SHIM_TOKEN": str(folder), "CUDA_VISIBLE_DEVICES": ""}
        program = [sys.executable, "-m", "muster_dev", *words]
        self.process = subprocess.Popen(
            program, env=self.environment, cwd=here, stderr=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def say(self, state: str, activity: str = "2026-11-24T10:00:00Z") -> None:
        new = self.kernels.with_suffix(".new")
        new.write_text(json.dumps([{"execution_state": state, "last_activity": activity}]))
        new.rename(self.kernels)

    def session(self) -> session.Session:
        return session.wait(self.environment, 30)

    def ended(self, timeout_s: float = 30) -> tuple[int, str]:
        said = self.process.communicate(timeout=timeout_s)[1].decode()
        return self.process.returncode, said


@pytest.fixture
def start(tmp_path):
    started = []

    def begin(*words: str, **more: str) -> Environment:
        started.append(Environment(tmp_path / str(len(started)), *words, **more))
        return started[-1]

    yield begin
    for one in started:
        if one.process.poll() is None:
            one.process.terminate()
            one.process.communicate(timeout=30)


def status(port: int, headers: dict) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/api/status", headers=headers)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def test_only_its_owner_finds_the_token_which_is_in_no_argument_environment_or_log(start):
    environment = start("--idle", "never")
    found = environment.session()
    assert status(found.port, {}) == 403
    assert status(found.port, {"Authorization": f"token {found.token}"}) == 200
    assert len(found.token) * 6 >= 256, "base64 has 6 bits a character"
    place = session.directory(environment.environment)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    for name in ("session.json", "token"):
        assert stat.S_IMODE((place / name).stat().st_mode) == 0o600
    for process in (environment.process.pid, *children(environment.process.pid)):
        for name in ("cmdline", "environ"):
            assert found.token.encode() not in Path(f"/proc/{process}/{name}").read_bytes()
    environment.process.send_signal(signal.SIGTERM)
    code, said = environment.ended()
    assert code == 143 and found.token not in said
    assert not (place / "session.json").exists() and not (place / "token").exists()


def test_its_server_listens_on_loopback_alone_and_takes_no_password(start):
    environment = start("--idle", "never")
    found = environment.session()
    words = []
    for process in children(environment.process.pid):
        words += Path(f"/proc/{process}/cmdline").read_text().split("\0")
        variables = Path(f"/proc/{process}/environ").read_text().split("\0")
    wanted = ["--ServerApp.ip=127.0.0.1", f"--ServerApp.port={found.port}"]
    wanted += ["--PasswordIdentityProvider.hashed_password="]
    assert [word for word in wanted if word not in words] == []
    place = session.directory(environment.environment)  # its owner's alone
    assert f"JUPYTER_RUNTIME_DIR={place}/runtime" in variables


def children(pid: int) -> list[int]:
    found = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    assert found
    return found


def test_each_start_has_a_token_of_its_own():
    assert len({session.new_token() for _ in range(100)}) == 100


def test_a_session_of_an_earlier_attempt_leads_nowhere(tmp_path):
    session.publish(tmp_path, session.Session("1", 80, "t"))
    assert session.read(tmp_path, "1") is not None
    assert session.read(tmp_path, "2") is None


def test_a_busy_kernel_keeps_it_and_an_idle_one_does_not(start):
    environment = start("--idle", "1s")
    environment.say("busy")
    environment.session()
    with pytest.raises(subprocess.TimeoutExpired):  # three times --idle: nothing ends it
        environment.process.wait(3)
    environment.say("idle")
    idle_at = time.monotonic()
    code, said = environment.ended()
    assert code == 0 and "idle" in said and "muster dev resume 17" in said
    assert 0.9 < time.monotonic() - idle_at < 10


def test_a_command_in_a_terminal_keeps_it(start):
    environment = start("--idle", "1s", STAND_IN_TERMINAL="sleep 4")
    environment.session()
    began = time.monotonic()
    assert environment.ended()[0] == 0
    assert time.monotonic() - began > 3, "the command's end, and --idle after it"


def test_a_command_beside_it_keeps_it(start):
    environment = start("--idle", "1s")
    environment.session()
    beside = subprocess.Popen(["sleep", "60"], env=environment.environment)
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            environment.process.wait(3)
    finally:
        beside.kill()
        beside.wait()
    assert environment.ended()[0] == 0


def test_a_jupyterlab_that_asks_for_no_token_is_not_offered(start):
    code, said = start("--idle", "1s", STAND_IN_OPEN="1").ended()
    assert code == 2 and "answers without a token" in said


@pytest.mark.parametrize(("code", "ends_with"), [(0, 0), (1, 1), (-9, 1)])
def test_a_server_that_ends_by_itself_ends_its_environment(tmp_path, capsys, code, ends_with):
    process = SimpleNamespace(poll=lambda: code, returncode=code)
    watch = Watch(lambda: "busy", 0.1)
    ended = watch_over(SimpleNamespace(process=process), tmp_path, watch, threading.Event())
    assert ended == ends_with and f"(exit {code})" in capsys.readouterr().err


def test_a_server_that_does_not_hear_its_end_is_killed(monkeypatch):
    monkeypatch.setattr(server, "_GRACE_S", 0.2)
    deaf = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint(1, flush=True)\n"
    deaf += "time.sleep(20)"
    one = server.Server.__new__(server.Server)
    with subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE) as one.process:
        assert one.process.stdout.read(1) == b"1"
        one.end()
    assert one.process.returncode == -signal.SIGKILL


def test_without_jupyterlab_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(server.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(server.ServerError, match="pip install jupyterlab"):
        server.check_installed()


@pytest.mark.parametrize(
    ("kernels", "then", "used"),
    [
        ([], [], False),
        ([("idle", "1")], [("idle", "1")], False),
        ([("idle", "1")], [("idle", "2")], True),  # busy between two looks
        ([("idle", "1")], [("busy", "1")], True),
        ([("idle", "1")], [("dead", "1")], False),
        ([("idle", "2"), ("idle", "1")], [("idle", "1")], False),  # one was shut down
        ([], None, True),  # nobody can tell
    ],
)
def test_what_kernels_do(kernels, then, used):
    def told(of):
        return of and [{"execution_state": state, "last_activity": at} for state, at in of]

    watched = use.Kernels()
    watched.use(told(kernels))
    assert bool(watched.use(None if then is None else told(then))) == used


def test_only_what_a_terminals_shell_runs_counts():
    def process(pid, parent, leader, terminal):
        return use.Process(pid, parent, leader, terminal)

    shell, server = process(11, 10, 11, True), process(10, 1, 10, False)
    found = {1: process(1, 0, 1, False), 10: server, 11: shell}
    assert not use.use_of_terminals(found, 10)
    assert use.use_of_terminals(found | {12: process(12, 11, 11, True)}, 10)
    assert not use.use_of_terminals(found | {12: process(12, 1, 99, True)}, 10), "somebody else's"


@pytest.mark.parametrize(
    ("run_id", "used"),
    [
        ("{uid}.main.4", True),
        ("{uid}.main.3", False),  # another attempt of it
        ("{uid}0.main.4", False),
        ("", False),
    ],
)
def test_a_job_on_its_devices_counts(run_id, used):
    uid = secrets.token_hex(16)  # the machine's other tests have marks, too
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as shim:
        shim.bind(f"\0muster-on.{uid}.4.{'b' * 32}.1")
        assert bool(use.use_by_jobs(run_id.format(uid=uid))) == used
    assert not use.use_by_jobs(f"{uid}.main.4")


@pytest.mark.parametrize(("load", "used"), [("0\n0", False), ("0\n3", True), ("[N/A]", False)])
def test_what_gpus_do(tmp_path, monkeypatch, load, used):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n[ \"$2\" = 0,1 ] || exit 1\necho '{load}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert bool(use.Gpus({"CUDA_VISIBLE_DEVICES": "0,1"}).use()) == used
    assert not use.Gpus({"CUDA_VISIBLE_DEVICES": ""}).use()


def test_it_is_idle_once_it_was_unused_for_as_long_as_that():
    now, used = [0.0], ["busy"]
    watch = Watch(lambda: used[0], 60.0, lambda: now[0])
    for at, use_then, idle in [(50, "busy", False), (200, "busy", False), (201, "", False)]:
        now[0], used[0] = at, use_then
        assert watch.is_idle() == idle
    now[0] = 259.9
    assert not watch.is_idle()
    now[0] = 260
    assert watch.is_idle()
    assert not Watch(lambda: "", None, lambda: now[0]).is_idle(), "never"


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("2h", 7200), ("1h30m", 5400), ("never", None)]
)
def test_durations(text, seconds):
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "2", "2x", "h", "0s", "-1h", "1.5h"])
def test_durations_that_are_none(text):
    with pytest.raises(Exception, match="write 90m|above 0"):
        duration(text)
