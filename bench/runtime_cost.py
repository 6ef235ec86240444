"""What MusterCallback costs a step: runs an example with the callback on in every other block of some seconds, in one process.

runtime_cost.py EXAMPLE OUT -- ARGUMENTS…

A clock alone can't tell half a percent here: steps of one block differ from those of the next by ten. So the time inside the callback is measured as such, in
each step; and of what it brings about beside the step (the thread that sends, shim, agent, musterd) the processor time, in blocks with the callback against
blocks without, as if the step had waited for all of it. OUT gets JSON: {"on": [block…], "off": [block…]}, of whole steps. Reports go twice a second, and the
first 0.6 s of a block aren't counted, in which what was reported before is still sent.
"""

import contextlib
import json
import os
import runpy
import statistics
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK_S = 2.5
SETTLED_S = 0.6
WARM_UP = 2  # blocks that aren't counted


@dataclass
class Block:
    steps_s: list[float] = field(default_factory=list)
    own_s: float = 0.0  # inside the callback
    others_s: float = 0.0  # processor time of what is beside the step


@dataclass
class Cost:
    pairs: int
    step_ms: float  # without the callback
    own_percent: float
    others_percent: float
    clock_percent: float  # of steps with the callback, more than without, by the clock
    clock_error: float  # of that: its standard error

    @property
    def percent(self) -> float:
        return self.own_percent + self.others_percent

    @property
    def words(self) -> str:
        return (
            f"of {self.step_ms:.1f} ms, {self.pairs} pairs of blocks: {self.own_percent:.2f} inside the callback, {self.others_percent:.2f} of a core beside it; "
            f"by the clock {self.clock_percent:.1f} +- {self.clock_error:.1f}"
        )


def cost_of(out: Path) -> Cost:
    told = json.loads(out.read_text())
    on, off = ([Block(**one) for one in told[which]] for which in ("on", "off"))
    means = [tuple(statistics.mean(one.steps_s) for one in pair) for pair in zip(on, off)]
    more = [with_it / without - 1 for with_it, without in means]
    seconds = {
        which: sum(sum(one.steps_s) for one in told) for which, told in (("on", on), ("off", off))
    }
    beside = sum(one.others_s for one in on) / seconds["on"]
    beside -= sum(one.others_s for one in off) / seconds["off"]
    return Cost(
        pairs=len(means),
        step_ms=1000 * statistics.median(without for _, without in means),
        own_percent=100 * sum(one.own_s for one in on) / seconds["on"],
        others_percent=100 * max(0.0, beside),
        clock_percent=100 * statistics.mean(more),
        clock_error=100 * statistics.stdev(more) / len(more) ** 0.5 if len(more) > 1 else 0.0,
    )


def cpu_s(tasks: Path) -> dict[str, float]:
    """Processor time of a process's threads (/proc/PID/task) by their numbers."""
    found = {}
    with contextlib.suppress(OSError):  # it has ended
        for thread in tasks.iterdir():
            with contextlib.suppress(OSError):
                found[thread.name] = int((thread / "schedstat").read_text().split()[0]) / 1e9
    return found


class Beside:
    """What runs for the training beside its steps: Muster's processes of `folder`, and the threads here but the one that trains."""

    def __init__(self, folder: Path):
        sys.path.append(str(ROOT / "deploy" / "local"))
        from local_system import PROGRAMS, processes_of

        found = processes_of(folder).items()
        self.daemons = [pid for pid, program in found if program in PROGRAMS]
        self.own = str(threading.get_native_id())

    def cpu_s(self) -> float:
        here = cpu_s(Path(f"/proc/{os.getpid()}/task"))
        here.pop(self.own, None)
        return sum(here.values()) + sum(
            sum(cpu_s(Path(f"/proc/{pid}/task")).values()) for pid in self.daemons
        )


class Blocks:
    def __init__(self, beside: Beside):
        self.beside, self.number = beside, 0
        self.blocks: dict[str, list[Block]] = {"on": [], "off": []}
        self._block_began_s = self._step_began_s = 0.0
        self._block: Block | None = None  # the one that counts
        self._beside_began_s = self._own_s = 0.0

    @property
    def on(self) -> bool:
        return self.number % 2 == 0

    @contextlib.contextmanager
    def own(self):
        """Around what the callback does in a step."""
        began_s = time.perf_counter()
        yield
        self._own_s += time.perf_counter() - began_s

    def step_begins(self) -> None:
        now_s = time.perf_counter()
        if self._step_began_s == 0.0:
            self._block_began_s = now_s
        elif self._block is not None:
            self._block.steps_s.append(now_s - self._step_began_s)
            self._block.own_s += self._own_s
        self._own_s = 0.0
        if now_s - self._block_began_s > BLOCK_S:
            self._end_block()
            self.number, self._block_began_s = self.number + 1, time.perf_counter()
        elif self._block is None and now_s - self._block_began_s > SETTLED_S:
            self._block, self._beside_began_s = Block(), self.beside.cpu_s()
        self._step_began_s = time.perf_counter()

    def _end_block(self) -> None:
        if self._block is not None and self._block.steps_s and self.number >= WARM_UP:
            self._block.others_s = self.beside.cpu_s() - self._beside_began_s
            self.blocks["on" if self.on else "off"].append(self._block)
        self._block = None


def measured_transformers(blocks: Blocks) -> None:
    import muster_runtime.transformers as runtime

    class Measured(runtime.MusterCallback):
        def on_step_begin(self, args, state, control, **_):
            blocks.step_begins()

        def on_step_end(self, args, state, control, **more):
            if not blocks.on:
                return control
            with blocks.own():
                return super().on_step_end(args, state, control, **more)

        def on_log(self, args, state, control, **more):
            if not blocks.on:
                return control
            with blocks.own():
                return super().on_log(args, state, control, **more)

    runtime.MusterCallback = Measured


def measured_lightning(blocks: Blocks) -> None:
    import muster_runtime.lightning as runtime

    class Measured(runtime.MusterCallback):
        def on_train_batch_start(self, *_):
            blocks.step_begins()

        def on_train_batch_end(self, *words):
            if blocks.on:
                with blocks.own():
                    super().on_train_batch_end(*words)

    runtime.MusterCallback = Measured


def main() -> None:
    sys.path.insert(0, str(ROOT / "python"))
    example, out = sys.argv[1], Path(sys.argv[2])
    blocks = Blocks(Beside(out.parent))
    of_lightning = "muster_runtime.lightning" in Path(example).read_text()
    (measured_lightning if of_lightning else measured_transformers)(blocks)
    sys.argv = [example, *sys.argv[4:]]
    runpy.run_path(example, run_name="__main__")
    out.write_text(
        json.dumps({which: list(map(asdict, told)) for which, told in blocks.blocks.items()})
    )


if __name__ == "__main__":
    main()
