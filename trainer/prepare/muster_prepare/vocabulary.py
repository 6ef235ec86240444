"""The tokenizer, as little of it as is needed: text to ids, the special ids, and its files.

Two kinds: `bytes` (ids 0..255 are the bytes, then <s>, </s>, <pad>; no merges) and a Hugging Face fast tokenizer (a
folder with tokenizer.json, or such a file, or a name on the hub). Ids are what transformers gives with
add_special_tokens=False, and eos behind documents. With `bytes`, "</s>" in a document is four bytes, never the id.
"""

import hashlib
import json
import os
import re
import shutil
from array import array
from collections.abc import Sequence

from muster_prepare.errors import InputError
from muster_prepare.examples import Example

BYTES_BOS, BYTES_EOS, BYTES_PAD, BYTES_VOCAB = 256, 257, 258, 259
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "generation_config.json",
)


class Vocabulary:
    """Interface: vocab_size, eos_id, bos_id, pad_id (None: there is none); encode; save."""

    vocab_size: int
    eos_id: int
    bos_id: int | None
    pad_id: int | None

    @property
    def dtype(self) -> str:
        return "uint16" if self.vocab_size <= 1 << 16 else "uint32"

    def encode(self, examples: Sequence[Example]) -> list[tuple[bytes, bytes | None]]:
        """For each example its ids as little-endian bytes of `dtype`, and a byte a token: 1 where it counts in the loss
        (None: all do). A token counts if its first character does."""
        raise NotImplementedError

    def chat_template(self) -> str | None:
        """As the tokenizer's files have it."""
        return None

    def special_tokens(self) -> dict[str, str]:
        """bos_token, eos_token, pad_token: those that there are."""
        raise NotImplementedError

    def endings(self) -> list[str]:
        """Special tokens, as text: one of them may end a turn of a chat."""
        raise NotImplementedError

    def digest(self) -> str:
        """Equal for equal tokenizers, wherever their files lie."""
        raise NotImplementedError

    def save(self, folder: str) -> None:
        """Writes the Hugging Face tokenizer files into `folder`, which exists."""
        raise NotImplementedError


def load(name: str, eos_token: str | None) -> Vocabulary:
    """`name`: "bytes", a folder or a file. Raises InputError."""
    if name == "bytes":
        if eos_token not in (None, "</s>"):
            raise InputError(f"--eos-token {eos_token}: the bytes tokenizer's is </s>")
        return BytesVocabulary()
    if os.path.isdir(name):
        if not os.path.isfile(os.path.join(name, "tokenizer.json")):
            raise InputError(
                f"{name}: no tokenizer.json in it. Save a fast tokenizer there: "
                "AutoTokenizer.from_pretrained(...).save_pretrained(...)"
            )
        return HuggingFaceVocabulary(os.path.join(name, "tokenizer.json"), name, eos_token)
    if os.path.isfile(name):
        return HuggingFaceVocabulary(name, None, eos_token)
    raise InputError(
        f'--tokenizer {name}: no such file or folder, no name on the hub (ORG/NAME), and not "bytes"'
    )


def is_hub_name(name: str) -> bool:
    return not os.path.exists(name) and re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None


