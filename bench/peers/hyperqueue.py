"""HyperQueue as a peer: PyPI's `hyperqueue` in a virtual environment of its own in the cache folder."""

import json
import subprocess
import sys
import venv
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from slurm import Unavailable, cache_folder

VERSION = "0.27.0"

# Server and worker run inside this process; the worker starts a process for each task, without output files.
PROGRAM = """
import json, sys, time
from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig
tasks, cores = int(sys.argv[1]), int(sys.argv[2])
with LocalCluster() as cluster:
    cluster.start_worker(WorkerConfig(cores=cores))
    client = cluster.client()
    def run(count):
        job = Job()
        for _ in range(count):
            job.program(["/bin/true"], stdout=None, stderr=None)
        began = time.monotonic()
        client.wait_for_jobs([client.submit(job)])
        return time.monotonic() - began
    run(cores)
    seconds = run(tasks)
print(json.dumps({"tasks_per_s": tasks / seconds, "wall_s": seconds}))
"""


def python() -> Path:
    """The environment's interpreter; makes it if it isn't there."""
    folder = cache_folder() / f"hyperqueue-{VERSION}"
    interpreter = folder / "bin" / "python"
    if not (folder / "ready").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        venv.create(folder, with_pip=True, clear=True)
        done = subprocess.run(
            [interpreter, "-m", "pip", "install", "--quiet", f"hyperqueue=={VERSION}"],
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise Unavailable(
                f"pip install hyperqueue=={VERSION}: {done.stderr.strip().splitlines()[-1:]}"
            )
        (folder / "ready").touch()
    return interpreter


def measure(tasks: int, cores: int, timeout_s: float = 120) -> dict:
    """/bin/true as tasks of one job to completion, on one worker with that many cores declared."""
    done = subprocess.run(
        [python(), "-c", PROGRAM, str(tasks), str(cores)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    if done.returncode != 0:
        raise Unavailable(f"hyperqueue: {done.stderr.strip().splitlines()[-1:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])
