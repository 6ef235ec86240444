"""What dies comes back, and nothing is lost, repeated or forgotten."""

import os
import signal
import subprocess
import threading

from local_system import job_processes, wait_for
from small_system import (
    let_go,
    marks,
    rank_pid,
    submit_waiting,
    task,
    wait_ended,
    wait_started,
    waiting_job,
)


def kill(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait(10)


def test_a_killed_daemon_loses_no_job_and_starts_none_twice(system):
    running = {name: submit_waiting(system, name) for name in ("a", "b", "c")}
    gang = submit_waiting(system, "gang", workers="2")  # waits: one slot is free
    for name in running:
        wait_started(system, name, 1)
    before = set(job_processes(system.folder))

    kill(system.processes["musterd"])
    system.start_musterd()

    assert {job["number"] for job in system.jobs()} == {*running.values(), gang}
    assert set(job_processes(system.folder)) == before, "the processes did not live on"
    for name, number in running.items():
        let_go(system, name)
        assert wait_ended(system, number)["state"] == "SUCCEEDED"
        assert len(marks(system, name)) == 1, "an attempt ran twice"
    let_go(system, "gang")
    assert wait_ended(system, gang)["state"] == "SUCCEEDED"
    assert sorted(rank for rank, _, _ in marks(system, "gang")) == [0, 1]


def test_a_killed_agent_finds_its_processes_and_tells_their_exit_codes(system):
    names = {"good": 0, "bad": 7, "ends-while-away": 3}
    numbers = {
        name: submit_waiting(system, name, exit_code=code, more="max_restarts: 0\n")
        for name, code in names.items()
    }
    for name in names:
        wait_started(system, name, 1)
    pids = {name: rank_pid(system, number) for name, number in numbers.items()}
    for host in ("h01", "h02"):
        kill(system.processes[f"agent-lab-{host}"])
    let_go(system, "ends-while-away")
    wait_for(
        "the process that ends while no agent is there",
        lambda: not alive(pids["ends-while-away"]),
        10,
    )
    for host in ("h01", "h02"):
        system.start_agent("lab", host)
    system.wait_hosts_up({"lab/h01", "lab/h02"})

    assert alive(pids["good"]) and alive(pids["bad"]), "the processes did not live on"
    let_go(system, "good")
    let_go(system, "bad")
    ended = {name: wait_ended(system, number) for name, number in numbers.items()}
    assert {name: job["state"] for name, job in ended.items()} == {
        "good": "SUCCEEDED",
        "bad": "FAILED",
        "ends-while-away": "FAILED",
    }
    for name in ("bad", "ends-while-away"):
        assert (
            ended[name]["cause"] == "PROGRAM_ERROR"
            and str(names[name]) in task(ended[name])["attempts"][-1]["detail"]
        )
    assert all(len(marks(system, name)) == 1 for name in names), "an attempt ran twice"


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def test_submissions_while_the_daemon_is_killed_are_stored_once_or_not_at_all(system):
    """The client repeats itself under one idempotency key while the server is away."""
    codes = {}

    def submit(name: str) -> None:
        path = system.folder / f"{name}.yaml"
        path.write_text(waiting_job(system, name))
        codes[name] = system.run(
            ["submit", path, "-y", "--detach", "-o", "json"], check=False, timeout_s=60
        ).returncode

    threads = [threading.Thread(target=submit, args=(f"s{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    wait_for("the first submission", lambda: len(codes) >= 1, 20, 0.002)
    kill(system.processes["musterd"])
    system.start_musterd()
    for thread in threads:
        thread.join(70)
    assert len(codes) == len(threads), f"only {sorted(codes)} came back"
    names = [job["spec"]["name"] for job in system.jobs()]
    for name, code in codes.items():
        assert code in (0, 6), f"{name}: exit {code}"
        assert names.count(name) == 1 if code == 0 else names.count(name) <= 1, (
            f"{name}: exit {code}, stored {names.count(name)} times"
        )
    assert 0 in codes.values()


def test_a_second_daemon_on_the_same_store_is_refused(system):
    config = system.folder / "etc" / "second.yaml"
    config.write_text(
        (system.folder / "etc" / "musterd.yaml").read_text().replace("musterd.sock", "second.sock")
    )
    second = subprocess.run(
        [system.bin_dir / "musterd", "--config", config], capture_output=True, text=True, timeout=20
    )
    assert second.returncode != 0 and "store" in second.stderr + second.stdout
    assert system.run(["ping"]).returncode == 0


def test_a_killed_rank_costs_a_restart_and_the_whole_gang_starts_again(system):
    number = submit_waiting(system, "gang", workers="2", more="max_restarts: 1\n")
    wait_started(system, "gang", 2)
    other = rank_pid(system, number, 0)
    os.kill(rank_pid(system, number, 1), signal.SIGKILL)
    second = wait_started(system, "gang", 4)[2:]
    assert sorted((rank, attempt) for rank, attempt, _ in second) == [(0, 2), (1, 2)]
    assert not alive(other), "the other rank of the dead gang still runs"
    job = system.job(number)
    assert task(job)["attempts"][0]["cause"] == "KILLED" and task(job)["restarts_used"] == 1
    let_go(system, "gang")
    assert wait_ended(system, number)["state"] == "SUCCEEDED"
