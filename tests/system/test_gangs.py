"""A gang is one thing: it starts whole, fails whole, restarts whole, and resizes by way of a checkpoint."""

import sys
from pathlib import Path

from local_system import job_processes, wait_for
from small_system import let_go, marks, submit, submit_waiting, task, wait_ended, wait_started

ELASTIC = Path(__file__).with_name("elastic.py")


def verdict(system, number: int) -> str:
    found = wait_for(
        f"a verdict for job {number}",
        lambda: (one := task(system.job(number)).get("verdict", {})).get("text") and one,
        10,
    )
    return found["code"]


def two_host_gang(system, name: str, queue: str = "research") -> int:
    path = system.folder / f"{name}.yaml"
    path.write_text(f"""\
name: {name}
queue: {queue}
workers: 2
resources: {{gpus: 2, gpu_types: [cpu-slot]}}
processes_per_worker: 1
grace: 5s
run: |
  trap 'exit 0' TERM
  echo "$RANK $MUSTER_ATTEMPT $WORLD_SIZE" >> {system.folder}/{name}.marks
  while [ ! -e {system.folder}/{name}.go ]; do sleep 0.05; done
""")
    return system.submit(path)["number"]


def test_of_two_gangs_that_need_all_hosts_one_runs_whole_and_the_other_not_at_all(system):
    numbers = {
        "ours": two_host_gang(system, "ours"),
        "theirs": two_host_gang(system, "theirs", "prod"),
    }
    wait_for(
        "one of the gangs to run", lambda: marks(system, "ours") or marks(system, "theirs"), 20
    )
    first, second = ("ours", "theirs") if marks(system, "ours") else ("theirs", "ours")
    started = wait_started(system, first, 2)
    assert sorted(rank for rank, _, _ in started) == [0, 1]
    placements = task(system.job(numbers[first]))["attempts"][-1]["placements"]
    assert len({part["host"] for part in placements}) == 2
    assert verdict(system, numbers[second]) not in ("", "VERDICT_UNSPECIFIED")
    assert marks(system, second) == [] and len(job_processes(system.folder)) == 2
    let_go(system, first)
    assert wait_ended(system, numbers[first])["state"] == "SUCCEEDED"
    assert sorted(rank for rank, _, _ in wait_started(system, second, 2)) == [0, 1]
    let_go(system, second)
    assert wait_ended(system, numbers[second])["state"] == "SUCCEEDED"
    assert len(marks(system, first)) == len(marks(system, second)) == 2


def test_a_gang_waits_while_one_of_its_hosts_is_drained(system):
    system.run(["host", "drain", "lab/h02", "--reason", "a test"])
    gang = two_host_gang(system, "gang")
    assert verdict(system, gang) not in ("", "VERDICT_UNSPECIFIED")
    assert marks(system, "gang") == [] and not job_processes(system.folder)
    system.run(["host", "resume", "lab/h02"])
    assert sorted(rank for rank, _, _ in wait_started(system, "gang", 2)) == [0, 1]
    let_go(system, "gang")
    assert wait_ended(system, gang)["state"] == "SUCCEEDED"


def test_a_failing_member_stops_the_others_and_the_gang_restarts_within_its_budget(system):
    number = submit(
        system,
        f"""\
name: flaky
queue: research
workers: 3
resources: {{gpus: 1, gpu_types: [cpu-slot]}}
max_restarts: 2
grace: 5s
run: |
  echo "$RANK $MUSTER_ATTEMPT $WORLD_SIZE" >> {system.folder}/flaky.marks
  while [ "$(grep -c " $MUSTER_ATTEMPT 3$" {system.folder}/flaky.marks)" != 3 ]; do sleep 0.02; done
  if [ "$RANK" = 1 ]; then exit 7; fi
  while true; do sleep 0.05; done
""",
    )
    job = wait_ended(system, number, 60)
    assert (job["state"], job["cause"]) == ("FAILED", "PROGRAM_ERROR")
    attempts = task(job)["attempts"]
    assert [attempt["number"] for attempt in attempts] == [1, 2, 3] and task(job)[
        "restarts_used"
    ] == 2
    assert all(
        attempt["cause"] == "PROGRAM_ERROR" and "7" in attempt["detail"] for attempt in attempts
    ), attempts
    assert sorted((attempt, rank) for rank, attempt, _ in marks(system, "flaky")) == [
        (a, r) for a in (1, 2, 3) for r in (0, 1, 2)
    ]
    assert not job_processes(system.folder), "ranks of the dead gang still run"


def test_an_elastic_job_goes_on_from_its_checkpoint_when_it_shrinks_and_when_it_grows(system):
    log = system.folder / "elastic.log"
    number = submit(
        system,
        f"""\
name: elastic
queue: research
workers: {{min: 2, max: 4}}
resources: {{gpus: 1, gpu_types: [cpu-slot]}}
grace: 10s
run: [{sys.executable}, {ELASTIC}, "100000", {log}]
""",
    )

    def lines() -> list[list[str]]:
        return [line.split() for line in log.read_text().splitlines()] if log.exists() else []

    def attempt_runs(count: int) -> list[list[str]]:
        return wait_for(
            f"attempt {count} to report progress (log: {lines()})",
            lambda: (
                len(lines()) == 2 * count - 1
                and int((task(system.job(number)).get("progress") or {}).get("attempt", 0)) == count
                and lines()
            ),
            30,
        )

    assert attempt_runs(1)[0] == ["1", "4", "0"]
    claim = submit_waiting(system, "claim", workers="2", queue="prod")
    wait_started(system, "claim", 2)
    shrunk = attempt_runs(2)
    let_go(system, "claim")
    assert wait_ended(system, claim)["state"] == "SUCCEEDED"
    grown = attempt_runs(3)

    assert [line[1] for line in grown] == ["4", "4", "2", "2", "4"]
    assert int(shrunk[1][3]) > 0 and shrunk[2][2] == shrunk[1][3], f"steps were lost: {shrunk}"
    assert grown[4][2] == grown[3][3] and int(grown[3][3]) > int(shrunk[2][2]), (
        f"steps were lost: {grown}"
    )
    job = system.job(number)
    assert [attempt["cause"] for attempt in task(job)["attempts"][:2]] == ["RESIZE"] * 2 or [
        attempt["cause"] for attempt in task(job)["attempts"][:2]
    ] == ["PREEMPTION", "RESIZE"], task(job)["attempts"]
    assert [int(attempt["resumed_step"]) for attempt in task(job)["attempts"][1:]] == [
        int(grown[2][2]),
        int(grown[4][2]),
    ]
    assert task(job)["restarts_used"] == 0
    system.run(["cancel", number, "--wait"])
    assert system.job(number)["state"] == "CANCELLED"
