#!/usr/bin/env python3
"""Row `dpo`: 50 steps on preferences against TRL's DPOTrainer, the whole model and with LoRA.

    dpo.py [--quick]

The same small model, pairs, order and learning rates, fp32; what each step said is compared. TRL is bench/requirements-dpo.txt's, in an environment that the
row makes; torch, transformers and peft in it are the trainer's own. --quick: 12 steps; without that environment a loop of transformers with DPO's loss
written out (trainer/tests/preferences.py), and it says so.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "trainer" / "tests"))

import preferences
from environments import environment, own_packages
from figures import at_least, figure
from harness import trainer_binary
from parity import make_init
from peft import PeftModel

BATCH, PAIRS, LEARNING_RATE, BAR = preferences.BATCH, 40, 2e-4, 1e-4
REWARDS = ("rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies")
LORA = preferences.LORA | {
    "target_modules": ["q_proj", "v_proj", "down_proj"]
}  # TRL refuses lm_head
KINDS = {"the whole model": {}, "with LoRA": {"lora": LORA}}


def python_of_trl(may_make: bool) -> Path | None:
    """The python that has TRL, beside the torch and transformers of this one."""
    beside = own_packages()
    place = environment("dpo", "bench/requirements-dpo.txt", may_make, beside=beside)
    return None if place is None else place / "bin" / "python"


def ours(folder: Path, init: Path, pairs: Path, steps: int, more: dict) -> tuple[list[dict], list]:
    """What each step said, and the pairs that it took."""
    config = preferences.settings(
        init,
        pairs,
        max_steps=steps,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="linear",
        warmup_steps=steps // 10,
        export=str(folder / "model"),
        **more,
    )
    program, dump = trainer_binary(), folder / "dump"
    still = config | {"max_steps": 1, "learning_rate": 1e-30, "warmup_steps": 0}
    preferences.run(program, still, 1, folder / "begin")
    (folder / "model").rename(folder / "began")
    lines = preferences.run(program, config, 1, folder / "run", dump_tokens=dump)
    return lines, preferences.pairs_by_step(dump, pairs)


def ask_trl(program: str, folder: Path, python: Path, pairs: Path, order: list, more: dict):
    """What the program beside this one answers, with its output in the folder's `peer`."""
    settings = {
        "pairs": str(pairs.parent / "pairs.jsonl"),
        "tokenizer": str(pairs / "tokenizer"),
        "output": str(folder / "peer"),
        "order": sum(order, []),
        "steps": len(order),
        "batch": BATCH,
        "learning_rate": LEARNING_RATE,
        "warmup_steps": len(order) // 10,
    } | more
    (folder / "trl.json").write_text(json.dumps(settings))
    words = [ROOT / "bench" / program, folder / "trl.json", folder / "result.json"]
    quiet = os.environ | {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    done = subprocess.run([python, *words], env=quiet, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"TRL failed:\n{done.stderr[-4000:]}")
    return json.loads((folder / "result.json").read_text())


def trl(folder: Path, python: Path, init: Path, pairs: Path, order: list, more: dict) -> list[dict]:
    settings = {
        "init": str(init),
        "adapter": str(folder / "began" / "adapter"),
        "max_length": preferences.LENGTH,
        "beta": preferences.BETA,
    } | more
    return ask_trl("dpo_trl.py", folder, python, pairs, order, settings)


def stand_in(folder: Path, init: Path, pairs: Path, order: list, more: dict) -> list[dict]:
    model, base = preferences.load(init), preferences.load(init)
    if more:
        model = PeftModel.from_pretrained(model, folder / "began" / "adapter", is_trainable=True)
    rates = [LEARNING_RATE * one for one in linear(len(order))]
    return preferences.transformers_loop(
        model, base, preferences.sides(pairs), order, "sigmoid", rates
    )


def linear(steps: int) -> list[float]:
    """The schedule of transformers of that name, as shares of the peak."""
    warm = steps // 10
    return [
        step / warm if step < warm else (steps - step) / (steps - warm) for step in range(steps)
    ]


def told_apart(kind: str, lines: list, wanted: list, rewards: tuple[str, ...], peer: str) -> bool:
    """Tells how far losses and rewards of each step are apart, and how much was learnt."""
    assert len(wanted) == len(lines)
    holds = True
    print(f"{kind}: loss {lines[0]['loss']:.4f} to {lines[-1]['loss']:.4f}", flush=True)
    for what, names in (("loss", ("loss",)), ("rewards", rewards)):
        most = max(abs(line[one] - its[one]) for line, its in zip(lines, wanted) for one in names)
        what = f"{what}, {kind}: the most that a step of {len(lines)} is apart"
        holds &= figure(what, float(f"{most:.3g}"), "", BAR, most <= BAR, peer)
    moved = lines[0]["loss"] - lines[-1]["loss"]
    what = f"loss, {kind}: learnt"
    return at_least(what, moved, "", 0.01, peer, places=4) and holds


def peer_of(python: Path | None) -> str:
    peer = "TRL" if python else "a loop of transformers, as TRL's environment is not there"
    print(f"compared with {peer}", flush=True)
    return peer


def main() -> int:
    quick = "--quick" in sys.argv
    python = python_of_trl(may_make=not quick)
    peer = peer_of(python)
    holds = True
    with tempfile.TemporaryDirectory(prefix="muster-dpo-") as name:
        folder = Path(name)
        init = make_init(folder / "init")
        pairs = preferences.make_pairs(folder / "pairs", PAIRS)
        for kind, more in KINDS.items():
            place = folder / kind.replace(" ", "-")
            place.mkdir()
            lines, order = ours(place, init, pairs, 12 if quick else 50, more)
            wanted = (
                trl(place, python, init, pairs, order, more)
                if python
                else stand_in(place, init, pairs, order, more)
            )
            assert len(lines) == len(order)
            holds &= told_apart(kind, lines, wanted, REWARDS, peer)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
