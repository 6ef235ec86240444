"""Rows of the input: which there are, and those of one shard."""

import bisect
import glob
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


class InputError(Exception):
    """The input, or what was asked for, is wrong: trying again doesn't help."""


@dataclass(frozen=True)
class Shard:
    file: str
    begin: int  # of lines: the byte at which it begins; of parquet: the row
    rows: int


@dataclass
class BadRow:
    """A row that can't be read, in its place."""

    why: str
    text: str = ""


def find_files(pattern: str) -> list[str]:
    files = sorted(os.path.abspath(path) for path in glob.glob(pattern, recursive=True))
    files = [path for path in files if os.path.isfile(path)]
    if not files:
        raise InputError(f"--input {pattern}: there is no such file")
    return files


def fingerprint(files: list[str]) -> list[list]:
    """What would show that the input is another one."""
    return [[path, os.stat(path).st_size, os.stat(path).st_mtime_ns] for path in files]


def _shards_of_lines(path: str, rows: int) -> Iterator[Shard]:
    begin, count, at = 0, 0, 0
    with open(path, "rb") as file:
        for line in file:
            at += len(line)
            count += 1
            if count == rows:
                yield Shard(path, begin, count)
                begin, count = at, 0
    if count:
        yield Shard(path, begin, count)


def _shards_of_parquet(path: str, rows: int) -> Iterator[Shard]:
    import pyarrow.parquet

    total = pyarrow.parquet.ParquetFile(path).metadata.num_rows
    for begin in range(0, total, rows):
        yield Shard(path, begin, min(rows, total - begin))


def shards_of(files: list[str], rows: int) -> list[Shard]:
    """In the input's order. Reads lines once, and of parquet its footer."""
    found = []
    for path in files:
        found += (_shards_of_parquet if path.endswith(".parquet") else _shards_of_lines)(path, rows)
    return found


def _parquet_rows(shard: Shard) -> Iterator[dict]:
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(shard.file)
    ends, end = [], 0
    for group in range(file.num_row_groups):
        end += file.metadata.row_group(group).num_rows
        ends.append(end)
    at, stop = shard.begin, shard.begin + shard.rows
    for group in range(bisect.bisect_right(ends, at), file.num_row_groups):
        first = ends[group] - file.metadata.row_group(group).num_rows
        if first >= stop:
            return
        table = file.read_row_group(group)
        yield from table.slice(at - first, min(stop, ends[group]) - at).to_pylist()
        at = ends[group]


def rows_of(shard: Shard) -> Iterator[dict | BadRow]:
    """Of .parquet, of .txt (a row a line, as {"text": ...}), else JSON, an object a line."""
    if shard.file.endswith(".parquet"):
        yield from _parquet_rows(shard)
        return
    with open(shard.file, "rb") as file:
        file.seek(shard.begin)
        for _ in range(shard.rows):
            line = file.readline()
            try:
                text = line.decode().rstrip("\r\n")
                row = {"text": text} if shard.file.endswith(".txt") else json.loads(text)
            except ValueError as error:  # no UTF-8, no JSON
                yield BadRow(f"the line can't be read: {error}", line.decode(errors="replace"))
                continue
            yield row if isinstance(row, dict) else BadRow("the line is no JSON object", text)


def is_parquet_or_lines(path: str) -> bool:
    return Path(path).suffix in {".parquet", ".txt", ".jsonl", ".json", ".ndjson"}
