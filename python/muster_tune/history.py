"""Past trials of the trainer, one file a study in a directory that studies share: what the proxy learns from. Each file appears by link(2), whole."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from muster_score import files

from muster_tune.proxy import Record
from muster_tune.space import TRAINER_KNOBS, key_of
from muster_tune.study import DONE, Study

MOST_RECORDS = 20_000  # that are read: the newest files' first


def write(directory: Path, study: Study, told: dict, config: dict, sku: str) -> None:
    """What this study has measured, once. Estimates go along: they are what models of different sizes have in common."""
    directory.mkdir(parents=True, exist_ok=True)
    runs = [
        {
            "setting": trial.setting,
            "tokens_per_s": trial.value,
            "estimate": told[key_of(trial.setting)]["estimate"],
        }
        for trial in study.trials
        if trial.state == DONE and "estimate" in told.get(key_of(trial.setting), {})
    ]
    content = {
        "sku": sku,
        "tokens_per_step": tokens_per_step(config),
        "layers": layers_of(config),
        "runs": runs,
    }
    digest = hashlib.sha256(str(study.directory.resolve()).encode()).hexdigest()[:12]
    files.create(directory / f"{study.directory.name}-{digest}.json", content)
    files.tidy(directory)


def read(directory: Path, sku: str) -> list[Record]:
    """Of this SKU alone. A file that is none of ours is passed over."""
    records: list[Record] = []
    newest = sorted(directory.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in newest:
        if len(records) >= MOST_RECORDS:
            break
        try:
            found = json.loads(path.read_text())
            if found["sku"] == sku:
                records += [_record(path.name, found, run) for run in found["runs"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"muster_tune: --history {path} is passed over: {error!r}", flush=True)
    return records


def of_jobs(
    jobs: list[dict], data: dict, kept: Path, ask: Callable[[dict, int], dict]
) -> list[Record]:
    """What `muster tune` was told of jobs that have trained: {"job", "trainer", "ranks", "tokens_per_s"}. `data`: fields that say where the tokens are, as
    theirs were left out. `ask` estimates a configuration with so many ranks. Workers share its answers, in the file `kept`."""
    configs = [job["trainer"] | data for job in jobs]
    if not kept.exists():
        said = [ask(config, int(job["ranks"])) for config, job in zip(configs, jobs, strict=True)]
        files.create(kept, {"said": said})
    records = []
    for job, config, said in zip(jobs, configs, files.read(kept)["said"], strict=True):
        if "estimate" not in said:
            continue  # of another version, or its model isn't on this host
        try:
            found = {"tokens_per_step": tokens_per_step(config), "layers": layers_of(config)}
            setting = {name: config[name] for name, _ in TRAINER_KNOBS.values() if name in config}
            run = {"setting": setting, "estimate": said["estimate"]}
            run["tokens_per_s"] = job["tokens_per_s"]
            records.append(_record(f"job {job['job']}", found, run))
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"muster_tune: job {job.get('job')} is passed over: {error!r}", flush=True)
    return records


def _record(study: str, found: dict, run: dict) -> Record:
    speed = float(run["tokens_per_s"])
    if not 0 < speed < float("inf"):
        raise ValueError(f"tokens_per_s is {speed}")
    return Record(
        study,
        run["setting"],
        run["estimate"],
        int(found["tokens_per_step"]),
        int(found["layers"]),
        speed,
    )


def tokens_per_step(config: dict) -> int:
    return int(config["global_batch_size"]) * int(config["max_length"])


def layers_of(config: dict) -> int:
    model = config.get("model")
    if model is None:
        model = json.loads((Path(config["init"]) / "config.json").read_text())
    return int(model["num_hidden_layers"])
