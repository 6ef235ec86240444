"""Figure `export-parity`: muster-trainer against a plain transformers loop on the same tokens, fp32, lr 1e-4.

bench_export_parity.py [--quick]        MUSTER_TRAINER_BIN names the binary
"""

import sys
import tempfile
from pathlib import Path

import harness
import parity
import torch
import transformers


def main() -> int:
    quick = "--quick" in sys.argv[1:]
    trainer_bin = harness.trainer_binary()
    print(f"machine: {harness.machine()}")
    figures = []
    with tempfile.TemporaryDirectory(prefix="bench-parity-") as name:
        folder = Path(name)
        tokens = harness.make_tokens(folder / "tokens")
        outcomes = []
        for ranks in (2,) if quick else (1, 2, 3):
            outcomes.append(
                parity.compare(trainer_bin, tokens, folder / str(ranks), steps=50, ranks=ranks)
            )
            print(f"{ranks} ranks: {outcomes[-1]}", flush=True)
    peer = f"transformers {transformers.__version__}, torch {torch.__version__}"
    for key, unit, bar in (
        ("loss", "relative", 1e-6),
        ("grad_norm", "relative", 2e-6),
        ("logits", "absolute", 1e-5),
    ):
        figures.append(
            harness.figure(
                f"export-parity.{key}", max(one[key] for one in outcomes), unit, bar, peer=peer
            )
        )
    return harness.report(figures)


if __name__ == "__main__":
    sys.exit(main())
