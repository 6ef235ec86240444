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

from muster_prepare import examples, inputs, shards, vocabulary, workers
from muster_prepare.errors import InputError, Stopped, write_problem
from muster_prepare.progress import Progress

RECIPE_VERSION = 2  # of the way records become shards; another one makes earlier shards worthless


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    try:
        _prepare(options)
        return 0
    except InputError as error:
        count = len(error.problems)
        print(
            f"muster-trainer prepare: {count} problem{'s' if count > 1 else ''}, nothing was published",
            file=sys.stderr,
        )
        for problem in error.problems:
            print(f"  {problem}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"muster-trainer prepare: {write_problem(error, options.output)}", file=sys.stderr)
        return 2
    except Stopped as stop:
        print(
            f"muster-trainer prepare: stopped by {signal.Signals(stop.signal_number).name}; finished shards are kept, "
            "the same command goes on from them",
            file=sys.stderr,
        )
        return 128 + stop.signal_number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="muster-trainer prepare",
        description="Text, JSON lines and Parquet to token shards, which `trainer: {data: DIR}` reads. The output depends "
        "on the inputs alone, not on the number of processes. Run again after a stop, it goes on.",
    )
    parser.add_argument(
        "--input",
        nargs="+",
        action="extend",
        required=True,
        metavar="PATH",
        help="files, folders, globs and URLs (http, https, s3, gs, hdfs, hf). .jsonl and .ndjson hold a record "
        "a line, .parquet a record a row, any other file is one document; .gz, .zst, .xz and .bz2 are unpacked",
    )
    parser.add_argument(
        "--output",
        required=True,
        metavar="DIR",
        help="folder for the shards; index.json is written last",
    )
    parser.add_argument(
        "--tokenizer",
        required=True,
        metavar="DIR|FILE|NAME|bytes",
        help="a folder with a tokenizer.json, such a file, a model's name on the hub, or `bytes`: 256 bytes "
        "and <s>, </s>, <pad>",
    )
    parser.add_argument(
        "--max-length",
        type=_positive,
        default=2048,
        metavar="N",
        help="sequence length the shards are meant for; recorded, nothing is cut (default 2048)",
    )
    parser.add_argument(
        "--format",
        choices=("auto", "text", "jsonl", "parquet"),
        default="auto",
        help="of all inputs (default: by suffix)",
    )
    _add_records(parser)
    parser.add_argument(
        "--validation-share",
        type=_share,
        default=0.0,
        metavar="X",
        help="keep this share of the documents apart for evaluation, in DIR/validation (default 0)",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="refuse broken records (default: leave them out and count them)",
    )
    parser.add_argument(
        "--eos-token",
        metavar="TOKEN",
        help="end-of-document token, if the tokenizer's files don't name it",
    )
    parser.add_argument(
        "--processes",
        type=_positive,
        default=len(os.sched_getaffinity(0)),
        metavar="N",
        help="worker processes (default: the cores this process may use)",
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace shards in DIR that were made from something else",
    )
    parser.add_argument(
        "--json-progress",
        action="store_true",
        help="progress as JSON lines on stdout; with MUSTER_PROGRESS_SOCKET set they go there, always",
    )
    return parser


def _add_records(parser: argparse.ArgumentParser) -> None:
    """How records are read, and what of them counts."""
    parser.add_argument(
        "--text-field",
        metavar="NAME",
        help='records are documents, in this field (default: "text", if they have it)',
    )
    parser.add_argument(
        "--prompt-field",
        metavar="NAME",
        help='records are prompts and completions (default: "prompt")',
    )
    parser.add_argument(
        "--completion-field",
        metavar="NAME",
        help='… and this is the completion (default: "completion")',
    )
    parser.add_argument(
        "--messages-field",
        metavar="NAME",
        help='records are chats, in this field (default: "messages")',
    )
    parser.add_argument(
        "--chat-template",
        metavar="FILE",
        help="Jinja template for chats, instead of the tokenizer's own",
    )
    parser.add_argument(
        "--loss",
        choices=("completions", "all"),
        default="completions",
        help="what counts of prompts with completions, and of chats (default: completions, and what the assistant says)",
    )


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is below 1")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is no share: from 0 to below 1")
    return value


def _stop(signal_number: int, _frame) -> None:
    signal.signal(signal_number, signal.SIG_IGN)  # once is enough
    raise Stopped(signal_number)


