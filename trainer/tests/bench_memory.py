"""Row `trainer-memory`: peak resident memory against transformers', and against what `estimate` said, of each stage and layout.

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
EXPERTS = memory.MODEL | {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
STAGES = {  # name: (ranks, settings): of each stage the rank with the most, against the estimate alone
    "pp 2, fp32": (2, {"parallel": {"pp": 2}, "micro_batch_size": 2}),
    "pp 2, gpipe, bf16": (
        2,
        {"parallel": {"pp": 2, "pipeline": "gpipe"}, "micro_batch_size": 2, "dtype": "bf16"},
    ),
    "pp 2, interleaved, fp32": (
        2,
        {"parallel": {"pp": 2, "pipeline": "interleaved"}, "micro_batch_size": 2},
    ),
    "pp 2 x tp 2, fp32": (4, {"parallel": {"pp": 2, "tp": 2}, "micro_batch_size": 2}),
    "cp 2, fp32": (2, {"parallel": {"cp": 2}}),
    "cp 2, zero_stage 3, bf16": (2, {"parallel": {"cp": 2}, "zero_stage": 3, "dtype": "bf16"}),
    "experts, dp 2, fp32": (2, {"model": EXPERTS, "micro_batch_size": 4}),
    "experts, ep 2, fp32": (
        2,
        {"model": EXPERTS, "parallel": {"ep": 2}, "micro_batch_size": 4},
    ),
}


def of_estimate(case: str, peak: int, said: int) -> dict:
    return harness.figure(
        f"trainer-memory.estimate, {case}",
        round(abs(said / peak - 1), 4),
        f"off, said {said / GIB:.3f} GiB",
        0.05,
        peer=f"{peak / GIB:.3f} GiB measured",
    )


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
            if case == "bf16, recompute" and not quick:
                figures.append(
                    harness.figure(
                        f"trainer-memory.{case}, against transformers",
                        round(peak / peers[dtype], 3),
                        "x transformers' peak",
                        0.5,
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
        figures += [of_estimate(case, *found) for case, found in estimates.items()]
        for case, (ranks, settings) in ({} if quick else STAGES).items():
            stages = memory.measure_stages(
                trainer_bin, tokens, folder / case, ranks=ranks, **settings
            )
            for number, (peak, said) in enumerate(stages, 1):
                name = f"{case}, stage {number} of {len(stages)}" if len(stages) > 1 else case
                print(f"{name}: {peak / GIB:.3f} GiB, said {said / GIB:.3f}", flush=True)
                figures.append(of_estimate(name, peak, said))
    return harness.report(figures)


if __name__ == "__main__":
    sys.exit(main())
