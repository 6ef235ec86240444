"""musterd on a disk that has no room left while submissions are in flight."""

import subprocess
from dataclasses import dataclass

from local_system import LocalSystem, wait_for


@dataclass
class Outcome:
    acknowledged: int                          # submissions
    lost: list[str]                            # names of those that the next start doesn't know
    ended: bool                                # musterd ended by itself
    said: str                                  # the end of its log


def fill_and_recover(system: LocalSystem, room_bytes: int) -> Outcome:
    """Configured, not started. A limit of the size of files stands for the disk: the store's may grow by `room_bytes`."""
    musterd = ["env", "--ignore-signal=XFSZ", system.bin_dir / "musterd", "--config", system.folder / "etc" / "musterd.yaml"]
    process = system.spawn("musterd", musterd)
    wait_for("musterd's first answer", lambda: system.socket.exists() and system.run(["ping"], check=False).returncode == 0, 20)
    largest = max(path.stat().st_size for path in (system.folder / "store").iterdir() if path.is_file())
    subprocess.run(["prlimit", f"--pid={process.pid}", f"--fsize={largest + room_bytes}"], check=True)
    job = system.folder / "job.yaml"
    job.write_text("name: job\nqueue: research\nresources: {gpus: 1, gpu_types: [cpu-slot]}\nrun: 'true'\n")
    acknowledged = []
    for index in range(2000):
        done = system.run(["submit", job, "--set", f"name=n{index}", "-y", "--detach", "-o", "name", "--idempotency-key", f"n{index}"], check=False)
        if done.returncode != 0:
            break
        acknowledged.append(done.stdout.strip())
    try:
        ended = process.wait(20) != 0
    except subprocess.TimeoutExpired:
        ended = False
        process.kill()
        process.wait(10)
    said = system.log_tail("musterd", 5)
    system.start_musterd()
    known = {str(found["number"]) for found in system.json("jobs", "--all", "--limit", "100000")["jobs"]}
    return Outcome(len(acknowledged), [number for number in acknowledged if number not in known], ended, said)
