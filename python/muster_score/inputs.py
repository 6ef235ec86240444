"""Rows of the input: which there are, and those of one shard. Nothing may change while it is scored: what has changed is refused."""

import bisect
import contextlib
import fnmatch
import glob
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from muster_score import objects
from muster_score.errors import InputError

KINDS = (".jsonl", ".ndjson", ".json", ".txt", ".parquet")
BOM = b"\xef\xbb\xbf"
PARQUET_ROWS, PARQUET_BUFFER = 256, 1 << 20  # read at a time: rows, and bytes of each column
# Of an object with lines, read at a time: when all of it is counted, and when a shard is read.
COUNT_BUFFER, SHARD_BUFFER = 8 << 20, 1 << 20


@dataclass(frozen=True)
class File:
    path: str  # or s3://BUCKET/KEY
    size: int
    stamp: int | str  # when it was changed, in nanoseconds; of an object its etag

    @staticmethod
    def at(path: str) -> "File":
        status = os.stat(path)
        return File(path, status.st_size, status.st_mtime_ns)

    @staticmethod
    def of(there: objects.Object) -> "File":
        return File(there.url, there.size, there.etag)

    @property
    def is_object(self) -> bool:
        return objects.is_url(self.path)

    def open(self, buffer: int) -> BinaryIO:
        """`buffer`: bytes of an object that are read at a time."""
        if self.is_object:
            return objects.opened(objects.Object(self.path, self.size, str(self.stamp)), buffer)
        return open(self.path, "rb")

    def check(self, opened: BinaryIO | None = None) -> None:
        """That what is there, or was opened, is what was planned."""
        if self.is_object:
            if opened is not None:
                return  # each range of it was of what was planned
            there = objects.head(self.path)
            found = None if there is None else (there.size, there.etag)
        else:
            status = os.stat(self.path if opened is None else opened.fileno())
            found = (status.st_size, status.st_mtime_ns)
        if found != (self.size, self.stamp):
            raise InputError(f"{self.path} has changed since the shards were planned. {REMEDY}")


REMEDY = "Put it back as it was, or take another --output"


@dataclass(frozen=True)
class Shard:
    file: File
    begin: int  # of lines: the byte at which it begins; of parquet: the row
    rows: int


@dataclass
class BadRow:
    """A row that can't be read or answered, in its place."""

    why: str
    text: str = ""


def find_files(pattern: str, *written: Path | str) -> list[File]:
    """In their order, each once. Refused: what is of no known kind, and a pattern that takes in what is written to a directory, or to s3://BUCKET/PREFIX."""
    files = _find_objects(pattern) if objects.is_url(pattern) else _find_local(pattern)
    for output in written:
        if _takes_in(pattern, output):
            raise InputError(
                f"--input {pattern} takes in what is written to {output}. Take an --output elsewhere"
            )
    for file in files:
        _check_kind(file)
    return files


def _find_objects(pattern: str) -> list[File]:
    found = objects.find(pattern)
    if not found:
        raise InputError(
            f"--input {pattern}: there is no such object. A pattern such as s3://BUCKET/PREFIX/*.jsonl takes those of a prefix"
        )
    return [File.of(one) for one in found]


def _find_local(pattern: str) -> list[File]:
    paths = sorted({os.path.abspath(path) for path in glob.glob(pattern, recursive=True)})
    paths = [path for path in paths if os.path.isfile(path)]
    if not paths:
        raise InputError(f"--input {pattern}: there is no such file")
    return [File.at(path) for path in paths]


def _takes_in(pattern: str, output: Path | str) -> bool:
    folder, name = os.path.split(pattern)
    written = ("part-00000000.jsonl", "part-00000000.parquet", "manifest.json", "plan.json")
    if isinstance(output, str):
        made = (f"{output.rstrip('/')}/{file}" for file in (*written, "_muster_score.json"))
        return objects.is_url(pattern) and any(objects.matches(url, pattern) for url in made)
    if objects.is_url(pattern):
        return False
    if not any(fnmatch.fnmatch(file, "*" if name == "**" else name) for file in written):
        return False
    folders = {os.path.realpath(path) for path in glob.glob(folder or ".", recursive=True)}
    if name == "**":  # it goes below the folder by itself
        return any(Path(path) in (output, *output.parents) for path in folders)
    return not folders.isdisjoint({str(output), str(output / "_muster_score")})


def _check_kind(file: File) -> None:
    path = file.path
    suffix = Path(path).suffix
    if suffix in (".gz", ".zst", ".xz", ".bz2", ".zip"):
        raise InputError(f"--input: {path} is packed. Unpack it first, such as with gunzip")
    if suffix not in KINDS:
        raise InputError(
            f"--input: {path} is of no known kind ({', '.join(KINDS)}). Turn it into one of them, or name the files by a pattern such as *.jsonl"
        )
    if suffix == ".json":
        with file.open(4096) as opened:
            if opened.read(4096).removeprefix(BOM).lstrip().startswith(b"["):
                raise InputError(
                    f"--input: {path} is one list, and not an object a line. Turn it into lines: jq -c '.[]' {path} > {Path(path).with_suffix('.jsonl').name}"
                )


