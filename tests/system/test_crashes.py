"""Daemons that die again and again under load: what was acknowledged comes to its end, and nothing runs twice."""

import random
import subprocess
import threading
from collections import Counter

import pytest
from full_disk import LIMIT, TMPFS, fill_and_recover, kinds
from local_system import job_processes, processes_of, wait_for
from namespaces import why_not
from small_system import (
    ENDED,
    configure,
    let_go,
    marks,
    start,
    submit_waiting,
    wait_ended,
    wait_started,
)
from teams_over_tls import teams_over_tls

JOBS = 30
KILLS = 20


def line_job(system, name: str, queue: str, workers: int) -> str:
    """Each process adds `number attempt rank` to one file, works for a moment, and ends."""
    return f"""\
name: {name}
queue: {queue}
workers: {workers}
resources: {{gpus: 1, gpu_types: [cpu-slot]}}
grace: 5s
run: |
  echo "$MUSTER_JOB $MUSTER_ATTEMPT ${{RANK-0}}" >> {system.folder}/lines
  sleep 0.{1 + int(name[3:]) % 4}
"""


def kill(process: subprocess.Popen) -> None:
    process.kill()
    process.wait(10)


def test_a_daemon_killed_again_and_again_loses_no_job_and_starts_no_attempt_twice(system):
    acknowledged: list[str] = []
    refused: list[str] = []
    stop = threading.Event()

    def submit_all() -> None:
        for index in range(JOBS):
            path = system.folder / f"job{index}.yaml"
            path.write_text(
                line_job(system, f"job{index}", ("research", "prod")[index % 2], 1 + index % 3)
            )
            words = ["submit", path, "-y", "--detach", "-o", "name"]
            while not stop.is_set():
                done = system.run([*words, "--idempotency-key", f"job {index}"], check=False)
                if done.returncode == 0:
                    acknowledged.append(done.stdout.strip())
                    break
                if done.returncode != 6:  # only "not there now" is an excuse
                    refused.append(done.stderr)
                    return

    submitter = threading.Thread(target=submit_all)
    submitter.start()
    try:
        for kills in range(KILLS):
            wanted = (kills + 1) * JOBS // (KILLS + 2)
            wait_for(
                f"{wanted} acknowledged submissions (there are {len(acknowledged)})",
                lambda: len(acknowledged) >= wanted or refused,
                30,
                0.003,
            )
            kill(system.processes["musterd"])
            system.start_musterd()
        submitter.join(60)
        assert not refused, refused
        assert not submitter.is_alive(), f"{len(acknowledged)} of {JOBS} were acknowledged"
    finally:
        stop.set()
        submitter.join(60)

    def left() -> list[dict]:
        return [job for job in system.jobs() if job["state"] not in ENDED]

    wait_for(
        f"all jobs to end ({[(job['number'], job['state']) for job in left()]})",
        lambda: not left(),
        90,
        0.2,
    )
    wait_for(
        f"the shims of ended jobs to end ({processes_of(system.folder)})",
        lambda: "muster-shim" not in processes_of(system.folder).values(),
        20,
        0.2,
    )
    jobs = {str(job["number"]): job for job in system.jobs()}
    assert sorted(jobs, key=int) == sorted(acknowledged, key=int), (
        "acknowledged and stored jobs differ"
    )
    assert {job["state"] for job in jobs.values()} == {"SUCCEEDED"}, {
        number: (job["state"], job.get("detail"))
        for number, job in jobs.items()
        if job["state"] != "SUCCEEDED"
    }
    started = Counter((system.folder / "lines").read_text().splitlines())
    assert [line for line, times in started.items() if times > 1] == [], "started twice"
    for number, job in jobs.items():
        last = max(int(line.split()[1]) for line in started if line.split()[0] == number)
        ranks = {
            int(line.split()[2]) for line in started if line.split()[:2] == [number, str(last)]
        }
        assert ranks == set(range(1 + int(job["spec"]["name"][3:]) % 3)), (
            f"job {number} succeeded with ranks {ranks}"
        )


