"""Jobs that wait for a time, and schedules."""

import signal
from datetime import UTC, datetime

from local_system import wait_for
from small_system import let_go, marks, task, wait_ended, wait_started, waiting_job


def submit(system, name: str, *flags: str, more: str = "", check: bool = True):
    path = system.folder / f"{name}.yaml"
    path.write_text(waiting_job(system, name, more=more))
    return system.run(["submit", path, "-y", *flags, "-o", "name"], check=check)


def placed_at(job: dict) -> datetime:
    return datetime.fromtimestamp(int(task(job)["attempts"][0]["place_ns"]) / 1e9, UTC)


def test_a_job_starts_at_its_time_also_when_musterd_was_killed_meanwhile(system):
    number = int(submit(system, "later", "--at", "+10s").stdout)
    job = system.job(number)
    assert (task(job)["state"], task(job)["verdict"]["code"]) == ("TASK_BLOCKED", "V_TIME"), job
    assert "waits for its time" in system.run(["explain", str(number)]).stdout
    row = next(line for line in system.run(["jobs"]).stdout.splitlines() if "later" in line)
    assert "waits for its time" in row, row
    due = datetime.fromisoformat(job["spec"]["not_before"])
    system.processes["musterd"].send_signal(signal.SIGKILL)
    system.processes["musterd"].wait(10)
    system.start_musterd()
    wait_started(system, "later", 1)
    placed = placed_at(system.job(number))
    assert 0 <= (placed - due).total_seconds() < 20, (placed, due)
    let_go(system, "later")
    assert wait_ended(system, number)["state"] == "SUCCEEDED"


def test_a_job_of_a_schedule_starts_at_its_time_and_the_next_one_waits(system):
    wait_for("a minute that has some time left", lambda: datetime.now(UTC).second < 45, 20)
    first = int(submit(system, "often", more='schedule: "* * * * *"\n').stdout)
    assert task(system.job(first))["verdict"]["code"] == "V_TIME"
    assert "schedule" in system.run(["show", str(first)]).stdout
    wait_started(system, "often", 1, timeout_s=90)
    job = system.job(first)
    assert placed_at(job).second < 10, "at the beginning of a minute"
    second = int(job["occurrence"]["next"])
    assert second == first + 1
    assert int(system.job(second)["occurrence"]["previous"]) == first
    assert f"after it job {second}" in system.run(["show", str(first)]).stdout

    told = system.run(["cancel", str(first)]).stdout
    assert f"to end that, too: muster cancel {second}" in told, told
    assert wait_ended(system, first)["state"] == "CANCELLED"
    assert task(system.job(second))["verdict"]["code"] == "V_TIME"
    again = int(system.run(["rerun", str(first), "-y", "--detach", "-o", "name"]).stdout)
    wait_for("the one that runs again, at once", lambda: len(marks(system, "often")) >= 2, 20)
    assert "schedule" not in system.run(["show", str(again), "--spec"]).stdout
    assert system.job(again).get("occurrence") is None

    assert "is cancelled" in system.run(["cancel", str(second)]).stdout
    assert wait_ended(system, second)["state"] == "CANCELLED"
    unfinished = system.json("jobs")["jobs"]
    assert [int(job["number"]) for job in unfinished] == [again], unfinished
    let_go(system, "often")
    wait_ended(system, again)


def test_times_that_are_none_are_refused_with_the_field_or_flag(system):
    for flags, more, says in [
        (["--at", "tomorrow"], "", "--at"),
        (["--schedule", "0 25 * * *"], "", 'the hour "25"'),
        ([], "schedule: {cron: 0 3 * * *, zone: Berlin}\n", 'no time zone "Berlin"'),
        ([], "schedule: 0 3 * * *\nafter: [1]\n", "goes without after"),
    ]:
        refused = submit(system, "wrong", *flags, more=more, check=False)
        assert refused.returncode == 2 and says in refused.stderr, refused
    assert system.json("jobs")["jobs"] == []
