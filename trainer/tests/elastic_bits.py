"""deterministic: elastic: one training on any numbers of ranks, or of units of a layout, compared bit for bit."""

import math
from pathlib import Path

import families
import parity
from harness import Gang, relative

# 16 rows a step, in micro-batches of 2: 8 parts.
BATCH, MICRO_BATCH = 16, 2
# What is trained, beside the plain model in fp32 with stage 1. Norms are clipped, so that a digit of one would be in all weights.
KINDS = {
    "plain": {},
    "stage 3": {"zero_stage": 3, "poison": True},
    "stage 0, six parts": {"zero_stage": 0, "global_batch_size": 12},
    "bf16, stage 2": {"zero_stage": 2, "dtype": "bf16", "masters": "split", "moments": "bf16"},
    "LoRA with dropout": {"lora": {"rank": 4, "dropout": 0.3}},
    "documents": {"packing": "bfd", "max_grad_norm": 0.1},
}
# The same of layouts whose ranks aren't alike.
LAYOUTS = {
    "tp 2": {"parallel": {"tp": 2}},
    "tp 2, stage 3": {"parallel": {"tp": 2}, "zero_stage": 3, "poison": True, "recompute": "full"},
    "tp 2, bf16": {"parallel": {"tp": 2}, "zero_stage": 2, "dtype": "bf16"},
    "pp 2": {"parallel": {"pp": 2}},
    "pp 2, tied": {"family": "qwen3", "parallel": {"pp": 2}, "zero_stage": 2, "poison": True},
    "cp 2, documents": {"parallel": {"cp": 2}, "packing": "bfd"},
    "ep 2": {"family": "qwen3-moe", "parallel": {"ep": 2}, "zero_stage": 2},
    "tp 2 x ep 2": {"family": "dots1", "parallel": {"tp": 2, "ep": 2}, "router_bias_speed": 0.01},
}


def config(init: Path, tokens: Path, steps: int, **more) -> dict:
    said = parity.config(init, tokens, steps, "model") | {
        "global_batch_size": BATCH,
        "micro_batch_size": MICRO_BATCH,
        "deterministic": "elastic",
        "zero_stage": 1,
        "learning_rate": 1e-3,
    }
    return said | more


def unit_of(settings: dict) -> int:
    """Ranks of a layout's unit, of all stages."""
    said = {"tp": 1, "cp": 1, "pp": 1, "ep": 1} | settings.get("parallel", {})
    return math.lcm(said["tp"] * said["cp"], said["ep"]) * said["pp"]


class Outcome:
    """What a training left: norms and weights, which are to be the same, and losses, which are sums over ranks."""

    def __init__(self, gang: Gang, norms: dict, losses: dict):
        self.norms, self.losses = norms, losses
        (model,) = (gang.folder / "model").glob("*.safetensors")
        self.weights = model.read_bytes()

    def differs(self, wanted: "Outcome") -> int:
        """Norms and files of weights that differ in a bit."""
        assert self.norms.keys() == wanted.norms.keys()
        return sum(its != wanted.norms[step] for step, its in self.norms.items()) + (
            self.weights != wanted.weights
        )

    def loss_differs(self, wanted: "Outcome") -> float:
        return max(relative(its, wanted.losses[step]) for step, its in self.losses.items())


def train(trainer_bin: str, settings: dict, folder: Path, ranks: list[int]) -> Outcome:
    """With the first number of units for the first part of the steps, resumed with the second one, and so on."""
    unit = unit_of(settings)
    norms, losses, resume_from = {}, {}, []
    steps = settings["max_steps"]
    for number, its in enumerate(ranks):
        until = steps * (number + 1) // len(ranks)
        more = {"max_steps": until, "save_steps": until, "export": "model"}
        with Gang(
            trainer_bin,
            settings | more,
            its * unit,
            folder / f"run{number}",
            resume_from=resume_from,
        ) as gang:
            gang.finish()
        norms |= gang.metric("grad_norm")
        losses |= gang.metric("loss")
        resume_from = [gang.checkpoint(until)]
    return Outcome(gang, norms, losses)


def compare(
    trainer_bin: str, tokens: Path, folder: Path, steps: int, kind: str, ranks: list[list[int]]
) -> dict[str, tuple[int, float]]:
    """For each way, "1", "8, 2, 3": (what differs from one unit in a bit, how far losses are off)."""
    said = dict((KINDS | LAYOUTS)[kind])
    family = said.pop("family", None)
    init = families.make(folder / "init", family) if family else parity.make_init(folder / "init")
    settings = config(init, tokens, steps, **said)
    wanted = train(trainer_bin, settings, folder / "wanted", [1])
    found = {}
    for way in ranks:
        name = ", ".join(map(str, way))
        its = train(trainer_bin, settings, folder / "-".join(map(str, way)), way)
        found[name] = (its.differs(wanted), its.loss_differs(wanted))
    return found
