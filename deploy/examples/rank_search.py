"""Search for a ranking model with muster tune: blocks that each pick an operator, by normalised entropy under a budget of FLOPs. docs/tuning.md has a run.

    rank_search.py train [KNOB=VALUE ...]      one model, trained and validated: a trial (knobs also from MUSTER_TRIAL_KNOB)
    rank_search.py pareto STUDY                of a study's models those that none beats in both figures
    rank_search.py data OUT.npz                the clicks that are made up, as a file

Operators: fc (a layer with ReLU), dot (dot products of all pairs of rows; DLRM, arXiv 1906.00091), dcn (a cross layer of DCN-v2 by a matrix of low rank, arXiv
2008.13535), fm (factorization machines whose heads weigh the rows; Rendle 2010), gate (embeddings times a sigmoid of what is read; as MaskNet's masks, arXiv
2102.07619). Normalised entropy is log loss over the entropy of the average click rate (He et al. 2014, section 3): 1 is what the average alone gives.
After Rankitect (arXiv 2311.08430), at the size of two CPU cores.
"""

import argparse
import os
import pickle
import sys
from pathlib import Path

import numpy
from rank_clicks import made_up, read, shape_of
from rank_space import filled, flops_of, front_of, setting_of, told_setting

REFUSED, STOPPED = 2, 143


class Stopped(Exception):
    """It was told to stop, and its checkpoint is written."""


def load_state(torch) -> dict | None:
    """Of the newest checkpoint that can be read."""
    import muster_runtime as muster

    loaded = {}

    def step_of(path: str) -> int:
        try:
            loaded["state"] = torch.load(path, weights_only=True)
        except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
            raise ValueError(f"{path}: {error}") from error
        return loaded["state"]["step"]

    return loaded["state"] if muster.newest(step_of) else None


def save_state(torch, state: dict) -> None:
    """The newest two stay, or as many as Muster says."""
    import muster_runtime as muster

    folder = Path(muster.checkpoint_directory("rank_search"))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{state['step']}.pt"
    torch.save(state, path.with_suffix(".part"))
    os.replace(path.with_suffix(".part"), path)
    muster.checkpoint(path, state["step"])
    saved = sorted(folder.glob("step-*.pt"), key=lambda one: int(one.stem[5:]))
    for old in saved[: -muster.checkpoints_kept(2)]:
        old.unlink()


def made(given: argparse.Namespace, environment: dict[str, str], shape: tuple[int, int]) -> dict:
    """The setting that is trained."""
    setting = setting_of(given.knobs, environment)
    return filled(setting, *shape, given.budget) if given.fill else setting


def run_trial(given: argparse.Namespace) -> int:
    clicks = read(given.data) if given.data else None
    fields, numbers = shape_of(clicks)
    setting = made(given, dict(os.environ), (fields, numbers))
    flops = flops_of(setting, fields, numbers)
    if given.budget and flops > given.budget:
        print(f"{flops} FLOPs a sample are above the {given.budget} of --budget", file=sys.stderr)
        return REFUSED
    clicks = clicks or made_up(given.data_seed)
    # torch takes longer to load than a trial to train: only what isn't refused waits for it.
    import muster_runtime as muster
    import torch
    from rank_model import judged, model_of, train

    torch.set_num_threads(1)
    muster.should_stop()  # from here on SIGTERM is heard
    state = load_state(torch)

    def after_step(step, loss, model, optimizer):
        stop, save = muster.decide()
        if step % 20 == 0:
            muster.report(step, total_steps=given.steps, loss=loss.detach(), flops=flops)
        if (stop or save) and step < given.steps:
            kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            save_state(torch, kept | {"step": step})
        if stop and step < given.steps:
            raise Stopped

    model = model_of(setting, clicks.sizes, numbers, given.seed)
    part = clicks.part("train")
    try:
        train(model, part, setting["lr"], given.steps, given.batch, after_step, state)
    except Stopped:
        return STOPPED
    found = judged(model, clicks.part("validation"))
    muster.report(given.steps, total_steps=given.steps, ne=found, flops=flops)
    text = f"normalised entropy {found:.5f} in validation, {flops} FLOPs a sample"
    if given.test:
        text += f", {judged(model, clicks.part('test')):.5f} in test"
    print(text, flush=True)
    return 0


