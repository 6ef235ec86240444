"""Programs that stand still for longer than the lease, and go on: nothing was lost by it, and nothing runs twice."""

import os
import signal
import time
from contextlib import contextmanager

from local_system import job_processes, wait_for
from small_system import (
    configure,
    let_go,
    marks,
    submit,
    submit_waiting,
    task,
    wait_ended,
    wait_started,
)

LEASE_S = 4
HANG_S = 10
SCHEDULING = f"grow_interval: 1s, min_runtime: 0s, lease: {LEASE_S}s, heartbeat: 500ms, restart_backoff: 200ms"


def start(system) -> None:
    configure(system, scheduling=SCHEDULING)
    system.start_musterd()
    for host in ("h01", "h02"):
        system.start_agent("lab", host)
    system.wait_hosts_up({"lab/h01", "lab/h02"})


@contextmanager
def stopped(system, name: str):
    """SIGSTOP, for three leases at least."""
    process, began = system.processes[name], time.monotonic()
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
        wait_for(
            "three leases to pass", lambda: time.monotonic() >= began + 3 * LEASE_S, 4 * LEASE_S
        )
    finally:
        os.kill(process.pid, signal.SIGCONT)


def connections(system, host: str) -> int:
    return system.log_tail(f"agent-lab-{host}", 10**6).count("info connected ")


def state_of(system, host: str) -> str:
    return next(found["state"] for found in system.hosts() if found["name"] == f"lab/{host}")


def go_on_and_succeed(system, numbers: dict[str, int]) -> None:
    for name, number in numbers.items():
        let_go(system, name)
        job = wait_ended(system, number)
        assert job["state"] == "SUCCEEDED" and len(task(job)["attempts"]) == 1, job
        assert len(marks(system, name)) == 1, f"{name} ran again"


def test_a_daemon_that_stands_still_for_longer_than_the_lease_replaces_nothing(bare):
    """Also where a task may be replaced and there is room for it: it was the daemon that was away, not the host."""
    start(bare)
    rules = {"waits": "wait", "moves": "replace", "may-move": "replace"}
    numbers = {
        name: submit_waiting(bare, name, more=f"when_unreachable: {rule}\n")
        for name, rule in rules.items()
    }
    for name in numbers:
        wait_started(bare, name, 1)
    before = set(job_processes(bare.folder))
    sessions = {host: connections(bare, host) for host in ("h01", "h02")}
    slow = bare.processes["agent-lab-h01"].pid  # it comes back a moment after the other one
    with stopped(bare, "musterd"):
        for host in sessions:
            # With its lease, or sooner: an agent begins a new one once it has learned its trainer's schema.
            wait_for(
                f"{host}'s session to die",
                lambda: any(
                    end in bare.log_tail(f"agent-lab-{host}", 10**6)
                    for end in ("silent for a lease", "not connected", "connecting anew")
                ),
                3 * LEASE_S,
            )
        os.kill(slow, signal.SIGSTOP)
    try:
        wait_for("h02's next session", lambda: connections(bare, "h02") > sessions["h02"], 20)
        wait_for("h02 to be up", lambda: state_of(bare, "h02") == "HOST_UP", 20)
    finally:
        os.kill(slow, signal.SIGCONT)
    wait_for("h01's next session", lambda: connections(bare, "h01") > sessions["h01"], 20)
    bare.wait_hosts_up({"lab/h01", "lab/h02"})
    said = bare.log_tail("musterd", 10**6)
    assert "the scheduler stood still" in said and "unreachable" not in said, said
    assert set(job_processes(bare.folder)) == before
    go_on_and_succeed(bare, numbers)


def test_a_task_that_waits_goes_on_once_its_agent_that_stood_still_for_longer_than_the_lease_does(
    bare,
):
    start(bare)
    bare.run(["host", "drain", "lab/h02"])
    numbers = {
        name: submit_waiting(bare, name, more="when_unreachable: wait\n") for name in ("a", "b")
    }
    for name in numbers:
        wait_started(bare, name, 1)
    bare.run(["host", "resume", "lab/h02"])  # where there would be room
    before = set(job_processes(bare.folder))
    with stopped(bare, "agent-lab-h01"):
        wait_for(
            "h01 to be unreachable",
            lambda: state_of(bare, "h01") == "HOST_UNREACHABLE",
            4 * LEASE_S,
        )
        let_go(bare, "b")  # ends while its agent stands still
    wait_for("h01 to be back", lambda: state_of(bare, "h01") == "HOST_UP", 20)
    assert set(job_processes(bare.folder)) <= before
    go_on_and_succeed(bare, numbers)


def test_time_without_a_daemon_is_no_hang(bare):
    """A task that is silent for longer than its hang_timeout while nobody listens goes on; then it counts from the daemon's return."""
    start(bare)
    number = submit(
        bare,
        f"""\
name: quiet
queue: research
resources: {{gpus: 1, gpu_types: [cpu-slot]}}
grace: 1s
max_restarts: 0
hang_timeout: {HANG_S}s
run: |
  python3 -c 'import os, socket; socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"{{\\"step\\": 7}}", os.environ["MUSTER_PROGRESS_SOCKET"])'
  sleep 1000
""",
        "quiet",
    )
    wait_for(
        "its line",
        lambda: int((task(bare.job(number)).get("progress") or {}).get("step", 0)) == 7,
        20,
    )
    submit_waiting(bare, "later")
    wait_started(bare, "later", 1)  # what was told before that is stored
    bare.processes["musterd"].kill()
    bare.processes.pop("musterd").wait(10)
    ended = time.monotonic()
    wait_for("its hang_timeout to pass", lambda: time.monotonic() >= ended + HANG_S + 1, 2 * HANG_S)
    returned_ns = time.time_ns()
    bare.start_musterd()
    job = wait_ended(bare, number, 30)
    attempt = task(job)["attempts"][-1]
    assert attempt["cause"] == "HANG" and f"no progress for {HANG_S}s" in attempt["detail"], job
    assert int(attempt["end_ns"]) >= returned_ns + HANG_S * 10**9, (
        "it was taken for hung because nobody had listened"
    )
