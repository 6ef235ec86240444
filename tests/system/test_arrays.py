"""Arrays: one job for its users, whose members have nothing to do with each other."""

import os
import signal

from local_system import job_processes, wait_for
from small_system import wait_ended

RESOURCES = "queue: research\nresources: {gpus: 1, gpu_types: [cpu-slot]}\n"
BESIDE = "queue: research\nresources: {cpus: 0.1}\n"


def submit(system, text: str, *flags: str) -> str:
    path = system.folder / "array.yaml"
    path.write_text(text)
    return system.run(["submit", path, "-y", "--detach", "-o", "name", *flags]).stdout.strip()


def members(system, number: str) -> list[dict]:
    return system.json("jobs", number, "--tasks")["jobs"]


def running_pids(system) -> dict[str, int]:
    """The process of each member that runs, by its index."""
    return {
        environment["MUSTER_ARRAY_INDEX"]: pid
        for pid, environment in job_processes(system.folder).items()
        if "MUSTER_ARRAY_INDEX" in environment
    }


def test_an_array_is_one_row_and_each_member_finds_its_index(system):
    out = system.folder / "out"
    out.mkdir()
    number = submit(
        system, f"{BESIDE}run: echo {{{{index}}}} of $MUSTER_ARRAY_SIZE > {out}/$MUSTER_ARRAY_INDEX\n",
        "--array", "3-9:2%2",
    )  # fmt: skip
    ended = wait_ended(system, number)
    assert ended["state"] == "SUCCEEDED", ended
    assert ended["array"] == {**ended["array"], "members": 4, "succeeded": 4}
    assert {path.name: path.read_text() for path in out.iterdir()} == {
        str(index): f"{index} of 4\n" for index in (3, 5, 7, 9)
    }
    rows = system.json("jobs", "-a")["jobs"]
    assert [str(row["number"]) for row in rows] == [number], "members have no row of their own"
    assert [row["member"]["id"] for row in members(system, number)] == [
        f"{number}_{index}" for index in (3, 5, 7, 9)
    ]
    assert system.json("show", f"{number}_7")["member"]["index"] == 7
    refused = system.run(["show", f"{number}_4"], check=False)
    assert refused.returncode != 0 and "no job" in refused.stderr.lower(), refused.stderr
    assert system.run(["logs", f"{number}_3"]).returncode == 0
    whole = system.run(["logs", number], check=False)
    assert whole.returncode != 0 and f"{number}_3" in whole.stderr, whole.stderr


def test_a_sweep_runs_every_combination_with_its_values(system):
    out = system.folder / "out"
    out.mkdir()
    number = submit(
        system, f"{BESIDE}run: echo {{{{lr}}}} $MUSTER_SWEEP_seed > {out}/$MUSTER_ARRAY_INDEX\n",
        "--sweep", "lr=1e-4,3e-4", "--sweep", "seed=1,2",
    )  # fmt: skip
    assert wait_ended(system, number)["state"] == "SUCCEEDED"
    assert [path.read_text() for path in sorted(out.iterdir())] == [
        "1e-4 1\n", "1e-4 2\n", "3e-4 1\n", "3e-4 2\n",
    ]  # fmt: skip
    shown = system.run(["jobs", number, "--tasks"]).stdout
    assert "lr=3e-4, seed=1" in shown, shown
    again = system.run(["show", number, "--spec"]).stdout
    assert "sweep:" in again and "lr:" in again, again


def test_a_member_that_dies_is_started_again_and_the_others_are_not_touched(system):
    number = submit(
        system, f"{RESOURCES}independent_workers: {{min: 1, max: 4}}\nrun: exec sleep 600\n"
    )
    wait_for("four workers", lambda: len(running_pids(system)) == 4, 30)
    before = running_pids(system)
    os.kill(before["2"], signal.SIGKILL)
    wait_for(
        "its next attempt",
        lambda: (
            (now := running_pids(system)).get("2", before["2"]) != before["2"] and len(now) == 4
        ),
        30,
    )
    after = running_pids(system)
    assert {i: pid for i, pid in after.items() if i != "2"} == {
        i: pid for i, pid in before.items() if i != "2"
    }
    system.run(["cancel", f"{number}_1"])
    wait_for("the cancelled one's end", lambda: "1" not in running_pids(system), 30)
    assert {i: running_pids(system)[i] for i in ("0", "3")} == {i: before[i] for i in ("0", "3")}
    system.run(["cancel", number])
    assert wait_ended(system, number)["state"] == "CANCELLED"
    wait_for("all to be gone", lambda: not running_pids(system), 30)


