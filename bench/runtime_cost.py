"""What MusterCallback costs a step: runs an example with the callback on in every other block of some seconds, in one process.

runtime_cost.py EXAMPLE OUT -- ARGUMENTS…

OUT gets JSON: {"on": [[seconds…]…], "off": [[…]…]}, a list a block, of whole steps from one step's begin to the next one's. Blocks of both kinds alternate, so
what else the machine does meets both alike. A block counts by the mean of its steps: reports go twice a second, and are paid for by a step in several. Its first
0.6 s aren't counted, in which what was reported before is still sent.
"""

import json
import runpy
import statistics
import sys
import time
from pathlib import Path

BLOCK_S = 2.5
SETTLED_S = 0.6
WARM_UP = 2  # blocks that aren't counted


def pairs_of_blocks(out: Path) -> list[tuple[float, float]]:
    """What OUT says: of each block with the callback, and of the one after it without, the mean step in seconds."""
    times = json.loads(out.read_text())
    return [tuple(map(statistics.mean, pair)) for pair in zip(times["on"], times["off"])]


class Blocks:
    def __init__(self):
        self.number, self._block_began_s, self._step_began_s = 0, None, None
        self.times = {"on": [], "off": []}

    @property
    def on(self) -> bool:
        return self.number % 2 == 0

    def step_begins(self) -> None:
        now_s = time.perf_counter()
        if self._block_began_s is None:
            self._block_began_s = now_s
        elif self.number >= WARM_UP and self._step_began_s - self._block_began_s > SETTLED_S:
            self._keep(now_s - self._step_began_s)
        if now_s - self._block_began_s > BLOCK_S:
            self.number, self._block_began_s = self.number + 1, now_s
        self._step_began_s = now_s

    def _keep(self, seconds: float) -> None:
        kept = self.times["on" if self.on else "off"]
        if len(kept) <= (self.number - WARM_UP) // 2:
            kept.append([])
        kept[-1].append(seconds)


def measured_transformers(blocks: Blocks) -> None:
    import muster_runtime.transformers as runtime

    class Measured(runtime.MusterCallback):
        def on_step_begin(self, args, state, control, **_):
            blocks.step_begins()

        def on_step_end(self, args, state, control, **more):
            return super().on_step_end(args, state, control, **more) if blocks.on else control

        def on_log(self, args, state, control, **more):
            return super().on_log(args, state, control, **more) if blocks.on else control

    runtime.MusterCallback = Measured


def measured_lightning(blocks: Blocks) -> None:
    import muster_runtime.lightning as runtime

    class Measured(runtime.MusterCallback):
        def on_train_batch_start(self, *_):
            blocks.step_begins()

        def on_train_batch_end(self, *words):
            if blocks.on:
                super().on_train_batch_end(*words)

    runtime.MusterCallback = Measured


def main() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))
    example, out = sys.argv[1:3]
    blocks = Blocks()
    of_lightning = "muster_runtime.lightning" in Path(example).read_text()
    (measured_lightning if of_lightning else measured_transformers)(blocks)
    sys.argv = [example, *sys.argv[4:]]
    runpy.run_path(example, run_name="__main__")
    Path(out).write_text(json.dumps(blocks.times))


if __name__ == "__main__":
    main()
