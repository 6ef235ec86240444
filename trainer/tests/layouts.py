"""One model trained in different layouts of ranks: data parallel, in slices (tensor parallel), in stages (pipelines), with parts of rows (context parallel), and all; beside transformers."""

import json
from pathlib import Path

import families
import parity
import torch
from harness import Gang, read_batches
from safetensors import safe_open
from transformers import AutoModelForCausalLM

SHAPE = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4}
LAYOUTS = {  # name: (ranks, what the configuration says)
    "dp 2": (2, {}),
    "tp 2": (2, {"parallel": {"tp": 2}}),
    "tp 4": (4, {"parallel": {"tp": 4}, "micro_batch_size": 1}),
    "tp 4, stage 3": (
        4,
        {"parallel": {"tp": 4}, "zero_stage": 3, "poison": True, "recompute": "full"},
    ),
    "dp 2 x tp 2": (4, {"parallel": {"tp": 2}}),
    "dp 2 x tp 2, stage 3": (
        4,
        {"parallel": {"tp": 2}, "zero_stage": 3, "poison": True, "recompute": "full"},
    ),
    "dp 2 x tp 2, two copies": (4, {"parallel": {"tp": 2}, "zero_stage": 2, "shard_size": 2}),
    "dp 3 x tp 2": (6, {"parallel": {"tp": 2}, "zero_stage": 2}),  # with rows that are padding
    "dp 2 x tp 4": (8, {"parallel": {"tp": 4}, "zero_stage": 3}),
    "pp 2": (2, {"parallel": {"pp": 2}}),
    "pp 4, gpipe": (4, {"parallel": {"pp": 4, "pipeline": "gpipe"}, "micro_batch_size": 2}),
    "pp 2, interleaved x dp 2, stage 3": (
        4,
        {
            "parallel": {"pp": 2, "pipeline": "interleaved"},
            "zero_stage": 3,
            "poison": True,
            "recompute": "full",
        },
    ),
    "pp 2, zero-bubble x tp 2": (4, {"parallel": {"pp": 2, "tp": 2, "pipeline": "zero_bubble"}}),
    "pp 2 x dp 2 x tp 2, stage 2": (8, {"parallel": {"pp": 2, "tp": 2}, "zero_stage": 2}),
    "pp 4 x dp 2": (8, {"parallel": {"pp": 4}, "micro_batch_size": 2}),
    "pp 2 x tp 2 x cp 2": (8, {"parallel": {"pp": 2, "tp": 2, "cp": 2}, "zero_stage": 2}),
    "cp 4, by document": (4, {"parallel": {"cp": 4, "cp_sharding": "document"}}),
    "dp 2 x cp 2, stage 3": (
        4,
        {"parallel": {"cp": 2}, "zero_stage": 3, "poison": True, "recompute": "full"},
    ),
    "tp 2 x cp 2": (4, {"parallel": {"tp": 2, "cp": 2, "cp_sharding": "sequence"}}),
    "pp 2 x cp 3": (6, {"parallel": {"pp": 2, "cp": 3}}),  # rows of 64 tokens in 6 chunks
}
MANY_RANKS = "pp 2 x tp 2 x cp 2 x dp 2"  # of the row in full alone: 16 processes
LAYOUTS[MANY_RANKS] = (
    16,
    {"parallel": {"pp": 2, "tp": 2, "cp": 2}, "zero_stage": 2, "micro_batch_size": 2},
)
BARS = {"fp32": {"loss": 2e-6, "grad_norm": 5e-6}, "bf16": {"loss": 1e-3, "grad_norm": 2e-2}}
GRADIENT_BAR = 1e-5


def make_init(folder: Path, family: str) -> Path:
    return families.make(folder, family, shape=SHAPE)


def read_tensors(checkpoint: Path, kind: str) -> dict[str, torch.Tensor]:
    """Every parameter's `kind` (master, exp_avg, exp_avg_sq), put together from the pieces that index.json names."""
    index = json.loads((checkpoint / "index.json").read_text())
    files = [safe_open(checkpoint / file["name"], framework="pt") for file in index["files"]]
    found = {}
    for name, tensor in index["tensors"].items():
        whole = torch.full(tensor["shape"], torch.nan)
        slices: dict[tuple, torch.Tensor] = {}
        for piece in tensor["pieces"]:
            cut = piece.get("slice", {"dim": 0, "begin": 0, "end": tensor["shape"][0]})
            where = (cut["dim"], cut["begin"], cut["end"] - cut["begin"])
            part = slices.setdefault(where, torch.full_like(whole.narrow(*where), torch.nan))
            flat = files[piece["file"]].get_tensor(f"flat.{piece['flat']}.{kind}")
            begin, count = piece["file_begin"], piece["numel"]
            part.view(-1)[piece["tensor_begin"] : piece["tensor_begin"] + count] = flat[
                begin : begin + count
            ]
        for where, part in slices.items():
            whole.narrow(*where).copy_(part)
        assert not whole.isnan().any(), f"{name} has gaps"
        found[name] = whole
    return found


