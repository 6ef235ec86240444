"""Files that several workers make, on a file system that all of them see: what is there is whole, and the first one wins."""

import io
import json
import os
import threading
from pathlib import Path
from typing import BinaryIO

from muster_score.inputs import InputError


def sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def own_name(path: Path) -> Path:
    """A name beside it that no other worker takes."""
    return path.with_name(
        f".{path.name}.{os.uname().nodename}.{os.getpid()}.{threading.get_ident()}"
    )


def publish(written: Path, target: Path, durable: bool = True) -> bool:
    """Gives a complete file its name. False: another one has it. By link(2), which, other than rename(2), replaces nothing. An answer of NFS may be lost
    and the call made twice: whose file it is says the inode."""
    try:
        os.link(written, target)
        won = True
    except FileExistsError:
        won = os.stat(written).st_ino == os.stat(target).st_ino
    except FileNotFoundError:
        if not target.exists():
            raise
        return False  # whoever saw the end has tidied up
    written.unlink(missing_ok=True)
    if durable:
        sync_directory(target.parent)
    return won


def create(target: Path, content: dict, durable: bool = True) -> bool:
    """False: it is there already. Not durable: what may be gone after the loss of a host."""
    own = own_name(target)
    with own.open("w") as file:
        json.dump(content, file)
        file.write("\n")
        file.flush()
        if durable:
            os.fsync(file.fileno())
    return publish(own, target, durable)


def read(path: Path) -> dict | None:
    """None: it isn't there."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None


def tidy(directory: Path) -> None:
    """Removes what workers that were killed left under their own names."""
    for left in directory.glob(".*.*.*"):
        left.unlink(missing_ok=True)


def check_parquet() -> None:
    """Before anything is scored."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise InputError("--output-format parquet needs pyarrow: pip install pyarrow") from error


def write_part(lines: list[bytes], output_format: str, file: BinaryIO) -> None:
    """`lines`: rows as JSON."""
    if output_format == "parquet":
        write_parquet(lines, file)
    else:
        file.writelines(lines)


def part_bytes(lines: list[bytes], output_format: str) -> bytes:
    file = io.BytesIO()
    write_part(lines, output_format, file)
    return file.getvalue()


def write_parquet(lines: list[bytes], file: BinaryIO) -> None:
    """Rows as JSON, a line each, as a table. A column that a row lacks is null there."""
    import pyarrow
    import pyarrow.parquet

    rows = [json.loads(line) for line in lines]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = {name: [row.get(name) for row in rows] for name in columns}
    try:
        pyarrow.parquet.write_table(pyarrow.table(table), file)
    # Numbers and texts in one column; a number of more than 64 bits; half of a pair of surrogates.
    except (pyarrow.ArrowException, OverflowError, UnicodeError) as error:
        raise InputError(
            f"--output-format parquet: a shard's rows make no table: {error}. Take jsonl"
        ) from error
