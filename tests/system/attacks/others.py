"""Attacks on processes, sockets and records of others: another user's job, the agent, its shims, musterd."""

import array
import ctypes
import json
import os
import socket
import subprocess
import time
from pathlib import Path

from base import TARGETS, attack, call, creates_in, first, lists, reads

HOST_PIDS = [TARGETS[name] for name in ("agent_pid", "shim_pid", "ann_pid", "musterd_pid")]


@attack
def signals_by_the_hosts_numbers():
    def signal_one(pid):
        os.kill(pid, 0)
        return f"signalled {pid}"

    return first(lambda pid=pid: signal_one(pid) for pid in HOST_PIDS)


@attack
def signals_the_first():
    """Its end would be everybody's in the namespace, and unseen."""
    os.kill(1, 0)
    return "signalled the process that holds the namespaces"


@attack
def handles_of_processes():
    return first(lambda pid=pid: f"{os.pidfd_open(pid)} is a handle of {pid}" for pid in HOST_PIDS)


@attack
def traces_others():
    def trace(pid):
        call("ptrace", 0x4206, pid, None, None)  # PTRACE_SEIZE stops nobody
        return f"traces {pid}"

    return first(lambda pid=pid: trace(pid) for pid in (*HOST_PIDS, 1))


@attack
def reads_memory_of_others():
    return first(lambda pid=pid: reads_map(pid) for pid in (*HOST_PIDS, 1))


def reads_map(pid: int) -> str:
    with open(f"/proc/{pid}/maps") as maps:
        begin = int(next(line for line in maps if " r" in line).split("-")[0], 16)
    with open(f"/proc/{pid}/mem", "rb") as memory:
        memory.seek(begin)
        return f"read of {pid}: {memory.read(16)!r}"


@attack
def secrets_in_environments():
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if b"ANN_SECRET" in (process / "environ").read_bytes():
                return f"read the environment of {process.name}"
        except OSError:
            pass
    return ""


@attack
def sees_others_processes():
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if b"anns-argument" in (process / "cmdline").read_bytes():
                return f"sees what {process.name} was started with"
        except OSError:
            pass
    return ""


@attack
def files_through_processes():
    return first(
        lambda pid=pid, way=way: lists(f"/proc/{pid}/{way}")
        for pid in (*HOST_PIDS, 1)
        for way in ("root", "cwd", "fd")
        if (pid, way) != (1, "root") or os.getuid() == 0
    )


@attack
def limits_of_others():
    import resource

    return first(
        lambda pid=pid: f"limits of {pid}: {resource.prlimit(pid, resource.RLIMIT_NOFILE)}"
        for pid in (*HOST_PIDS, 1)
    )


@attack
def slows_others():
    def act(pid):
        os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid))
        return f"set the priority of {pid}"

    return first(lambda pid=pid: act(pid) for pid in (*HOST_PIDS, 1))


@attack
def shared_memory_of_anns():
    segment = call("shmget", TARGETS["shm_key"], 0, 0)
    return f"found segment {segment}"


@attack
def shared_files_of_anns():
    """World-writable, in what is hers alone."""
    return first(lambda path=path: reads(path) for path in TARGETS["ann_shared_files"])


@attack
def shared_files_of_the_host():
    return first(lambda path=path: reads(path) for path in TARGETS["host_shared_files"])


@attack
def daemon_outside():
    """The owner's own session manager would start processes for it that outlive the job."""
    with socket.socket(socket.AF_UNIX) as bus:
        bus.connect(TARGETS["bus"])
        return f"connected to {TARGETS['bus']}"


def say(path: str, line: bytes, files=()) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
        sender.sendmsg([line], rights, 0, path)
    return f"said {line[:40]!r} to {path}"


@attack
def progress_for_anns_job():
    return say(TARGETS["ann_socket"], b'{"step": 31337}')


@attack
def sockets_of_others():
    return lists(os.path.dirname(TARGETS["ann_socket"]))


@attack
def replaces_a_socket():
    return creates_in(os.path.dirname(TARGETS["ann_socket"]))


