"""bench/run.sh cp-wlb: rows that ranks share out (context parallelism).

Exactness: packed documents of lengths from 2 tokens to a whole row, on ranks that share out rows, against one rank, step by step;
models with sliding windows and with experts. Then what cutting each document for itself should gain over cutting rows,
counted by muster-bench-context.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import experts
import families
import harness
import layouts
import parity

BAR = 1e-6  # relative, of the loss
NORM_BAR = 5e-6
CASES = (  # model, ranks, what the configuration says
    ("mistral", 2, {"parallel": {"cp": 2, "cp_sharding": "document"}}),
    (
        "mistral",
        4,
        {"parallel": {"cp": 4, "cp_sharding": "sequence"}, "zero_stage": 3, "micro_batch_size": 1},
    ),
    ("mistral", 3, {"parallel": {"cp": 3}, "recompute": "full"}),
    ("qwen3", 4, {"parallel": {"tp": 2, "cp": 2}, "zero_stage": 2}),
    ("qwen3", 4, {"parallel": {"pp": 2, "cp": 2, "cp_sharding": "document"}}),
    ("qwen3-moe", 4, {"parallel": {"cp": 2, "ep": 2, "cp_sharding": "document"}}),
)
QUICK = (0, 3)


def run(trainer_bin: str, folder: Path, settings: dict, ranks: int) -> tuple[dict, dict]:
    with harness.Gang(trainer_bin, settings, ranks, folder) as gang:
        gang.finish()
    return gang.metric("loss"), gang.metric("grad_norm")


def compare(trainer_bin: str, folder: Path, quick: bool) -> dict[str, tuple[float, str]]:
    """The farthest of losses and of gradient norms from one rank's, and where."""
    tokens = harness.make_tokens(folder / "tokens")
    alone, worst = {}, {"loss": (0.0, ""), "grad_norm": (0.0, "")}
    for number, (family, ranks, more) in enumerate(CASES):
        if quick and number not in QUICK:
            continue
        init = folder / f"init-{family}"
        if not init.exists():
            make = experts.make_init if family in families.EXPERTS else layouts.make_init
            make(init, family)
        settings = parity.config(init, tokens, 6 if quick else 20, folder / "model")
        settings |= {"packing": "bfd"}
        settings.pop("export")
        if family not in alone:
            alone[family] = run(trainer_bin, folder / f"alone-{family}", settings, 1)
        found = run(trainer_bin, folder / f"run{number}", settings | more, ranks)
        where = f"{family}, {ranks} ranks, {json.dumps(more)}"
        for key, mine, wanted in zip(worst, found, alone[family]):
            assert mine.keys() == wanted.keys(), where
            off = max(harness.relative(mine[step], wanted[step]) for step in wanted)
            print(f"{where}: {key} {off:.3g}", flush=True)
            worst[key] = max(worst[key], (off, where))
    return worst


def main() -> int:
    quick = "--quick" in sys.argv[1:]
    trainer_bin = harness.trainer_binary()
    with tempfile.TemporaryDirectory(prefix="bench-context-") as name:
        worst = compare(trainer_bin, Path(name), quick)
    figures = [
        harness.figure(
            f"{key} of shared-out rows against one rank's",
            value,
            f"relative, worst of {len(QUICK if quick else CASES)} runs ({where})",
            BAR if key == "loss" else NORM_BAR,
        )
        for key, (value, where) in worst.items()
    ]
    code = harness.report(figures)
    predicted = subprocess.run(
        [Path(trainer_bin).parent / "muster-bench-context", *(["--quick"] if quick else [])]
    )
    return code or predicted.returncode


if __name__ == "__main__":
    sys.exit(main())