def _prepare(options: argparse.Namespace) -> None:
    given = options.tokenizer
    if vocabulary.is_hub_name(given):
        given = workers.apart(lambda: vocabulary.fetch(options.tokenizer))
    words = vocabulary.load(given, options.eos_token)
    fields, template = _fields(options, words)
    # Apart: what it opens (remote file systems, Parquet) has threads, and this process forks its workers.
    sources = workers.apart(lambda: inputs.find(options.input, options.format))
    plan = inputs.plan(sources)
    folder = options.output
    os.makedirs(folder, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(f"{folder}: another prepare is writing there") from None

    if _taken_over(folder, _recipe(options, words, fields, sources), options.overwrite):
        print(f"{folder}: already prepared from these inputs", file=sys.stderr)
        return
    if options.validation_share:
        os.makedirs(os.path.join(folder, shards.VALIDATION), exist_ok=True)
    done = shards.finished(folder, len(plan))
    if done:
        print(
            f"{folder}: {len(done)} of {len(plan)} shards are there from an earlier run",
            file=sys.stderr,
        )

    sizes = [sum(piece.size for piece in pieces) for pieces in plan]
    done_bytes, tokens = sum(sizes[number] for number in done), 0
    progress = Progress(sum(sizes), options.json_progress)
    progress.report(done_bytes, 0)

    def on_progress(added_bytes: int, added_tokens: int) -> None:
        nonlocal done_bytes, tokens
        done_bytes += added_bytes
        tokens += added_tokens
        progress.report(min(done_bytes, sum(sizes)), tokens)

    done |= workers.run(
        [number for number in range(len(plan)) if number not in done],
        options.processes,
        lambda number, told: shards.write_shard(
            folder,
            number,
            plan[number],
            words,
            fields,
            options.validation_share,
            options.strict,
            told,
        ),
        on_progress,
    )
    broken = sum(one["broken"] for one in done.values())
    problems = shards.problem_places(plan, done)[: inputs.PROBLEMS_MAX]
    if broken > len(problems):
        problems.append(f"and {broken - len(problems)} more")
    if not any(one["train"]["num_documents"] for one in done.values()):
        raise InputError(*problems or [_why_nothing(done)])
    index = shards.publish(
        folder, [done[number] for number in range(len(plan))], words, template, options.max_length
    )
    progress.report(sum(sizes), tokens, last=True)
    if broken:
        records = f"{broken} broken record{'s were' if broken > 1 else ' was'}"
        _say(
            f"{folder}: {records} left out (--strict refuses them):", *(f"  {p}" for p in problems)
        )
    files = f"{_counted(len(sources), 'file')} in {_counted(len(plan), 'shard')}"
    _tell(folder, index, files, list(done.values()), options)


def _why_nothing(done: dict[int, dict]) -> str:
    if any(one.get("validation", one["train"])["num_documents"] for one in done.values()):
        return "every document went into the validation split; lower --validation-share"
    return "the inputs hold no text: every document is empty"


def _tell(
    folder: str, index: dict, files: str, done: list[dict], options: argparse.Namespace
) -> None:
    """What was made."""
    documents = _counted(index["num_documents"], "document")
    masked = index["num_tokens"] - index["num_target_tokens"]
    _say(
        f"{folder}: {index['num_tokens']} tokens of {documents} from {files}"
        + (f"; {masked} tokens don't count in the loss" if masked else "")
    )
    if options.validation_share:
        apart = [one["validation"] for one in done]
        kept, tokens = (
            sum(entry[key] for entry in apart) for key in ("num_documents", "num_tokens")
        )
        _say(
            f"{folder}/{shards.VALIDATION}: {tokens} tokens of {_counted(kept, 'document')} kept apart for evaluation (eval_interval)"
            if kept
            else f"note: no document went into the validation split: {options.validation_share:g} of {documents} is too few; "
            "raise --validation-share, or evaluate on other data (eval_data)"
        )
    if index["longest_document"] > options.max_length:
        _say(
            f"note: the longest document has {index['longest_document']} tokens, above --max-length {options.max_length}"
        )


def _say(*lines: str) -> None:
    for line in lines:
        print(line, file=sys.stderr)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _fields(
    options: argparse.Namespace, words: vocabulary.Vocabulary
) -> tuple[examples.Fields, str | None]:
    """How records are read; and the chat template if it isn't the tokenizer's own."""
    kinds = [
        kind
        for kind, given in (
            ("--text-field", options.text_field),
            ("--messages-field", options.messages_field),
            (
                "--prompt-field and --completion-field",
                options.prompt_field or options.completion_field,
            ),
        )
        if given
    ]
    if len(kinds) > 1:
        raise InputError(
            f"{' and '.join(kinds)} exclude each other: all records are of one kind then"
        )
    source, origin = words.chat_template(), f"{options.tokenizer}: chat_template"
    if options.chat_template is not None:
        origin = options.chat_template
        try:
            with open(options.chat_template, encoding="utf-8") as file:
                source = file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"--chat-template {options.chat_template}: {getattr(error, 'strerror', None) or error}"
            ) from None
    template = None
    if source is not None:
        template = examples.ChatTemplate(source, words.special_tokens(), words.endings(), origin)
    fields = examples.Fields(
        options.text_field,
        options.prompt_field,
        options.completion_field,
        options.messages_field,
        options.loss == "completions",
        template,
    )
    return fields, source if options.chat_template is not None else None


def _recipe(
    options: argparse.Namespace,
    words: vocabulary.Vocabulary,
    fields: examples.Fields,
    sources: list[inputs.Source],
) -> dict:
    """All that the shards depend on."""
    return {
        "recipe_version": RECIPE_VERSION,
        "tokenizer": words.digest(),
        "special_tokens": words.special_tokens(),
        "max_length": options.max_length,
        **fields.recipe(),
        "validation_share": options.validation_share,
        "strict": options.strict,
        "inputs": [[source.path, source.kind, source.size, source.stamp] for source in sources],
    }


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
        raise InputError(
            f"{folder}: holds shards made from something else; --overwrite replaces them"
        )
    ours = (*shards.SUFFIXES, ".done.json", ".tmp")
    validation = os.path.join(folder, shards.VALIDATION)
    names = os.listdir(folder)
    apart = os.listdir(validation) if os.path.isdir(validation) else []
    strangers = [
        name
        for name in names
        if name not in ("index.json", "prepare.json", "tokenizer", shards.VALIDATION)
        and not name.endswith(ours)
    ]
    strangers += [
        f"{shards.VALIDATION}/{name}"
        for name in apart
        if name != "index.json" and not name.endswith(ours)
    ]
    if strangers:
        raise InputError(
            f"{folder}: holds other files ({', '.join(sorted(strangers)[:3])}); give a folder of its own"
        )
    if published:
        os.unlink(os.path.join(folder, "index.json"))  # first: from here on it isn't a finished one
    for name in names:
        if name.endswith(ours):
            os.unlink(os.path.join(folder, name))
    shutil.rmtree(validation, ignore_errors=True)
    shutil.rmtree(os.path.join(folder, "tokenizer"), ignore_errors=True)
    shards.write_json(path, recipe)
    return False