def front(study, fields: int, numbers: int) -> str:
    """Its table, of a muster_tune.study.Study."""
    done = [trial for trial in study.trials if trial.value is not None]
    command, shape = study.plan["command"], (fields, numbers)
    settings = [setting_made(command, trial.setting, shape) for trial in done]
    flops = [flops_of(setting, fields, numbers) for setting in settings]
    lines = [f"{'TRIAL':>5}  {'NE':>7}  {'FLOPS':>6}  MODEL"]
    for i in front_of([(trial.value, count) for trial, count in zip(done, flops, strict=True)]):
        trial, model = done[i], told_setting(settings[i])
        lines.append(f"{trial.number:>5}  {trial.value:.5f}  {flops[i]:>6}  {model}")
    return "\n".join(lines)


def trial_of(command: list[str], setting: dict) -> argparse.Namespace:
    """What the words of a study's command ask for in a trial with this setting."""
    words = command[command.index("train") :] if "train" in command else ["train"]
    for name, value in setting.items():
        words = [word.replace("{" + name + "}", str(value)) for word in words]
    return parser().parse_args(words)


def setting_made(command: list[str], setting: dict, shape: tuple[int, int]) -> dict:
    """With which such a trial has trained."""
    told = {f"MUSTER_TRIAL_{name.upper()}": str(value) for name, value in setting.items()}
    return made(trial_of(command, setting), told, shape)


def pareto(given: argparse.Namespace) -> int:
    from muster_tune import study

    try:
        found = study.read(given.study)
    except study.StudyError as error:
        raise ValueError(error) from error
    if not found.trials:
        raise ValueError(f"{given.study}: has no trial yet")
    data = trial_of(found.plan["command"], found.trials[0].setting).data
    print(front(found, *shape_of(read(data) if data else None)))
    return 0


def write_data(given: argparse.Namespace) -> int:
    clicks = made_up(given.data_seed)
    numpy.savez(given.out, ids=clicks.ids, numbers=clicks.numbers, clicks=clicks.clicks)
    return 0


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser("rank_search.py", description="Searches for a ranking model.")
    what = found.add_subparsers(required=True)
    parts = {"train": run_trial, "pareto": pareto, "data": write_data}
    for name, run in parts.items():
        add = what.add_parser(name)
        add.set_defaults(run=run)
        if name == "pareto":
            add.add_argument("study", type=Path)
            continue
        add.add_argument("--data-seed", type=int, default=1, help="of clicks that are made up")
        if name == "data":
            add.add_argument("out", type=Path)
            continue
        add.add_argument("--data", type=Path, help="an .npz file with ids, numbers and clicks")
        add.add_argument("--budget", type=int, default=0, help="FLOPs a sample; 0: any")
        add.add_argument(
            "--fill",
            action="store_true",
            help="widths are shares: each as wide as all together fit into --budget",
        )
        add.add_argument("--steps", type=int, default=200)
        add.add_argument("--batch", type=int, default=500)
        add.add_argument("--seed", type=int, default=0, help="of the weights")
        add.add_argument("--test", action="store_true", help="judge it on the test rows, too")
        add.add_argument("knobs", nargs="*", metavar="KNOB=VALUE")
    return found


def main(words: list[str]) -> int:
    given = parser().parse_args(words)
    try:
        if getattr(given, "fill", False) and given.budget <= 0:
            raise ValueError("--fill: fills which --budget?")
        return given.run(given)
    except (OSError, ValueError) as error:
        print(f"rank_search: {error}", file=sys.stderr)
        return REFUSED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
