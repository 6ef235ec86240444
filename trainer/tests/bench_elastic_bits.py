"""Row `elastic-bits`: one training on 1, 2, 3, 4 and 8 ranks, and resized on its way, with deterministic: elastic.

bench_elastic_bits.py [--quick]        MUSTER_TRAINER_BIN names the binary
"""

import sys
import tempfile
from pathlib import Path

import elastic_bits
import harness


def main() -> int:
    quick = "--quick" in sys.argv[1:]
    trainer_bin = harness.trainer_binary()
    print(f"machine: {harness.machine()}")
    steps = 4 if quick else 40
    ways = [[2], [4, 1]] if quick else [[2], [3], [4], [8], [1, 8, 2, 3, 4]]
    figures = []
    with tempfile.TemporaryDirectory(prefix="bench-elastic-") as name:
        tokens = harness.make_tokens(Path(name) / "tokens")
        for kind in ["plain", "stage 3"] if quick else elastic_bits.KINDS:
            folder = Path(name) / kind.replace(",", "").replace(
                " ", "_"
            )  # commas divide checkpoints
            folder.mkdir()
            found = elastic_bits.compare(trainer_bin, tokens, folder, steps, kind, ways)
            print(f"{kind}: {found}", flush=True)
            figures.append(
                harness.figure(
                    f"elastic-bits.{kind.replace(',', '').replace(' ', '_')}",
                    sum(differ for differ, _ in found.values()),
                    f"of {steps} norms and the weights differ in a bit, ranks {'; '.join(found)}; "
                    f"told losses within {max(loss for _, loss in found.values()):.0e}",
                    0,
                    peer="1 rank",
                )
            )
    return harness.report(figures)


if __name__ == "__main__":
    sys.exit(main())
