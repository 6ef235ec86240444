"""Finds the input files, cuts them into shards, and reads the records of a shard.

A record is a whole text file, a line of a JSON-lines file, or a row of a Parquet file. The cut depends on the files'
names and sizes alone, never on the number of processes: so does every byte of the output. A JSON-lines file may be
cut anywhere; a line belongs to the piece in which its first byte lies. Parquet is cut between row groups. A
compressed file, and one whose server doesn't send parts, stays whole.
"""

import bz2
import gzip
import json
import lzma
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from muster_prepare import storage
from muster_prepare.errors import InputError

SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".pq": "parquet"}
COMPRESSED = {".gz": "gz", ".zst": "zst", ".xz": "xz", ".bz2": "bz2"}
REFUSED = {
    ".zip": "unpack it",
    ".tar": "unpack it",
    ".arrow": "save it as Parquet",
    ".feather": "save it as Parquet",
    ".csv": "save it as Parquet or JSON lines",
}
SHARD_BYTES_MIN = 1 << 20  # of input: small corpora still use every core
SHARDS_MAX = 1024  # of a corpus of any size: the trainer maps them all
PROBLEMS_MAX = 20  # told of one shard
ROWS_PER_READ = 1024


@dataclass(frozen=True)
class Source:
    path: str  # or URL
    kind: str  # "text", "jsonl" or "parquet"
    compression: str  # "", or a value of COMPRESSED
    size: int  # in bytes, as stored; -1: unknown
    stamp: str
    seekable: bool
    row_groups: tuple[tuple[int, int], ...] = ()  # Parquet: (rows, bytes) of each

    @property
    def splittable(self) -> bool:
        return self.kind == "jsonl" and not self.compression and self.seekable


@dataclass(frozen=True)
class Piece:
    """Bytes [begin, end) of a JSON-lines source, row groups [begin, end) of a Parquet one; others are whole."""

    source: Source
    begin: int
    end: int
    size: int  # in bytes, as stored
    first_row: int = 0  # Parquet: rows before it


@dataclass
class Record:
    number: int  # of the line or row, from 1 (lines: within the piece)
    value: dict | str | None  # None: `problem` says why
    taken: int  # bytes of input, roughly
    problem: str | None = None


def find(patterns: list[str], file_format: str) -> list[Source]:
    """The files of `patterns` (paths, folders, globs, URLs), in the order given and sorted within each; none twice."""
    problems, sources, seen = [], [], set()
    for pattern in patterns:
        try:
            found = storage.find(pattern)
        except InputError as error:
            problems += error.problems
            continue
        for one in found:
            identity = one.path if storage.is_remote(one.path) else os.path.realpath(one.path)
            if identity in seen:
                continue
            seen.add(identity)
            try:
                sources.append(_source(one, file_format))
            except InputError as error:
                problems += error.problems
    if not problems and not any(source.size for source in sources):
        problems.append(
            f"{sources[0].path}: empty"
            if len(sources) == 1
            else f"all {len(sources)} input files are empty"
        )
    if problems:
        if len(problems) > PROBLEMS_MAX:
            problems[PROBLEMS_MAX:] = [f"and {len(problems) - PROBLEMS_MAX} more"]
        raise InputError(*problems)
    return sources


