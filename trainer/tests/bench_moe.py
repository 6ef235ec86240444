"""bench/run.sh moe: Mixtral, Qwen3-MoE and dots1, in one process and with their experts shared out, against transformers.

Gradients of each parameter after one step against autograd; 20 steps at lr 1e-4 against a plain transformers loop on the same
tokens; the same where some experts get no token, and where one gets all; and with the loss that balances experts, as
transformers has it and by sequence; and with routers' biases that are moved, against plain Python. Each model in some of the layouts, so that each layout has some of the models.
"""

import json
import sys
import tempfile
from pathlib import Path

import experts
import families
import harness
import layouts
import parity
import transformers
from safetensors.torch import load_file

GRADIENT_BAR, BAR = layouts.GRADIENT_BAR, 2e-6
COEFFICIENT = 0.5


class Row:
    def __init__(self, trainer_bin: str, folder: Path, steps: int):
        self.trainer_bin, self.folder, self.steps = trainer_bin, folder, steps
        self.tokens = harness.make_tokens(folder / "tokens")
        self.worst: dict[tuple[str, str], tuple[float, str]] = {}
        self.runs = 0

    def note(self, figure: str, dtype: str, value: float, where: str) -> None:
        self.worst[figure, dtype] = max(
            self.worst.get((figure, dtype), (0.0, "")), (float(value), where)
        )

    def gradients(self, init: Path, layout: str, what: str) -> None:
        self.runs += 1
        distance, parameter = layouts.compare_gradients(
            self.trainer_bin,
            self.tokens,
            self.folder / f"g{self.runs}",
            init,
            layout,
            experts.FLOOR,
        )
        where = f"{what}, {layout}"
        print(f"{where}: gradients {float(distance):.3g} ({parameter})", flush=True)
        self.note("gradient", "fp32", distance, f"{where}, {parameter}")

    def train(self, init: Path, layout: str, what: str, dtype="fp32", kind: str = "") -> None:
        self.runs += 1
        where = f"{what}, {layout}"
        ranks, more = layouts.LAYOUTS[layout]
        told: list[float] = []
        auxiliary = None
        if kind:
            more = more | {"router_aux_loss": kind, "router_aux_loss_coef": COEFFICIENT}
            more |= {"micro_batch_size": parity.BATCH} if kind == "batch" else {}
            loss = (experts.whole_batch if kind == "batch" else experts.by_sequence)(
                init, COEFFICIENT
            )

            def auxiliary(logits):
                told.append((one := loss(logits)).item())
                return one

        run = self.folder / f"t{self.runs}"
        found = parity.compare(
            self.trainer_bin,
            self.tokens,
            run,
            self.steps,
            ranks,
            init=init,
            dtype=dtype,
            auxiliary=auxiliary,
            **more,
        )
        print(f"{where}, {dtype}{', ' + kind if kind else ''}: {found}", flush=True)
        assert found["logits_moved_by_training"] > 0.01, "the training did nothing"
        for key in ("loss", "grad_norm"):
            self.note(key + (f".aux-{kind}" if kind else ""), dtype, found[key], where)
        if kind:
            lines = (run / "run/metrics.jsonl").read_text().splitlines()
            off = max(
                harness.relative(json.loads(line)["aux_loss"], wanted)
                for line, wanted in zip(lines, told, strict=True)
            )
            self.note(f"aux_loss.{kind}", dtype, off, where)

    def biases(self, init: Path, layout: str) -> None:
        self.runs += 1
        where, wanted = f"dots1, biases moved, {layout}", experts.Biases(0.003)
        ranks, more = layouts.LAYOUTS[layout]
        run = self.folder / f"b{self.runs}"
        found = parity.compare(
            self.trainer_bin,
            self.tokens,
            run,
            self.steps,
            ranks,
            init=init,
            watch=wanted.watch,
            **more | {"router_bias_speed": 0.003},
        )
        print(f"{where}: {found}, {wanted.moves} moves", flush=True)
        for key in ("loss", "grad_norm"):
            self.note(key, "fp32", found[key], where)
        exported = load_file(run / "model/model.safetensors")
        off = max(
            abs(have - float(want))
            for name, bias in wanted.found.items()
            for have, want in zip(exported[name].tolist(), bias, strict=True)
        )
        self.note("router_bias", "fp32", off / wanted.speed, where)


def main() -> int:
    quick = "--quick" in sys.argv[1:]
    every = list(experts.LAYOUTS)
    models = ["qwen3-moe"] if quick else list(families.EXPERTS)
    with tempfile.TemporaryDirectory(prefix="bench-moe-") as name:
        row = Row(harness.trainer_binary(), Path(name), 5 if quick else 20)
        for number, family in enumerate(models):
            init = experts.make_init(row.folder / f"init-{family}", family)
            shifts = (3,) if quick else range(0, len(every), len(models))
            for shift in shifts:
                layout = every[(number + shift) % len(every)]
                row.gradients(init, layout, family)
                for dtype in ("fp32",) if quick else experts.BARS:
                    row.train(init, layout, family, dtype)
        for family, chosen, what in (
            ("qwen3-moe", 2, "experts without tokens"),
            ("qwen3-moe", 1, "all tokens on one expert"),
            ("dots1", 1, "all tokens on one expert of dots1"),
        ):
            init = experts.make_init(
                row.folder / f"init-{family}-{chosen}",
                family,
                experts.favour([3, 5]),
                num_experts_per_tok=chosen,
            )
            for layout in ("ep 4, stage 3",) if quick else ("one rank", "ep 4, stage 3"):
                row.gradients(init, layout, what)
                row.train(init, layout, what)
        init = experts.make_init(row.folder / "init-biases", "dots1")
        for layout in ("tp 2 x ep 4",) if quick else ("one rank", "tp 2 x ep 4", "pp 2 x ep 2"):
            row.biases(init, layout)
        init = experts.make_init(row.folder / "init-aux", "qwen3-moe")
        for kind, layout in (
            [("sequence", "ep 2")]
            if quick
            else [("batch", "one rank"), ("batch", "tp 2"), ("sequence", "tp 2 x ep 4")]
        ):
            row.train(init, layout, "balanced", kind=kind)
    figures = []
    for (key, dtype), (value, where) in row.worst.items():
        bar = GRADIENT_BAR if key == "gradient" else experts.BARS[dtype].get(key.split(".")[0], BAR)
        figures.append(
            harness.figure(
                f"moe.{key}.{dtype}",
                value,
                f"relative, worst of {row.runs} runs ({where})"
                + ("" if key == "gradient" else f", {row.steps} steps"),
                bar,
                peer=f"transformers {transformers.__version__}",
            )
        )
    return harness.report(figures)


if __name__ == "__main__":
    sys.exit(main())
