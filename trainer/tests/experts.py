"""Models with experts, alone and shared out among ranks, beside transformers: whole batches, experts without tokens, all tokens on one,
and the loss that balances them."""

from pathlib import Path

import families
import layouts
import numpy
import parity
import resume
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

BARS = layouts.BARS
FLOOR = 1e-4  # of norms of heads: some are next to nothing, and rounding is much of them
SHAPE = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4}
LAYOUTS = {  # name: (ranks, what the configuration says)
    "one rank": (1, {}),
    "dp 2": (2, {"zero_stage": 2}),
    "ep 2": (2, {"parallel": {"ep": 2}}),
    "ep 4, stage 3": (
        4,
        {"parallel": {"ep": 4}, "zero_stage": 3, "poison": True, "recompute": "full"},
    ),
    "tp 2": (2, {"parallel": {"tp": 2}, "recompute": "pointwise"}),
    "dp 2 x ep 2, stage 2": (4, {"parallel": {"ep": 2}, "zero_stage": 2}),
    "two copies of ep 2, stage 3": (
        4,
        {"parallel": {"ep": 2}, "zero_stage": 3, "shard_size": 2, "poison": True},
    ),
    "tp 2 x ep 4": (4, {"parallel": {"tp": 2, "ep": 4}, "zero_stage": 2, "micro_batch_size": 2}),
    "tp 4 x ep 2": (4, {"parallel": {"tp": 4, "ep": 2}, "recompute": "keep_attention"}),
    "cp 2 x ep 2": (2, {"parallel": {"cp": 2, "ep": 2}, "zero_stage": 2}),
    "dp 2 x cp 2 x ep 2": (4, {"parallel": {"cp": 2, "ep": 2}, "zero_stage": 3, "poison": True}),
    "pp 2 x ep 2": (4, {"parallel": {"pp": 2, "ep": 2}}),
    "pp 2, zero-bubble": (2, {"parallel": {"pp": 2, "pipeline": "zero_bubble"}}),
    "pp 2 x tp 2 x ep 4, stage 3": (
        8,
        {"parallel": {"pp": 2, "tp": 2, "ep": 4}, "zero_stage": 3, "recompute": "full"},
    ),
}
layouts.LAYOUTS |= LAYOUTS
DOTS = resume.TINY_MODEL | {
    "model_type": "dots1",
    "architectures": ["Dots1ForCausalLM"],
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
}


def make_init(folder: Path, family: str, change=lambda model: None, **shape) -> Path:
    return families.make(folder, family, shape=SHAPE | shape, change=change)


def favour(chosen: list[int]):
    """Routers that choose the same experts for every token: one coordinate of all embeddings is above the rest, and these experts'
    rows see it, the first the most. (Far above, and the gradients would be mostly rounding.) Routers with biases choose by
    those."""

    def change(model) -> None:
        model.model.embed_tokens.weight[:, 0] = 0.1
        for layer in model.model.layers:
            layer.post_attention_layernorm.weight[0] = 1
            if hasattr(layer.mlp, "experts"):
                biases = families.router_biases(layer).values()
                for bias in biases:
                    bias.zero_()
                for place, expert in enumerate(chosen):
                    if biases:  # scores are below 1
                        bias[expert] = 2 - place * 0.75
                    else:
                        layer.mlp.gate.weight[expert, 0] = 2 - place * 0.75

    return change


def whole_batch(init: Path, coefficient: float):
    """As transformers has it: of all rows and layers at once."""
    config = AutoConfig.from_pretrained(init)
    count, chosen = config.num_local_experts, config.num_experts_per_tok

    def loss(logits: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return coefficient * load_balancing_loss_func(logits, count, chosen)

    return loss


def by_sequence(init: Path, coefficient: float):
    """The same function of each row and layer by itself; the mean of those."""
    one = whole_batch(init, coefficient)

    def loss(logits: tuple[torch.Tensor, ...]) -> torch.Tensor:
        parts = [row for layer in logits for row in layer.chunk(parity.BATCH)]
        return torch.stack([one((part,)) for part in parts]).mean()

    return loss


class Biases:
    """What a router's biases should become (DeepSeek-V3's report, section 2.1.2), in plain Python beside a loop of transformers:
    after each step an expert that met more tokens than the mean goes down by `speed`, one that met fewer up."""

    def __init__(self, speed: float):
        self.speed = numpy.float32(speed)
        self.chosen: dict[str, list[int]] = {}
        self.found: dict[str, list[numpy.float32]] = {}
        self.moves = 0

    def watch(self, model):
        """As parity.transformers_loop wants it."""

        def note(name):
            return lambda module, given, out: self.chosen.setdefault(name, []).extend(
                out[2].flatten().tolist()
            )

        for name, module in model.named_modules():
            if hasattr(module, families.ROUTER_BIAS):
                key = f"{name}.{families.ROUTER_BIAS}"
                module.register_forward_hook(note(key))
                self.found[key] = list(module.e_score_correction_bias.numpy())
        return lambda: self.move(model)

    def move(self, model) -> None:
        for key, bias in self.found.items():
            chosen = self.chosen.pop(key)
            for expert in range(len(bias)):
                met, mean = chosen.count(expert), len(chosen) / len(bias)
                if met != mean:
                    bias[expert] += self.speed if met < mean else -self.speed
                    self.moves += 1
            model.get_buffer(key).copy_(torch.from_numpy(numpy.array(bias)))


def tokens_by_expert(init: Path, batch: tuple[int, ...]) -> list[list[int]]:
    """Of a batch, by layer that has experts."""
    model = AutoModelForCausalLM.from_pretrained(init, dtype=torch.float32)
    ids = torch.tensor(batch).view(parity.BATCH, parity.LENGTH + 1)
    if families.router_biases(model):
        told = Biases(0)
        told.watch(model)
        with torch.no_grad():
            model(input_ids=ids[:, :-1])
        return [
            [chosen.count(expert) for expert in range(model.config.n_routed_experts)]
            for chosen in told.chosen.values()
        ]
    with torch.no_grad():
        layers = model(input_ids=ids[:, :-1], output_router_logits=True).router_logits
    chosen = model.config.num_experts_per_tok
    return [
        torch.bincount(one.topk(chosen).indices.flatten(), minlength=one.shape[1]).tolist()
        for one in layers
    ]
