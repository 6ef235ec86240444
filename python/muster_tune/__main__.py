"""python3 -m muster_tune: one worker; python3 -m muster_tune show STUDY. See docs/tuning.md."""

import argparse
import hashlib
import json
import math
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import muster_runtime
from muster_score.leases import NotAlone, check_alone, owner_of

from muster_tune import history
from muster_tune.attempt import PAST_JOBS, Run
from muster_tune.estimates import Estimator, NoAnswer
from muster_tune.reports import REDUCE, Objective
from muster_tune.samplers import Begun, Random, Sampler, Tpe
from muster_tune.show import show
from muster_tune.space import Space, SpaceError, parse_knob, parse_setting, trainer_knob
from muster_tune.study import Study, StudyError
from muster_tune.worker import Limits, Stopped, Worker, stop_if_told

STOPPED = 143  # exit code after SIGTERM
_SKIP = 2  # steps of a trainer's run that are slower than the rest


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        "muster_tune", description="Tries settings of a program, a trial each. Or: show STUDY."
    )
    add = found.add_argument
    add("--study", required=True, type=Path, help="directory that all workers see")
    add("--knob", action="append", default=[], help="NAME=VALUE,VALUE or NAME=[log:]LOW..HIGH")
    add("--trials", type=int, default=24)
    add("--sampler", choices=("proxy", "tpe", "random"), help="default: proxy of a trainer's speed")
    add("--first", action="append", default=[], help="NAME=VALUE,NAME=VALUE: tried before others")
    add("--seed", type=int, default=0)
    add("--objective", help="name of a report's figure (default: tokens_per_s of a trainer)")
    add("--direction", choices=("minimize", "maximize"))
    add("--reduce", choices=REDUCE, help="of all its values (default: last; a trainer's median)")
    add("--trial-time-limit", type=float, default=600, metavar="SECONDS")
    add("--grace", type=float, default=30, metavar="SECONDS", help="for a trial that is stopped")
    add("--lease", type=float, default=60, metavar="SECONDS", help="until a silent worker is dead")
    add("--deaths", type=int, default=5, help="of workers, before it is the trial's fault")
    add("--give-up-after", type=int, default=5, help="failed trials, while none has worked")
    add("--ranks", type=int, default=1, help="processes a trial, on this host")
    of = found.add_argument_group("trials of muster-trainer")
    of.add_argument("--trainer", metavar="FILE|JSON", help="its configuration; knobs are fields")
    of.add_argument("--trainer-bin", default="muster-trainer")
    of.add_argument("--steps", type=int, default=20, help="of a trial, instead of max_steps")
    of.add_argument("--device", default="", help="GPU that estimates are for (h100-80g)")
    of.add_argument("--device-memory", default="", help="of that GPU, such as 80GiB")
    of.add_argument("--history", type=Path, help="directory of past studies' speeds")
    past = os.environ.get(PAST_JOBS, "")
    of.add_argument("--past-jobs", metavar="JSON", default=past, help=f"default: of {PAST_JOBS}")
    of.add_argument("--sku", default="", help="kind of host that speeds are of (default: device)")
    add("command", nargs="*", help="behind --: what a trial runs; {NAME} is a knob's value")
    return found


def parse(words: list[str]) -> argparse.Namespace:
    parse_words = parser()
    given = parse_words.parse_args(words)
    for name in ("trials", "trial_time_limit", "lease", "deaths", "give_up_after", "ranks"):
        if not 0 < getattr(given, name) < math.inf:
            parse_words.error(f"--{name.replace('_', '-')} must be above 0")
    if given.steps <= _SKIP:
        parse_words.error(f"--steps must be above {_SKIP}: the first {_SKIP} don't count")
    if bool(given.trainer) == bool(given.command):
        parse_words.error("give either --trainer, or what a trial runs behind --")
    if given.trainer is None:
        if given.objective is None or given.direction is None:
            parse_words.error("--objective and --direction are needed: what is better?")
        if given.sampler == "proxy" or given.history:
            parse_words.error("--sampler proxy and --history go with --trainer")
    given.speed = given.trainer is not None and given.objective in (None, "tokens_per_s")
    if given.sampler == "proxy" and not given.speed:
        parse_words.error("--sampler proxy predicts tokens_per_s alone; take --sampler tpe")
    if given.speed and given.direction == "minimize":
        parse_words.error("--direction minimize: tokens_per_s is to be maximized")
    if given.objective is not None and not given.speed and given.direction is None:
        parse_words.error(f"--direction is needed: is more {given.objective} better?")
    return given


