"""What ended a program, told from its log: users read the line that says it, and faults of the infrastructure cost no restarts."""

import pytest
from small_system import submit, task, wait_ended

SLOT = "resources: {gpus: 1, gpu_types: [cpu-slot]}\n"
FULL = "OSError: [Errno 28] No space left on device: '/mnt/shared/ckpt'"


def failing(says: str, ends: str = "exit 1", budget: int = 0) -> str:
    return f'name: failing\nqueue: research\nmax_restarts: {budget}\n{SLOT}run: |\n  echo step 1 loss 2.5\n  echo "{says}" >&2\n  {ends}\n'


@pytest.mark.parametrize(
    "says, ends, cause",
    [
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
            "exit 1",
            "OUT_OF_MEMORY",
        ),
        ("KeyError: 'labels'", "exit 1", "PROGRAM_ERROR"),
        (
            "terminate called: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)",
            "kill -ABRT $$",
            "HANG",
        ),
    ],
)
def test_the_line_that_told_the_cause_is_shown(system, says, ends, cause):
    job = wait_ended(system, submit(system, failing(says, ends)))
    assert (job["state"], job["cause"]) == ("FAILED", cause)
    assert says in task(job)["attempts"][-1]["detail"] and says in system.run(
        ["show", job["number"]]
    ).stdout.replace("\n", " ")


def test_a_full_file_system_costs_no_restart(system):
    once = failing(FULL, "[ $MUSTER_ATTEMPT -ge 3 ] || exit 1")
    job = wait_ended(system, submit(system, once))
    assert job["state"] == "SUCCEEDED" and [a["cause"] for a in task(job)["attempts"]] == [
        "STORAGE_FAILURE",
        "STORAGE_FAILURE",
        "DONE",
    ]
    assert task(job)["restarts_used"] == 0


def test_what_always_fails_that_way_ends_once_it_was_tried_for_as_long_as_the_job_says(system):
    text = "retry_faults_for: 3s\n" + failing(FULL).replace("echo step 1 loss 2.5", "true")
    job = wait_ended(system, submit(system, text), timeout_s=40)
    assert (job["state"], job["cause"]) == (
        "FAILED",
        "STORAGE_FAILURE",
    ) and "times in a row, tried again for 3s: " in job["detail"]
    attempts = task(job)["attempts"]
    assert len(attempts) >= 3 and task(job)["restarts_used"] == 0
    assert len({a["placements"][0]["host"] for a in attempts}) == 2, "other hosts are tried"


def test_a_fault_that_lasts_longer_than_five_tries_is_outlived(system):
    text = failing("OSError: [Errno 116] Stale file handle", "[ $MUSTER_ATTEMPT -ge 7 ] || exit 1")
    job = wait_ended(system, submit(system, text), timeout_s=60)
    assert job["state"] == "SUCCEEDED" and len(task(job)["attempts"]) == 7
    assert task(job)["restarts_used"] == 0


def test_a_program_without_devices_that_asks_for_a_driver_has_made_a_mistake_itself(system):
    says = "RuntimeError: Found no NVIDIA driver on your system"
    for name in ("first", "second", "third"):
        text = failing(says).replace("name: failing", f"name: {name}")
        job = wait_ended(system, submit(system, text, name))
        assert (job["state"], job["cause"]) == ("FAILED", "PROGRAM_ERROR")
        assert says in job["detail"] and len(task(job)["attempts"]) == 1
    assert not any(host.get("blames") or host.get("quarantines") for host in system.hosts())
