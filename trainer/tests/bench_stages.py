"""Rows `zero3-bitwise`, `stages` and `toggles`: one training in different layouts.

bench_stages.py zero3-bitwise|stages|toggles [--quick]        MUSTER_TRAINER_BIN names the binary
"""

import sys
import tempfile
from pathlib import Path

import harness
import stages


def zero3_bitwise(trainer_bin: str, tokens: Path, folder: Path, steps: int) -> list[dict]:
    figures = []
    for dtype in ("fp32", "bf16"):
        (folder / dtype).mkdir()
        found = stages.zero3_bitwise(trainer_bin, tokens, folder / dtype, steps, dtype)
        print(f"{dtype}: {found}", flush=True)
        figures.append(
            harness.figure(
                f"zero3-bitwise.{dtype}",
                found["differ"],
                f"of {steps} losses and the weights differ in a bit, without clipping",
                0,
                peer="one process, the same two micro-batches",
            )
        )
        figures.append(
            harness.figure(
                f"zero3-bitwise.{dtype}_clipped",
                found["clipped_loss"],
                f"relative, loss, {found['clipped_steps']} steps clipped",
                1e-6,
                peer="one process, the same two micro-batches",
            )
        )
    return figures


def layouts(trainer_bin: str, tokens: Path, folder: Path, steps: int) -> list[dict]:
    names = ["3", "hybrid"] if steps < 50 else list(stages.LAYOUTS)
    found = stages.compare_layouts(trainer_bin, tokens, folder, steps, names)
    return [
        harness.figure(
            f"stages.{name.replace(' ', '_')}.{key}",
            value,
            f"relative, {steps} steps, 4 ranks, unequal token counts",
            1e-6,
            peer="1 rank",
        )
        for name, one in found.items()
        for key, value in one.items()
    ]


def toggles(trainer_bin: str, tokens: Path, folder: Path, steps: int) -> list[dict]:
    figures = []
    for dtype in ("fp32", "bf16"):
        (folder / dtype).mkdir()
        found = stages.compare_toggles(
            trainer_bin, tokens, folder / dtype, steps, stages.TOGGLES, dtype
        )
        found["LoRA's zero adapter"] = stages.zero_adapter(
            trainer_bin, tokens, folder / dtype / "adapter", steps, dtype
        )
        figures += [
            harness.figure(
                f"toggles.{name}.{dtype}",
                value,
                "losses, norms and final weights that differ in a bit",
                0,
                peer="off",
            )
            for name, value in found.items()
        ]
    return figures


def main() -> int:
    slug, quick = sys.argv[1], "--quick" in sys.argv[1:]
    trainer_bin = harness.trainer_binary()
    print(f"machine: {harness.machine()}")
    measure = {"zero3-bitwise": zero3_bitwise, "stages": layouts, "toggles": toggles}[slug]
    with tempfile.TemporaryDirectory(prefix="bench-stages-") as name:
        folder = Path(name)
        tokens = harness.make_tokens(folder / "tokens")
        figures = measure(trainer_bin, tokens, folder, 4 if quick else 50)
    return harness.report(figures)


if __name__ == "__main__":
    sys.exit(main())