def in_files(name: str, whole: torch.Tensor, config) -> dict[str, torch.Tensor]:
    """A parameter of transformers by the names that it has in our checkpoints, those of files: of experts, each by itself. Of
    Phi-3, the linears that are one in files."""
    mixtral = config.model_type == "mixtral"
    block = "block_sparse_moe" if mixtral else "mlp"
    if config.model_type == "phi3" and name.endswith(("qkv_proj.weight", "gate_up_proj.weight")):
        rows = len(whole) // (config.num_attention_heads + 2 * config.num_key_value_heads)
        kv = rows * config.num_key_value_heads
        words, sizes = ("gate_proj", "up_proj"), len(whole) // 2
        if "qkv_proj" in name:
            words, sizes = ("q_proj", "k_proj", "v_proj"), [len(whole) - 2 * kv, kv, kv]
        parent = name.rsplit(".", 2)[0]
        return {f"{parent}.{word}.weight": part for word, part in zip(words, whole.split(sizes))}
    layer, _, kind = name.partition(".mlp.experts.")
    if not kind:
        return {name.replace(".mlp.gate.", f".{block}.gate."): whole}
    words = ("w2",) if mixtral else ("down_proj",)
    if kind == "gate_up_proj":
        words = ("w1", "w3") if mixtral else ("gate_proj", "up_proj")
    return {
        f"{layer}.{block}.experts.{expert}.{word}.weight": part
        for expert in range(len(whole))
        for word, part in zip(words, whole[expert].chunk(len(words)))
    }


def autograd(init: Path, batch: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Gradients of the mean loss by transformers, by the names that parameters have in files."""
    model = AutoModelForCausalLM.from_pretrained(init, dtype=torch.float32)
    ids = torch.tensor(batch).view(parity.BATCH, parity.LENGTH + 1)
    logits = model(input_ids=ids[:, :-1]).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
    found = {}
    for name, parameter in model.named_parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        found |= in_files(name, gradient, model.config)
    return found


def compare_gradients(
    trainer_bin: str, tokens: Path, folder: Path, init: Path, layout: str, floor: float = 0
) -> tuple[float, str]:
    """The farthest of a step's gradients from autograd's, relative in the Frobenius norm, and whose it is. Without clipping,
    the first exp_avg is (1 - beta1) times the gradient: any layout is read from its files. `floor`: gradients smaller than this
    share of all are held against that share. A gradient that is zero must be zero."""
    ranks, more = LAYOUTS[layout]
    settings = parity.config(init, tokens, 1, folder / "model") | {"max_grad_norm": 0} | more
    settings.pop("export")
    with Gang(
        trainer_bin, settings, ranks, folder / "run", dump_tokens=folder / "tokens.bin"
    ) as gang:
        gang.finish()
    (batch,) = read_batches(folder / "tokens.bin", parity.BATCH, parity.LENGTH + 1)
    found = read_tensors(gang.checkpoint(1), "exp_avg")
    for name in [name for name in found if name.endswith(families.ROUTER_BIAS)]:
        assert not found.pop(name).any(), name  # it has no gradient, and no moments
    wanted = autograd(init, batch)
    wanted.pop("lm_head.weight", None) if "lm_head.weight" not in found else None
    assert set(found) == set(wanted), set(found) ^ set(wanted)
    least = floor * torch.stack([gradient.norm() for gradient in wanted.values()]).norm() + 1e-30
    for name, gradient in wanted.items():
        assert gradient.any() or not found[name].any(), name
    return max(
        ((found[name] / 0.1 - gradient).norm() / max(gradient.norm(), least), name)
        for name, gradient in wanted.items()
    )


def compare_steps(
    trainer_bin: str, tokens: Path, folder: Path, init: Path, layout: str, dtype: str, steps: int
) -> dict[str, float]:
    ranks, more = LAYOUTS[layout]
    return parity.compare(trainer_bin, tokens, folder, steps, ranks, init=init, dtype=dtype, **more)
