"""prepare: tokens survive the round trip, the output depends on the inputs alone, bad input is named."""

import gzip
import hashlib
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
from array import array
from pathlib import Path

import pytest
from harness import PREPARE, clean_environment


def prepare(
    *words, cwd=None, environment=None, preexec_fn=None, **flags
) -> subprocess.CompletedProcess:
    """`text_field="x"` stands for --text-field x; a list for several values, True for none."""
    for name, value in flags.items():
        values = [] if value is True else value if isinstance(value, list) else [value]
        words += (f"--{name.replace('_', '-')}", *values)
    return subprocess.run(
        [sys.executable, PREPARE, *map(str, words)],
        env=clean_environment(**(environment or {})),
        text=True,
        capture_output=True,
        cwd=cwd,
        preexec_fn=preexec_fn,
    )


def prepared(*words, **options) -> dict:
    done = prepare(*words, **options)
    assert done.returncode == 0, done.stderr
    output = Path(options.get("output") or words[words.index("--output") + 1])
    return json.loads((output / "index.json").read_text())


def read_documents(folder: Path) -> list[list[int]]:
    """All documents' ids, in order, by the format's definition."""
    return [ids for ids, _ in read_masked(folder)]


def read_masked(folder: Path) -> list[tuple[list[int], list[int]]]:
    """All documents' ids and masks."""
    index = json.loads((folder / "index.json").read_text())
    assert index["format"] == "muster-tokens-2"
    documents = []
    for shard in index["shards"]:
        tokens_bytes = (folder / shard["tokens"]).read_bytes()
        docs_bytes = (folder / shard["documents"]).read_bytes()
        assert hashlib.sha256(tokens_bytes).hexdigest() == shard["sha256_tokens"]
        assert hashlib.sha256(docs_bytes).hexdigest() == shard["sha256_documents"]
        ids = array({"uint16": "H", "uint32": "I"}[index["dtype"]], tokens_bytes)
        offsets = struct.unpack(f"<{len(docs_bytes) // 8}q", docs_bytes)
        assert (offsets[0], offsets[-1], len(offsets)) == (0, len(ids), shard["num_documents"] + 1)
        assert len(ids) == shard["num_tokens"]
        mask = (folder / shard["mask"]).read_bytes() if shard["mask"] else b"\1" * len(ids)
        assert len(mask) == len(ids) and sum(mask) == shard["num_target_tokens"]
        documents += [
            (list(ids[begin:end]), list(mask[begin:end]))
            for begin, end in zip(offsets, offsets[1:])
        ]
    return documents


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> tuple[Path, list[str]]:
    """About 9 MB: text files and JSON lines with every kind of line end; and the documents wanted of it."""
    folder = tmp_path_factory.mktemp("corpus")
    wanted = []
    (folder / "a.txt").write_text("first text\n", encoding="utf-8")
    (folder / "b.txt").write_text("", encoding="utf-8")
    (folder / "c.txt").write_text(
        "\ufeffGrüße, “quotes”, \u2603\r\n </s> stays text\n" * 50_000, encoding="utf-8"
    )
    wanted += ["first text\n", (folder / "c.txt").read_bytes().decode("utf-8-sig")]
    with open(folder / "d.jsonl", "w", encoding="utf-8", newline="") as file:
        file.write("\ufeff")
        for number in range(90_000):
            text = f"line {number} \u00fc\u2028 " + "x" * (number % 97)
            if number == 20_000:
                text = "long " * 500_000  # longer than a shard
            if number % 1000:
                wanted.append(text)
            else:
                text = ""  # an empty document
            file.write(json.dumps({"id": number, "text": text}, ensure_ascii=number % 2 == 0))
            file.write(["\n", "\r\n", "\n\n", " \n"][number % 4] if number < 89_999 else "")
    return folder, wanted


def test_bytes_round_trip_through_text_and_json_lines(corpus, tmp_path):
    folder, wanted = corpus
    index = prepared(input=folder, tokenizer="bytes", output=tmp_path / "out")
    documents = read_documents(tmp_path / "out")
    assert {ids.pop() for ids in documents} == {257}, "a document ends with eos"
    assert [bytes(ids).decode() for ids in documents] == wanted
    assert (index["dtype"], index["vocab_size"], index["eos_id"]) == ("uint16", 259, 257)
    assert index["num_tokens"] == sum(map(len, documents)) + len(wanted) and index[
        "num_documents"
    ] == len(wanted)
    assert len(index["shards"]) >= 7, "too few shards for the tests of processes to mean anything"


