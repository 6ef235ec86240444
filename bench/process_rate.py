"""Row `process-rate`: /bin/true as one-worker jobs to completion through a real musterd and one real agent with 64 declared
slots; HyperQueue (one worker, 64 declared cores) and Slurm (one node, 64 declared CPUs) in the same run.

Every attempt has its own shim, claim and exit records on disk, and each step of it is committed by musterd; HyperQueue keeps
nothing on disk. Rates are from the first submission to the last end. Muster and HyperQueue alternate; best of each.
"""

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / name) for name in ("deploy/local", "tests/system", "bench/peers")]

import hyperqueue
import slurm
from figures import BIN, figure
from local_system import LocalSystem, system_folder
from small_system import start

SLOTS = 64
QUEUES = "queues: [{name: research, submit: ['*']}]\n"


class Running:
    """A musterd and an agent, warm: one job has run."""

    def __enter__(self):
        with ExitStack() as stack:
            self.system = LocalSystem(stack.enter_context(system_folder()), BIN)
            start(self.system, QUEUES, hosts=("h01",), slots=SLOTS, scheduling="")
            self.jobs = 0
            self.measure(SLOTS)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error):
        return self._stack.__exit__(*error)

    def measure(self, jobs: int) -> float:
        done = subprocess.run(
            [BIN / "bench_submit_load", self.system.server, "--jobs", str(jobs), "--wait"],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        print(f"muster: {done.stdout.strip()}", flush=True)
        self.jobs += jobs
        succeeded = len(
            self.system.json("jobs", "--all", "--state", "succeeded", "--limit", "100000")["jobs"]
        )
        if succeeded != self.jobs:
            sys.exit(f"{succeeded} of {self.jobs} jobs succeeded")
        return json.loads(done.stdout)["jobs_per_s"]


def main() -> int:
    quick = "--quick" in sys.argv
    tasks, times = (1000, 1) if quick else (4000, 3)
    ours, others = [], {}
    with Running() as system:
        for _ in range(times):
            ours.append(system.measure(tasks))
            try:
                measured = hyperqueue.measure(tasks, SLOTS)
                print(f"HyperQueue {hyperqueue.VERSION}: {measured}", flush=True)
                others["hyperqueue"] = max(others.get("hyperqueue", 0), measured["tasks_per_s"])
            except slurm.Unavailable as why:
                print(f"HyperQueue was not measured: {why}", flush=True)
    try:
        with slurm.Slurm(SLOTS) as controller:
            controller.jobs_per_s(SLOTS)  # warm, as we are
            # It starts an array of 500 faster than one of 2,000: its best counts.
            others["slurm"] = max(
                controller.jobs_per_s(jobs) for jobs in ([200] if quick else [*[500] * times, 2000])
            )
            print(f"{controller.version()}: {others['slurm']:.1f} jobs/s", flush=True)
    except slurm.Unavailable as why:
        print(f"Slurm was not measured: {why}", flush=True)
    best = max(ours)
    held = []
    for name, label, factor in (
        ("hyperqueue", f"HyperQueue {hyperqueue.VERSION}", None),  # to compare with: decision 053
        ("slurm", "slurm-wlm", 5.0),
    ):
        rate = others.get(name)
        held.append(
            figure(
                f"process-rate.to_{name}",
                round(best / rate, 2) if rate else "not measured",
                "x" if rate else "",
                f">= {factor:g}" if factor else None,
                not factor or (rate is not None and best >= factor * rate),
                {label: f"{rate:.0f} 1/s" if rate else "isn't here"},
            )
        )
    figure("process-rate.jobs", round(best), "1/s")
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
