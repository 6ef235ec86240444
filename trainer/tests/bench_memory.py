"""Row `trainer-memory`: peak resident memory against transformers', and against what `estimate` said.

bench_memory.py [--quick]        MUSTER_TRAINER_BIN names the binary
"""

import sys
import tempfile
from pathlib import Path

import harness
import memory

GIB = 1 << 30
CASES = {  # name: (settings, most GiB, the peer's dtype)
    "fp32": ({}, 1.45, "fp32"),
    "fp32, recompute": ({"recompute": "full"}, 1.1, "fp32"),
    "bf16, recompute": ({"dtype": "bf16", "recompute": "full"}, 0.95, "bf16"),
}
SHARDED = {  # on 2 ranks: held against the estimate alone
    "bf16": {"dtype": "bf16"},
    "zero_stage 3, fp32": {"zero_stage": 3, "micro_batch_size": 2},
    "moments int8, fp32": {"moments": "int8", "zero_stage": 0},
    "nf4, fp32": {"quantize": {"type": "nf4"}},
    "nf4, zero_stage 3, bf16": {"quantize": {"type": "nf4"}, "zero_stage": 3, "dtype": "bf16"},
    "tp 2, fp32": {"parallel": {"tp": 2}},
    "tp 2, bf16": {"parallel": {"tp": 2}, "dtype": "bf16"},
    "tp 2, bf16, recompute": {"parallel": {"tp": 2}, "dtype": "bf16", "recompute": "full"},
}


def main() -> int:
    quick = "--quick" in sys.argv[1:]
    trainer_bin = harness.trainer_binary()
    print(f"machine: {harness.machine()}")
    figures = []
    with tempfile.TemporaryDirectory(prefix="bench-memory-") as name:
        folder = Path(name)
        tokens = harness.make_tokens(folder / "tokens")
        peers = {
            dtype: memory.transformers_peak(dtype)
            for dtype in (("fp32",) if quick else ("fp32", "bf16"))
        }
        estimates = {}
        for case, (settings, bar, dtype) in CASES.items():
            peak, said, _ = memory.measure(trainer_bin, tokens, folder / case, **settings)
            estimates[case] = (peak, said)
            print(f"{case}: {peak / GIB:.3f} GiB, said {said / GIB:.3f}", flush=True)
            peer = f"transformers {peers[dtype] / GIB:.3f} GiB" if dtype in peers else None
            figures.append(
                harness.figure(
                    f"trainer-memory.{case}", round(peak / GIB, 3), "GiB", bar, peer=peer
                )
            )
        for case, settings in ({} if quick else SHARDED).items():
            if "quantize" in settings:
                init = memory.make_init(folder / "init")
                settings = settings | {"lora": {"rank": 8}, "init": str(init)}
            peak, said, classes = memory.measure(
                trainer_bin, tokens, folder / case, ranks=2, **settings
            )
            estimates[case] = (peak, said)
            print(f"{case}, 2 ranks: {peak / GIB:.3f} GiB, said {said / GIB:.3f}", flush=True)
            if settings.get("zero_stage") == 3 and "quantize" not in settings:
                figures.append(
                    harness.figure(
                        "trainer-memory.gathered at most",
                        round(classes["gathered weights (slots)"] / 2**20, 2),
                        "MiB, two layers and the larger of head and embedding",
                        round(memory.largest_gathered() / 2**20, 2),
                    )
                )
        for case, (peak, said) in estimates.items():
            figures.append(
                harness.figure(
                    f"trainer-memory.estimate, {case}",
                    round(abs(said / peak - 1), 4),
                    f"off, said {said / GIB:.3f} GiB",
                    0.05,
                    peer=f"{peak / GIB:.3f} GiB measured",
                )
            )
    return harness.report(figures)


if __name__ == "__main__":
    sys.exit(main())
