"""What MusterCallback costs a step: runs an example with the callback on in every other block of steps, in one process.

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

BLOCK = 40  # steps
WARM_UP = 2  # blocks that aren't counted
SETTLED_S = 0.6


def pairs_of_blocks(out: Path) -> list[tuple[float, float]]:
    """What OUT says: of each block with the callback, and of the one after it without, the mean step in seconds."""
    times = json.loads(out.read_text())
    return [tuple(map(statistics.mean, pair)) for pair in zip(times["on"], times["off"])]


class Blocks:
    def __init__(self):
        self.steps, self._began_s = 0, None
        self._block_began_s, self._kept_block = 0.0, -1
        self.times = {"on": [], "off": []}

    @property
    def on(self) -> bool:
        return self.steps // BLOCK % 2 == 0

    def step_begins(self) -> None:
        now_s = time.perf_counter()
        if self._began_s is not None:
            block, place = divmod(self.steps, BLOCK)
            if place == 0:
                self._block_began_s = self._began_s
            # The first also has the change between both.
            if block >= WARM_UP and place > 0 and self._began_s - self._block_began_s > SETTLED_S:
                self._keep(block, now_s - self._began_s)
            self.steps += 1
        self._began_s = now_s

    def _keep(self, block: int, seconds: float) -> None:
        kept = self.times["on" if self.on else "off"]
        if self._kept_block != block:
            kept.append([])
            self._kept_block = block
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