def fetch(name: str) -> str:
    """Downloads the tokenizer of a hub's model; returns its folder in the hub's cache. Raises InputError."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    try:
        return snapshot_download(name, allow_patterns=list(TOKENIZER_FILES))
    except (
        Exception
    ) as error:  # network, authorisation, no such model: the library has a dozen of its own
        raise InputError(
            f"--tokenizer {name}: no such folder, and the hub says: {' '.join(str(error).split())[:300]}"
        ) from None


class BytesVocabulary(Vocabulary):
    vocab_size, bos_id, eos_id, pad_id = BYTES_VOCAB, BYTES_BOS, BYTES_EOS, BYTES_PAD

    def encode(self, examples: Sequence[Example]) -> list[tuple[bytes, bytes | None]]:
        encoded = []
        for example in examples:
            data = example.text.encode()
            ids = bytearray(2 * len(data))
            ids[::2] = data  # little-endian uint16
            mask = None
            if example.spans is not None:
                mask = bytearray(len(data))
                for begin, end in example.spans:
                    first, count = (
                        len(example.text[:begin].encode()),
                        len(example.text[begin:end].encode()),
                    )
                    mask[first : first + count] = b"\1" * count
            if example.ends and data:
                ids += BYTES_EOS.to_bytes(2, "little")
                if mask is not None:
                    mask.append(1)
            encoded.append((bytes(ids), mask if mask is None else bytes(mask)))
        return encoded

    def digest(self) -> str:
        return "bytes"

    def special_tokens(self) -> dict[str, str]:
        return {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}

    def endings(self) -> list[str]:
        return []  # special tokens can't be written as text here

    def save(self, folder: str) -> None:
        specials = {"<s>": BYTES_BOS, "</s>": BYTES_EOS, "<pad>": BYTES_PAD}
        vocab = {_byte_symbol(byte): byte for byte in range(256)}
        byte_level = {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": False,
        }
        _write_json(
            os.path.join(folder, "tokenizer.json"),
            {
                "version": "1.0",
                "truncation": None,
                "padding": None,
                "added_tokens": [
                    {
                        "id": number,
                        "content": token,
                        "single_word": False,
                        "lstrip": False,
                        "rstrip": False,
                        "normalized": False,
                        "special": True,
                    }
                    for token, number in specials.items()
                ],
                "normalizer": None,
                "pre_tokenizer": byte_level,
                "post_processor": None,
                "decoder": byte_level,
                "model": {
                    "type": "BPE",
                    "dropout": None,
                    "unk_token": None,
                    "continuing_subword_prefix": None,
                    "end_of_word_suffix": None,
                    "fuse_unk": False,
                    "byte_fallback": False,
                    "ignore_merges": False,
                    "vocab": {**vocab, **specials},
                    "merges": [],
                },
            },
        )
        _write_json(
            os.path.join(folder, "tokenizer_config.json"),
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": "<s>",
                "eos_token": "</s>",
                "pad_token": "<pad>",
                "clean_up_tokenization_spaces": False,
            },
        )


class HuggingFaceVocabulary(Vocabulary):
    def __init__(self, path: str, folder: str | None, eos_token: str | None):
        os.environ["TOKENIZERS_PARALLELISM"] = (
            "false"  # processes are the parallelism; its threads don't survive fork
        )
        import tokenizers  # here: `bytes` starts without it

        self._folder = folder
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(path)
        except Exception as error:  # the library raises plain Exception
            raise InputError(f"{path}: not a tokenizer.json: {error}") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._path = path
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values()) + 1
        names = _special_names(folder)
        if eos_token is not None:
            names["eos_token"] = eos_token
        if not names.get("eos_token"):
            specials = sorted(
                token.content
                for token in self._tokenizer.get_added_tokens_decoder().values()
                if token.special
            )
            raise InputError(
                f"{path}: doesn't say which token ends a document; --eos-token TOKEN does"
                + (f" (special tokens: {' '.join(specials[:12])})" if specials else "")
            )
        if names["eos_token"] not in vocabulary:
            raise InputError(
                f"{path}: end-of-document token {names['eos_token']} is not in the vocabulary"
            )
        self._names = names
        self.eos_id = vocabulary[names["eos_token"]]
        self.bos_id = vocabulary.get(names.get("bos_token"))
        self.pad_id = vocabulary.get(names.get("pad_token"))

    def encode(self, examples: Sequence[Example]) -> list[tuple[bytes, bytes | None]]:
        code = "H" if self.dtype == "uint16" else "I"
        whole = [example.text for example in examples if example.spans is None]
        parts = [example.text for example in examples if example.spans is not None]
        # Where characters stand is only kept track of where it is needed.
        plain = iter(
            self._tokenizer.encode_batch_fast(whole, add_special_tokens=False) if whole else ()
        )
        placed = iter(
            self._tokenizer.encode_batch(parts, add_special_tokens=False) if parts else ()
        )
        encoded = []
        for example in examples:
            if example.spans is None:
                ids = array(code, next(plain).ids)
                if example.ends and ids:
                    ids.append(self.eos_id)
                encoded.append((ids.tobytes(), None))
                continue
            encoding = next(placed)
            ids, mask = array(code, encoding.ids), _mask(encoding.offsets, example.spans)
            if (
                example.ends and ids and ids[-1] != self.eos_id
            ):  # unless the completion says it itself
                ids.append(self.eos_id)
                mask.append(1)
            encoded.append((ids.tobytes(), bytes(mask)))
        return encoded

    def digest(self) -> str:
        with open(self._path, "rb") as file:
            return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()

    def chat_template(self) -> str | None:
        if self._folder is None:
            return None
        try:
            with open(os.path.join(self._folder, "chat_template.jinja"), encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            pass
        template = _read_object(os.path.join(self._folder, "tokenizer_config.json")).get(
            "chat_template"
        )
        if isinstance(template, list):  # several, by name
            named = {
                one.get("name"): one.get("template") for one in template if isinstance(one, dict)
            }
            template = named.get("default")
        return template if isinstance(template, str) else None

    def special_tokens(self) -> dict[str, str]:
        return {key: name for key, name in self._names.items() if name}

    def endings(self) -> list[str]:
        return [
            token.content
            for token in self._tokenizer.get_added_tokens_decoder().values()
            if token.special
        ]

    def save(self, folder: str) -> None:
        if self._folder is None:
            shutil.copyfile(self._path, os.path.join(folder, "tokenizer.json"))
        else:
            for name in TOKENIZER_FILES:
                source = os.path.join(self._folder, name)
                if os.path.isfile(source):
                    shutil.copyfile(source, os.path.join(folder, name))
        config = os.path.join(folder, "tokenizer_config.json")
        if not os.path.exists(config):
            _write_json(
                config,
                {
                    "tokenizer_class": "PreTrainedTokenizerFast",
                    **{key: name for key, name in self._names.items() if name},
                },
            )


def _mask(offsets: list[tuple[int, int]], spans: tuple[tuple[int, int], ...]) -> bytearray:
    """A byte a token: whether its first character lies in one of `spans`, which are in order."""
    mask = bytearray(len(offsets))
    left = iter(spans)
    begin, end = next(left, (0, 0))
    for number, (first, _) in enumerate(offsets):
        while first >= end and (following := next(left, None)) is not None:
            begin, end = following
        mask[number] = begin <= first < end
    return mask


def _special_names(folder: str | None) -> dict[str, str]:
    """eos_token, bos_token, pad_token as the folder's files name them."""
    names: dict[str, str] = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):  # the later one wins
        content = _read_object(os.path.join(folder, file)) if folder is not None else {}
        for key in ("eos_token", "bos_token", "pad_token"):
            value = content.get(key)
            value = value.get("content") if isinstance(value, dict) else value
            if isinstance(value, str):
                names[key] = value
    return names


def _read_object(path: str) -> dict:
    """A JSON object's content; {} where the file isn't there. Raises InputError."""
    if not os.path.isfile(path):
        return {}
    try:
        with open(path, encoding="utf-8") as stream:
            content = json.load(stream)
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}") from None
    return content if isinstance(content, dict) else {}


def _byte_symbol(byte: int) -> str:
    """GPT-2's printable stand-in for a byte, which the ByteLevel pre-tokenizer uses."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    if byte in printable:
        return chr(byte)
    return chr(256 + [other for other in range(256) if other not in printable].index(byte))


def _write_json(path: str, value) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False, indent=1)
        file.write("\n")
