"""A run that is killed, resumed and resized, beside the same run undisturbed."""

import signal
from pathlib import Path

from harness import TINY_MODEL, Gang, read_batches, relative

STEPS, BATCH, LENGTH = 60, 16, 64
KILL_AT, RESIZE_AT, SAVE_STEPS = 23, 41, 10


def config(tokens: Path, **more) -> dict:
    return {
        "model": TINY_MODEL,
        "data": str(tokens),
        "max_length": LENGTH,
        "global_batch_size": BATCH,
        "micro_batch_size": 2,
        "max_steps": STEPS,
        "learning_rate": 1e-4,
        "lr_scheduler_type": "constant",
        "dtype": "fp32",
        "deterministic": True,
        "threads": 1,
        "save_steps": SAVE_STEPS,
    } | more


def compare(trainer_bin: str, tokens: Path, folder: Path) -> dict:
    """Runs 60 steps at once on 4 ranks; and killed at 23, resumed on 4, stopped at 41, resumed on 2.

    Returns tokens_differ (steps whose ids differ), bitwise_differ (steps on 4 ranks whose loss or grad-norm isn't equal
    bit for bit), loss (largest relative difference on 2 ranks), resumed_at and resized_at.
    """
    folder.mkdir(parents=True, exist_ok=True)
    settings = config(tokens)
    with Gang(
        trainer_bin, settings, 4, folder / "whole", dump_tokens=folder / "whole.tokens"
    ) as whole:
        whole.finish()
    with Gang(
        trainer_bin, settings, 4, folder / "first", dump_tokens=folder / "first.tokens"
    ) as first:
        first.wait_for_step(KILL_AT)
        first.signal(signal.SIGKILL)
        first.wait()
    resumed_at = first.checkpoint_steps()[0]
    with Gang(
        trainer_bin,
        settings,
        4,
        folder / "second",
        resume_from=[first.checkpoint(resumed_at)],
        dump_tokens=folder / "second.tokens",
    ) as second:
        second.wait_for_step(RESIZE_AT)
        second.signal(signal.SIGTERM)
        second.finish()
    resized_at = second.checkpoint_steps()[0]
    assert RESIZE_AT <= resized_at < STEPS, second.checkpoint_steps()
    with Gang(
        trainer_bin,
        settings,
        2,
        folder / "third",
        resume_from=[second.checkpoint(resized_at)],
        dump_tokens=folder / "third.tokens",
    ) as third:
        third.finish()
    assert (
        second.event("loaded")["step"] == resumed_at and third.event("loaded")["step"] == resized_at
    )

    wanted = read_batches(folder / "whole.tokens", BATCH, LENGTH + 1)
    assert len(wanted) == STEPS and len(set(wanted)) == STEPS
    found = {}
    for gang, name, begin in (
        (first, "first", 0),
        (second, "second", resumed_at),
        (third, "third", resized_at),
    ):
        batches = read_batches(folder / f"{name}.tokens", BATCH, LENGTH + 1)
        found[name] = {begin + 1 + number: batch for number, batch in enumerate(batches)}
        assert set(gang.metric("loss")) <= set(found[name]), f"{name}: steps without tokens"
    assert min(second.metric("loss")) == resumed_at + 1 and max(second.metric("loss")) == resized_at
    assert sorted(third.metric("loss")) == list(range(resized_at + 1, STEPS + 1))

    losses, norms = whole.metric("loss"), whole.metric("grad_norm")
    return {
        "tokens_differ": sum(
            batch != wanted[step - 1] for steps in found.values() for step, batch in steps.items()
        ),
        "bitwise_differ": sum(
            gang.metric("loss")[step] != losses[step]
            or gang.metric("grad_norm")[step] != norms[step]
            for gang in (first, second)
            for step in gang.metric("loss")
        ),
        "loss": max(relative(loss, losses[step]) for step, loss in third.metric("loss").items()),
        "resumed_at": resumed_at,
        "resized_at": resized_at,
    }


def reshard(trainer_bin: str, tokens: Path, folder: Path, stages: tuple[int, int]) -> dict:
    """60 steps at once on 4 ranks; and stopped at 20 and 40, resumed on 4, on 2 and on 3 ranks, and with another ZeRO stage.

    Returns same_bitwise (steps of the resumed run on 4 ranks whose loss or grad-norm isn't equal bit for bit), ranks_tokens_differ
    and stage_tokens_differ (steps whose ids differ), ranks_loss and stage_loss (largest relative differences)."""
    folder.mkdir(parents=True, exist_ok=True)

    def run(name: str, ranks: int, steps: int, resume_from=(), **more) -> Gang:
        with Gang(
            trainer_bin,
            config(tokens, max_steps=steps, save_steps=20, zero_stage=stages[0]) | more,
            ranks,
            folder / name,
            resume_from=resume_from,
            dump_tokens=folder / f"{name}.tokens",
        ) as gang:
            gang.finish()
        if resume_from:
            assert gang.event("loaded")["path"] == str(resume_from[0])
        return gang

    whole = run("whole", 4, STEPS)
    wanted = read_batches(folder / "whole.tokens", BATCH, LENGTH + 1)
    losses, norms = whole.metric("loss"), whole.metric("grad_norm")

    def tokens_differ(name: str, begin: int) -> int:
        found = read_batches(folder / f"{name}.tokens", BATCH, LENGTH + 1)
        return sum(batch != wanted[begin + number] for number, batch in enumerate(found))

    def loss_differs(gang: Gang) -> float:
        return max(relative(loss, losses[step]) for step, loss in gang.metric("loss").items())

    same = run("same", 4, STEPS, [whole.checkpoint(20)])
    two = run("two", 2, 40, [whole.checkpoint(20)])
    three = run("three", 3, STEPS, [two.checkpoint(40)])
    staged = run("staged", 4, STEPS, [whole.checkpoint(20)], zero_stage=stages[1])
    assert sorted(three.metric("loss")) == list(range(41, STEPS + 1)) and sorted(
        staged.metric("loss")
    ) == list(range(21, STEPS + 1))
    return {
        "same_bitwise": sum(
            same.metric("loss")[step] != losses[step]
            or same.metric("grad_norm")[step] != norms[step]
            for step in same.metric("loss")
        ),
        "same_tokens_differ": tokens_differ("same", 20),
        "ranks_tokens_differ": tokens_differ("two", 20) + tokens_differ("three", 40),
        "ranks_loss": max(loss_differs(two), loss_differs(three)),
        "stage_tokens_differ": tokens_differ("staged", 20),
        "stage_loss": loss_differs(staged),
    }