def test_output_is_the_same_for_1_2_and_7_processes(corpus, tmp_path):
    outputs = []
    for processes in (1, 2, 7):
        output = tmp_path / str(processes)
        prepared(input=corpus[0], tokenizer="bytes", output=output, processes=processes)
        outputs.append(digests(output))
    assert outputs[0] == outputs[1] == outputs[2]


@pytest.fixture(scope="module")
def bpe(tmp_path_factory) -> Path:
    """A small byte-level BPE with its own eos, trained here."""
    import tokenizers

    folder = tmp_path_factory.mktemp("bpe")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|end|>"],
        show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([Path(__file__).read_text()], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": {"__type": "AddedToken", "content": "<|end|>"},
            }
        )
    )
    return folder


def test_hugging_face_tokenizer_gives_the_ids_that_transformers_gives(bpe, tmp_path):
    from transformers import AutoTokenizer

    (tmp_path / "x.txt").write_text(Path(__file__).read_text() + "<|end|> Grüße")
    index = prepared(input=tmp_path / "x.txt", tokenizer=bpe, output=tmp_path / "out")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "out" / "tokenizer")
    wanted = loaded((tmp_path / "x.txt").read_text(), add_special_tokens=False)["input_ids"]
    assert read_documents(tmp_path / "out") == [[*wanted, loaded.eos_token_id]]
    assert index["eos_id"] == loaded.eos_token_id and index["vocab_size"] == len(loaded)


def test_bytes_tokenizer_loads_in_transformers(tmp_path):
    from transformers import AutoTokenizer

    (tmp_path / "x.txt").write_text("x")
    prepared(input=tmp_path / "x.txt", tokenizer="bytes", output=tmp_path / "out")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "out" / "tokenizer")
    text = "".join(map(chr, range(0x250))) + "\u2603 \U0001f600\n\n  def f():\t"
    assert loaded(text, add_special_tokens=False)["input_ids"] == list(text.encode())
    assert loaded.decode(list(text.encode())) == text
    assert (loaded.bos_token_id, loaded.eos_token_id, loaded.pad_token_id, len(loaded)) == (
        256,
        257,
        258,
        259,
    )


def test_a_lone_tokenizer_file_needs_its_eos_named(bpe, tmp_path):
    (tmp_path / "x.txt").write_text("x")
    base = (
        "--input",
        tmp_path / "x.txt",
        "--tokenizer",
        bpe / "tokenizer.json",
        "--output",
        tmp_path / "out",
    )
    refused = prepare(*base)
    assert (
        refused.returncode == 2 and "--eos-token" in refused.stderr and "<|end|>" in refused.stderr
    )
    assert prepared(*base, "--eos-token", "<|end|>")["eos_id"] == 0


