"""Finds the input files, cuts them into shards, and reads the documents of a shard.

A document is a whole text file, or one line of a JSON-lines file. The cut depends on the files' names and sizes
alone, never on the number of processes: so does every byte of the output. A JSON-lines file may be cut anywhere;
a line belongs to the piece in which its first byte lies.
"""

import glob
import json
import os
from dataclasses import dataclass
from typing import Iterator

from muster_prepare.errors import InputError

JSONL_SUFFIXES = (".jsonl", ".ndjson")
NOT_YET_SUFFIXES = (".parquet", ".arrow", ".gz", ".zst", ".xz", ".bz2", ".zip")
SHARD_BYTES_MIN = 1 << 20   # of input: small corpora still use every core
SHARDS_MAX = 1024           # of a corpus of any size: the trainer maps them all
PROBLEMS_MAX = 20           # told of one shard before giving up on it


@dataclass(frozen=True)
class Source:
    path: str
    kind: str   # "text" or "jsonl"
    size: int
    mtime_ns: int


@dataclass(frozen=True)
class Piece:
    """Bytes [begin, end) of a source. Text files are always whole."""

    source: Source
    begin: int
    end: int


def find(patterns: list[str], file_format: str) -> list[Source]:
    """The files of `patterns` (paths, folders, globs), in the order given and sorted within each; none twice."""
    problems, sources, seen = [], [], set()
    for pattern in patterns:
        if "://" in pattern:
            problems.append(f"{pattern}: not yet: local files only; fetch it first")
            continue
        paths = _expand(pattern)
        if not paths:
            problems.append(f"{pattern}: " + ("no file matches" if glob.has_magic(pattern) else
                            "an empty folder" if os.path.isdir(pattern) else "no such file"))
        for path in paths:
            real = os.path.realpath(path)
            if real in seen:
                continue
            seen.add(real)
            kind, problem = _kind(path, file_format)
            if problem:
                problems.append(problem)
                continue
            try:
                status = os.stat(path)
                with open(path, "rb"):
                    pass
            except OSError as error:
                problems.append(f"{path}: {error.strerror}")
                continue
            sources.append(Source(path, kind, status.st_size, status.st_mtime_ns))
    if not problems and not any(source.size for source in sources):
        problems.append(f"{sources[0].path}: empty" if len(sources) == 1 else
                        f"all {len(sources)} input files are empty")
    if problems:
        if len(problems) > PROBLEMS_MAX:
            problems[PROBLEMS_MAX:] = [f"and {len(problems) - PROBLEMS_MAX} more"]
        raise InputError(*problems)
    return sources


