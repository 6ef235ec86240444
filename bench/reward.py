#!/usr/bin/env python3
"""Row `reward`: 50 steps of a reward model on preferences against TRL's RewardTrainer, and its export's scores.

    reward.py [--quick]

The same small models, pairs, order and learning rates, fp32; what each step said is compared, and the scores that transformers gives to every answer with what
each has trained. TRL is bench/requirements-dpo.txt's, in the environment of row `dpo`. --quick: 12 steps; without that environment a loop of
transformers with the loss written out (trainer/tests/rewards.py), and it says so.
"""

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "trainer" / "tests"))

import preferences
import rewards
import torch
from dpo import BAR, LEARNING_RATE, PAIRS, ask_trl, linear, peer_of, python_of_trl, told_apart
from figures import figure
from harness import trainer_binary

REWARDS = ("accuracy", "margin", "mean_reward")
LENGTH = preferences.LENGTH + 24  # of each answer with its prompt: none is left out
KINDS = {"llama": 0, "qwen2": 0.01}  # and center_rewards_coefficient


def ours(folder: Path, init: Path, pairs: Path, steps: int, center: float) -> list[dict]:
    config = rewards.settings(
        init,
        pairs,
        max_steps=steps,
        max_length=LENGTH,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="linear",
        warmup_steps=steps // 10,
        export=str(folder / "model"),
        reward={"center_rewards_coefficient": center},
    )
    return preferences.run(trainer_binary(), config, 1, folder / "run", dump_tokens=folder / "dump")


def trl(folder: Path, python: Path, init: Path, pairs: Path, order: list, center: float) -> list:
    settings = {"init": str(init), "max_length": LENGTH, "center": center}
    found = ask_trl("reward_trl.py", folder, python, pairs, order, settings)
    assert found["pad"] == rewards.PAD, f"TRL pads with {found['pad']}"
    return found["steps"]


def stand_in(folder: Path, init: Path, pairs: Path, order: list, center: float) -> list[dict]:
    model = rewards.load(init)
    rates = [LEARNING_RATE * one for one in linear(len(order))]
    lines = rewards.transformers_loop(model, rewards.documents(pairs), order, center, rates)
    model.save_pretrained(folder / "peer")
    return lines


def main() -> int:
    quick = "--quick" in sys.argv
    python = python_of_trl(may_make=not quick)
    peer = peer_of(python)
    holds = True
    with tempfile.TemporaryDirectory(prefix="muster-reward-") as name:
        folder = Path(name)
        pairs = preferences.make_pairs(folder / "pairs", PAIRS)
        for kind, center in KINDS.items():
            place = folder / kind
            init = rewards.make_init(place / "init", kind)
            lines = ours(place, init, pairs, 12 if quick else 50, center)
            order = rewards.pairs_by_step(place / "dump", pairs, length=LENGTH)
            wanted = (
                trl(place, python, init, pairs, order, center)
                if python
                else stand_in(place, init, pairs, order, center)
            )
            assert len(lines) == len(order)
            holds &= told_apart(kind, lines, wanted, REWARDS, peer)
            models = [rewards.load(place / one) for one in ("model", "peer")]
            with torch.no_grad():
                scores = [
                    torch.stack(
                        [
                            one
                            for pair in rewards.documents(pairs)
                            for one in rewards.rewards(m, pair)
                        ]
                    )
                    for m in models
                ]
            most = float(f"{(scores[0] - scores[1]).abs().max().item():.3g}")
            what = f"scores, {kind}: the most that one of {len(scores[0])} is apart after the last step"
            holds &= figure(what, most, "", BAR, most <= BAR, peer)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
