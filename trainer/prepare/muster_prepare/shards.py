"""Shards on disk.

DIR/index.json       published last, by rename; until then DIR holds nothing a trainer would read
DIR/00000.tokens     ids, little-endian, uint16 or uint32; no eos between documents (the trainer's packing puts it)
DIR/00000.docs       num_documents + 1 offsets into .tokens, in tokens, little-endian int64
DIR/tokenizer/       Hugging Face tokenizer files
DIR/prepare.json     what it was made from: decides whether finished shards of an earlier run are taken over
DIR/00000.done.json  while unfinished: the index entry of a finished shard
"""

import hashlib
import json
import os
import struct
from typing import Callable

from muster_prepare import inputs
from muster_prepare.vocabulary import Vocabulary

FORMAT = "muster-tokens-1"
BATCH_BYTES = 1 << 18  # of text per call of the tokenizer


class HashedFile:
    """A file written once, front to back, with its sha256; fsynced at close."""

    def __init__(self, path: str):
        self.path = path
        self._file = open(path, "wb", buffering=1 << 20)
        self._hash = hashlib.sha256()

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._hash.update(data)

    def close(self) -> str:
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())
        return self._hash.hexdigest()

    def abandon(self) -> None:
        try:
            self._file.close()
        except OSError:
            pass
        os.unlink(self.path)


def write_shard(folder: str, number: int, pieces: list[inputs.Piece], vocabulary: Vocabulary, text_field: str,
                on_progress: Callable[[int, int], None]) -> dict:
    """Writes one shard and its .done.json; returns the index entry. A function of its arguments alone.

    on_progress(bytes of input, tokens) is called with what was added. On any error nothing of the shard stays.
    """
    name = f"{number:05d}"
    item_bytes = 2 if vocabulary.dtype == "uint16" else 4
    tokens_file = HashedFile(os.path.join(folder, f"{name}.tokens"))
    try:
        docs_file = HashedFile(os.path.join(folder, f"{name}.docs"))
    except OSError:
        tokens_file.abandon()
        raise
    offset = documents = 0
    texts: list[str] = []
    pending_bytes = 0

    def flush() -> None:
        nonlocal offset, documents, pending_bytes
        before = offset
        for ids in vocabulary.encode(texts):
            if not ids:
                continue  # empty documents don't exist
            tokens_file.write(ids)
            offset += len(ids) // item_bytes
            documents += 1
            docs_file.write(struct.pack("<q", offset))
        on_progress(pending_bytes, offset - before)
        texts.clear()
        pending_bytes = 0

    try:
        docs_file.write(struct.pack("<q", 0))
        for text, taken in inputs.documents(pieces, text_field):
            texts.append(text)
            pending_bytes += taken
            if pending_bytes >= BATCH_BYTES:
                flush()
        flush()
        entry = {"tokens": f"{name}.tokens", "documents": f"{name}.docs", "mask": None, "num_tokens": offset,
                 "num_documents": documents, "sha256_tokens": tokens_file.close(),
                 "sha256_documents": docs_file.close()}
        write_json(os.path.join(folder, f"{name}.done.json"), entry)
        return entry
    except BaseException:
        tokens_file.abandon()
        docs_file.abandon()
        raise


def finished(folder: str, count: int) -> dict[int, dict]:
    """The index entries of the shards that an earlier run finished; damaged ones are left out."""
    entries = {}
    for number in range(count):
        path = os.path.join(folder, f"{number:05d}.done.json")
        try:
            with open(path, encoding="utf-8") as file:
                entry = json.load(file)
            if (_sha256(os.path.join(folder, entry["tokens"])) == entry["sha256_tokens"]
                    and _sha256(os.path.join(folder, entry["documents"])) == entry["sha256_documents"]):
                entries[number] = entry
        except (OSError, ValueError, KeyError):
            continue
    return entries


def publish(folder: str, entries: list[dict], vocabulary: Vocabulary, max_length: int) -> dict:
    """Writes the tokenizer, then the index by rename; then the .done.json files go. Returns the index."""
    os.makedirs(os.path.join(folder, "tokenizer"), exist_ok=True)
    vocabulary.save(os.path.join(folder, "tokenizer"))
    index = {"format": FORMAT, "dtype": vocabulary.dtype, "vocab_size": vocabulary.vocab_size,
             "eos_id": vocabulary.eos_id, "bos_id": vocabulary.bos_id, "pad_id": vocabulary.pad_id,
             "max_length": max_length, "num_tokens": sum(entry["num_tokens"] for entry in entries),
             "num_documents": sum(entry["num_documents"] for entry in entries),
             "shards": [entry for entry in entries if entry["num_tokens"]],  # an empty file can't be mapped
             "tokenizer": "tokenizer"}
    write_json(os.path.join(folder, "index.json"), index)
    for number in range(len(entries)):
        os.unlink(os.path.join(folder, f"{number:05d}.done.json"))
    return index


def write_json(path: str, value) -> None:
    """Whole or not at all, also across a power cut."""
    temporary = f"{path}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)
    directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