def plan(sources: list[Source]) -> list[list[Piece]]:
    """Cuts the sources into shards of about max(1 MiB, total / 1024) bytes."""
    shard_bytes = max(SHARD_BYTES_MIN, -(-sum(source.size for source in sources) // SHARDS_MAX))
    shards: list[list[Piece]] = []
    room = 0
    for source in sources:
        begin = 0
        while begin < source.size:
            if room <= 0:
                shards.append([])
                room = shard_bytes
            end = source.size if source.kind == "text" else min(source.size, begin + room)
            shards[-1].append(Piece(source, begin, end))
            room -= end - begin
            begin = end
    return shards


def documents(pieces: list[Piece], text_field: str) -> Iterator[tuple[str, int]]:
    """Yields (text, bytes of input it took) in order. Raises InputError with up to 20 of the shard's problems."""
    problems: list[str] = []
    for piece in pieces:
        read = _read_text if piece.source.kind == "text" else _read_lines
        for text, taken, problem in read(piece, text_field):
            if problem:
                problems.append(problem)
                if len(problems) >= PROBLEMS_MAX:
                    raise InputError(*problems, f"(stopped at {PROBLEMS_MAX} problems)")
            elif not problems:
                yield text, taken
    if problems:
        raise InputError(*problems)


def _expand(pattern: str) -> list[str]:
    if os.path.isdir(pattern):
        found = []
        for folder, folders, names in os.walk(pattern):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            found += [os.path.join(folder, name) for name in sorted(names) if not name.startswith(".")]
        return sorted(path for path in found if os.path.isfile(path))
    if os.path.exists(pattern):  # a name that happens to hold * or [ is a name first
        return [pattern]
    found = []
    for path in sorted(glob.glob(pattern, recursive=True)):
        found += _expand(path) if os.path.isdir(path) else [path]
    return found


def _kind(path: str, file_format: str) -> tuple[str, str | None]:
    suffix = os.path.splitext(path)[1].lower()
    if suffix in NOT_YET_SUFFIXES:
        return "", f"{path}: not yet: {suffix} files; unpack it to text or JSON lines"
    if file_format != "auto":
        return file_format, None
    if suffix in JSONL_SUFFIXES:
        return "jsonl", None
    if suffix == ".json":
        return "", f"{path}: is it JSON lines or text? Say --format jsonl or --format text"
    return "text", None


def _read_text(piece: Piece, _text_field: str):
    source = piece.source
    with open(source.path, "rb") as file:
        data = file.read()
    if len(data) != source.size:
        raise InputError(f"{source.path}: changed while it was read ({source.size} bytes, now {len(data)})")
    try:
        yield data.decode("utf-8-sig"), len(data), None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        yield "", 0, f"{source.path}:{line}: not UTF-8 (byte 0x{data[error.start]:02x} at offset {error.start})"


def _read_lines(piece: Piece, text_field: str):
    source = piece.source
    with open(source.path, "rb") as file:
        if os.fstat(file.fileno()).st_size != source.size:
            raise InputError(f"{source.path}: changed while it was read")
        at = piece.begin
        if at > 0:  # the line that began before this piece is another piece's
            file.seek(at - 1)
            at += len(file.readline()) - 1
        lines_before = None
        number = 0
        while at < piece.end:
            line = file.readline()
            begin, at = at, at + len(line)
            number += 1
            if not line.strip(b" \t\r\n"):
                continue
            if begin == 0 and line.startswith(b"\xef\xbb\xbf"):
                line = line[3:]
            text, problem = _text_of(line, text_field)
            if problem:
                if lines_before is None:
                    lines_before = _count_lines(source.path, begin) - (number - 1)
                problem = f"{source.path}:{lines_before + number}: {problem}"
            yield text, len(line), problem


def _text_of(line: bytes, text_field: str) -> tuple[str, str | None]:
    try:
        value = json.loads(line)
    except UnicodeDecodeError as error:
        return "", f"not UTF-8 (byte 0x{line[error.start]:02x} at column {error.start + 1})"
    except json.JSONDecodeError as error:
        return "", f"not JSON: {error.msg} at column {error.colno}"
    except RecursionError:
        return "", "not JSON that can be read: nested too deeply"
    if not isinstance(value, dict):
        return "", f"a JSON object is wanted, this is {_json_type(value)}"
    if text_field not in value:
        fields = ", ".join(json.dumps(key) for key in list(value)[:8]) or "none"
        return "", f'no field "{text_field}" (there are: {fields}); --text-field names it'
    text = value[text_field]
    if not isinstance(text, str):
        return "", f'field "{text_field}" is {_json_type(text)}, not a string'
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return "", f'field "{text_field}" holds half of a surrogate pair at character {error.start + 1}'
    return text, None


def _json_type(value) -> str:
    return {dict: "an object", list: "an array", str: "a string", bool: "a boolean", int: "a number",
            float: "a number", type(None): "null"}[type(value)]


def _count_lines(path: str, end: int) -> int:
    """Newlines before offset `end`."""
    count = 0
    with open(path, "rb") as file:
        while end > 0 and (block := file.read(min(end, 1 << 20))):
            count += block.count(b"\n")
            end -= len(block)
    return count
