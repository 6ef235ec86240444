"""The same training in different layouts: ZeRO's stages, hybrid sharding, and everything that saves memory."""

from pathlib import Path

import parity
from harness import Gang, relative

TOGGLES = {  # name: (what both have, what is turned on)
    "recompute pointwise": ({}, {"recompute": "pointwise"}),
    "recompute keep_attention": ({}, {"recompute": "keep_attention"}),
    "recompute full": ({}, {"recompute": "full"}),
    "slots": ({"zero_stage": 2}, {"zero_stage": 3}),
    "poison": ({}, {"poison": True}),
    "poison, recompute full": ({}, {"poison": True, "recompute": "full"}),
    "offload optimizer": ({}, {"offload": "optimizer"}),
    "offload parameters": ({}, {"offload": "parameters", "poison": True}),
    "offload parameters, one rank": ({"ranks": 1}, {"offload": "parameters", "poison": True}),
    "split masters": ({"dtype": "bf16"}, {"masters": "split"}),
    "shard_size": ({"zero_stage": 1}, {"shard_size": 1}),
}
LAYOUTS = {  # name: what 4 ranks have
    "0": {"zero_stage": 0},
    "1": {"zero_stage": 1},
    "2": {"zero_stage": 2},
    "3": {"zero_stage": 3},
    "hybrid": {"zero_stage": 3, "shard_size": 2},
    "hybrid 2": {"zero_stage": 2, "shard_size": 2},
    "hybrid 1": {"zero_stage": 1, "shard_size": 2},
}


def run(
    trainer_bin: str, init: Path, tokens: Path, folder: Path, steps: int, ranks: int, **more
) -> Gang:
    settings = (
        parity.config(init, tokens, steps, folder / "model", dtype=more.pop("dtype", "fp32"))
        | {"max_grad_norm": 0}
        | more
    )
    with Gang(trainer_bin, settings, ranks, folder / "run") as gang:
        gang.finish()
    gang.model = (folder / "model" / "model.safetensors").read_bytes()
    return gang


def differing_bits(one: Gang, other: Gang) -> int:
    """Steps whose loss or gradient norm isn't equal bit for bit, and one for weights that differ at the end."""
    steps = one.metric("loss")
    assert set(steps) == set(other.metric("loss"))
    told = [
        {step: (gang.metric("loss")[step], gang.metric("grad_norm")[step]) for step in steps}
        for gang in (one, other)
    ]
    return sum(told[0][step] != told[1][step] for step in steps) + (one.model != other.model)


def farthest(one: Gang, other: Gang, name: str) -> float:
    found, wanted = one.metric(name), other.metric(name)
    assert set(found) == set(wanted)
    return max(relative(found[step], wanted[step]) for step in found)


def zero3_bitwise(
    trainer_bin: str, tokens: Path, folder: Path, steps: int, dtype: str = "fp32"
) -> dict[str, float]:
    """ZeRO-3 on 2 ranks against one process that takes the same two micro-batches: bits without clipping, and how far with."""
    init = parity.make_init(folder / "init")
    common = {"micro_batch_size": parity.BATCH // 2, "deterministic": True, "dtype": dtype}
    found = {}
    for clip in (0, parity.MAX_GRAD_NORM / 4):
        alone = run(
            trainer_bin,
            init,
            tokens,
            folder / f"alone{clip}",
            steps,
            1,
            zero_stage=0,
            max_grad_norm=clip,
            **common,
        )
        both = run(
            trainer_bin,
            init,
            tokens,
            folder / f"both{clip}",
            steps,
            2,
            zero_stage=3,
            poison=True,
            max_grad_norm=clip,
            **common,
        )
        if clip == 0:
            # The norm is a sum over shards: its last digit may depend on them, and without clipping nothing depends on it.
            losses = alone.metric("loss"), both.metric("loss")
            found["differ"] = sum(losses[0][step] != losses[1][step] for step in losses[0]) + (
                alone.model != both.model
            )
        else:
            found["clipped_loss"] = farthest(both, alone, "loss")
            found["clipped_steps"] = sum(norm > clip for norm in alone.metric("grad_norm").values())
    return found


def compare_layouts(
    trainer_bin: str, tokens: Path, folder: Path, steps: int, names
) -> dict[str, dict[str, float]]:
    """Each on 4 ranks against one rank; rows are documents, so that ranks have unequal numbers of tokens."""
    init = parity.make_init(folder / "init")
    common = {"packing": "none", "micro_batch_size": 2}
    alone = run(trainer_bin, init, tokens, folder / "alone", steps, 1, zero_stage=0, **common)
    counts = {event["target_tokens"] for event in alone.events if "target_tokens" in event}
    assert len(counts) > 1, "all batches have the same number of tokens"
    found = {}
    for name in names:
        gang = run(trainer_bin, init, tokens, folder / name, steps, 4, **common, **LAYOUTS[name])
        found[name] = {
            "loss": farthest(gang, alone, "loss"),
            "grad_norm": farthest(gang, alone, "grad_norm"),
        }
    return found


def compare_toggles(
    trainer_bin: str, tokens: Path, folder: Path, steps: int, names, dtype: str
) -> dict[str, int]:
    """differing_bits of each toggle's run with and without it."""
    init = parity.make_init(folder / "init")
    found, plain = {}, {}
    for name in names:
        common, change = TOGGLES[name]
        settings = {"zero_stage": 3, "dtype": dtype, "ranks": 2} | common
        if settings["dtype"] != dtype:
            continue
        key = str(sorted(settings.items()))
        if key not in plain:
            plain[key] = run(
                trainer_bin, init, tokens, folder / f"plain{len(plain)}", steps, **settings
            )
        changed = run(
            trainer_bin, init, tokens, folder / name.replace(" ", "_"), steps, **(settings | change)
        )
        found[name] = differing_bits(changed, plain[key])
    return found


def zero_adapter(
    trainer_bin: str, tokens: Path, folder: Path, steps: int, dtype: str = "fp32"
) -> int:
    """Steps whose loss isn't the same bits with an adapter that is zero as without one. Nothing moves at this learning rate."""
    init = parity.make_init(folder / "init")
    still = {"learning_rate": 1e-30, "weight_decay": 0, "dtype": dtype}
    without = run(trainer_bin, init, tokens, folder / "without", steps, 1, **still)
    adapted = run(trainer_bin, init, tokens, folder / "with", steps, 1, lora={"rank": 4}, **still)
    losses = without.metric("loss"), adapted.metric("loss")
    return sum(losses[0][step] != losses[1][step] for step in losses[0])
