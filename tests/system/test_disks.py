"""A job that fills the disk that everything lies on: it is stopped before the scheduler is, and nothing new starts there until there is room."""

import os
from pathlib import Path

import pytest
from full_disk import TMPFS, kinds, tmpfs_at
from local_system import LocalSystem, kill_all, wait_for
from small_system import start, submit, task

QUEUES = 'queues: [{name: research, submit: ["*"]}]\n'
SLOT = "queue: research\nresources: {gpus: 1, gpu_types: [cpu-slot]}\n"
# A MiB each 30 ms, and on where there is no room left.
FILLS = (
    SLOT
    + "max_restarts: 1\nrun: |\n  trap '' TERM\n  while :; do head -c 1048576 /dev/zero >> $MUSTER_JOB_DIR/fill || true; sleep 0.03; done\n"
)
LEFT = 120 << 20  # when all three jobs are there

pytestmark = pytest.mark.skipif(TMPFS not in kinds(), reason="no disk can be mounted here")


@pytest.fixture
def small(folder, bin_dir):
    """A system on a disk of 1 GiB, of which 51 MiB are to stay free."""
    place = folder / "d"
    with tmpfs_at(place):
        system = LocalSystem(place, bin_dir)
        start(system, QUEUES, hosts=("h01",))
        yield system
        kill_all(place)
        for process in system.processes.values():
            process.wait(10)


def test_who_fills_the_disk_is_stopped_and_musterd_is_not(small):
    daemon = small.processes["musterd"]
    quiet = submit(small, "name: quiet\n" + SLOT + "run: sleep 300\n")
    wait_for("the quiet job", lambda: task(small.job(quiet))["state"] == "TASK_RUNNING", 20)
    filler = submit(small, "name: filler\n" + FILLS)
    wait_for("it to write", lambda: list(small.storage.rglob("fill")), 20)
    after = submit(small, "name: after\n" + SLOT + "run: 'true'\n")

    room = os.statvfs(small.folder)
    with open(small.folder / "of others", "wb") as others:
        os.posix_fallocate(others.fileno(), 0, room.f_bavail * room.f_frsize - LEFT)

    def stopped():
        attempts = task(small.job(filler))["attempts"]
        return attempts and attempts[0].get("cause") == "OUT_OF_DISK" and attempts[0]

    attempt = wait_for("its stop", stopped, 60)
    assert "MiB to " in attempt["detail"] and "left of 1GiB" in attempt["detail"], attempt
    assert daemon.poll() is None
    assert task(small.job(quiet))["state"] == "TASK_RUNNING", "it wrote nothing"
    # Its next attempt waits, and so does who waited for its place.
    why = "lab/h01 takes nothing new: "
    for number in (filler, after):
        wait_for(
            f"job {number}'s reason",
            lambda number=number: why in task(small.job(number)).get("verdict", {}).get("text", ""),
            20,
        )
    assert "Takes nothing new: " in small.run(["host", "show", "lab/h01"]).stdout
    room = os.statvfs(small.folder)
    assert room.f_bavail * room.f_frsize > 0, "there was room to store that"
    small.run(["cancel", str(filler)])
    Path(small.job(filler)["directory"], "fill").unlink()
    wait_for("the next job", lambda: small.job(after)["state"] == "SUCCEEDED", 20)
