"""Commands beside a job's workers, and connections to their ports: what they see, how they end, and who may."""

import fcntl
import hashlib
import http.client
import json
import os
import pty
import re
import select
import shlex
import signal
import socket
import struct
import subprocess
import termios
import time
from pathlib import Path

import pytest
from hostile_jobs import ANN, MALLORY
from local_system import job_processes, wait_for
from small_system import let_go, rank_pid, submit, submit_waiting, task, wait_ended, wait_started
from test_along import owners_host

SHELL = ["bash", "-c"]


def command(system, number, words: list, *flags) -> list:
    return [system.bin_dir / "muster", "exec", str(number), *flags, "--", *words]


def run_beside(system, number, words: list, *flags, data: bytes = b"", timeout_s: float = 60):
    return subprocess.run(
        command(system, number, words, *flags),
        input=data,
        capture_output=True,
        timeout=timeout_s,
        env=system.environment(),
    )


def start_beside(system, number, words: list, *flags) -> subprocess.Popen:
    return subprocess.Popen(
        command(system, number, words, *flags),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=system.environment(),
    )


def pids_named(mark: str) -> list[int]:
    """Live processes with this word on their command line, but for `muster` itself."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            live = "\nState:\tZ" not in (process / "status").read_text()
            if mark.encode() in words and not words[0].endswith(b"/muster") and live:
                found.append(int(process.name))
        except OSError:
            continue
    return found


@pytest.fixture
def running(system):
    """A job of two workers on two hosts, and its number."""
    number = submit_waiting(system, "both", workers="2", more="env: {COLOUR: blue}\n")
    wait_started(system, "both", 2)
    return system, number


def test_streams_and_exit_codes_are_the_commands_own(running):
    system, number = running
    done = run_beside(system, number, [*SHELL, "cat; echo oops >&2; exit 7"], data=b"hello\n")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"hello\n", b"oops\n")
    assert run_beside(system, number, ["true"]).returncode == 0
    killed = run_beside(system, number, [*SHELL, "kill -TERM $$"])
    assert killed.returncode == 128 + signal.SIGTERM
    missing = run_beside(system, number, ["no-such-program"])
    assert missing.returncode == 127
    assert b"exec no-such-program: No such file or directory" in missing.stderr


def test_a_command_has_its_ranks_environment_and_sees_its_processes(running):
    system, number = running
    for rank in (0, 1):
        done = run_beside(
            system, number, [*SHELL, "echo $RANK $COLOUR; pwd; ls /proc"], "--rank", str(rank)
        )
        own, place, *processes = done.stdout.decode().split("\n", 2)
        assert own == f"{rank} blue", done
        worker = rank_pid(system, number, rank)
        assert place == os.readlink(f"/proc/{worker}/cwd")
    namespace = os.readlink(f"/proc/{rank_pid(system, number, 0)}/ns/pid")
    here = run_beside(system, number, ["readlink", "/proc/self/ns/pid"]).stdout.decode().strip()
    assert here == namespace
    group = Path(f"/proc/{rank_pid(system, number, 0)}/cgroup").read_text()
    beside = start_beside(system, number, ["sleep", "1000.25"])
    (pid,) = wait_for("the command", lambda: pids_named("1000.25"), 10)
    assert Path(f"/proc/{pid}/cgroup").read_text() == group
    beside.kill()
    beside.wait(10)
    wait_for("its end", lambda: not pids_named("1000.25"), 10)


def test_a_host_whose_agent_connects_anew_is_waited_for(running):
    system, number = running
    for host in ("h01", "h02"):
        agent = system.processes[f"agent-lab-{host}"]
        agent.kill()
        agent.wait(10)
        gone = f"agent disconnected cluster=lab host={host}"
        wait_for(gone, lambda said=gone: said in system.log_tail("musterd", 100), 10)
    asked = start_beside(system, number, ["echo", "here"])
    for host in ("h01", "h02"):
        system.start_agent("lab", host)
    out, err = asked.communicate(timeout=30)
    assert (asked.returncode, out) == (0, b"here\n"), err


def test_input_that_ends_early_and_much_data_come_through_whole(running):
    system, number = running
    data = os.urandom(64 << 20)
    began = time.monotonic()
    done = run_beside(system, number, ["cat"], data=data)
    took_s = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(data).digest()
    print(f"64 MiB both ways: {took_s:.2f} s")
    assert took_s < 16, f"64 MiB both ways took {took_s:.1f} s"
    counted = run_beside(system, number, ["wc", "-c"], data=data)  # answers once its input ends
    assert counted.stdout.split() == [str(len(data)).encode()]
    # One that reads nothing and ends doesn't hang who sends.
    assert run_beside(system, number, ["true"], data=data).returncode == 0


def test_a_slow_reader_is_waited_for_and_holds_nobody_up(running):
    system, number = running
    endless = start_beside(system, number, ["cat", "/dev/zero"])
    assert endless.stdout.read(1)
    before = {name: memory_kib(system, name) for name in ("musterd", "agent-lab-h01")}
    for _ in range(3):  # nobody reads the other one meanwhile
        assert run_beside(system, number, ["echo", "quick"], timeout_s=10).stdout == b"quick\n"
    grown = {name: memory_kib(system, name) - kib for name, kib in before.items()}
    assert all(kib < 32 << 10 for kib in grown.values()), grown
    stuck = start_beside(system, number, ["sleep", "1000.5"])
    for _ in range(3):
        sent = send_some(stuck, 8 << 20)
    assert sent < 24 << 20
    assert run_beside(system, number, ["echo", "quick"], timeout_s=10).stdout == b"quick\n"
    assert all(host["state"] == "HOST_UP" for host in system.hosts())
    for process in (endless, stuck):
        process.kill()
        process.wait(10)
    wait_for("their ends", lambda: not pids_named("1000.5") and not pids_named("/dev/zero"), 10)


def memory_kib(system, name: str) -> int:
    status = Path(f"/proc/{system.processes[name].pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1])


def send_some(process: subprocess.Popen, most: int) -> int:
    """What it takes without waiting."""
    sent = 0
    os.set_blocking(process.stdin.fileno(), False)
    while sent < most and select.select([], [process.stdin], [], 0.5)[1]:
        sent += os.write(process.stdin.fileno(), b"x" * (64 << 10))
    return sent


def test_a_terminal_has_a_size_and_ctrl_c(running):
    system, number = running
    pid, fd = pty.fork()
    if pid == 0:
        words = command(system, number, ["bash", "--norc"], "--pty")
        os.execve(words[0], [str(word) for word in words], system.environment() | {"TERM": "vt100"})
    said = b""

    def wait_until(pattern: bytes) -> None:
        nonlocal said
        deadline = time.monotonic() + 20
        while not re.search(pattern, said):
            assert time.monotonic() < deadline, said
            if select.select([fd], [], [], 0.2)[0]:
                said += os.read(fd, 4096)

    wait_until(rb"[$#] ")
    os.write(fd, b"echo $((40+2))-$TERM; tty\n")
    wait_until(rb"42-vt100\r\n/dev/pts/\d+")
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 99, 0, 0))
    os.write(fd, b"stty size\n")
    wait_until(rb"33 99")
    os.write(fd, b"sleep 1000.75; echo after-$?\n")
    wait_for("sleep", lambda: pids_named("1000.75"), 10)
    os.write(fd, b"\x03")
    wait_for("its end", lambda: not pids_named("1000.75"), 10)
    os.write(fd, b"exit 5\n")
    wait_until(rb"exit 5")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
    os.close(fd)


def run_in_terminal(system, *words) -> list[str]:
    return [str(system.bin_dir / "muster"), "run", "--queue", "research", "--pty", "--", *words]


@pytest.fixture
def terminal():
    """For standard input alone: what is printed comes where the test reads it."""
    other_end, own = pty.openpty()
    yield own
    os.close(own)
    os.close(other_end)


def read_until(stream, word: bytes) -> bytes:
    """What came, this word's line with it. Nothing more is to be read of the stream otherwise."""
    said = b""
    deadline = time.monotonic() + 30
    while word not in said:
        assert time.monotonic() < deadline, said
        if select.select([stream], [], [], 0.2)[0]:
            piece = os.read(stream.fileno(), 4096)
            assert piece, said
            said += piece
    return said


