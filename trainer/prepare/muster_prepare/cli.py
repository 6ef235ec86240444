"""`muster-trainer prepare`: arguments, exit codes, and the order of it all.

Exit codes: 0 done (or already done), 2 bad input or arguments, or no room; 130 and 143 stopped by Ctrl+C and SIGTERM.
"""

import argparse
import fcntl
import json
import os
import shutil
import signal
import sys

from muster_prepare import inputs, shards, vocabulary, workers
from muster_prepare.errors import InputError, Stopped, write_problem
from muster_prepare.progress import Progress

PACKING_VERSION = 1  # of the way text becomes shards; another one makes earlier shards worthless


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    try:
        _prepare(options)
        return 0
    except InputError as error:
        count = len(error.problems)
        print(f"muster-trainer prepare: {count} problem{'s' if count > 1 else ''}, nothing was published", file=sys.stderr)
        for problem in error.problems:
            print(f"  {problem}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"muster-trainer prepare: {write_problem(error, options.output)}", file=sys.stderr)
        return 2
    except Stopped as stop:
        print(f"muster-trainer prepare: stopped by {signal.Signals(stop.signal_number).name}; finished shards are kept, "
              "the same command goes on from them", file=sys.stderr)
        return 128 + stop.signal_number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="muster-trainer prepare",
        description="Text files and JSON lines to token shards, which `trainer: {data: DIR}` reads. The output depends "
                    "on the inputs alone, not on the number of processes. Run again after a stop, it goes on.")
    parser.add_argument("--input", nargs="+", action="extend", required=True, metavar="PATH",
                        help="files, folders or globs; .jsonl and .ndjson hold a document a line, any other file is one document")
    parser.add_argument("--output", required=True, metavar="DIR", help="folder for the shards; index.json is written last")
    parser.add_argument("--tokenizer", required=True, metavar="DIR|FILE|bytes",
                        help="a folder with a tokenizer.json, such a file, or `bytes`: 256 bytes and <s>, </s>, <pad>")
    parser.add_argument("--max-length", type=_positive, default=2048, metavar="N",
                        help="sequence length the shards are meant for; recorded, nothing is cut (default 2048)")
    parser.add_argument("--format", choices=("auto", "text", "jsonl"), default="auto", help="of all inputs (default: by suffix)")
    parser.add_argument("--text-field", default="text", metavar="NAME", help='field of a JSON line (default "text")')
    parser.add_argument("--eos-token", metavar="TOKEN", help="end-of-document token, if the tokenizer's files don't name it")
    parser.add_argument("--processes", type=_positive, default=len(os.sched_getaffinity(0)), metavar="N",
                        help="worker processes (default: the cores this process may use)")
    parser.add_argument("--overwrite", action="store_true", help="replace shards in DIR that were made from something else")
    parser.add_argument("--json-progress", action="store_true",
                        help="progress as JSON lines on stdout; with MUSTER_PROGRESS_SOCKET set they go there, always")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is below 1")
    return value


def _stop(signal_number: int, _frame) -> None:
    signal.signal(signal_number, signal.SIG_IGN)  # once is enough
    raise Stopped(signal_number)


def _prepare(options: argparse.Namespace) -> None:
    words = vocabulary.load(options.tokenizer, options.eos_token)
    sources = inputs.find(options.input, options.format)
    plan = inputs.plan(sources)
    folder = options.output
    os.makedirs(folder, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(f"{folder}: another prepare is writing there") from None

    if _taken_over(folder, _recipe(options, words, sources), options.overwrite):
        print(f"{folder}: already prepared from these inputs", file=sys.stderr)
        return
    entries = shards.finished(folder, len(plan))
    if entries:
        print(f"{folder}: {len(entries)} of {len(plan)} shards are there from an earlier run", file=sys.stderr)

    sizes = [sum(piece.end - piece.begin for piece in pieces) for pieces in plan]
    done_bytes, tokens = sum(sizes[number] for number in entries), 0
    progress = Progress(sum(sizes), options.json_progress)
    progress.report(done_bytes, 0)

    def on_progress(added_bytes: int, added_tokens: int) -> None:
        nonlocal done_bytes, tokens
        done_bytes += added_bytes
        tokens += added_tokens
        progress.report(done_bytes, tokens)

    entries |= workers.run(
        [number for number in range(len(plan)) if number not in entries], options.processes,
        lambda number, told: shards.write_shard(folder, number, plan[number], words, options.text_field, told), on_progress)
    if not any(entry["num_documents"] for entry in entries.values()):
        raise InputError("the inputs hold no text: every document is empty")
    index = shards.publish(folder, [entries[number] for number in range(len(plan))], words, options.max_length)
    progress.report(sum(sizes), tokens, last=True)
    print(f"{folder}: {index['num_tokens']} tokens of {index['num_documents']} documents from {len(sources)} files "
          f"in {len(plan)} shards", file=sys.stderr)


def _recipe(options: argparse.Namespace, words: vocabulary.Vocabulary, sources: list[inputs.Source]) -> dict:
    """All that the shards depend on."""
    return {"packing_version": PACKING_VERSION, "tokenizer": words.digest(), "eos_id": words.eos_id,
            "max_length": options.max_length, "text_field": options.text_field,
            "inputs": [[source.path, source.kind, source.size, source.mtime_ns] for source in sources]}


def _taken_over(folder: str, recipe: dict, overwrite: bool) -> bool:
    """True: the folder is finished and of this recipe. False: the work is to be done, on what is there of it.

    Shards of another recipe go if unfinished; if finished they are somebody's, and it takes --overwrite.
    """
    path = os.path.join(folder, "prepare.json")
    published = os.path.exists(os.path.join(folder, "index.json"))
    try:
        with open(path, encoding="utf-8") as file:
            same = json.load(file) == recipe
    except (OSError, ValueError):
        same = False
    if same:
        return published
    if published and not overwrite:
        raise InputError(f"{folder}: holds shards made from something else; --overwrite replaces them")
    ours = (".tokens", ".docs", ".done.json", ".tmp")
    names = os.listdir(folder)
    strangers = [name for name in names if name not in ("index.json", "prepare.json", "tokenizer")
                 and not name.endswith(ours)]
    if strangers:
        raise InputError(f"{folder}: holds other files ({', '.join(sorted(strangers)[:3])}); give a folder of its own")
    if published:
        os.unlink(os.path.join(folder, "index.json"))  # first: from here on it isn't a finished one
    for name in names:
        if name.endswith(ours):
            os.unlink(os.path.join(folder, name))
    shutil.rmtree(os.path.join(folder, "tokenizer"), ignore_errors=True)
    shards.write_json(path, recipe)
    return False