BROKEN = {  # name: (file name, content, arguments, what the message must say)
    "not JSON": (
        "x.jsonl",
        b'{"text": "a"}\n\n{"text": oops}\n',
        (),
        "x.jsonl:3: not JSON: Expecting value at column 10; a line holds one JSON object (--format text reads a file as one document)",
    ),
    "cut off": ("x.jsonl", b'{"text": "a"}\n{"text": "b', (), "x.jsonl:2: not JSON"),
    "not an object": (
        "x.jsonl",
        b'["text"]\n',
        (),
        'x.jsonl:1: a JSON object is wanted, such as {"text": "…"}; this is an array',
    ),
    "no such field": (
        "x.jsonl",
        b'{"content": "a"}\n',
        (),
        'x.jsonl:1: no field "text", "messages", or "prompt" and "completion" (there are: "content"); --text-field',
    ),
    "no such named field": (
        "x.jsonl",
        b'{"text": "a"}\n',
        ("--text-field", "body"),
        'x.jsonl:1: no field "body" (there are: "text"); --text-field',
    ),
    "no such completion": (
        "x.jsonl",
        b'{"question": "a"}\n',
        ("--prompt-field", "question", "--completion-field", "answer"),
        'no field "answer" (there are: "question"); --completion-field',
    ),
    "empty completion": (
        "x.jsonl",
        b'{"prompt": "a", "completion": ""}\n',
        (),
        'x.jsonl:1: field "completion" is empty',
    ),
    "chat without template": (
        "x.jsonl",
        b'{"messages": [{"role": "user", "content": "a"}]}\n',
        (),
        "the tokenizer has no chat template; --chat-template FILE",
    ),
    "two kinds": (
        "x.jsonl",
        b"{}\n",
        ("--text-field", "a", "--messages-field", "b"),
        "--text-field and --messages-field exclude each other",
    ),
    "not a string": (
        "x.jsonl",
        b'{"text": 5}\n',
        (),
        'x.jsonl:1: field "text" is a number, not a string; put it in quotes, or name another field',
    ),
    "surrogate": ("x.jsonl", b'{"text": "a\\ud800"}\n', (), "x.jsonl:1:"),
    "long number": (
        "x.jsonl",
        b'{"text": "a", "pi": 3' + b"1" * 5000 + b"}\n",
        (),
        "x.jsonl:1: not JSON that can be read: Exceeds the limit",
    ),
    "deep": ("x.jsonl", b"[" * 200_000 + b"\n", (), "x.jsonl:1: not JSON"),
    "not UTF-8 line": (
        "x.jsonl",
        b'{"text": "\xe9"}\n',
        (),
        "x.jsonl:1: not UTF-8 (byte 0xe9 at column 11); convert the file, with iconv for one",
    ),
    "not UTF-8 text": (
        "x.txt",
        b"abc\ndef \xe9\n",
        (),
        "x.txt:2: not UTF-8 (byte 0xe9 at offset 8)",
    ),
    "empty file": ("x.txt", b"", (), "x.txt: empty"),
    "only empty documents": ("x.jsonl", b'{"text": ""}\n', (), "the inputs hold no text"),
    "ambiguous suffix": (
        "x.json",
        b"{}\n",
        (),
        "x.json: is it JSON lines or text? Say --format jsonl",
    ),
    "zip": ("x.zip", b"PK", (), "x.zip: .zip files are not read; unpack it"),
    "truncated gzip": (
        "x.jsonl.gz",
        gzip.compress(b'{"text": "a"}\n' * 99)[:-9],
        (),
        "x.jsonl.gz: damaged .gz",
    ),
    "no zstd": ("x.txt.zst", b"no zstd", (), "x.txt.zst: damaged .zst"),
    "no xz": ("x.txt.xz", b"no xz at all", (), "x.txt.xz: damaged .xz"),
    "no Parquet": (
        "x.parquet",
        b"PAR1 no, it isn't PAR1",
        (),
        "x.parquet: not a readable Parquet file",
    ),
    "no tokenizer": (
        "x.txt",
        b"x",
        ("--tokenizer", "nowhere"),
        "nowhere: no such file or folder, no name on the hub",
    ),
    "broken tokenizer": ("x.txt", b"x", ("--tokenizer", __file__), "not a tokenizer.json"),
    "no match": ("x.txt", b"x", ("--input", "nowhere-*.txt"), "nowhere-*.txt: no file matches"),
    "missing": ("x.txt", b"x", ("--input", "nowhere.txt"), "nowhere.txt: no such file"),
    "unknown storage": (
        "x.txt",
        b"x",
        ("--input", "ftp://acme/x"),
        "ftp://acme/x: no such storage: ftp://; there are http",
    ),
    "zero length": ("x.txt", b"x", ("--max-length", "0"), "0 is below 1"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_input_is_named_and_nothing_is_published(case, tmp_path):
    name, content, arguments, message = BROKEN[case]
    (tmp_path / name).write_bytes(content)
    done = prepare(
        "--tokenizer",
        "bytes",
        "--input",
        tmp_path / name,
        "--output",
        tmp_path / "out",
        "--strict",
        *arguments,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert message in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "out" / "index.json").exists()


def test_the_line_number_is_right_in_a_later_shard(corpus, tmp_path):
    lines = [b'{"text": "%06d"}\n' % number for number in range(200_000)]
    lines[170_000] = b"broken\n"
    (tmp_path / "x.jsonl").write_bytes(b"".join(lines))
    base = ("--input", tmp_path / "x.jsonl", "--tokenizer", "bytes", "--output")
    done = prepare(*base, tmp_path / "strict", "--strict")
    assert done.returncode == 2 and f"{tmp_path}/x.jsonl:170001: not JSON" in done.stderr
    lines[7] = b"{}\n"
    (tmp_path / "x.jsonl").write_bytes(b"".join(lines))
    done = prepare(*base, tmp_path / "out")
    assert done.returncode == 0 and "2 broken records were left out" in done.stderr
    assert [line.split(":")[1] for line in done.stderr.splitlines() if line.startswith("  /")] == [
        "8",
        "170001",
    ]
    index = json.loads((tmp_path / "out" / "index.json").read_text())
    assert (index["num_broken_records"], index["num_documents"]) == (2, 199_998)


def test_finished_shards_are_taken_over_and_damaged_ones_made_anew(tmp_path):
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text(str(number) * (1 << 20))
    (tmp_path / "9.txt").write_text("z" * (4 << 20))
    base = ("--input", f"{tmp_path}/*.txt", "--tokenizer", "bytes", "--output")

    def small_files_only():
        resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, 3 << 20))

    full = prepare(*base, tmp_path / "out", "--processes", "1", preexec_fn=small_files_only)
    assert full.returncode == 2 and "larger than this process may write" in full.stderr
    assert not (tmp_path / "out" / "index.json").exists()
    with open(tmp_path / "out" / "00001.tokens", "r+b") as file:
        file.seek(77)
        file.write(b"?")
    again = prepare(*base, tmp_path / "out")
    assert again.returncode == 0 and "3 of 5 shards are there from an earlier run" in again.stderr
    prepared(*base, tmp_path / "fresh")
    assert digests(tmp_path / "out") == digests(tmp_path / "fresh")