def plan(sources: list[Source]) -> list[list[Piece]]:
    """Cuts the sources into shards of about max(1 MiB, total / 1024) bytes."""
    shard_bytes = max(
        SHARD_BYTES_MIN, -(-sum(max(source.size, 1) for source in sources) // SHARDS_MAX)
    )
    shards: list[list[Piece]] = []
    room = 0

    def room_now() -> int:  # asked before each piece
        return room if room > 0 else shard_bytes

    for source in sources:
        for piece in _pieces(source, shard_bytes, room_now):
            if room <= 0:
                shards.append([])
                room = shard_bytes
            shards[-1].append(piece)
            room -= piece.size
    return shards


def _pieces(source: Source, shard_bytes: int, room_now) -> Iterator[Piece]:
    if source.kind == "parquet":
        begin = rows = 0
        while begin < len(source.row_groups):
            room, end, size = room_now(), begin, 0
            while end < len(source.row_groups) and (end == begin or size < room):
                size += source.row_groups[end][1]
                end += 1
            yield Piece(source, begin, end, size, rows)
            rows += sum(count for count, _ in source.row_groups[begin:end])
            begin = end
    elif source.splittable:
        begin = 0
        while begin < source.size:
            end = min(source.size, begin + room_now())
            yield Piece(source, begin, end, end - begin)
            begin = end
    elif source.size:
        yield Piece(source, 0, source.size, max(source.size, 1))


def records(piece: Piece, columns: list[str]) -> Iterator[Record]:
    """The piece's records in order, broken ones as such. `columns`: the Parquet columns that are of use."""
    return {"text": _read_text, "jsonl": _read_lines, "parquet": _read_rows}[piece.source.kind](
        piece, columns
    )


def line_number(piece: Piece, number: int) -> int:
    """The number in its file of a piece's line or row `number`."""
    if piece.source.kind != "jsonl" or piece.begin == 0:
        return number
    count, left = 0, piece.begin
    with storage.Reader(piece.source.path, piece.source.size, 0, piece.source.seekable) as file:
        while left > 0 and (block := file.read(min(left, storage.CHUNK_BYTES))):
            count += block.count(b"\n")
            left -= len(block)
            last = block[-1:]
    return count + (0 if last == b"\n" else 1) + number


def _source(found: storage.Found, file_format: str) -> Source:
    name = found.path.split("?", 1)[0] if storage.is_remote(found.path) else found.path
    stem, suffix = os.path.splitext(name.lower())
    compression = COMPRESSED.get(suffix, "")
    if compression:
        suffix = os.path.splitext(stem)[1]
    if file_format != "auto":
        kind = file_format
    elif suffix in REFUSED:
        raise InputError(f"{found.path}: {suffix} files are not read; {REFUSED[suffix]}")
    elif suffix == ".json":
        raise InputError(
            f"{found.path}: is it JSON lines or text? Say --format jsonl or --format text"
        )
    else:
        kind = SUFFIXES.get(suffix, "text")
    if kind != "parquet":
        return Source(found.path, kind, compression, found.size, found.stamp, found.seekable)
    if compression or not found.seekable:
        raise InputError(
            f"{found.path}: a Parquet file is read from its end: "
            + (
                "unpack it"
                if compression
                else "this server doesn't send parts of files; fetch it first"
            )
        )
    with _open_parquet(found.path) as file:
        groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
        sizes = [
            sum(group.column(column).total_compressed_size for column in range(group.num_columns))
            for group in groups
        ]
        return Source(
            found.path,
            kind,
            "",
            found.size,
            found.stamp,
            True,
            tuple((group.num_rows, max(size, 1)) for group, size in zip(groups, sizes)),
        )


class _open_parquet:
    """`with _open_parquet(path) as file`: a pyarrow.parquet.ParquetFile; whatever is wrong with it becomes an InputError."""

    def __init__(self, path: str):
        self._path = path

    def __enter__(self):
        import pyarrow.parquet

        try:
            self._raw = (
                storage.open_remote(self._path)
                if storage.is_remote(self._path)
                else open(self._path, "rb")
            )
            self._file = pyarrow.parquet.ParquetFile(self._raw)
        except (pyarrow.ArrowException, OSError) as error:
            raise InputError(
                f"{self._path}: not a readable Parquet file: {' '.join(str(error).split())[:200]}"
            ) from None
        return self._file

    def __exit__(self, _kind, error, _traceback):
        import pyarrow

        self._file.close()
        self._raw.close()
        if isinstance(error, (pyarrow.ArrowException, OSError)):
            raise InputError(
                f"{self._path}: damaged: {' '.join(str(error).split())[:200]}"
            ) from None


def _read_rows(piece: Piece, columns: list[str]) -> Iterator[Record]:
    with _open_parquet(piece.source.path) as file:
        wanted = [name for name in columns if name in file.schema_arrow.names]
        rows = sum(count for count, _ in piece.source.row_groups[piece.begin : piece.end])
        number = piece.first_row
        if not wanted:
            names = ", ".join(json.dumps(name) for name in file.schema_arrow.names[:8])
            yield Record(
                number + 1,
                None,
                piece.size,
                f"none of the columns {', '.join(columns)} (there are: {names})",
            )
            return
        for batch in file.iter_batches(
            ROWS_PER_READ, row_groups=list(range(piece.begin, piece.end)), columns=wanted
        ):
            for row in batch.to_pylist():
                number += 1
                yield Record(number, without_nulls(row), piece.size // max(rows, 1))


def without_nulls(value):
    """Parquet gives every field of a struct; the ones without a value go, as if from JSON."""
    if isinstance(value, dict):
        return {key: without_nulls(one) for key, one in value.items() if one is not None}
    if isinstance(value, list):
        return [without_nulls(one) for one in value]
    return value


def _read_text(piece: Piece, _columns: list[str]) -> Iterator[Record]:
    source = piece.source
    with storage.Reader(source.path, source.size, 0, source.seekable) as raw:
        data = b"".join(_chunks(source, raw))
    try:
        yield Record(1, data.decode("utf-8-sig"), piece.size)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        yield Record(
            line,
            None,
            piece.size,
            f"not UTF-8 (byte 0x{data[error.start]:02x} at offset {error.start}); convert the file, with iconv for one",
        )


def _read_lines(piece: Piece, _columns: list[str]) -> Iterator[Record]:
    number = 0
    for begin, line, taken in _lines(piece):
        number += 1
        if not line.strip(b" \t\r\n"):
            continue
        if begin == 0 and line.startswith(b"\xef\xbb\xbf"):
            line = line[3:]
        value, problem = _parse(line)
        yield Record(number, value, taken, problem)
    # The last record tells how many lines there were; blank ones behind it count too.
    yield Record(number, None, 0)


def _lines(piece: Piece) -> Iterator[tuple[int, bytes, int]]:
    """(offset, line, bytes of the stored file) of each line whose first byte lies in the piece."""
    source = piece.source
    skip = piece.begin > 0  # the line that began before this piece is another piece's
    begin = at = piece.begin - 1 if skip else 0
    limit = piece.end if source.splittable else None
    with storage.Reader(source.path, source.size, begin, source.seekable) as raw:
        told = raw.position
        rest = b""
        for chunk in _chunks(source, raw):
            *whole, rest = (rest + chunk).split(b"\n") if rest else chunk.split(b"\n")
            share = max(0, raw.position - told) // max(len(whole), 1)
            told = raw.position
            for line in whole:
                size = len(line) + 1
                begin, at = at, at + size
                if skip:
                    skip = False
                    continue
                if limit is not None and begin >= limit:
                    return
                yield begin, line, size if limit is not None else share
        if rest and not skip and (limit is None or at < limit):
            yield at, rest, len(rest) if limit is not None else 0


def _chunks(source: Source, raw: storage.Reader) -> Iterator[bytes]:
    """The source's bytes from the reader's position on, decompressed."""
    size = storage.CHUNK_BYTES * (4 if storage.is_remote(source.path) else 1)
    begin = raw.position
    try:
        file = _decompressed(source.compression, raw)
        while data := file.read(size):
            yield data
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise InputError(f"{source.path}: damaged .{source.compression}: {error}") from None
    except OSError as error:
        if not source.compression:
            raise
        raise InputError(f"{source.path}: damaged .{source.compression}: {error}") from None
    if begin == 0 and source.size >= 0 and raw.position != source.size:
        raise InputError(
            f"{source.path}: changed while it was read ({source.size} bytes, now {raw.position})"
        )


def _decompressed(compression: str, raw: storage.Reader):
    if compression == "gz":
        return gzip.GzipFile(fileobj=raw)
    if compression == "bz2":
        return bz2.BZ2File(raw)
    if compression == "xz":
        return lzma.LZMAFile(raw)
    if compression == "zst":
        import pyarrow

        return pyarrow.CompressedInputStream(pyarrow.PythonFile(_Readable(raw), mode="r"), "zstd")
    return raw


class _Readable:
    """What pyarrow asks of a Python file."""

    def __init__(self, raw: storage.Reader):
        self._raw = raw
        self.closed = False

    def read(self, count: int = -1) -> bytes:
        return self._raw.read(count)

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True


def _parse(line: bytes) -> tuple[dict | None, str | None]:
    try:
        value = json.loads(line)
    except UnicodeDecodeError as error:
        return (
            None,
            f"not UTF-8 (byte 0x{line[error.start]:02x} at column {error.start + 1}); convert the file, with iconv for one",
        )
    except json.JSONDecodeError as error:
        return (
            None,
            f"not JSON: {error.msg} at column {error.colno}; a line holds one JSON object (--format text reads a file as one document)",
        )
    except RecursionError:
        return None, "not JSON that can be read: nested too deeply; a line holds one record"
    except ValueError as error:  # such as a number of more digits than Python reads
        return None, f"not JSON that can be read: {error}"
    if not isinstance(value, dict):
        return None, f'a JSON object is wanted, such as {{"text": "…"}}; this is {json_type(value)}'
    return value, None


def json_type(value) -> str:
    return {
        dict: "an object",
        list: "an array",
        str: "a string",
        bool: "a boolean",
        int: "a number",
        float: "a number",
        type(None): "null",
        bytes: "bytes",
    }.get(type(value), type(value).__name__)
