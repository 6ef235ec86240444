"""Row `arrays`: 10,000 members of 0.1 s on 64 declared slots of a real agent: what it takes to submit, list and cancel
them as their user does it, with `muster`; and their rate to the last end, against Slurm's array in the same run.
"""

import sys
import time
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / name) for name in ("deploy/local", "tests/system", "bench/peers")]

import slurm
from figures import BIN, at_most, figure, say_failed
from local_system import Failed, LocalSystem, system_folder, wait_for
from small_system import ENDED, start

SLOTS = 64
MEMBERS = 10_000
QUEUES = "queues: [{name: research, submit: ['*']}]\n"
JOB = (
    "queue: research\nresources: {gpus: 1, gpu_types: [cpu-slot]}\ngrace: 1s\nrun: [sleep, '0.1']\n"
)


class Arrays:
    def __init__(self, system: LocalSystem):
        self.system = system
        self.path = system.folder / "array.yaml"
        self.path.write_text(JOB)

    def timed(self, arguments: list) -> tuple[float, str]:
        began = time.monotonic()
        done = self.system.run(arguments, timeout_s=300)
        return time.monotonic() - began, done.stdout.strip()

    def submit(self, members: int) -> tuple[float, str]:
        return self.timed(
            ["submit", self.path, "--array", f"0-{members - 1}", "-y", "--detach", "-o", "name"]
        )

    def status(self, number: str) -> dict:
        return self.system.json("show", number)

    def wait_ended(self, number: str, timeout_s: float) -> dict:
        return wait_for(
            f"array {number} to end",
            lambda: (job := self.status(number))["state"] in ENDED and job,
            timeout_s,
            0.1,
        )

    def rate(self, members: int) -> float:
        began = time.monotonic()
        _, number = self.submit(members)
        ended = self.wait_ended(number, 600)
        if ended["array"]["succeeded"] != members:
            raise Failed(f"of {members} members {ended['array']} succeeded")
        return members / (time.monotonic() - began)


def handled(arrays: Arrays) -> list[bool]:
    """Submit, list and cancel, each of 10,000 members of which 64 run."""
    submit_s, number = arrays.submit(MEMBERS)
    wait_for(
        "slots to be taken",
        lambda: arrays.status(number)["array"].get("running", 0) >= SLOTS // 2,
        60,
    )
    list_s = min(arrays.timed(["jobs"])[0] for _ in range(3))
    rows = arrays.system.json("jobs", "-a")["jobs"]
    if len([row for row in rows if str(row["number"]) == number]) != 1:
        raise Failed(f"{len(rows)} rows are listed")
    began = time.monotonic()
    arrays.timed(["cancel", number])
    ended = arrays.wait_ended(number, 60)
    cancel_s = time.monotonic() - began
    left = ended["array"]
    if left.get("cancelled", 0) + left.get("succeeded", 0) != MEMBERS:
        raise Failed(f"after the cancel: {left}")
    return [
        at_most("arrays.submit", submit_s, "s", 1, places=2),
        at_most("arrays.list", list_s, "s", 0.3, places=3),
        at_most("arrays.cancel", cancel_s, "s", 2, places=2),
    ]


def main() -> int:
    quick = "--quick" in sys.argv
    members, theirs = (2_000, 300) if quick else (MEMBERS, 2_000)
    with ExitStack() as stack:
        system = LocalSystem(stack.enter_context(system_folder()), BIN)
        start(system, QUEUES, hosts=("h01",), slots=SLOTS, scheduling="")
        arrays = Arrays(system)
        try:
            arrays.rate(SLOTS)  # warm
            held = handled(arrays)
            ours = arrays.rate(members)
        except Failed as error:
            return say_failed(error)
    figure("arrays.members", round(ours), "1/s")
    try:
        with slurm.Slurm(SLOTS) as controller:
            controller.jobs_per_s(SLOTS, 120, "sleep 0.1")
            peer = controller.jobs_per_s(theirs, 300, "sleep 0.1")
            held.append(
                figure(
                    "arrays.to_slurm",
                    round(ours / peer, 2),
                    "x",
                    ">= 5",
                    ours >= 5 * peer,
                    {controller.version(): f"{peer:.0f} 1/s"},
                )
            )
    except slurm.Unavailable as why:
        print(f"Slurm was not measured: {why}", flush=True)
        held.append(
            figure(
                "arrays.to_slurm", "not measured", "", ">= 5", False, {"slurm-wlm": "isn't here"}
            )
        )
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
