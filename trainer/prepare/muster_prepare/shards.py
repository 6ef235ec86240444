"""Shards on disk.

DIR/index.json       published last, by rename; until then DIR holds nothing a trainer would read. "pairs": true: documents
                     2p and 2p + 1 are the chosen and the rejected one of pair p
DIR/00000.tokens     ids, little-endian, uint16 or uint32; documents end with their end-of-document token, if they have one
DIR/00000.docs       num_documents + 1 offsets into .tokens, in tokens, little-endian int64
DIR/00000.mask       a byte a token: 1 = it counts in the loss. Absent where all do
DIR/validation/      the documents kept apart for evaluation, in the same form; absent without --validation-share
DIR/tokenizer/       Hugging Face tokenizer files
DIR/prepare.json     what it was made from: decides whether finished shards of an earlier run are taken over
DIR/00000.done.json  while unfinished: what is known of a finished shard
"""

import hashlib
import json
import os
import struct
from collections.abc import Callable

from muster_prepare import inputs
from muster_prepare.errors import InputError
from muster_prepare.examples import Broken, Example, Fields
from muster_prepare.vocabulary import Vocabulary

FORMAT = "muster-tokens-2"
VALIDATION = "validation"
SPLITS = {"train", VALIDATION}
SUFFIXES = (".tokens", ".docs", ".mask")
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


class ShardFiles:
    """The files of one shard of one split. close() gives its index entry; without it nothing stays."""

    def __init__(self, folder: str, name: str, item_bytes: int):
        self._folder, self._name, self._item_bytes = folder, name, item_bytes
        self._open: list[HashedFile] = []
        self.tokens = self.targets = self.documents = self.longest = 0
        try:
            self._tokens_file = self._add(".tokens")
            self._docs_file = self._add(".docs")
        except OSError:
            self.abandon()
            raise
        self._mask_file: HashedFile | None = None
        self._docs_file.write(struct.pack("<q", 0))

    def _add(self, suffix: str) -> HashedFile:
        self._open.append(HashedFile(os.path.join(self._folder, self._name + suffix)))
        return self._open[-1]

    def write(self, ids: bytes, mask: bytes | None) -> None:
        """One document."""
        length = len(ids) // self._item_bytes
        if mask is not None and self._mask_file is None:
            self._mask_file = self._add(".mask")
            self._mask_file.write(b"\1" * self.tokens)
        if self._mask_file is not None:
            self._mask_file.write(mask if mask is not None else b"\1" * length)
        self._tokens_file.write(ids)
        self.tokens += length
        self.targets += length if mask is None else sum(mask)
        self.documents += 1
        self.longest = max(self.longest, length)
        self._docs_file.write(struct.pack("<q", self.tokens))

    def close(self) -> dict:
        entry = {
            "tokens": f"{self._name}.tokens",
            "documents": f"{self._name}.docs",
            "mask": f"{self._name}.mask" if self._mask_file else None,
            "num_tokens": self.tokens,
            "num_target_tokens": self.targets,
            "num_documents": self.documents,
            "longest_document": self.longest,
            "sha256_tokens": self._tokens_file.close(),
            "sha256_documents": self._docs_file.close(),
        }
        if self._mask_file:
            entry["sha256_mask"] = self._mask_file.close()
        return entry

    def abandon(self) -> None:
        for file in self._open:
            file.abandon()


def write_shard(
    folder: str,
    number: int,
    pieces: list[inputs.Piece],
    vocabulary: Vocabulary,
    fields: Fields,
    validation_share: float,
    strict: bool,
    on_progress: Callable[[int, int], None],
) -> dict:
    """Writes one shard and its .done.json; returns what that says: the splits' index entries, how many records were
    broken, the first problems as [piece, line within, text], and each piece's lines. A function of its arguments alone.

    on_progress(bytes of input, tokens) is called with what was added. On any error nothing of the shard stays. `strict`:
    broken records raise InputError.
    """
    name = f"{number:05d}"
    item_bytes = 2 if vocabulary.dtype == "uint16" else 4
    splits = {"train": ShardFiles(folder, name, item_bytes)}
    examples: list[list[Example]] = []  # by record
    broken, problems, lines, pairs = 0, [], [], 0
    told = pending_bytes = pending_text = 0

    def flush() -> None:
        nonlocal told, pending_bytes, pending_text
        added = 0
        encoded = iter(vocabulary.encode([one for record in examples for one in record]))
        for record in examples:
            documents = [next(encoded) for _ in record]
            if not documents[0][0]:
                continue  # empty documents don't exist
            text = b"".join(ids for ids, _ in documents)
            kept_apart = validation_share and _kept_apart(text, validation_share)
            for ids, mask in documents:
                splits["validation" if kept_apart else "train"].write(ids, mask)
                added += len(ids) // item_bytes
        on_progress(pending_bytes, added)
        told += pending_bytes
        examples.clear()
        pending_bytes = pending_text = 0

    try:
        if validation_share:
            splits["validation"] = ShardFiles(os.path.join(folder, VALIDATION), name, item_bytes)
        columns = fields.columns()
        for piece_number, piece in enumerate(pieces):
            last = 0
            for record in inputs.records(piece, columns):
                last = record.number
                pending_bytes += record.taken
                problem = record.problem
                if record.value is not None:
                    try:
                        examples.append(fields.examples(record.value))
                        pending_text += sum(len(one.text) for one in examples[-1])
                        pairs += len(examples[-1]) > 1
                    except Broken as error:
                        problem = str(error)
                if problem:
                    broken += 1
                    if len(problems) < inputs.PROBLEMS_MAX:
                        problems.append([piece_number, record.number, problem])
                    elif strict:
                        break
                if pending_text >= BATCH_BYTES:
                    flush()
            lines.append(last)
        if strict and problems:
            raise InputError(*_places(pieces, problems))
        flush()
        done = {split: files.close() for split, files in splits.items()}
    except BaseException:
        for files in splits.values():
            files.abandon()
        raise
    on_progress(max(0, sum(piece.size for piece in pieces) - told), 0)
    done |= {"broken": broken, "problems": problems, "lines": lines, "pairs": pairs}
    write_json(os.path.join(folder, f"{name}.done.json"), done)
    return done


