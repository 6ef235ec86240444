#!/usr/bin/env python3
"""Row `profile`: twenty programs that hang, each in another way; and what a profile costs the steps that it is taken of.

    profile_row.py [--quick]

A hang is found if `muster profile --stacks` has, on top of the main thread's stack, the call that doesn't return, within the function that was planted, in time. The cost: a
program of equal steps is profiled in every other of several windows; the medians of its steps in both are compared. --quick: five of the hangs, two windows of each kind.
"""

import os
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
for folder in ("deploy/local", "tests/system"):
    sys.path.append(str(ROOT / folder))

from borrowers import submit
from figures import BIN, all_of, at_most, say_failed
from local_system import Failed, LocalSystem, system_folder, wait_for
from small_system import start

PYTHON = Path(os.environ.get("MUSTER_PYTHON", sys.executable))
MOST_S, MOST_PERCENT = 5, 2
WINDOW_S = 5
JOB = """\
name: {name}
queue: research
resources: {{gpus: 1, gpu_types: [cpu-slot]}}
env: {{PATH: "{path}:/usr/bin:/bin"}}
run: exec python3 {program}
"""
# What hangs, and the function of Python's own on top of the stack while it does; "": the planted function itself, as the call is C's.
HANGS = {
    "a lock that is held": ("lock = threading.Lock(); lock.acquire(); lock.acquire()", ""),
    "a condition that nobody notifies": ("c = threading.Condition()\n    with c: c.wait()", "wait"),
    "an event that is never set": ("threading.Event().wait()", "wait"),
    "a barrier with too few": ("threading.Barrier(2).wait()", "wait"),
    "a queue that stays empty": ("queue.Queue().get()", "wait"),
    "a full queue": ("q = queue.Queue(1); q.put(1); q.put(2)", "wait"),
    "a thread that is joined": (
        "t = threading.Thread(target=time.sleep, args=(1e6,), daemon=True); t.start(); t.join()",
        "_wait_for_tstate_lock",
    ),
    "two threads that hold what the other wants": ("deadlock()", "deadlock"),
    "a socket that nobody writes to": ("a, b = socket.socketpair(); a.recv(1)", ""),
    "a listener that nobody connects to": (
        "s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); s.accept()",
        "accept",
    ),
    "a pipe that stays open": ("r, w = os.pipe(); os.read(r, 1)", ""),
    "a full pipe": ("r, w = os.pipe(); os.write(w, bytes(1 << 20))", ""),
    "a named pipe without a reader": ("os.mkfifo('fifo'); open('fifo', 'w')", ""),
    "a file that another process has locked": ("locked()", "locked"),
    "a child that doesn't end": ("subprocess.run(['sleep', '1000000'])", "_try_wait"),
    "a pool whose worker doesn't answer": (
        "concurrent.futures.ThreadPoolExecutor(1).submit(time.sleep, 1e6).result()",
        "wait",
    ),
    "a sleep": ("time.sleep(1e6)", ""),
    "an endless loop": ("while True: pass", ""),
    "a select without a timeout": ("r, w = os.pipe(); select.select([r], [], [])", ""),
    "a coroutine that nobody wakes": ("asyncio.run(asyncio.Event().wait())", "select"),
}
PROGRAM = """\
import asyncio, concurrent.futures, fcntl, os, queue, select, socket, subprocess, threading, time

def deadlock():
    one, other, both = threading.Lock(), threading.Lock(), threading.Barrier(2)
    def second():
        with other:
            both.wait()
            one.acquire()
    threading.Thread(target=second, daemon=True).start()
    with one:
        both.wait()
        other.acquire()

def locked():
    r, w = os.pipe()
    if os.fork() == 0:
        held = open("lock", "w")
        fcntl.flock(held, fcntl.LOCK_EX)
        os.write(w, b"x")
        time.sleep(1e6)
    os.read(r, 1)
    wanted = open("lock", "w")
    fcntl.flock(wanted, fcntl.LOCK_EX)

def planted():
    {hang}

open({mark!r}, "w").close()
planted()
"""
STEPS = """\
import time

def step():
    return sum(i * i for i in range(100_000))

with open({times!r}, "w", buffering=1) as file:
    while True:
        began = time.perf_counter()
        step()
        print(time.monotonic(), time.perf_counter() - began, file=file)
"""


