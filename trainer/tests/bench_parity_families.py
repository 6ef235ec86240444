"""bench/run.sh parity-families: 50 steps at lr 1e-4 against a plain transformers loop on the same tokens, each family.

fp32 against fp32; bf16 against a bf16 model with fp32 masters. The models are made from their config (families.py): biases,
q/k norms, own head_dim, tied heads, sliding windows, Llama-3, YaRN and linear RoPE scaling, old and new config keys.
"""

import sys
import tempfile
from pathlib import Path

import families
import harness
import parity
import torch
import transformers

BARS = {"fp32": {"loss": 1e-6, "grad_norm": 2e-6}, "bf16": {"loss": 1e-3, "grad_norm": 2e-2}}


def main() -> int:
    quick = "--quick" in sys.argv[1:]
    trainer_bin = harness.trainer_binary()
    steps = 10 if quick else 50
    peer = f"transformers {transformers.__version__}, torch {torch.__version__}"
    worst = {(dtype, key): (0.0, "") for dtype, bars in BARS.items() for key in bars}
    with tempfile.TemporaryDirectory(prefix="bench-families-") as name:
        folder = Path(name)
        tokens = harness.make_tokens(folder / "tokens")
        for family in families.FAMILIES:
            init = families.make(folder / f"init-{family}", family)
            for dtype in BARS:
                found = parity.compare(
                    trainer_bin,
                    tokens,
                    folder / f"{family}-{dtype}",
                    steps=steps,
                    ranks=1,
                    init=init,
                    dtype=dtype,
                )
                print(f"{family} {dtype}: {found}", flush=True)
                assert found["logits_moved_by_training"] > 0.01, "the training did nothing"
                for key in BARS[dtype]:
                    worst[dtype, key] = max(worst[dtype, key], (found[key], family))
    return harness.report(
        [
            harness.figure(
                f"{key}, {dtype}, worst of {len(families.FAMILIES)} models ({family}), {steps} steps",
                value,
                "relative",
                BARS[dtype][key],
                peer=peer,
            )
            for (dtype, key), (value, family) in worst.items()
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