def test_all_daemons_killed_at_once_and_the_same_processes_go_on(system):
    names = ["a", "b", "c", "d"]
    numbers = {name: submit_waiting(system, name) for name in names}
    for name in names:
        wait_started(system, name, 1)
    before = set(job_processes(system.folder))
    generator = random.Random(1)
    for _ in range(2):
        order = ["musterd", "agent-lab-h01", "agent-lab-h02"]
        generator.shuffle(order)
        for daemon in order:
            kill(system.processes[daemon])
        assert set(job_processes(system.folder)) == before, "a daemon's death reached the processes"
        system.start_musterd()
        for host in ("h01", "h02"):
            system.start_agent("lab", host)
        system.wait_hosts_up({"lab/h01", "lab/h02"})
    assert set(job_processes(system.folder)) == before
    for name in names:
        let_go(system, name)
        job = wait_ended(system, numbers[name])
        assert job["state"] == "SUCCEEDED" and len(job["tasks"][0]["attempts"]) == 1, job
        assert len(marks(system, name)) == 1, f"{name} ran again"


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can be done here")
def test_who_hosts_and_users_are_outlives_the_daemons_over_tls(bin_dir):
    with teams_over_tls(bin_dir, ["h01", "h02"]) as system:
        start(system)
        numbers = {name: submit_waiting(system, name) for name in ("a", "b", "c")}
        for name in numbers:
            wait_started(system, name, 1)
        for _ in range(3):
            for daemon in ("musterd", "agent-lab-h01", "agent-lab-h02"):
                kill(system.processes[daemon])
            system.start_musterd()
            for host in ("h01", "h02"):
                system.start_agent("lab", host)
            system.wait_hosts_up({"lab/h01", "lab/h02"})
        for name, number in numbers.items():
            let_go(system, name)
            job = wait_ended(system, number)
            assert job["state"] == "SUCCEEDED" and len(job["tasks"][0]["attempts"]) == 1, job
            assert len(marks(system, name)) == 1, f"{name} ran again"
        assert {system.job(number)["owner"] for number in numbers.values()} == {"ann", "bob", "cid"}
        assert system.lost() == []


def test_a_cancel_that_was_acknowledged_holds_after_the_daemon_dies(system):
    number = submit_waiting(system, "doomed", workers="2")
    wait_started(system, "doomed", 2)
    waiting = submit_waiting(system, "queued", workers="4")
    system.run(["cancel", number, waiting])
    kill(system.processes["musterd"])
    system.start_musterd()
    assert [wait_ended(system, one)["state"] for one in (number, waiting)] == ["CANCELLED"] * 2
    assert not job_processes(system.folder) and not marks(system, "queued")


def test_daemons_that_are_told_to_end_do_so_at_once_and_leave_the_processes_running(system):
    number = submit_waiting(system, "stays", workers="2")
    wait_started(system, "stays", 2)
    before = set(job_processes(system.folder))
    for daemon in ("musterd", "agent-lab-h01", "agent-lab-h02"):
        system.processes[daemon].terminate()
    codes = {daemon: process.wait(10) for daemon, process in system.processes.items()}
    assert set(codes.values()) == {0}, codes
    assert set(job_processes(system.folder)) == before
    system.start_musterd()
    for host in ("h01", "h02"):
        system.start_agent("lab", host)
    let_go(system, "stays")
    assert wait_ended(system, number)["state"] == "SUCCEEDED" and len(marks(system, "stays")) == 2


@pytest.mark.parametrize("kind", [LIMIT, TMPFS])
def test_a_daemon_whose_disk_is_full_ends_and_what_it_acknowledged_is_there_afterwards(bare, kind):
    if kind not in kinds():
        pytest.skip("nothing may be mounted here")
    configure(bare)
    outcome = fill_and_recover(bare, kind, room_bytes=60_000 if kind == LIMIT else 12_288)
    assert outcome.ended and "commit failed" in outcome.said, outcome.said
    assert ("disk is full" if kind == TMPFS else "disk I/O error") in outcome.said, outcome.said
    assert outcome.acknowledged > 0 and not outcome.lost
