"""bench/run.sh layouts: models that ranks share out (tensor and context parallel and in pipelines, beside data parallel), against transformers.

Gradients of each parameter after one step against autograd, read from checkpoints; 20 steps at lr 1e-4 against a plain
transformers loop on the same tokens; every family (families.py), with 8 heads, 4 key-value heads and 4 layers, each in some of
the layouts, so that each layout has some of the families. In full also one layout of 16 ranks.
"""

import sys
import tempfile
from pathlib import Path

import families
import harness
import layouts
import torch
import transformers


def main() -> int:
    quick = "--quick" in sys.argv[1:]
    trainer_bin = harness.trainer_binary()
    peer = f"transformers {transformers.__version__}, torch {torch.__version__}"
    every = [layout for layout in layouts.LAYOUTS if layout != layouts.MANY_RANKS]
    models = ["qwen2"] if quick else list(families.FAMILIES)
    cases = [
        (family, every[(number + shift) % len(every)])
        for number, family in enumerate(models)
        for shift in ((4, 17) if quick else (0, 4, 9))
    ]
    if not quick:
        cases.append(("llama3", layouts.MANY_RANKS))  # a tied head: both ends hold it
    steps = 6 if quick else 20
    worst = {("gradient", "fp32"): (0.0, "")}
    with tempfile.TemporaryDirectory(prefix="bench-layouts-") as name:
        folder = Path(name)
        tokens = harness.make_tokens(folder / "tokens")
        inits = {family: layouts.make_init(folder / f"init-{family}", family) for family in models}
        for number, (family, layout) in enumerate(cases):
            where = f"{family}, {layout}"
            distance, parameter = layouts.compare_gradients(
                trainer_bin, tokens, folder / f"g{number}", inits[family], layout
            )
            print(f"{where}: gradients {float(distance):.3g} ({parameter})", flush=True)
            worst["gradient", "fp32"] = max(
                worst["gradient", "fp32"], (float(distance), f"{where}, {parameter}")
            )
            for dtype, bars in layouts.BARS.items():
                run = folder / f"{dtype}{number}"
                found = layouts.compare_steps(
                    trainer_bin, tokens, run, inits[family], layout, dtype, steps
                )
                print(f"{where}, {dtype}: {found}", flush=True)
                assert found["logits_moved_by_training"] > 0.01, "the training did nothing"
                for key in bars:
                    worst[key, dtype] = max(worst.get((key, dtype), (0.0, "")), (found[key], where))
    count = f"{len(models)} models in {len(cases)} runs"
    figures = []
    for (key, dtype), (value, where) in worst.items():
        gradient = key == "gradient"
        figures.append(
            harness.figure(
                f"layouts.{key}.{dtype}",
                value,
                f"relative, worst of {count} ({where})" + ("" if gradient else f", {steps} steps"),
                layouts.GRADIENT_BAR if gradient else layouts.BARS[dtype][key],
                peer=peer,
            )
        )
    return harness.report(figures)


if __name__ == "__main__":
    sys.exit(main())
