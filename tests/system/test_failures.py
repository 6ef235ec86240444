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


def test_what_always_fails_that_way_ends_all_the_same(system):
    job = wait_ended(system, submit(system, failing(FULL)), timeout_s=40)
    assert (job["state"], job["cause"]) == (
        "FAILED",
        "STORAGE_FAILURE",
    ) and "5 times in a row" in job["detail"]
    assert len(task(job)["attempts"]) == 5
