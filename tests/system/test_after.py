"""Jobs that come after others: nothing of them starts before."""

import signal

from small_system import let_go, marks, submit_waiting, wait_ended, wait_started, waiting_job


def why(system, number: int) -> str:
    return system.json("show", str(number))["tasks"][0]["verdict"]["text"]


def submit(system, name: str, *flags: str, check: bool = True):
    path = system.folder / f"{name}.yaml"
    path.write_text(waiting_job(system, name))
    return system.run(["submit", path, "-y", "--detach", "-o", "name", *flags], check=check)


def test_a_job_starts_once_those_that_it_comes_after_have_succeeded(system):
    first = submit_waiting(system, "first")
    wait_started(system, "first", 1)
    second = int(submit(system, "second", "--after", str(first)).stdout)
    third = submit_waiting(system, "third", more=f"after: [{second}]\n")
    assert why(system, second) == f"waits for job {first} to succeed"
    assert f"waits for job {second} to succeed" in system.run(["explain", str(third)]).stdout
    row = next(line for line in system.run(["jobs"]).stdout.splitlines() if "second" in line)
    assert f"waits for job {first}" in row, row

    system.processes["musterd"].send_signal(signal.SIGKILL)
    system.processes["musterd"].wait(10)
    system.start_musterd()
    assert why(system, second) == f"waits for job {first} to succeed"
    assert marks(system, "second") == [], "two slots are free, and its turn hasn't come"

    let_go(system, "first")
    wait_started(system, "second", 1)
    assert wait_ended(system, first)["state"] == "SUCCEEDED"
    assert marks(system, "third") == []
    let_go(system, "second")
    let_go(system, "third")
    assert wait_ended(system, third)["state"] == "SUCCEEDED"
    assert f'after: ["{second}"]' in system.run(["show", str(third), "--spec"]).stdout


def test_what_comes_after_a_failure_is_cancelled_and_says_so(system):
    path = system.folder / "fails.yaml"
    path.write_text(waiting_job(system, "fails", exit_code=1, more="max_restarts: 0\n"))
    fails = int(system.run(["submit", path, "-y", "--detach", "-o", "name"]).stdout)
    after = int(submit(system, "after", "--after", str(fails)).stdout)
    behind = int(submit(system, "behind", "--after", str(after)).stdout)
    any_end = int(submit(system, "any", "--after-any", str(fails)).stdout)
    let_go(system, "fails")
    ended = wait_ended(system, after)
    assert (ended["state"], ended["cause"]) == ("CANCELLED", "PREDECESSOR"), ended
    assert (
        ended["detail"]
        == f"cancelled: job {fails} failed, and this one was to come after its success"
    )
    assert wait_ended(system, behind)["cause"] == "PREDECESSOR"
    followed = system.run(["attach", str(after)], check=False)
    assert followed.returncode == 8, followed
    assert f"was cancelled: job {fails} failed" in followed.stdout + followed.stderr, followed
    let_go(system, "any")
    assert wait_ended(system, any_end)["state"] == "SUCCEEDED"

    refused = system.run(["rerun", str(after), "-y", "--detach"], check=False)
    assert refused.returncode == 2, refused.stderr
    assert f"after[0]: job {fails} failed, so this one would never start" in refused.stderr
    again = system.run(["rerun", str(after), "-y", "--detach", "--after", "none", "-o", "name"])
    let_go(system, "after")
    assert wait_ended(system, int(again.stdout))["state"] == "SUCCEEDED"
    unknown = submit(system, "unknown", "--after", "4711", check=False)
    assert unknown.returncode == 2 and 'there is no job "4711"' in unknown.stderr, unknown.stderr


def test_an_array_s_number_means_all_of_it(system):
    path = system.folder / "array.yaml"
    path.write_text(
        waiting_job(system, "members").replace("resources: {gpus: 1, gpu_types: [cpu-slot]}",
                                               "resources: {cpus: 0.1}")
    )  # fmt: skip
    array = system.run(
        ["submit", path, "-y", "--detach", "-o", "name", "--array", "0-2%1"]
    ).stdout.strip()
    whole = int(submit(system, "whole", "--after", array).stdout)
    member = int(submit(system, "member", "--after", f"{array}_0").stdout)
    assert why(system, whole) == f"waits for array {array} to succeed"
    assert why(system, member) == f"waits for job {array}_0 to succeed"
    let_go(system, "members")
    wait_started(system, "member", 1)
    wait_started(system, "whole", 1)
    assert wait_ended(system, array)["array"]["succeeded"] == 3
    for name in ("whole", "member"):
        let_go(system, name)
    for number in (whole, member):
        assert wait_ended(system, number)["state"] == "SUCCEEDED"
