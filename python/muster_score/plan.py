"""What is to be scored, and how: the first worker writes it down, the others and later ones read it. Parts of anything else are not mixed with it."""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from muster_score import files, objects
from muster_score.bad_rows import Limit
from muster_score.inputs import File, InputError, Shard, find_files, shards_of
from muster_score.prompts import Sampling


@dataclass
class Options:
    input: str
    output: str  # a directory, or s3://BUCKET/PREFIX with `work`
    column: str = "prompt"
    answer_column: str = "answer"
    error_column: str = "error"
    batch_size: int = 16
    shard_rows: int = 1000
    keep_bad_rows: bool = True
    output_format: str = "jsonl"  # or parquet
    lease_s: float = 60
    sampling: Sampling = field(default_factory=Sampling)
    settings: dict = field(default_factory=dict)  # what else makes the answers what they are
    work: str = ""  # a directory that all workers see; "": in the output
    max_bad_rows: Limit = Limit("100%")  # with more of them the whole fails; parts are the same


@dataclass
class Plan:
    output: Path | str  # a directory, or s3://BUCKET/PREFIX
    own: Path  # the workers' own files
    digest: str  # of all that is planned: which parts belong to it
    shards: list[Shard]
    settings: dict
    output_format: str = "jsonl"

    def part(self, shard: int) -> str:
        return f"part-{shard:08}.{self.output_format}"

    def shard(self, part: str) -> int | None:
        """None: it is no part of this plan."""
        number = part.removeprefix("part-").removesuffix(f".{self.output_format}")
        shard = int(number) if number.isdecimal() else len(self.shards)
        return shard if shard < len(self.shards) and part == self.part(shard) else None


def make_plan(options: Options, between: Callable[[], None] = lambda: None) -> Plan:
    """`between` is called every now and then, and may raise."""
    output, own = _places(options)
    (own / "leases").mkdir(parents=True, exist_ok=True)
    inputs = find_files(options.input, output, own)
    settings = _settings(options)
    plan = files.read(own / "plan.json")
    if plan is None:
        plan = _new_plan(options, settings, inputs, between)
        if not files.create(own / "plan.json", plan):
            plan = files.read(own / "plan.json")
    _refuse_another(plan, settings, inputs, options)
    shards = [Shard(inputs[file], begin, rows) for file, begin, rows in plan["shards"]]
    digest = hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()[:32]
    return Plan(output, own, digest, shards, settings, options.output_format)


def _places(options: Options) -> tuple[Path | str, Path]:
    """The output, and the directory of the workers' own files."""
    if objects.is_url(options.output):
        if not options.work:
            raise InputError(
                f"--output {options.output}: name a directory that all workers see with --work: it says who has which shard"
            )
        objects.split(options.output)
        return options.output.rstrip("/"), Path(options.work).resolve()
    if options.work:
        raise InputError(
            f"--work {options.work}: is for an --output in an object store; that of a directory lies in it. Leave it out"
        )
    output = Path(options.output).resolve()
    return output, output / "_muster_score"


def _settings(options: Options) -> dict:
    columns = {name: getattr(options, name) for name in ("column", "answer_column", "error_column")}
    columns["output_format"] = options.output_format
    if objects.is_url(options.output):  # one directory of work is of one output
        columns["output"] = options.output.rstrip("/")
    return options.settings | vars(options.sampling) | columns


def _new_plan(options: Options, settings: dict, inputs: list[File], between) -> dict:
    shards = shards_of(inputs, options.shard_rows, between)
    if not shards:
        raise InputError(f"--input {options.input}: there are no rows")
    for file in inputs:  # nothing was added to the first while the last was read
        file.check()
    places = {file: i for i, file in enumerate(inputs)}
    numbered = [[places[shard.file], shard.begin, shard.rows] for shard in shards]
    return {"input": _fingerprint(inputs), "settings": settings, "shards": numbered}


def _fingerprint(inputs: list[File]) -> list[list]:
    return [[file.path, file.size, file.stamp] for file in inputs]


def _refuse_another(plan: dict, settings: dict, inputs: list[File], options: Options) -> None:
    output, remedy = options.output, "Take another --output, or remove this one"
    if options.work:
        remedy = f"Take another --output and another --work than {options.work}"
    planned, found = plan["input"], _fingerprint(inputs)
    if planned != found:
        other = next((a or b for a, b in _pairs(planned, found) if a != b), [""])
        raise InputError(
            f"{output}: its parts are of another input, or the input has changed since: {other[0]}. {remedy}"
        )
    if plan["settings"] != settings:
        names = sorted({*plan["settings"], *settings})
        then, now = ([of.get(name) for name in names] for of in (plan["settings"], settings))
        differ = [
            f"{name} {a!r}, and now it is {b!r}"
            for name, a, b in zip(names, then, now, strict=True)
            if a != b
        ]
        raise InputError(f"{output}: its parts were made with {'; '.join(differ)}. {remedy}")


def _pairs(left: list, right: list):
    for i in range(max(len(left), len(right))):
        yield left[i] if i < len(left) else None, right[i] if i < len(right) else None


def fingerprint_of_model(model: str) -> str:
    """Of a model's directory: names, sizes and times of its files. A model that was trained again has other ones. "": it is a name, or there is none."""
    if not model or not os.path.isdir(model):
        return ""
    found = []
    for folder, folders, names in os.walk(model):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(folder, name)
            status = os.stat(path)
            found.append([os.path.relpath(path, model), status.st_size, status.st_mtime_ns])
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()[:16]
