#!/usr/bin/env python3
"""Collects real text that any Debian machine has into one folder: input for `muster-trainer prepare`.

    deploy/corpus.py --output DIR [--max-bytes 4000000]

Licences, packages' copyright files and changelogs, Python's own sources, and its docstrings as JSON lines. Nothing is
downloaded. The same machine gives the same bytes: within a source, files come in the order of a hash of their names
(so that a small corpus isn't all packages beginning with "a"), and equal contents are taken once. Everything written
is UTF-8. Exit code 2: no text found, or no room.
"""

import argparse
import ast
import glob
import gzip
import hashlib
import json
import os
import shutil
import sys
import warnings
import zlib

MARKER = ".muster-corpus.json"  # what it was made with; also says that the folder may be replaced
FILE_BYTES_MAX = 200_000  # of one file: no single changelog is the corpus


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--output",
        required=True,
        metavar="DIR",
        help="folder to make; an earlier corpus there is replaced",
    )
    parser.add_argument(
        "--max-bytes",
        type=int,
        default=4_000_000,
        metavar="N",
        help="at most so much text (default 4000000)",
    )
    options = parser.parse_args()
    if options.max_bytes < 1:
        parser.error("--max-bytes must be at least 1")
    try:
        return collect(options.output.rstrip("/"), options.max_bytes)
    except OSError as error:
        print(f"corpus.py: {error.filename or options.output}: {error.strerror}", file=sys.stderr)
        return 2


def collect(output: str, max_bytes: int) -> int:
    if (
        os.path.isdir(output)
        and os.listdir(output)
        and not os.path.exists(os.path.join(output, MARKER))
    ):
        print(f"corpus.py: {output}: holds other files; give a folder of its own", file=sys.stderr)
        return 2
    staging = f"{output}.staging"
    shutil.rmtree(staging, ignore_errors=True)
    os.makedirs(staging)
    try:
        taken = gather(staging, max_bytes)
        if not any(size for _, size in taken.values()):
            print(
                "corpus.py: found no text: no licences, no package documentation and no Python sources under /usr",
                file=sys.stderr,
            )
            return 2
        with open(os.path.join(staging, MARKER), "w", encoding="utf-8") as file:
            json.dump({"max_bytes": max_bytes, "taken": taken}, file)
        shutil.rmtree(output, ignore_errors=True)
        os.rename(staging, output)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    for name, (documents, size) in taken.items():
        print(f"{name:<12} {documents:>6} documents {size:>10} bytes")
    print(
        f"{'total':<12} {sum(n for n, _ in taken.values()):>6} documents {sum(s for _, s in taken.values()):>10} bytes  {output}"
    )
    return 0


def gather(folder: str, max_bytes: int) -> dict[str, tuple[int, int]]:
    """Fills `folder`; returns {source: (documents, bytes)}. A source gets an equal share of what is left; what it
    doesn't use goes to those after it."""
    licences = glob.glob("/usr/share/common-licenses/*")
    copyrights = glob.glob("/usr/share/doc/*/copyright")
    changelogs = glob.glob("/usr/share/doc/*/changelog*.gz")
    python = [
        path
        for path in glob.glob("/usr/lib/python3*/**/*.py", recursive=True)
        if "/dist-packages/" not in path and "/test/" not in path
    ]
    seen: set[bytes] = set()
    taken = {}
    left = max_bytes
    sources = [
        ("licences", licences, write_texts),
        ("copyright", copyrights, write_texts),
        ("docstrings", python, write_docstrings),
        ("changelogs", changelogs, write_texts),
        ("python", python, write_texts),
    ]
    for position, (name, paths, write) in enumerate(sources):
        share = left // (len(sources) - position)
        taken[name] = write(os.path.join(folder, name), in_order(paths), share, seen)
        left -= taken[name][1]
    return taken


def in_order(paths: list[str]) -> list[str]:
    return sorted(
        set(paths),
        key=lambda path: (hashlib.sha256(path.encode(errors="surrogateescape")).digest(), path),
    )


def write_texts(folder: str, paths: list[str], max_bytes: int, seen: set[bytes]) -> tuple[int, int]:
    """A document a file, until the next would be too much; returns (documents, bytes)."""
    os.makedirs(folder)
    documents = total = 0
    for path in paths:
        text = read(path)
        if text is None or total + len(text) > max_bytes or not is_new(text, seen):
            continue
        documents += 1
        total += len(text)
        name = "_".join(part for part in path.split("/")[3:]).removesuffix(".gz")
        with open(os.path.join(folder, f"{documents:05d}_{ascii_name(name)}.txt"), "wb") as file:
            file.write(text)
    return documents, total


def write_docstrings(
    folder: str, paths: list[str], max_bytes: int, seen: set[bytes]
) -> tuple[int, int]:
    """JSON lines, a document a module: its docstrings, each under the name that it explains."""
    os.makedirs(folder)
    documents = total = 0
    with open(os.path.join(folder, "docstrings.jsonl"), "w", encoding="utf-8") as file:
        for path in paths:
            source = read(path)
            text = docstrings(source) if source is not None else ""
            line = json.dumps({"text": text, "source": path}, ensure_ascii=True) + "\n"
            if not text or total + len(line) > max_bytes or not is_new(text.encode(), seen):
                continue
            file.write(line)
            documents += 1
            total += len(line)
    return documents, total


def docstrings(source: bytes) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old sources have escapes that newer Pythons frown at
            module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return ""
    parts = []
    for node in ast.walk(module):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text and is_unicode(text):
                parts.append(text if isinstance(node, ast.Module) else f"{node.name}: {text}")
    return "\n\n".join(parts)


def is_unicode(text: str) -> bool:
    try:
        text.encode()
        return True
    except UnicodeEncodeError:
        return False


def read(path: str) -> bytes | None:
    """The file as clean UTF-8 of a fair size, cut at a line; None: it isn't text, or can't be read."""
    try:
        with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except (OSError, EOFError, zlib.error):
        return None
    if len(data) > FILE_BYTES_MAX:
        data = data[: data.rfind(b"\n", 0, FILE_BYTES_MAX) + 1]
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return data if text.strip() and "\0" not in text else None


def is_new(text: bytes, seen: set[bytes]) -> bool:
    digest = hashlib.sha256(text).digest()
    if digest in seen:
        return False
    seen.add(digest)
    return True


def ascii_name(name: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-+") else "_" for c in name)[:120]


if __name__ == "__main__":
    sys.exit(main())