def test_a_full_disk_is_named(tmp_path):
    sys.path.insert(0, str(PREPARE))
    from muster_prepare.errors import write_problem

    assert "the disk is full" in write_problem(OSError(28, "No space left on device"), "x")


def test_a_finished_output_is_kept_unless_asked(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b.txt").write_text("bb")
    out = tmp_path / "out"
    prepared(input=tmp_path / "a.txt", tokenizer="bytes", output=out)
    before = digests(out)
    again = prepare(input=tmp_path / "a.txt", tokenizer="bytes", output=out)
    assert again.returncode == 0 and "already prepared" in again.stderr
    other = prepare(input=tmp_path / "b.txt", tokenizer="bytes", output=out)
    assert other.returncode == 2 and "--overwrite" in other.stderr
    assert digests(out) == before
    assert (
        prepared(input=tmp_path / "b.txt", tokenizer="bytes", output=out, overwrite=True)[
            "num_tokens"
        ]
        == 3
    )


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    done = prepare(input=tmp_path / "a.txt", tokenizer="bytes", output=tmp_path)
    assert done.returncode == 2 and "holds other files (a.txt)" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def datagram_socket(tmp_path) -> socket.socket:
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.bind(str(tmp_path / "s"))
    receiver.settimeout(60)
    return receiver


def test_progress_datagrams_end_at_the_total(corpus, tmp_path):
    with datagram_socket(tmp_path) as receiver:
        prepared(
            input=corpus[0],
            tokenizer="bytes",
            output=tmp_path / "out",
            environment={"MUSTER_PROGRESS_SOCKET": str(tmp_path / "s")},
        )
        first = last = json.loads(receiver.recv(4096))
        receiver.setblocking(False)
        try:
            while True:
                last = json.loads(receiver.recv(4096))
        except BlockingIOError:
            pass
    assert first["step"] == 0 and last["step"] == last["total_steps"] > 0


def start_long(bpe, tmp_path) -> tuple[subprocess.Popen, list[int]]:
    """A prepare that is at work on many shards in two processes; returns it and the workers' ids."""
    (tmp_path / "x.jsonl").write_text(
        "".join(
            json.dumps({"text": f"{n} the quick brown fox jumps over the lazy dog " * 20}) + "\n"
            for n in range(40_000)
        )
    )
    with datagram_socket(tmp_path) as receiver:
        process = subprocess.Popen(
            [
                sys.executable,
                PREPARE,
                "--input",
                tmp_path / "x.jsonl",
                "--tokenizer",
                bpe,
                "--output",
                tmp_path / "out",
                "--processes",
                "2",
            ],
            env=clean_environment(MUSTER_PROGRESS_SOCKET=str(tmp_path / "s")),
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        while json.loads(receiver.recv(4096))["step"] == 0:
            pass
    workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(workers) == 2
    return process, list(map(int, workers))


@pytest.mark.parametrize("number,code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_it_cleanly(number, code, bpe, tmp_path):
    process, _ = start_long(bpe, tmp_path)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code and "stopped by" in errors and "Traceback" not in errors
    assert not (tmp_path / "out" / "index.json").exists()
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_a_killed_worker_is_noticed(bpe, tmp_path):
    process, workers = start_long(bpe, tmp_path)
    os.kill(workers[0], signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2 and "killed by signal 9" in errors
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_two_at_once_on_one_folder_are_refused(bpe, tmp_path):
    process, _ = start_long(bpe, tmp_path)
    second = prepare(input=tmp_path / "x.jsonl", tokenizer=bpe, output=tmp_path / "out")
    process.terminate()
    process.communicate(timeout=60)
    assert second.returncode == 2 and "another prepare is writing there" in second.stderr


def test_the_binary_runs_it(trainer_bin, tmp_path):
    (tmp_path / "x.txt").write_text("hello")
    done = subprocess.run(
        [
            trainer_bin,
            "prepare",
            "--input",
            tmp_path / "x.txt",
            "--tokenizer",
            "bytes",
            "--output",
            tmp_path / "out",
        ],
        env=clean_environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert read_documents(tmp_path / "out") == [[*b"hello", 257]]