def trainer_config(given: argparse.Namespace) -> dict | None:
    """As each trial has it, but for the knobs."""
    if given.trainer is None:
        return None
    text = given.trainer
    try:
        if not text.lstrip().startswith("{"):
            text = Path(text).read_text()
        config = json.loads(text)
        rows = config["global_batch_size"] // given.ranks
        history.tokens_per_step(config), history.layers_of(config)
    except OSError as error:
        raise SpaceError(f"--trainer: {error}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise SpaceError(f"--trainer: is no configuration of muster-trainer: {error!r}") from error
    if rows < 1:
        raise SpaceError(f"--ranks {given.ranks}: global_batch_size has fewer rows than that")
    for name in ("export", "save_steps", "eval_interval", "profile_steps"):
        config.pop(name, None)  # a trial leaves nothing behind, and measures training alone
    if given.speed:
        config["max_steps"] = given.steps
    return config


def space_of(given: argparse.Namespace, config: dict | None) -> Space:
    if config is None:
        return Space([parse_knob(text) for text in given.knob])
    rows = config["global_batch_size"] // given.ranks
    return Space([trainer_knob(text, rows) for text in given.knob])


def run_of(given: argparse.Namespace, config: dict | None) -> Run:
    minimize = given.direction == "minimize"
    reduce = given.reduce or ("median" if given.speed else "last")
    name = given.objective or "tokens_per_s"
    objective = Objective(name, minimize, reduce, _SKIP if given.speed else 0)
    command = given.command or [given.trainer_bin, "train"]
    return Run(command, objective, config, given.ranks, given.trial_time_limit, given.grace)


def plan_of(given: argparse.Namespace, space: Space, run: Run) -> dict:
    return {
        "trials": given.trials,
        "direction": "minimize" if run.objective.minimize else "maximize",
        "objective": run.objective.name,
        "reduce": run.objective.reduce,
        "knobs": space.content(),
        "command": run.command,
        "trainer": run.trainer,
        "ranks": run.ranks,
        "time_limit_s": run.time_limit_s,
        "device": f"{given.device} {given.device_memory}".strip(),
    }


@dataclass
class Estimated:
    """A trainer's candidates: only for its speed."""

    told: dict
    sku: str


def estimates(given, space: Space, config: dict, study: Study) -> Estimated:
    estimator = Estimator(given.trainer_bin, config, given.ranks, given.device, given.device_memory)
    folder = study.directory / "estimates"
    told = estimator.ask_all(space, folder, between=stop_if_told)
    if not any("estimate" in one for one in told.values()):
        why = next((one["why"] for one in told.values()), "")
        raise SpaceError(f"no setting of these knobs is possible: {why}")
    return Estimated(told, given.sku or given.device or "cpu")


def past_jobs(given, config: dict, study: Study) -> list:
    """Records of what `muster tune` tells. It may be cut off or of another version: what it is to teach, the trials teach, too."""
    if not given.past_jobs:
        return []

    def ask(of: dict, ranks: int) -> dict:
        stop_if_told()
        estimator = Estimator(given.trainer_bin, of, ranks, given.device, given.device_memory)
        try:
            return estimator.ask({})
        except SpaceError as error:  # a field of another version's
            return {"why": str(error)}

    digest = hashlib.sha256(given.past_jobs.encode()).hexdigest()[:12]
    data = {name: config[name] for name in ("data", "mixture") if name in config}
    try:
        jobs = json.loads(given.past_jobs)
        return history.of_jobs(jobs, data, study.directory / f"jobs-{digest}.json", ask)
    except (ValueError, KeyError, TypeError, AttributeError, NoAnswer) as error:
        stop_if_told()
        print(f"muster_tune: {PAST_JOBS} is passed over: {error!r}", flush=True)
        return []


def proxy_of(given, space: Space, config: dict, known: Estimated, study: Study) -> Sampler:
    from muster_tune.proxy import Proxy

    past = history.read(given.history, known.sku) if given.history else []
    first = {knob.name: config[knob.name] for knob in space.knobs if knob.name in config}
    first = first if space.has(first) else None
    tokens, layers = history.tokens_per_step(config), history.layers_of(config)
    jobs = past_jobs(given, config, study)
    return Proxy(space, known.told, past, first, tokens, layers, given.seed, jobs)


def tune(given: argparse.Namespace) -> Study:
    check_alone(os.environ)
    config = trainer_config(given)
    space, run = space_of(given, config), run_of(given, config)
    firsts = [parse_setting(text, space) for text in given.first]
    if shutil.which(run.command[0]) is None:
        raise SpaceError(f"{run.command[0]}: there is no such program here")
    study = Study(given.study.resolve(), plan_of(given, space, run))
    kind = given.sampler or ("proxy" if given.speed else "random")
    known = None
    if given.speed:
        known = estimates(given, space, config, study)
    if kind == "proxy":
        sampler = proxy_of(given, space, config, known, study)
    elif kind == "tpe":
        sampler = Tpe(space, given.seed, run.objective.minimize)
    else:
        sampler = Random(space, given.seed)
    if firsts:
        sampler = Begun(firsts, sampler)
    limits = Limits(given.lease, given.deaths, given.give_up_after)
    Worker(study, sampler, run, limits, owner_of(os.environ)).run()
    if known is not None and given.history:
        history.write(given.history, study, known.told, config, known.sku)
    return study


def main(words: list[str]) -> int:
    if words[:1] == ["show"]:
        return show(words[1:])
    given = parse(words)
    muster_runtime.should_stop()  # from here on SIGTERM is heard
    try:
        study = tune(given)
    except SpaceError as error:
        print(f"muster_tune: {error}", file=sys.stderr)
        return 2
    except NotAlone as error:
        print(f"muster_tune: {error}, and --ranks for a trial's own processes", file=sys.stderr)
        return 2
    except (StudyError, NoAnswer, OSError) as error:
        print(f"muster_tune: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        print(
            f"muster_tune: {error}. pip install -r requirements-tune.txt of Muster's python/ folder, or take --sampler random",
            file=sys.stderr,
        )
        return 2
    except Stopped:
        print("muster_tune: stopped; its trial is open again", file=sys.stderr)
        return STOPPED
    show([str(study.directory)])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