def newest_job(system) -> dict:
    return max(system.jobs(), key=lambda job: int(job["number"]))


@pytest.mark.parametrize(
    "words, code, state",
    [
        (["bash", "-c", "tty; echo $PWD"], 0, "SUCCEEDED"),
        (["bash", "-c", "tty; exit 5"], 5, "FAILED"),
        (["no-such-program"], 127, "FAILED"),
    ],
)
def test_a_job_of_a_terminal_ends_as_its_command_does(system, terminal, words, code, state):
    done = subprocess.run(
        run_in_terminal(system, *words),
        stdin=terminal,
        capture_output=True,
        timeout=60,
        env=system.environment(),
    )
    assert done.returncode == code, done
    assert b"/dev/pts/" in done.stdout or code == 127, done
    job = wait_ended(system, newest_job(system)["number"])
    assert job["state"] == state and len(task(job)["attempts"]) == 1
    assert job["spec"]["tasks"][0]["run"]["exec"][-len(words) :] == words
    if code == 127:
        assert b"no-such-program: no such program on" in done.stdout
        assert "no-such-program: no such program on" in job["detail"], job


def test_without_a_terminal_nothing_is_submitted(system):
    before = len(system.jobs())
    done = subprocess.run(
        run_in_terminal(system, "bash"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=30,
        env=system.environment(),
    )
    assert done.returncode == 2 and "standard input is none" in flat(done.stderr), done
    assert len(system.jobs()) == before


def test_a_shell_as_a_job_is_this_terminals_and_ctrl_c_is_its_commands(system):
    pid, fd = pty.fork()
    if pid == 0:
        words = run_in_terminal(system, "bash", "--norc")
        os.execve(words[0], words, system.environment() | {"TERM": "vt100"})
    said = b""

    def wait_until(pattern: bytes) -> None:
        nonlocal said
        deadline = time.monotonic() + 30
        while not re.search(pattern, said):
            assert time.monotonic() < deadline, said
            if select.select([fd], [], [], 0.2)[0]:
                said += os.read(fd, 4096)

    wait_until(rb"[$#] $")
    os.write(fd, b"sleep 1001.75; echo after-$?\n")
    wait_for("sleep", lambda: pids_named("1001.75"), 10)
    os.write(fd, b"\x03")
    wait_for("its end", lambda: not pids_named("1001.75"), 10)
    os.write(fd, b"exit 6\n")
    wait_until(rb"exit 6")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 6
    os.close(fd)
    assert wait_ended(system, newest_job(system)["number"])["state"] == "FAILED"


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_a_terminal_that_goes_away_takes_its_job_with_it(system, terminal, sent):
    process = subprocess.Popen(
        run_in_terminal(system, "sleep", "1002.25"),
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=system.environment(),
    )
    # The job's own program and what waits in the terminal have its words, too.
    wait_for("the command", lambda: len(pids_named("1002.25")) >= 3, 30)
    number = newest_job(system)["number"]
    assert system.job(number)["state"] == "RUNNING"
    process.send_signal(sent)
    process.wait(20)
    ended = wait_ended(system, number)
    assert ended["state"] == "CANCELLED" or "the terminal has gone away" in ended["detail"], ended
    wait_for("the command's end", lambda: not pids_named("1002.25"), 20)


def test_a_shell_whose_muster_is_killed_has_not_succeeded(system):
    pid, fd = pty.fork()
    if pid == 0:
        words = run_in_terminal(system, "bash", "--norc")
        os.execve(words[0], words, system.environment() | {"TERM": "vt100"})
    said = b""
    while not re.search(rb"[$#] $", said):
        assert select.select([fd], [], [], 30)[0], said
        said += os.read(fd, 4096)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(fd)
    ended = wait_ended(system, newest_job(system)["number"])
    assert ended["state"] == "FAILED" and "the terminal has gone away" in ended["detail"], ended


def test_a_job_that_waits_for_its_terminal_is_cancelled_with_it(system, terminal):
    system.run(["host", "drain", "lab/h01", "--reason", "a test"])
    system.run(["host", "drain", "lab/h02", "--reason", "a test"])
    process = subprocess.Popen(
        run_in_terminal(system, "true"),
        stdin=terminal,
        stderr=subprocess.PIPE,
        env=system.environment(),
    )
    read_until(process.stderr, b"Its terminal comes here")  # from here on it is what is waited for
    job = newest_job(system)
    assert job["state"] == "WAITING"
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    assert wait_ended(system, job["number"])["state"] == "CANCELLED"
    refused = system.run(["run", "--pty", "--workers", "2", "--", "true"], check=False)
    assert refused.returncode == 2 and "leave --workers out" in refused.stderr
    for host in ("lab/h01", "lab/h02"):
        system.run(["host", "resume", host])


def test_a_job_that_waits_for_its_place_outlives_a_restart_of_musterd(system, terminal):
    for host in ("lab/h01", "lab/h02"):
        system.run(["host", "drain", host, "--reason", "a test"])
    process = subprocess.Popen(
        run_in_terminal(system, "echo", "here"),
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=system.environment(),
    )
    wait_for("the job", lambda: system.jobs() and newest_job(system)["state"] == "WAITING", 20)
    system.processes["musterd"].kill()
    system.processes["musterd"].wait(10)
    read_until(process.stderr, b"no contact with the server")
    system.start_musterd()
    for host in ("lab/h01", "lab/h02"):
        system.run(["host", "resume", host])
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and b"here" in out, err
    assert wait_ended(system, newest_job(system)["number"])["state"] == "SUCCEEDED"


def test_a_slow_reader_gets_all_that_was_on_the_terminal(system, terminal):
    lines = 60_000  # more than its pipe holds, and less than what carries it
    process = subprocess.Popen(
        run_in_terminal(system, "bash", "-c", f"seq {lines}; exit 5"),
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,  # communicate() reads past a buffer
        env=system.environment(),
    )
    first = process.stdout.read(1)
    time.sleep(3)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 5, err
    assert (first + out).split() == [b"%d" % line for line in range(1, lines + 1)]


@pytest.mark.parametrize("how", ["lost", "cancelled"])
def test_a_command_has_time_after_its_sighup(system, terminal, how):
    began, saved = system.folder / "began", system.folder / "saved"
    on_hup = f"trap '' HUP; sleep 2; touch {saved}; exit 0"
    script = f"trap {shlex.quote(on_hup)} HUP; touch {began}; while :; do sleep 0.1; done"
    process = subprocess.Popen(
        run_in_terminal(system, "bash", "-c", script),
        stdin=terminal,
        env=system.environment(),
    )
    wait_for("the command", began.exists, 30)
    number = newest_job(system)["number"]
    if how == "lost":
        process.kill()
    else:
        system.run(["cancel", number])
    process.wait(30)
    ended = wait_ended(system, number)
    assert ended["state"] == ("FAILED" if how == "lost" else "CANCELLED")
    assert how == "cancelled" or "the terminal has gone away" in ended["detail"], ended
    assert saved.exists()


def test_it_ends_with_the_attempt_and_changes_nothing_of_it(running):
    system, number = running
    beside = start_beside(
        system, number, [*SHELL, "trap '' HUP TERM; setsid sleep 2000.25 & sleep 2000.5"]
    )
    wait_for("both", lambda: pids_named("2000.25") and pids_named("2000.5"), 10)
    let_go(system, "both")
    assert wait_ended(system, number)["state"] == "SUCCEEDED"
    _, said = beside.communicate(timeout=20)
    assert beside.returncode == 125 and b"attempt has ended" in said, said
    assert not pids_named("2000.25") and not pids_named("2000.5")
    after = run_beside(system, number, ["true"])
    assert after.returncode != 0 and f"job {number} has ended".encode() in after.stderr


def test_a_command_that_fails_or_is_killed_leaves_the_job_alone(running):
    system, number = running
    for words in (["false"], [*SHELL, "kill -KILL $$"]):
        assert run_beside(system, number, words).returncode != 0
    let_go(system, "both")
    job = wait_ended(system, number)
    assert job["state"] == "SUCCEEDED" and len(task(job)["attempts"]) == 1


def test_who_hangs_up_ends_the_command_and_nothing_leaks(running):
    system, number = running
    agent = system.processes["agent-lab-h01"].pid
    rank = next(r for r in (0, 1) if host_of(system, number, r) == "h01")
    open_before = len(os.listdir(f"/proc/{agent}/fd"))
    words = [*SHELL, "trap '' HUP; sleep 3000.25"]
    beside = start_beside(system, number, words, "--rank", str(rank))
    wait_for("it", lambda: pids_named("3000.25"), 10)
    beside.send_signal(signal.SIGINT)
    assert beside.wait(10) == 130
    wait_for("its end, by SIGKILL after its grace", lambda: not pids_named("3000.25"), 15)
    run_beside(system, number, ["true"], "--rank", str(rank))
    wait_for(
        "its descriptors",
        lambda: len(os.listdir(f"/proc/{agent}/fd")) <= open_before + 3,  # a connection to musterd
        10,
    )


def host_of(system, number, rank: int) -> str:
    shim = int(Path(f"/proc/{rank_pid(system, number, rank)}/stat").read_text().split()[3])
    words = Path(f"/proc/{shim}/cmdline").read_bytes().decode()
    return re.search(r"agents/lab-(h\d+)/", words)[1]


@pytest.mark.parametrize("victim", ["musterd", "agents"])
def test_a_killed_daemon_ends_the_command_and_says_so(running, victim):
    system, number = running
    beside = start_beside(system, number, ["sh", "-c", "echo begun; exec sleep 4000.25"])
    assert beside.stdout.readline() == b"begun\n"  # it knows, too
    names = ["musterd"] if victim == "musterd" else ["agent-lab-h01", "agent-lab-h02"]
    for name in names:
        system.processes[name].kill()
        system.processes[name].wait(10)
    _, said = beside.communicate(timeout=30)
    assert beside.returncode == 125 and b"cut off" in said, said
    who = "to musterd" if victim == "musterd" else "to its muster-agent"
    assert f"connection {who} was lost" in flat(said) and "run the command again" in flat(said)
    wait_for("its end", lambda: not pids_named("4000.25"), 15)
    if victim == "musterd":
        system.start_musterd()
    else:
        for host in ("h01", "h02"):
            system.start_agent("lab", host)
    system.wait_hosts_up({"lab/h01", "lab/h02"})
    assert run_beside(system, number, ["echo", "again"]).stdout == b"again\n"
    let_go(system, "both")
    assert wait_ended(system, number)["state"] == "SUCCEEDED"


def test_errors_name_the_place_and_the_remedy(running):
    system, number = running
    wrong_rank = run_beside(system, number, ["true"], "--rank", "4")
    assert wrong_rank.returncode == 3
    assert f"job {number} has no rank 4; it has ranks 0 to 1" in flat(wrong_rank.stderr)
    old = run_beside(system, number, ["true"], "--attempt", "7")
    assert "attempt 7" in flat(old.stderr) and "attempt 1 does" in flat(old.stderr)
    waiting = submit_waiting(system, "waits", workers="3")
    wait_for("its verdict", lambda: task(system.job(waiting)).get("verdict"), 10)
    not_yet = run_beside(system, waiting, ["true"])
    said = flat(not_yet.stderr)
    assert f"job {waiting} doesn't run yet: " in said and f"muster explain {waiting}" in said
    nobody = run_beside(system, 4711, ["true"])
    assert nobody.returncode == 3 and 'there is no job "4711"' in flat(nobody.stderr)
    many = [start_beside(system, number, ["sleep", "5000"]) for _ in range(16)]

    def all_run():
        # An agent whose host has changed connects anew; what comes meanwhile is told to try again.
        for i, process in enumerate(many):
            if process.poll() is not None:
                assert "try again once it is" in flat(process.stderr.read())
                many[i] = start_beside(system, number, ["sleep", "5000"])
        return len(pids_named("5000")) == 16

    wait_for("16 of them", all_run, 30)
    one_more = run_beside(system, number, ["true"])
    assert "16 commands beside this job's workers are open" in flat(one_more.stderr)
    for process in many:
        process.kill()
        process.wait(10)
    wait_for("their ends", lambda: not pids_named("5000"), 15)


def flat(said: bytes) -> str:
    return " ".join(said.decode().split())


# ---- ports ----

SERVER = """\
name: served
queue: research
resources: {{gpus: 1, gpu_types: [cpu-slot]}}
run: |
  mkdir -p www; echo from-the-job > www/page
  exec python3 -m http.server --bind 127.0.0.1 --directory www {port}
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as door:
        return door.getsockname()[1]


def start_forward(system, number, ports: str, *flags):
    process = subprocess.Popen(
        [system.bin_dir / "muster", "forward", str(number), ports, *flags],
        stderr=subprocess.PIPE,
        text=True,
        env=system.environment(),
    )
    line = process.stderr.readline()
    return process, int(re.search(r"127\.0\.0\.1:(\d+) leads to", line)[1])


def get(port: int) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/page")
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return body


def answers(port: int) -> bool:
    try:
        return get(port) == b"from-the-job\n"
    except (OSError, http.client.HTTPException):
        return False


def test_a_port_of_the_job_is_reached_by_many_at_once(system):
    port = free_port()
    number = submit(system, SERVER.format(port=port))
    wait_for("the server", lambda: answers(port), 20)
    process, local = start_forward(system, number, f"{port}:0")
    assert get(local) == b"from-the-job\n"
    connections = [socket.create_connection(("127.0.0.1", local)) for _ in range(20)]
    for connection in connections:
        connection.sendall(b"GET /page HTTP/1.0\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
    for connection in connections:
        assert b"from-the-job" in read_all(connection)
    taken = system.run(["forward", number, f"{port}:{local}"], check=False)
    assert taken.returncode == 2 and "is taken on this machine" in " ".join(taken.stderr.split())
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130


def read_all(connection: socket.socket) -> bytes:
    data = b""
    connection.settimeout(20)
    while piece := connection.recv(65536):
        data += piece
    connection.close()
    return data


# ---- several users ----


def as_user(host, uid: int, *words, **more):
    return subprocess.run(
        [host.bin_dir / "muster", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=60,
        user=uid,
        group=uid,
        extra_groups=[],
        cwd="/",
        env=host.environment() | {"HOME": "/"},
        **more,
    )


def submit_as(host, uid: int, name: str, run: str) -> int:
    spec = f"name: {name}\nqueue: research\nresources: {{gpus: 1, gpu_types: [cpu-slot]}}\nrun: {run}\n"
    done = as_user(host, uid, "submit", "-y", "-d", "-o", "json", "-", input=spec)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["number"]


def forwarded_nowhere(host, uid: int, number: int, port: int) -> str:
    """What the user is told of a connection that ends before it has brought anything."""
    process = subprocess.Popen(
        [host.bin_dir / "muster", "forward", str(number), f"{port}:0"],
        stderr=subprocess.PIPE,
        text=True,
        user=uid,
        group=uid,
        extra_groups=[],
        cwd="/",
        env=host.environment() | {"HOME": "/"},
    )
    local = int(re.search(r"127\.0\.0\.1:(\d+) leads", process.stderr.readline())[1])
    with socket.create_connection(("127.0.0.1", local)) as connection:
        assert read_all(connection) == b""
    said = process.stderr.readline()  # once it is told to end it says no more
    process.send_signal(signal.SIGINT)
    return flat((said + process.communicate(timeout=10)[1]).encode())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be several users")
def test_it_runs_as_the_owner_and_others_are_refused(bin_dir):
    with owners_host(bin_dir) as host:
        number = submit_as(host, ANN, "anns", "sleep 600")
        theirs = submit_as(host, MALLORY, "mallorys", "sleep 601")
        wait_for("both", lambda: pids_named("600") and pids_named("601"), 30)

        def beside(uid, words, *flags):
            return as_user(host, uid, "exec", number, *flags, "--", *words)

        seen = "id -u; id -G; grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status; ls -A /tmp"
        done = beside(ANN, [*SHELL, seen])
        assert done.returncode == 0, done.stderr
        lines = done.stdout.split("\n")
        assert lines[0] == lines[1] == str(ANN)
        assert lines[2:5] == [
            "CapEff:\t0000000000000000",
            "CapBnd:\t0000000000000000",
            "NoNewPrivs:\t1",
        ]
        processes = beside(ANN, [*SHELL, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]).stdout
        assert "sleep 600" in processes and "sleep 601" not in processes
        terminal = beside(ANN, [*SHELL, "tty; test -r $(tty) && echo readable"], "--pty")
        assert "/dev/pts/" in terminal.stdout and "readable" in terminal.stdout, terminal
        descriptors = beside(ANN, ["ls", "/proc/self/fd"]).stdout.split()
        assert descriptors == ["0", "1", "2", "3"]  # the last is ls's own
        refused = beside(MALLORY, ["true"])  # she sees the job, as a submitter there
        assert refused.returncode == 4
        assert "JobService/Exec takes operator at queue research" in flat(refused.stderr.encode())
        assert as_user(host, MALLORY, "exec", 4711, "--", "true").returncode == 3
        audit = host.run(["audit", "list", "-o", "json"]).stdout
        assert "bash and 2 more words" in audit and "CapEff" not in audit
        # Mallory's own job can't be led to what ann's job, or the host, serves on loopback.
        with socket.create_server(("127.0.0.1", 0)) as door:
            port = door.getsockname()[1]
            said = forwarded_nowhere(host, MALLORY, theirs, port)
            door.settimeout(0.2)
            with pytest.raises(TimeoutError):
                door.accept()
            assert f"no process of this job listens on 127.0.0.1:{port}" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be several users")
@pytest.mark.parametrize("reads", [True, False])
def test_who_loses_the_right_loses_the_command(reads, bin_dir):
    """Who reads nothing, too: what is to be written last waits behind what they don't take."""
    program = ["sleep", "6000.25"] if reads else ["sh", "-c", "yes & exec sleep 6000.25"]
    with owners_host(bin_dir) as host:
        host.run(["access", "grant", "mallory", "operator", "research"])
        number = submit_as(host, ANN, "anns", "sleep 600")
        wait_for("it", lambda: pids_named("600"), 30)
        beside = subprocess.Popen(
            [host.bin_dir / "muster", "exec", str(number), "--", *program],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            user=MALLORY,
            group=MALLORY,
            extra_groups=[],
            cwd="/",
            env=host.environment() | {"HOME": "/"},
        )
        wait_for("it", lambda: pids_named("6000.25"), 20)
        host.run(["access", "revoke", "mallory", "research"])
        if reads:
            _, said = beside.communicate(timeout=5)
            assert b"you may not do this with the job any more" in said
        wait_for("its end", lambda: not pids_named("6000.25"), 10)
        beside.kill()
        beside.communicate()
        assert job_processes(host.folder) or pids_named("600"), "the job goes on"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be several users")
def test_operators_may_unless_the_configuration_keeps_it_to_owners(bin_dir):
    with owners_host(bin_dir) as host:
        host.run(["access", "grant", "mallory", "operator", "research"])
        number = submit_as(host, ANN, "anns", "sleep 600")
        wait_for("it", lambda: pids_named("600"), 30)

        def beside(uid):
            return as_user(host, uid, "exec", number, "--", "id", "-u")

        for uid in (MALLORY, ANN):
            done = beside(uid)
            assert (done.returncode, done.stdout.strip()) == (0, str(ANN)), done.stderr

        config = host.folder / "etc" / "musterd.yaml"
        config.write_text(config.read_text() + "operators_exec: false\n")
        host.processes["musterd"].terminate()
        host.processes["musterd"].wait(20)
        host.start_musterd()
        host.wait_hosts_up({"lab/h01"})

        refused = beside(MALLORY)
        assert refused.returncode == 4, refused
        forwarded = forwarded_nowhere(host, MALLORY, number, 9)
        for said in (flat(refused.stderr.encode()), forwarded):
            assert "this job is ann's, and here owners alone run commands" in said, said
            assert "operators_exec: false in musterd.yaml" in said, said
        for owner in (ANN, 0):
            done = beside(owner)
            assert (done.returncode, done.stdout.strip()) == (0, str(ANN)), done.stderr
        # Whatever else an operator may, stays.
        assert as_user(host, MALLORY, "cancel", number).returncode == 0