# ---- which shards there are ----


def shards_of(
    files: list[File], rows: int, between: Callable[[], None] = lambda: None
) -> list[Shard]:
    """In the input's order. Reads lines once, and of parquet its footer. `between` is called every now and then, and may raise. Whether a file has changed
    meanwhile is for the caller to check."""
    found: list[Shard] = []
    for file in files:
        if file.path.endswith(".parquet"):
            total = _open_parquet(file).metadata.num_rows
            found += [Shard(file, at, min(rows, total - at)) for at in range(0, total, rows)]
        else:
            found += _shards_of_lines(file, rows, between)
        between()
    return found


def _shards_of_lines(file: File, rows: int, between: Callable[[], None]) -> list[Shard]:
    """Blank lines at a file's end are no rows."""
    found = []
    begin, count, at, blank = 0, 0, 0, 0
    with file.open(COUNT_BUFFER) as lines:
        for line in lines:
            at += len(line)
            count += 1
            blank = blank + 1 if line.isspace() else 0
            if count == rows:
                found.append(Shard(file, begin, count))
                begin, count = at, 0
                between()
    if count:
        found.append(Shard(file, begin, count))
    while blank and found:
        last = found.pop()
        if last.rows > blank:
            found.append(Shard(file, last.begin, last.rows - blank))
        blank -= min(blank, last.rows)
    return found


# ---- a shard's rows ----


class Reader:
    """Reads shards, the faster when they come one after the other: of parquet it keeps its place, as no row can be found without reading what is before it in
    its row group. It holds one column's buffer and a few rows at a time, never a row group. Of an object with lines it keeps what it has read beyond a shard."""

    def __init__(self):
        self._file: File | None = None
        self._at = 0
        self._left: Iterator[dict] = iter(())
        self._object: tuple[File, BinaryIO] | None = None

    def rows(self, shard: Shard) -> Iterator[dict | BadRow]:
        """Of .parquet, of .txt (a row a line, as {"text": ...}), else JSON, an object a line."""
        return self._parquet(shard) if shard.file.path.endswith(".parquet") else self._lines(shard)

    def _lines(self, shard: Shard) -> Iterator[dict | BadRow]:
        plain = shard.file.path.endswith(".txt")
        with self._opened(shard.file) as file:
            shard.file.check(file)
            at = shard.begin
            for row in range(shard.rows):
                file.seek(at)  # others may read from it between two rows
                line = file.readline()
                if not line:
                    raise InputError(f"{shard.file.path} has become shorter. {REMEDY}")
                at += len(line)
                yield _row(line.removeprefix(BOM) if shard.begin == row == 0 else line, plain)
            shard.file.check(file)

    def _opened(self, file: File) -> contextlib.AbstractContextManager[BinaryIO]:
        if not file.is_object:
            return file.open(SHARD_BUFFER)
        if self._object is None or self._object[0] != file:
            self._object = (file, file.open(SHARD_BUFFER))
        return contextlib.nullcontext(self._object[1])

    def _parquet(self, shard: Shard) -> Iterator[dict]:
        if (self._file, self._at) == (shard.file, shard.begin):
            left = self._left
        else:
            left = _parquet_from(shard.file, shard.begin)
        self._file = None  # until the place is known again
        for done in range(shard.rows):
            row = next(left, None)
            if row is None:
                raise InputError(f"{shard.file.path} ends before its row {shard.begin + done}")
            yield row
        shard.file.check()
        self._file, self._at, self._left = shard.file, shard.begin + shard.rows, left


def _open_parquet(file: File):
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise InputError(
            f"{file.path}: parquet needs pyarrow ({error}): pip install pyarrow"
        ) from error
    try:
        source = file.open(PARQUET_BUFFER) if file.is_object else file.path
        return pyarrow.parquet.ParquetFile(source, buffer_size=PARQUET_BUFFER)
    except (OSError, ValueError) as error:
        raise InputError(f"{file.path} can't be read as parquet: {error}") from error


def _parquet_from(file: File, begin: int) -> Iterator[dict]:
    """Its rows from `begin` to its end."""
    table = _open_parquet(file)
    file.check()
    ends, end = [], 0
    for group in range(table.num_row_groups):
        end += table.metadata.row_group(group).num_rows
        ends.append(end)
    first = bisect.bisect_right(ends, begin)
    at = ends[first - 1] if first else 0
    groups = list(range(first, table.num_row_groups))
    try:
        for batch in table.iter_batches(batch_size=PARQUET_ROWS, row_groups=groups):
            yield from batch.slice(min(len(batch), max(0, begin - at))).to_pylist()
            at += len(batch)
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"{file.path} can't be read after its row {at}: {error}") from error


def _row(line: bytes, plain: bool) -> dict | BadRow:
    try:
        text = line.decode().rstrip("\r\n")
        row = {"text": text} if plain else json.loads(text)
    except (ValueError, RecursionError) as error:  # no UTF-8, no JSON, too deep
        return BadRow(f"the line can't be read: {error}", line.decode(errors="replace").rstrip())
    return row if isinstance(row, dict) else BadRow("the line is no JSON object", text)
