#!/usr/bin/env python3
"""Row `containers`: hello, ends of every kind, a ddp gang over two hosts and a resume in a container image, and what a start in it costs.

    containers.py [--quick]

The image is made by mmdebstrap from where this machine has its packages; --quick copies a few of this machine's own programs instead, and leaves
out ddp. torch is the environment's that the trainer runs with, which the image shows as it lies below the home directory.
"""

import os
import shutil
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "deploy" / "local"), str(ROOT / "tests" / "system")]

from figures import BIN, all_of, at_most, figure, say_failed
from images import debian_image, small_image
from in_images import ENDS, SLOT, both_ends, count_and_kill, meet
from local_system import Failed, LocalSystem, system_folder
from small_system import start, submit, task, wait_ended

EXAMPLES = ROOT / "deploy" / "examples"
STARTS, QUICK_STARTS = 30, 10
BAR_S = 0.3


def same_ends(system, image: Path) -> int:
    same = 0
    for name in ENDS:
        outside, inside = both_ends(system, name, image)
        # Who missed a program says where: in the image.
        alike = outside[:3] == inside[:3] and (name == "missing" or outside[3] == inside[3])
        same += alike
        if not alike:
            print(f"{name}: outside {outside}, inside {inside}")
    return same


def ddp(system, image: Path) -> int:
    """How many hosts the example's two ranks trained on, to its end."""
    place = system.folder / "ddp"
    shutil.copytree(EXAMPLES, place, ignore=shutil.ignore_patterns("__pycache__"))
    text = (place / "ddp.yaml").read_text().replace("python3", os.environ["MUSTER_PYTHON"])
    # Two of the CPUs' slots each, so that each rank has a host of its own.
    text = text.replace("{gpus: 1,", "{gpus: 2,")
    (place / "ddp.yaml").write_text(f"queue: research\nimage: {image}\n{text}")
    number = system.submit(place / "ddp.yaml")["number"]
    job = wait_ended(system, number, 180)
    said = system.run(["logs", number]).stdout
    print(said)
    if job["state"] != "SUCCEEDED" or "saved step 200 of 200" not in said:
        raise Failed(f"ddp in the image: {task(job)}")
    return len({part["host"] for part in task(job)["attempts"][-1]["placements"]})


def start_s(system, fields: str) -> float:
    """From a job's submission to the first line of its program."""
    number = submit(system, f"{fields}{SLOT}run: echo $EPOCHREALTIME\n", "start")
    job = wait_ended(system, number)
    return float(system.run(["logs", number]).stdout) - int(job["submit_ns"]) / 1e9


def measure(system, image: Path, quick: bool) -> bool:
    same = same_ends(system, image)
    ok = all_of("ends that are the same in the image and outside", same, len(ENDS))
    came = meet(system, image)[1]
    ok &= figure(
        "ranks over two hosts that met", len(came.split(",")), "of 4", 4, came == "[0, 1, 2, 3]"
    )
    if not quick:
        hosts = ddp(system, image)
        ok &= figure("hosts of a ddp run", hosts, "", 2, hosts == 2)
    job, said = count_and_kill(system, image)
    step = int(task(job)["attempts"][-1].get("resumed_step", 0))
    resumed = job["state"] == "SUCCEEDED" and "counted to 20 from True" in said
    ok &= figure("step that a killed program went on from", step, "", 5, resumed and step == 5)
    outside, inside = [], []
    for _ in range(QUICK_STARTS if quick else STARTS):
        outside.append(start_s(system, ""))
        inside.append(start_s(system, f"image: {image}\n"))
    print(
        f"start: outside {statistics.median(outside):.3f} s, in the image {statistics.median(inside):.3f} s"
    )
    more_s = round(statistics.median(inside) - statistics.median(outside), 4)
    return ok & at_most("start in the image, more than outside", more_s, "s", BAR_S)


def main() -> int:
    quick = "--quick" in sys.argv
    with system_folder() as folder:
        system = LocalSystem(folder, BIN)
        try:
            image = folder / "image"
            small_image(image, python=True) if quick else debian_image(image)
            start(system)
            return 0 if measure(system, image, quick) else 1
        except (Failed, OSError, ValueError) as error:
            return say_failed(error)


if __name__ == "__main__":
    sys.exit(main())
