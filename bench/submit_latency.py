"""Row `submit-latency`: from the start of Submit to the first process of the job running, on an idle system.

Each job is one worker on one slot. The process itself writes the time at which it runs, on the same machine's clock. Two
figures a quantile: with the `muster` command's own start, preview and checks (`command`), and from the moment at which the
daemon stored the job (`stored`), which is what a program that talks gRPC sees. Both hold the bar or the row falls short.
"""

import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "deploy" / "local"), str(ROOT / "tests" / "system")]

from figures import BIN, at_most, quantile
from local_system import LocalSystem, system_folder, wait_for
from small_system import start

JOB = """\
name: latency
queue: research
resources: {{gpus: 1, gpu_types: [cpu-slot]}}
run: [/bin/sh, -c, "date +%s%N > {mark}"]
"""


def measure(system: LocalSystem, jobs: int) -> tuple[list[float], list[float]]:
    """Milliseconds from the command's start, and from the job's commit, to its process."""
    command_ms, stored_ms = [], []
    start(system)
    for number in range(jobs):
        mark, path = system.folder / f"mark{number}", system.folder / "job.yaml"
        path.write_text(JOB.format(mark=mark))
        began_ns = time.time_ns()
        job = system.submit(path)
        wait_for(
            f"job {job['number']} to run",
            lambda: mark.exists() and mark.read_text().endswith("\n"),
            20,
            0.002,
        )
        ran_ns = int(mark.read_text())
        stored_ns = int(job["submit_ns"])
        command_ms.append((ran_ns - began_ns) / 1e6)
        stored_ms.append((ran_ns - stored_ns) / 1e6)
        wait_for(
            f"job {job['number']} to end",
            lambda: system.job(job["number"])["state"] == "SUCCEEDED",
            20,
            0.01,
        )
    system.stop()
    return command_ms, stored_ms


def main() -> int:
    with system_folder() as folder:
        command_ms, stored_ms = measure(
            LocalSystem(folder, BIN), 40 if "--quick" in sys.argv else 200
        )
    held = []
    for name, values in (("command", command_ms), ("stored", stored_ms)):
        for label, share, bar_ms in (("p50", 0.5, 50), ("p99", 0.99, 200)):
            value = round(quantile(values, share), 1)
            held.append(at_most(f"submit-latency.{name}.{label}", value, "ms", bar_ms))
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
