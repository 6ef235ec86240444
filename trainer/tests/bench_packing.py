"""bench/run.sh packing: documents packed into rows against the same documents one a row, and against transformers."""

import sys
import tempfile
from pathlib import Path

import finetune
from harness import figure, report, trainer_binary


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        found = finetune.compare_packing(trainer_binary(), Path(folder))
    print(f"{found['documents']} documents in {found['rows']} rows, 3 steps, 1 and 2 ranks, fp32")
    return report(
        [
            figure("loss, packed against apart (relative)", found["loss"], "", 1e-5),
            figure("gradient norm, packed against apart (relative)", found["grad_norm"], "", 1e-5),
            figure(
                "loss, packed against transformers (relative)", found["loss_transformers"], "", 1e-5
            ),
            figure(
                "gradient norm, packed against transformers (relative)",
                found["grad_norm_transformers"],
                "",
                1e-5,
            ),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
