"""Row `elastic-bits`: one training on 1, 2, 3, 4 and 8 ranks, and resized on its way, with deterministic: elastic; and one in a layout on 1, 2 and 4 units of it.

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
        for kind in ["plain", "tp 2"] if quick else elastic_bits.KINDS | elastic_bits.LAYOUTS:
            folder = Path(name) / kind.replace(",", "").replace(
                " ", "_"
            )  # commas divide checkpoints
            folder.mkdir()
            layout = kind in elastic_bits.LAYOUTS
            its = [[2], [4], [1, 4, 2]] if layout and not quick else ways
            found = elastic_bits.compare(trainer_bin, tokens, folder, steps, kind, its)
            print(f"{kind}: {found}", flush=True)
            figures.append(
                harness.figure(
                    f"elastic-bits.{kind.replace(',', '').replace(' ', '_')}",
                    sum(differ for differ, _ in found.values()),
                    f"of {steps} norms and the weights differ in a bit, "
                    f"{'units' if layout else 'ranks'} {'; '.join(found)}; "
                    f"told losses within {max(loss for _, loss in found.values()):.0e}",
                    0,
                    peer="1 unit" if layout else "1 rank",
                )
            )
    return harness.report(figures)


if __name__ == "__main__":
    sys.exit(main())
