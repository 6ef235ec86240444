"""python3 -m muster_score: one worker. See docs/scoring.md."""

import argparse
import json
import os
import sys
import traceback

import muster_runtime

from muster_score import bad_rows, files
from muster_score.engines import EngineDied, EngineWrong, check, load
from muster_score.errors import AGAIN, WRONG, StoreFailed
from muster_score.inputs import InputError
from muster_score.leases import NotAlone, check_alone, owner_of
from muster_score.outputs import parts_of
from muster_score.plan import Options, Plan, fingerprint_of_model, make_plan
from muster_score.prompts import Sampling
from muster_score.stopping import STOPPED, Stopped, stop_if_told
from muster_score.worker import Worker

STORE_REMEDY = "Muster starts this worker anew, as often as max_restarts says. If it goes on: see whether the store is up, and AWS_ENDPOINT_URL, which names it"


def options_of(text: str) -> dict:
    try:
        options = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: is no JSON: {error}") from error
    if not isinstance(options, dict):
        raise argparse.ArgumentTypeError(f"{text}: is no JSON object")
    return options


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("muster_score", description="Scores rows, a shard at a time.")
    parser.add_argument(
        "--input",
        required=True,
        help="files, or s3:// objects, by a pattern: .jsonl, .parquet, .txt",
    )
    parser.add_argument(
        "--output", required=True, help="directory that all workers see, or s3://BUCKET/PREFIX/"
    )
    parser.add_argument(
        "--work", default="", help="of an s3:// output: a directory of its own that all workers see"
    )
    parser.add_argument("--model", default="", help="Hugging Face directory")
    parser.add_argument(
        "--engine", default="transformers", help="transformers, vllm, or module:Class of your own"
    )
    parser.add_argument(
        "--engine-options",
        type=options_of,
        default={},
        metavar="JSON",
        help='of the engine, such as {"tensor_parallel_size": 2}',
    )
    parser.add_argument("--column", default="prompt", help="of the input: the prompt")
    parser.add_argument("--answer-column", default="answer", help="of the output")
    parser.add_argument("--error-column", default="error", help="of the output: why a row is bad")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--temperature", type=float, default=0.0, help="0: greedy")
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--shard-rows", type=int, default=1000, help="what a lost worker costs")
    parser.add_argument("--output-format", choices=("jsonl", "parquet"), default="jsonl")
    parser.add_argument("--bad-rows", choices=("keep", "fail"), default="keep")
    parser.add_argument(
        "--max-bad-rows",
        type=bad_rows.limit_of,
        default="50%",
        metavar="ROWS",
        help="with more bad rows than that the job fails: a number, or of all rows (50%%, the default)",
    )
    parser.add_argument(
        "--lease", type=float, default=60, metavar="SECONDS", help="until a silent one is replaced"
    )
    options = parser.parse_args(words)
    for name in ("max_tokens", "batch_size", "shard_rows", "lease"):
        if getattr(options, name) <= 0:
            parser.error(f"--{name.replace('_', '-')} must be above 0")
    return options


def score(given: argparse.Namespace) -> Plan:
    check_alone(os.environ)
    check(given.engine, given.model)
    if given.output_format == "parquet":
        files.check_parquet()
    sampling = Sampling(given.max_tokens, given.temperature, given.top_p, given.seed)
    engine = {"engine_options": given.engine_options} if given.engine_options else {}
    model = {"model": given.model, "model_files": fingerprint_of_model(given.model)}
    options = Options(
        input=given.input,
        output=given.output,
        work=given.work,
        column=given.column,
        answer_column=given.answer_column,
        error_column=given.error_column,
        batch_size=given.batch_size,
        shard_rows=given.shard_rows,
        keep_bad_rows=given.bad_rows == "keep",
        max_bad_rows=given.max_bad_rows,
        output_format=given.output_format,
        lease_s=given.lease,
        sampling=sampling,
        settings={"engine": given.engine, **engine, **model},
    )
    plan = make_plan(options, between=stop_if_told)
    parts = parts_of(plan)
    parts.check()
    if parts.finished():
        parts.tidy()
    else:
        asked = load(given.engine, given.model, sampling, given.engine_options)
        Worker(options, plan, asked, ":" in given.engine, owner_of(os.environ)).run()
    _tell(parts, plan)
    return plan


def _tell(parts, plan: Plan) -> None:
    """What became of the whole. By each worker: which of them is looked at, nobody knows."""
    manifest = parts.manifest()
    if manifest is None:
        return
    rows, bad = manifest["rows"], manifest["bad_rows"]
    muster_runtime.report(rows, total_steps=rows, bad_rows=bad)
    told = f"{bad} of {rows} rows could not be scored: {plan.settings['error_column']} says why"
    print(f"muster_score: {told if bad else f'all {rows} rows are scored'}; {plan.output}")


def main(words: list[str]) -> int:
    given = parse(words)
    muster_runtime.should_stop()  # from here on SIGTERM is heard
    try:
        plan = score(given)
        finished = parts_of(plan).finished()
    except Exception as error:  # noqa: BLE001 (what isn't ours may go better another time)
        return _ended(error)
    if not finished:
        manifest = f"{plan.output}/manifest.json"
        return _say(f"{manifest} is not there, as it should be", AGAIN)
    return 0


def _ended(error: Exception) -> int:
    """Says why; the exit code."""
    if isinstance(error, (InputError, NotAlone)):
        if isinstance(error, EngineWrong):
            traceback.print_exception(error.__cause__)  # of the user's own class, perhaps
        return _say(str(error), WRONG)
    if isinstance(error, Stopped):
        return _say("stopped; its shard is free again", STOPPED)
    if isinstance(error, StoreFailed):
        return _say(f"the object store failed: {error}. {STORE_REMEDY}", AGAIN)
    if isinstance(error, EngineDied):
        if error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        return _say(f"the engine died: {error}", AGAIN)
    traceback.print_exception(error)
    return AGAIN


def _say(text: str, code: int) -> int:
    print(f"muster_score: {text}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