def profile(system: LocalSystem, number, *flags) -> tuple[str, float]:
    began = time.monotonic()
    done = system.run(["profile", number, *flags], timeout_s=120)
    return done.stdout, time.monotonic() - began


def cancel(system: LocalSystem, number) -> None:
    system.run(["cancel", number, "--wait"])


def job(system: LocalSystem, name: str, text: str) -> str:
    program = system.folder / f"{name}.py"
    program.write_text(text)
    return submit(system, JOB.format(name=name, path=PYTHON.parent, program=program))


def frames_of_main(stacks: str) -> list[str]:
    """Names, the innermost first."""
    lines = stacks.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("  MainThread"))
    frames = []
    for line in lines[first + 1 :]:
        if not line.startswith("    "):
            break
        frames.append(line.split()[0].split(".")[-1])
    return frames


def find(system: LocalSystem, index: int, what: str) -> tuple[bool, float]:
    hang, top = HANGS[what]
    name = f"hang-{index}"
    mark = system.folder / f"{name}.mark"
    number = job(system, name, PROGRAM.format(hang=hang, mark=str(mark)))
    begun = lambda: mark.exists() and system.job(number)["state"] == "RUNNING"  # noqa: E731
    wait_for(f"{what} to begin", begun, 30)
    wait_for(f"{what} to hang", lambda: profile(system, number, "--stacks")[0].count("planted"), 30)
    stacks, took_s = profile(system, number, "--stacks")
    cancel(system, number)
    frames = frames_of_main(stacks)
    found = "planted" in frames and frames[0] == (top or "planted")
    if not found:
        print(f"{what}: not named: {frames}", flush=True)
    return found, took_s


def cost(system: LocalSystem, windows: int) -> bool:
    times = system.folder / "times"
    number = job(system, "steps", STEPS.format(times=str(times)))
    wait_for("steps", lambda: times.exists() and times.read_text().count("\n") > 50, 30)
    spans = []
    for _ in range(windows):
        began = time.monotonic()
        profile(system, number, "--for", f"{WINDOW_S}s")
        middle = time.monotonic()
        time.sleep(middle - began)  # a window without, as long
        spans.append((began, middle, time.monotonic()))
    cancel(system, number)
    steps = [tuple(map(float, line.split())) for line in times.read_text().splitlines()[:-1]]

    def median(begin: float, end: float) -> float:
        return statistics.median(took for at, took in steps if begin + 1 < at < end)

    pairs = [(median(begin, middle), median(middle, end)) for begin, middle, end in spans]
    more = 100 * (statistics.median(during / after for during, after in pairs) - 1)
    return at_most(
        "a step while it is profiled, against one that isn't",
        more,
        f"% of {1000 * pairs[0][1]:.1f} ms, {len(pairs)} pairs of windows",
        MOST_PERCENT,
        places=2,
    )


def main() -> int:
    quick = "--quick" in sys.argv
    if not (PYTHON.parent / "py-spy").exists():
        print(f"{PYTHON.parent} has no py-spy: tests/run.sh makes that environment", flush=True)
        return 1
    whats = list(HANGS)[:: 4 if quick else 1]
    with system_folder() as folder:
        system = LocalSystem(folder, BIN)
        try:
            start(system)
            found = [find(system, index, what) for index, what in enumerate(whats)]
            named = sum(one for one, _ in found)
            slowest = max(took_s for _, took_s in found)
            ok = [
                all_of("hangs whose blocking frame is named", named, len(whats)),
                at_most("the slowest of them", slowest, "s", MOST_S, places=2),
                cost(system, 2 if quick else 6),
            ]
        except Failed as error:
            return say_failed(error)
    return 0 if all(ok) else 1


if __name__ == "__main__":
    sys.exit(main())