@attack
def descriptors_into_the_shim():
    """Judged from outside: the shim keeps none."""
    with open("/dev/null") as null:
        for step in range(300):
            say(os.environ["MUSTER_PROGRESS_SOCKET"], b'{"step": %d}' % step, [null.fileno()] * 20)
    Path("sent").write_text("")
    deadline = time.monotonic() + 15
    while not Path("looked-at").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return Path("looked-at").read_text()


@attack
def hostile_lines():
    """Judged from outside: the agent and ann's job live."""
    path = os.environ["MUSTER_PROGRESS_SOCKET"]
    lines = [
        b"", b"{", b"[" * 4000, b'{"step":' + b"9" * 4000 + b"}", b'{"checkpoint":{"path":"/etc/shadow","step":1}}',
        b'{"checkpoint":{"path":"../../../../etc","step":-1}}', b"\0" * 100, b'{"step":1}\n{"export":{}}',
        b'{"loss":"\\u0000\\ud800"}', b'{"rank":-1,"step":1}', b'{"export":{"staged":"","target":""}}'[:-1],
        b'{"loaded":{"path":"' + b"../" * 2000 + b'"}}',
    ]  # fmt: skip
    for index in range(3000):
        say(path, lines[index % len(lines)])
    return ""


def muster(*words, stdin=None) -> str:
    environment = {
        **os.environ,
        "MUSTER_SERVER": TARGETS["server"],
        "HOME": "/nonexistent",
        "USER": "ann",
        "LOGNAME": "ann",
    }
    done = subprocess.run(
        [f"{TARGETS['bin']}/muster", *words],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=30,
        env=environment,
    )
    if done.returncode != 0:
        raise PermissionError(done.stderr[-200:])
    return done.stdout


@attack
def cancels_anns_job():
    return muster("cancel", str(TARGETS["ann_sacrifice"]))


@attack
def reads_logs_of_anns_job():
    return muster("logs", str(TARGETS["ann_job"]))


@attack
def environment_of_anns_job():
    shown = muster("show", str(TARGETS["ann_job"]), "-o", "json")
    return "ann's secret" if "sesame" in shown else ""


@attack
def drains_a_host():
    return muster("host", "drain", "lab/h02", "--yes")


@attack
def grants_itself_a_role():
    return muster("access", "grant", "mallory", "admin", "/")


@attack
def submits_as_ann():
    job = (
        "name: forged\nqueue: research\nresources: {gpus: 1, gpu_types: [cpu-slot]}\nrun: 'true'\n"
    )
    number = json.loads(muster("submit", "--detach", "-y", "-o", "json", "-", stdin=job))["number"]
    owner = json.loads(muster("show", str(number), "-o", "json"))["owner"]
    return f"a job of {owner}'s" if owner == "ann" else ""


@attack
def speaks_as_an_agent():
    done = subprocess.run(
        [
            "timeout", "4", f"{TARGETS['bin']}/muster-agent", "--server", TARGETS["server"], "--cluster", "lab", "--host", "h02",
            "--state-dir", os.path.abspath("agent"), "--single-user", "--inventory", f"{TARGETS['public']}/host.yaml",
        ],
        capture_output=True, text=True,
    )  # fmt: skip
    said = done.stderr + done.stdout
    return (
        ""
        if "ermission" in said or "refused" in said or "another user" in said
        else f"was not refused: {said[-200:]}"
    )


@attack
def store_of_musterd():
    return first(lambda path=path: reads(path) for path in TARGETS["store_files"])


@attack
def records_of_the_agent():
    return first(lambda path=path: reads(path) for path in TARGETS["state_files"])


@attack
def forges_its_own_end():
    path = Path(TARGETS["state"]) / "attempts"
    return first((lambda: lists(path), lambda: creates_in(path)))


@attack
def replaces_the_state_directory():
    os.rename(TARGETS["state"], TARGETS["state"] + "-away")
    os.rename(TARGETS["state"] + "-away", TARGETS["state"])
    return "moved the agent's state directory"


@attack
def log_of_anns_job():
    return first(lambda path=path: reads(path) for path in TARGETS["ann_logs"])


@attack
def name_of_a_shim():
    """A name and a command line like a shim's; judged from outside, after the agent was killed and started again."""
    ctypes.CDLL(None).prctl(15, b"muster-shim", 0, 0, 0)
    return ""