def test_workers_above_the_least_number_make_way_one_by_one(system):
    workers = submit(
        system,
        f"{RESOURCES}independent_workers: {{min: 1, max: 4}}\ngrace: 1s\nrun: exec sleep 600\n",
    )
    wait_for("four workers", lambda: len(running_pids(system)) == 4, 30)
    before = running_pids(system)
    path = system.folder / "other.yaml"
    path.write_text(f"name: other\n{RESOURCES}run: sleep 1\n")
    other = system.run(["submit", path, "-y", "--detach", "-o", "name"]).stdout.strip()
    assert wait_ended(system, other)["state"] == "SUCCEEDED"
    wait_for("the fourth to be back", lambda: len(running_pids(system)) == 4, 30)
    kept = [i for i, pid in running_pids(system).items() if before[i] == pid]
    assert len(kept) == 3 and "0" in kept, (before, running_pids(system))
    system.run(["cancel", workers])
    wait_ended(system, workers)


def test_with_one_workers_success_no_further_one_is_started(system):
    number = submit(system, f"{RESOURCES}independent_workers: {{min: 1, max: 9}}\nrun: sleep 1\n")
    ended = wait_ended(system, number)
    assert ended["state"] == "SUCCEEDED", ended
    assert ended["array"]["unneeded"] + ended["array"]["succeeded"] == 9
    assert ended["array"]["unneeded"] >= 1


def test_refusals_say_what_to_write(system):
    path = system.folder / "array.yaml"
    path.write_text(f"{BESIDE}run: sleep 1\n")
    for flags, words in (
        (("--array", "9-1"), "ends before it begins"),
        (("--array", "0-9", "--sweep", "a=1"), "exclude each other"),
        (("--sweep", "a"), "NAME=VALUE,VALUE"),
        (("--array", "0-99999"), "more than 10000"),
    ):
        refused = system.run(["submit", path, "-y", "--detach", *flags], check=False)
        assert refused.returncode == 2 and words in refused.stderr, refused.stderr
    assert not system.jobs()


def test_the_members_that_have_failed_run_again_and_no_others(system):
    out = system.folder / "out"
    out.mkdir()
    mark = "echo $MUSTER_JOB >> {out}/$MUSTER_ARRAY_INDEX; "
    fails = "[ -e {out}/mended ] || case $MUSTER_ARRAY_INDEX in 4|5|8) exit 3;; esac"
    text = f"{BESIDE}max_restarts: 0\nrun: '{mark}{fails}'\n".replace("{out}", str(out))
    number = submit(system, text, "--array", "2-8%3")
    assert wait_ended(system, number)["state"] == "FAILED"
    (out / "mended").touch()
    again = system.run(["rerun", number, "--failed", "-y", "--detach", "-o", "name"])
    assert "4-5,8%3" in again.stderr, again.stderr
    second = again.stdout.strip()
    assert wait_ended(system, second)["state"] == "SUCCEEDED"
    ran = {path.name: path.read_text().split() for path in out.iterdir() if path.name != "mended"}
    assert ran == {
        str(i): [f"{number}_{i}"] + [f"{second}_{i}"] * (i in (4, 5, 8)) for i in range(2, 9)
    }
    none = system.run(["rerun", second, "--failed", "-y", "--detach"], check=False)
    assert none.returncode != 0 and f"no member of array {second} has failed" in none.stderr
    single = submit(system, f"{BESIDE}run: 'true'\n")
    refused = system.run(["rerun", single, "--failed", "-y", "--detach"], check=False)
    assert refused.returncode != 0 and f"job {single} is no array" in refused.stderr


def test_of_a_sweep_the_failed_combinations_run_again_each_by_itself(system):
    text = f"{BESIDE}max_restarts: 0\nrun: '[ {{{{lr}}}} = 1 ] || [ -e {system.folder}/mended ]'\n"
    number = submit(system, text, "--sweep", "lr=1,2,3")
    assert wait_ended(system, number)["state"] == "FAILED"
    (system.folder / "mended").touch()
    again = system.run(["rerun", number, "--failed", "-y", "--detach", "-o", "name"])
    seconds = again.stdout.split()
    assert len(seconds) == 2
    for second, value in zip(seconds, ("2", "3")):
        assert wait_ended(system, second)["state"] == "SUCCEEDED"
        assert f"lr={value}" in system.run(["jobs", second, "--tasks"]).stdout