def _places(pieces: list[inputs.Piece], problems: list) -> list[str]:
    return [
        f"{pieces[at].source.path}:{inputs.line_number(pieces[at], line)}: {text}"
        for at, line, text in problems
    ]


def _kept_apart(ids: bytes, share: float) -> bool:
    """By the document's (or the pair's) content alone: equal documents are on the same side, wherever they stand."""
    return int.from_bytes(hashlib.blake2b(ids, digest_size=8).digest(), "little") < share * 2**64


def problem_places(plan: list[list[inputs.Piece]], done: dict[int, dict]) -> list[str]:
    """PATH:LINE: TEXT of the problems told of, in the inputs' order. Lines are counted through the pieces of a file."""
    told = []
    path, before = "", 0
    for number, pieces in enumerate(plan):
        for at, piece in enumerate(pieces):
            if piece.source.path != path or piece.begin == 0:
                path, before = piece.source.path, 0
            told += [
                f"{path}:{line + before}: {text}"
                for which, line, text in done[number]["problems"]
                if which == at
            ]
            if piece.source.kind == "jsonl":  # rows of Parquet are numbered through already
                before += done[number]["lines"][at]
    return told


def finished(folder: str, count: int) -> dict[int, dict]:
    """The shards that an earlier run finished and whose files still have the bytes they had."""
    entries = {}
    for number in range(count):
        try:
            with open(os.path.join(folder, f"{number:05d}.done.json"), encoding="utf-8") as file:
                done = json.load(file)
            if all(
                _intact(place, done[split])
                for split, place in (
                    ("train", folder),
                    ("validation", os.path.join(folder, VALIDATION)),
                )
                if split in done
            ):
                entries[number] = done
        except (OSError, ValueError, KeyError):
            continue
    return entries


def _intact(folder: str, entry: dict) -> bool:
    return all(
        _sha256(os.path.join(folder, entry[file])) == entry[f"sha256_{file}"]
        for file in ("tokens", "documents", "mask")
        if entry[file]
    )


def publish(
    folder: str, done: list[dict], vocabulary: Vocabulary, template: str | None, max_length: int
) -> dict:
    """Writes the tokenizer and the validation split's index, then the index by rename; then the .done.json files go.

    `template`: a chat template that isn't the tokenizer's own. Returns the index.
    """
    tokenizer = os.path.join(folder, "tokenizer")
    os.makedirs(tokenizer, exist_ok=True)
    vocabulary.save(tokenizer)
    if template is not None:
        with open(os.path.join(tokenizer, "chat_template.jinja"), "w", encoding="utf-8") as file:
            file.write(template)
    index = {
        "format": FORMAT,
        "dtype": vocabulary.dtype,
        "vocab_size": vocabulary.vocab_size,
        "eos_id": vocabulary.eos_id,
        "bos_id": vocabulary.bos_id,
        "pad_id": vocabulary.pad_id,
        "max_length": max_length,
        "tokenizer": "tokenizer",
        "num_broken_records": sum(one["broken"] for one in done),
    }
    if holds_pairs(done):
        index["pairs"] = True
    if "validation" in done[0]:
        write_json(
            os.path.join(folder, VALIDATION, "index.json"),
            index | {"tokenizer": None} | _contents([one["validation"] for one in done]),
        )
    index |= _contents([one["train"] for one in done])
    write_json(os.path.join(folder, "index.json"), index)
    for number in range(len(done)):
        os.unlink(os.path.join(folder, f"{number:05d}.done.json"))
    return index


def holds_pairs(done: list[dict]) -> bool:
    """Whether the documents are pairs, chosen and rejected by turns. Raises InputError where some are and some aren't."""
    pairs = sum(one.get("pairs", 0) for one in done)
    documents = sum(one[split]["num_documents"] for one in done for split in one.keys() & SPLITS)
    if 0 < pairs and 2 * pairs < documents:
        raise InputError(
            f"{pairs} records are pairs (chosen, rejected) and {documents - 2 * pairs} are not; prepare them apart"
        )
    return pairs > 0


def _contents(entries: list[dict]) -> dict:
    return {
        **{
            key: sum(entry[key] for entry in entries)
            for key in ("num_tokens", "num_target_tokens", "num_documents")
        },
        "longest_document": max(entry["longest_document"] for entry in entries),
        "shards": [entry for entry in entries if entry["num_tokens"]],
    }  # an empty file can't be mapped


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
