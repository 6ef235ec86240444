"""bench/run.sh trainer-start: from exec of two ranks to the end of their first step, resumed from a checkpoint of 1 GiB.

The peer is what any start must do: read the checkpoint's bytes, in order, by one process. Twice over: as they come from the
disk (the page cache is told to drop the files before each run, ours and the peer's), and from the page cache. The bar is
1.2 times that and 1.5 s.
"""

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import harness
import resume

MODEL = harness.TINY_MODEL | {
    "vocab_size": 32_000,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
}  # 92 million parameters, 12 bytes each
BLOCK = 1 << 22


def files_of(checkpoint: Path) -> list[Path]:
    return sorted(path for path in checkpoint.iterdir() if path.is_file())


def drop_from_cache(checkpoint: Path) -> None:
    for path in files_of(checkpoint):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_s(checkpoint: Path) -> float:
    buffer = bytearray(BLOCK)
    began = time.monotonic()
    for path in files_of(checkpoint):
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return time.monotonic() - began


def start_s(trainer_bin: str, config: dict, checkpoint: Path, folder: Path) -> float:
    with harness.Gang(trainer_bin, config, 2, folder, resume_from=[checkpoint]) as gang:
        took_s = gang.wait_for_line(b"step=2 ") - gang.started
        assert "resumed from" in gang.stderr()
    return took_s


def main() -> int:
    runs = 3 if "--quick" in sys.argv[1:] else 7
    trainer_bin = harness.trainer_binary()
    print(f"machine: {harness.machine()}")
    with tempfile.TemporaryDirectory(prefix="bench-trainer-start-") as name:
        folder = Path(name)
        tokens = harness.make_tokens(folder / "tokens")
        # One sequence a rank: the step is there to be reached, not to be measured.
        config = resume.config(
            tokens,
            model=MODEL,
            max_steps=1,
            global_batch_size=2,
            micro_batch_size=1,
            max_length=16,
            save_steps=1,
            deterministic=False,
        )
        with harness.Gang(trainer_bin, config, 2, folder / "first") as first:
            first.finish()
        checkpoint = first.checkpoint(1)
        size = sum(path.stat().st_size for path in files_of(checkpoint))
        config |= {"max_steps": 1000, "save_steps": 0}
        figures = []
        for state in ("from the disk", "from the page cache"):
            ours, reads = [], []
            for run in range(runs):
                for times, measure in (
                    (reads, lambda: read_s(checkpoint)),
                    (
                        ours,
                        lambda: start_s(trainer_bin, config, checkpoint, folder / f"{state} {run}"),
                    ),
                ):
                    if state == "from the disk":
                        drop_from_cache(checkpoint)
                    times.append(measure())
                print(
                    f"{state}, run {run + 1}: {ours[-1]:.3f} s, reading alone {reads[-1]:.3f} s",
                    flush=True,
                )
            read = statistics.median(reads)
            figures.append(
                harness.figure(
                    f"start to the end of the first step, {size / 2**30:.2f} GiB {state}",
                    round(statistics.median(ours), 3),
                    "s",
                    round(1.2 * read + 1.5, 3),
                    peer={"reading the bytes": f"{read:.3f} s"},
                )
            )
    return harness.report(figures)


if __name__ == "__main__":
    sys.exit(main())
