"""explain, simulate, top, ledger against a real musterd: what they say would happen is what happens."""

import time

import pytest
from local_system import CommandFailed, wait_for
from small_system import QUEUES, let_go, submit_waiting, task, wait_ended, wait_started, waiting_job


def write(system, name: str, text: str):
    path = system.folder / f"{name}.yaml"
    path.write_text(text)
    return path


def waiting(system, number: int) -> None:
    wait_for(f"job {number}'s verdict", lambda: task(system.job(number))["verdict"]["text"], 10)


def test_explain_says_what_would_start_a_gang_and_it_does(system):
    submit_waiting(system, "one", more="time_limit: 1h\n")
    wait_started(system, "one", 1)
    gang = submit_waiting(system, "gang", workers="4")
    waiting(system, gang)
    explained = system.json("explain", gang)
    assert explained["complete"] and explained["job"]["number"] == gang
    assert [holder["queue"] for holder in explained["why"][0]["holders"]] == ["research"]
    assert int(explained["start_ns"]) > 0, "the running job has a time limit: there is a forecast"
    helps = {one["change"]: one for one in explained["relaxations"]}
    assert "workers: 3" in helps, helps
    assert (
        helps["workers: 3"]["own"]
        and int(helps["workers: 3"]["start_ns"]) <= int(explained["now_ns"]) + 10**9
    )
    shown = system.run(["explain", gang]).stdout
    assert "It would start" in shown and "with workers: 3" in shown

    system.run(["cancel", gang])
    smaller = submit_waiting(system, "smaller", workers="3")
    assert len(wait_started(system, "smaller", 3, 10)) == 3
    for name in ("one", "smaller"):
        let_go(system, name)
    assert wait_ended(system, smaller)["state"] == "SUCCEEDED"
    assert "It waits for nothing" in system.run(["explain", smaller]).stdout


def test_a_job_outside_its_share_gets_a_forecast(system):
    submit_waiting(system, "first", workers="4", more="time_limit: 1h\n")
    wait_started(system, "first", 4)
    second = submit_waiting(system, "second", workers="3")
    verdict = wait_for(
        "a forecast",
        lambda: (
            (found := task(system.job(second))["verdict"])
            and int(found["expected_start_ns"]) > 0
            and found
        ),
        20,
    )
    assert 50 * 60 < int(verdict["expected_start_ns"]) / 1e9 - time.time() <= 3600, (
        "when the first one's limit is over"
    )


def test_simulate_shows_evictions_and_changes_nothing(system):
    elastic = submit_waiting(system, "elastic", workers="{min: 2, max: 4}")
    wait_started(system, "elastic", 4)
    claim = write(system, "claim", waiting_job(system, "claim", workers="2", queue="prod"))
    simulated = system.json("simulate", claim)
    assert int(simulated["submitted"][0]["start_ns"]) > 0
    assert [one["job"] for one in simulated["submitted"][0]["takes_from"]] == [elastic]
    assert {one["job"]: one["cause"] for one in simulated["effects"]} == {elastic: "PREEMPTION"}
    assert system.run(["simulate", claim, "--detailed-exitcode"], check=False).returncode == 7

    drained = system.json("simulate", "--drain", "lab/h01")
    assert [one["job"] for one in drained["effects"]] == [elastic]
    queues = write(
        system, "queues", QUEUES.replace("guarantee: 2}}, submit", "guarantee: 1}}, submit", 1)
    )
    changed = system.json("simulate", "--queues", queues)
    assert any("research" in line for line in changed["changes"])
    quota = system.json("simulate", "--quota", "research:cpu-slot=1")
    assert quota["changes"] == changed["changes"]

    assert len(system.jobs()) == 1 and not any(host["drained"] for host in system.hosts())
    assert task(system.job(elastic))["attempts"][-1]["state"] == "TASK_RUNNING"
    with pytest.raises(CommandFailed) as refused:
        system.run(["simulate", "--drain", "lab/h99"])
    assert refused.value.code == 2 and "h99" in refused.value.err
    let_go(system, "elastic")


def test_top_and_ledger_give_the_same_use_by_every_grouping(system):
    number = submit_waiting(system, "busy", workers="3")
    wait_started(system, "busy", 3)
    for by in ("queue", "cluster", "user", "job"):
        top = system.json("top", "--by", by)
        assert int(top["totals"][0]["used_milli"]) == 3000
        assert sum(int(row["used_milli"]) for row in top["rows"]) == 3000, by
    assert "3 of 4 in use" in system.run(["top"]).stdout
    let_go(system, "busy")
    assert wait_ended(system, number)["state"] == "SUCCEEDED"
    ledger = system.json("ledger", "--by", "queue")
    held = sum(
        int(entry["device_us"])
        for entry in ledger["entries"]
        if entry["class"] not in ("idle", "down")
    )
    assert held == sum(int(value) for row in ledger["rows"] for value in row["device_us"]) > 0
    for by in ("user", "job"):
        rows = system.json("ledger", "--by", by)["rows"]
        booked = sum(int(value) for row in rows for value in row["device_us"])
        assert abs(booked - held) <= 3 * 4000, "to the millisecond of each of its attempt's phases"
    assert "PRODUCTIVE" in system.run(["ledger", "--by", "job"]).stdout
