"""musterd on a disk that has no room left while submissions are in flight."""

import os
import signal
import subprocess
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from local_system import LocalSystem, wait_for

AMPLE = "1g"  # of a tmpfs, which takes only what is written; musterd wants 256 MiB free
LANES = 3  # submit at once
BEFORE = 10  # acknowledged submissions before there is no room
TMPFS = "ENOSPC of a tmpfs"
LIMIT = "EFBIG by a limit of file sizes"


@dataclass
class Outcome:
    acknowledged: int  # submissions
    lost: list[str]  # names of those that the next start doesn't know
    ended: bool  # musterd ended by itself
    said: str  # the end of its log


def mount(*words) -> bool:
    return (
        subprocess.run(
            ["mount", *[str(word) for word in words]],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ).returncode
        == 0
    )


@contextmanager
def tmpfs_at(folder: Path):
    folder.mkdir(mode=0o700, exist_ok=True)
    if not mount("-t", "tmpfs", "-o", f"size={AMPLE},mode=0700", "muster-full-disk", folder):
        raise PermissionError(f"nothing may be mounted at {folder}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def kinds() -> list[str]:
    """Of full disks that this user can make here."""
    with tempfile.TemporaryDirectory(prefix="mst-") as folder:
        try:
            with tmpfs_at(Path(folder)):
                return [TMPFS, LIMIT]
        except PermissionError:
            return [LIMIT]


def leave_room(system: LocalSystem, kind: str, room_bytes: int) -> None:
    store = system.folder / "store"
    if kind == TMPFS:
        # musterd writes meanwhile, and a size below what is in use is refused.
        os.kill(system.processes["musterd"].pid, signal.SIGSTOP)
        try:
            disk = os.statvfs(store)
            used = (disk.f_blocks - disk.f_bfree) * disk.f_frsize
            assert mount("-o", f"remount,size={used + room_bytes}", store)
        finally:
            os.kill(system.processes["musterd"].pid, signal.SIGCONT)
    else:
        largest = max(path.stat().st_size for path in store.iterdir() if path.is_file())
        subprocess.run(
            [
                "prlimit",
                f"--pid={system.processes['musterd'].pid}",
                f"--fsize={largest + room_bytes}",
            ],
            check=True,
        )


def submit_until_refused(
    system: LocalSystem, lane: int, job: Path, acknowledged: list[str]
) -> None:
    for index in range(2000):
        name = f"n{lane}-{index}"
        words = ["submit", job, "--set", f"name={name}", "-y", "--detach", "-o", "name"]
        done = system.run([*words, "--idempotency-key", name], check=False)
        if done.returncode != 0:
            return
        acknowledged.append(done.stdout.strip())


def fill(system: LocalSystem, kind: str, room_bytes: int) -> Outcome:
    musterd = [
        "env",
        "--ignore-signal=XFSZ",
        system.bin_dir / "musterd",
        "--config",
        system.folder / "etc" / "musterd.yaml",
    ]
    process = system.spawn("musterd", musterd)
    wait_for(
        "musterd's first answer",
        lambda: system.socket.exists() and system.run(["ping"], check=False).returncode == 0,
        20,
    )
    job = system.folder / "job.yaml"
    job.write_text(
        "name: job\nqueue: research\nresources: {gpus: 1, gpu_types: [cpu-slot]}\nrun: 'true'\n"
    )
    acknowledged: list[str] = []
    lanes = [
        threading.Thread(target=submit_until_refused, args=(system, lane, job, acknowledged))
        for lane in range(LANES)
    ]
    for lane in lanes:
        lane.start()
    try:
        wait_for(f"{BEFORE} submissions", lambda: len(acknowledged) >= BEFORE, 60, 0.002)
        leave_room(system, kind, room_bytes)
    finally:
        for lane in lanes:
            lane.join(120)
    # It refuses submissions once it sees that there is little room (contract 23). This it takes, until it can't.
    for _ in range(500):
        if (
            process.poll() is not None
            or system.run(["host", "drain", "lab/h01"], check=False).returncode != 0
            or system.run(["host", "resume", "lab/h01"], check=False).returncode != 0
        ):
            break
    try:
        ended = process.wait(20) != 0
    except subprocess.TimeoutExpired:
        ended = False
        process.kill()
        process.wait(10)
    said = system.log_tail("musterd", 5)
    if kind == TMPFS:
        assert mount("-o", f"remount,size={AMPLE}", system.folder / "store")
    system.start_musterd()
    known = {
        str(found["number"]) for found in system.json("jobs", "--all", "--limit", "100000")["jobs"]
    }
    return Outcome(
        len(acknowledged), [number for number in acknowledged if number not in known], ended, said
    )


def fill_and_recover(system: LocalSystem, kind: str, room_bytes: int) -> Outcome:
    """Configured, not started. `kind`: one of kinds()."""
    if kind == LIMIT:
        return fill(system, kind, room_bytes)
    with tmpfs_at(system.folder / "store"):
        try:
            return fill(system, kind, room_bytes)
        finally:  # it goes before its disk does
            system.processes["musterd"].kill()
            system.processes["musterd"].wait(10)
