"""Row `independent`: independent workers of a real agent are killed, preempted, and made fewer and more, 200 times in all.

After each of these: the other workers' processes are the ones that were there before (by their numbers and start times),
and what the queue is said to use is what the hosts hold.
"""

import os
import random
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "deploy" / "local"), str(ROOT / "tests" / "system")]

from borrowers import submit
from figures import BIN, figure, none, say_failed
from local_system import Failed, LocalSystem, job_processes, system_folder, wait_for
from small_system import ENDED, start

WORKERS = 8
SLOTS = 4  # a host
QUEUES = "queues: [{{name: research, quota: {{cpu-slot: {{guarantee: 0, limit: {limit}}}}}, submit: ['*']}}, {{name: prod, quota: {{cpu-slot: {{guarantee: 4}}}}, submit: ['*']}}]\n"
RESOURCES = "resources: {gpus: 1, gpu_types: [cpu-slot]}\ngrace: 1s\n"
JOB = f"queue: research\nindependent_workers: {{min: 1, max: {WORKERS}}}\nmax_restarts: 1000\n{RESOURCES}run: exec sleep 3600\n"
OTHER = f"queue: prod\n{RESOURCES}run: exec sleep 3600\n"


def born(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rsplit(")", 1)[1].split()[19])


class Workers:
    def __init__(self, system: LocalSystem):
        self.system = system
        self.touched = 0
        self.inexact = 0
        self.limit = WORKERS
        self.number = submit(self.system, JOB)

    def processes(self) -> dict[str, tuple[int, int]]:
        """(number, start time) of each worker's process, by its index."""
        found = {}
        for pid, environment in job_processes(self.system.folder).items():
            try:
                if "MUSTER_ARRAY_INDEX" in environment:
                    found[environment["MUSTER_ARRAY_INDEX"]] = (pid, born(pid))
            except OSError:
                continue
        return found

    def wait_workers(self, count: int) -> dict[str, tuple[int, int]]:
        def settled():
            now = self.processes()
            status = self.system.json("show", self.number)["array"]
            return len(now) == count and status.get("running", 0) == count and now

        return wait_for(f"{count} workers", settled, 60, 0.02)

    def check(self, what: str, before: dict, after: dict, may_change: int) -> None:
        """So many of the workers that ran on may be others now; the rest are the same processes."""
        changed = [i for i in before if i in after and before[i] != after[i]]
        gone = [i for i in before if i not in after]
        if len(changed) + len(gone) > may_change:
            self.touched += 1
            print(f"{what}: {changed} are others, {gone} are gone; {may_change} may", flush=True)
        used = {
            queue["path"]: sum(
                row.get("used_milli", 0)
                for row in queue.get("use", [])
                if row["flavour"] == "cpu-slot"
            )
            for queue in self.system.json("queue", "list")["queues"]
        }
        held = len(after) * 1000
        if used.get("research") != held:
            self.inexact += 1
            print(
                f"{what}: research uses {used.get('research')}, its workers hold {held}", flush=True
            )

    def kill(self, dice: random.Random) -> None:
        before = self.wait_workers(self.limit)
        index = dice.choice(sorted(before))
        os.kill(before[index][0], signal.SIGKILL)

        def back():
            now = self.processes()
            return index in now and now[index] != before[index]

        wait_for(f"worker {index} to be back", back, 60, 0.02)
        after = self.wait_workers(self.limit)
        self.check(f"kill of {index}", {i: p for i, p in before.items() if i != index}, after, 0)

    def preempt(self, dice: random.Random) -> None:
        """Others take one to three slots by their guarantee, and give them back."""
        before = self.wait_workers(self.limit)
        free = 2 * SLOTS - self.limit
        takes = dice.randint(1, 3)
        others = [submit(self.system, OTHER) for _ in range(takes)]
        left = min(self.limit, 2 * SLOTS - takes)
        after = self.wait_workers(left)
        self.check(f"{takes} preempted", before, after, max(0, takes - free))
        for other in others:
            self.system.run(["cancel", other])
        for other in others:
            wait_for(
                "others to end", lambda o=other: self.system.job(o)["state"] in ENDED, 60, 0.02
            )
        again = self.wait_workers(self.limit)
        self.check(f"{takes} come back", after, again, 0)

    def resize(self, dice: random.Random) -> None:
        """The queue's limit changes: fewer by one who goes, or more, with the others as they were."""
        before = self.wait_workers(self.limit)
        fewer = dice.randint(2, WORKERS - 1)
        self.apply(fewer)
        # A limit stops nobody that runs; who ends meanwhile doesn't come back.
        for index in sorted(before, key=int, reverse=True)[: self.limit - fewer]:
            os.kill(before[index][0], signal.SIGKILL)
        after = self.wait_workers(fewer)
        self.check("made fewer", before, after, self.limit - fewer)
        self.apply(WORKERS)
        more = self.wait_workers(WORKERS)
        self.limit = WORKERS
        self.check("made more", after, more, 0)

    def renew(self) -> None:
        """Others in their place: who was killed often waits longer and longer."""
        self.system.run(["cancel", self.number])
        wait_for("all to end", lambda: self.system.job(self.number)["state"] in ENDED, 60, 0.02)
        self.number = submit(self.system, JOB)

    def apply(self, limit: int) -> None:
        path = self.system.folder / "queues-now.yaml"
        path.write_text(QUEUES.format(limit=limit))
        self.system.run(["queue", "apply", path])


def main() -> int:
    quick = "--quick" in sys.argv
    times = 30 if quick else 200
    dice = random.Random(7)
    began = time.monotonic()
    with ExitStack() as stack:
        system = LocalSystem(stack.enter_context(system_folder()), BIN)
        start(
            system,
            QUEUES.format(limit=WORKERS),
            slots=SLOTS,
            scheduling="grow_interval: 1s, min_runtime: 0s, restart_backoff: 50ms, lease: 6s, heartbeat: 1s",
        )
        workers = Workers(system)
        done = 0
        try:
            workers.wait_workers(WORKERS)
            for turn in range(times):
                (workers.kill, workers.preempt, workers.resize)[turn % 3](dice)
                if turn % 6 == 5:
                    workers.renew()
                done += 1
                if quick and time.monotonic() - began > 35:
                    break
        except Failed as error:
            return say_failed(error)
    held = [
        figure("independent.disturbed", done, "times"),
        none("independent.others_touched", workers.touched, "times"),
        none("independent.quota_inexact", workers.inexact, "times"),
    ]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
