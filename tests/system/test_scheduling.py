"""Gangs, borrowing, cancelling: the promises of the queues, seen from outside."""

import json

from local_system import job_processes, wait_for
from small_system import (
    let_go,
    marks,
    submit,
    submit_waiting,
    task,
    wait_ended,
    wait_started,
    waiting_job,
)


def used(system, queue: str) -> int:
    found = next(one for one in system.json("queue", "list")["queues"] if one["path"] == queue)
    return sum(int(use["used_milli"]) for use in found["use"]) // 1000


def test_a_gang_starts_whole_or_not_at_all(system):
    small = [submit_waiting(system, name) for name in ("one", "two")]
    for name in ("one", "two"):
        wait_started(system, name, 1)
    gang = submit_waiting(system, "gang", workers="3")
    waiting = wait_for(
        "the gang's verdict",
        lambda: (
            (job := system.job(gang))
            and task(job)["state"] == "TASK_WAITING"
            and task(job)["verdict"]["text"]
            and job
        ),
        10,
    )
    assert (
        task(waiting)["verdict"]["code"] not in ("VERDICT_UNSPECIFIED", "")
        and not task(waiting)["attempts"]
    )
    told = system.run(["explain", gang]).stdout
    assert "waiting since" in told and f"research {small[0]}: 1; research {small[1]}: 1" in told
    assert marks(system, "gang") == []
    let_go(system, "one")
    let_go(system, "two")
    assert sorted(rank for rank, _, _ in wait_started(system, "gang", 3)) == [0, 1, 2]
    let_go(system, "gang")
    assert wait_ended(system, gang)["state"] == "SUCCEEDED"
    assert [wait_ended(system, number)["state"] for number in small] == ["SUCCEEDED"] * 2


def test_an_elastic_job_borrows_gives_back_and_grows_again(system):
    elastic = submit_waiting(system, "elastic", workers="{min: 2, max: 4}")
    assert {world for *_, world in wait_started(system, "elastic", 4)} == {4}
    assert used(system, "research") == 4

    path = system.folder / "claim.yaml"
    path.write_text(waiting_job(system, "claim", workers="2", queue="prod"))
    preview = system.json("submit", path, "--preview-only")
    chosen = next(one for one in preview["candidates"] if one["chosen"])
    assert [taken["job"] for taken in chosen["takes_from"]] == [elastic]
    claim = system.submit(path)["number"]
    wait_started(system, "claim", 2)
    shrunk = wait_started(system, "elastic", 6)[4:]
    assert [world for *_, world in shrunk] == [2, 2]
    assert used(system, "prod") == 2

    let_go(system, "claim")
    assert wait_ended(system, claim)["state"] == "SUCCEEDED"
    grown = wait_started(system, "elastic", 10)[6:]
    assert [world for *_, world in grown] == [4] * 4
    assert task(system.job(elastic))["restarts_used"] == 0, "a resize costs no restart"
    let_go(system, "elastic")
    assert wait_ended(system, elastic)["state"] == "SUCCEEDED"
    ledger = system.json("ledger")
    assert (
        sum(int(one["device_us"]) for one in ledger["entries"])
        == int(ledger["capacity_device_us"])
        > 0
    )


def test_cancel_stops_the_processes_and_only_then_is_the_job_over(system):
    number = submit_waiting(system, "long", workers="2")
    wait_started(system, "long", 2)
    assert system.run(["cancel", number, "--wait"]).returncode == 0
    assert system.job(number)["state"] == "CANCELLED" and not job_processes(system.folder)
    assert system.run(["wait", number], check=False).returncode == 8


def test_what_ignores_sigterm_is_killed_after_its_grace(system):
    number = submit(
        system,
        f"""\
name: stubborn
queue: research
resources: {{gpus: 1, gpu_types: [cpu-slot]}}
grace: 1s
run: |
  trap '' TERM
  echo "0 $MUSTER_ATTEMPT 1" >> {system.folder}/stubborn.marks
  while true; do sleep 0.1; done
""",
    )
    wait_started(system, "stubborn", 1)
    system.run(["cancel", number, "--wait"], timeout_s=30)
    assert system.job(number)["state"] == "CANCELLED" and not job_processes(system.folder)


def test_tasks_run_in_order_and_share_the_jobs_directory(system):
    number = submit(
        system,
        """\
name: chain
queue: research
tasks:
  - name: first
    resources: {gpus: 1, gpu_types: [cpu-slot]}
    run: echo made by first > "$MUSTER_JOB_DIR/file"
  - name: second
    after: [first]
    workers: 2
    resources: {gpus: 1, gpu_types: [cpu-slot]}
    setup: export FROM_SETUP="set up"
    env: {COLOUR: green}
    run: echo "rank $RANK of $WORLD_SIZE, local $LOCAL_RANK, group $GROUP_RANK, $COLOUR, $FROM_SETUP, $(cat "$MUSTER_JOB_DIR/file"), $MASTER_ADDR:$MASTER_PORT"
""",
    )
    assert wait_ended(system, number)["state"] == "SUCCEEDED"
    lines = sorted(
        line
        for line in system.run(["logs", number, "--task", "second"]).stdout.splitlines()
        if "rank" in line
    )
    assert len(lines) == 2
    for rank, line in enumerate(lines):
        assert (
            f"rank {rank} of 2, local 0, group {rank}, green, set up, made by first, 127.0.0.1:"
            in line
        ), json.dumps(lines)


def test_a_drained_host_is_left_and_taken_again(system):
    number = submit_waiting(system, "mover")
    wait_started(system, "mover", 1)
    host = task(system.job(number))["attempts"][-1]["placements"][0]["host"].rsplit("/", 1)[-1]
    other = {"h01": "h02", "h02": "h01"}[host]
    system.run(["host", "drain", f"lab/{host}", "--reason", "test"])
    wait_started(system, "mover", 2)
    newest = wait_for(
        "the attempt on the other host",
        lambda: (a := task(system.job(number))["attempts"][-1])["number"] == 2 and a,
        10,
    )
    assert newest["placements"][0]["host"].rsplit("/", 1)[-1] == other
    system.run(["host", "resume", f"lab/{host}"])
    assert not any(one["drained"] for one in system.hosts())
    let_go(system, "mover")
    assert wait_ended(system, number)["state"] == "SUCCEEDED"
