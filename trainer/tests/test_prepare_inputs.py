"""prepare: masks, chat templates, Parquet, compressed and remote inputs, the validation split."""

import bz2
import gzip
import json
import lzma
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from harness import s3_server
from test_prepare import bpe, digests, prepare, prepared, read_documents, read_masked  # noqa: F401 (bpe is a fixture)

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.role == 'assistant' %}"
    "{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}{% else %}{{ message.content }}<|im_end|>{% endif %}{{ '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHATS = [
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Grüße?\n"},
        {"role": "assistant", "content": "Hello \u2603."},
        {"role": "user", "content": "And?"},
        {"role": "assistant", "content": "  Bye.\n"},
    ],
    [{"role": "user", "content": "2 + 2"}, {"role": "assistant", "content": "4"}],
]


@pytest.fixture(scope="module")
def chat_bpe(tmp_path_factory) -> Path:
    """A byte-level BPE with ChatML's special tokens and template."""
    import tokenizers

    folder = tmp_path_factory.mktemp("chat")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<|end|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([Path(__file__).read_text()], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": "<|end|>",
                "chat_template": CHATML,
            }
        )
    )
    return folder


def write_lines(path: Path, records: list) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def counted(document: tuple[list[int], list[int]], loaded) -> str:
    """The text of the tokens that count."""
    return loaded.decode([token for token, counts in zip(*document) if counts])


def test_prompts_do_not_count_and_completions_do(bpe, tmp_path):
    from transformers import AutoTokenizer

    write_lines(
        tmp_path / "x.jsonl",
        [
            {"prompt": "What is it? ", "completion": "A \u2603 man."},
            {"text": "all of it"},
            {"prompt": "", "completion": "done<|end|>"},
        ],
    )
    index = prepared(input=tmp_path / "x.jsonl", tokenizer=bpe, output=tmp_path / "out")
    loaded = AutoTokenizer.from_pretrained(bpe)
    documents = read_masked(tmp_path / "out")
    assert [loaded.decode(ids) for ids, _ in documents] == [
        "What is it? A \u2603 man.<|end|>",
        "all of it<|end|>",
        "done<|end|>",
    ]
    assert [counted(document, loaded) for document in documents] == [
        "A \u2603 man.<|end|>",
        "all of it<|end|>",
        "done<|end|>",
    ]
    assert (
        index["num_target_tokens"] == sum(sum(mask) for _, mask in documents) < index["num_tokens"]
    )


def test_named_fields_and_bytes(tmp_path):
    write_lines(
        tmp_path / "x.jsonl",
        [{"question": "\u00e9?", "answer": "\u00fc!", "text": "x", "messages": 3}],
    )
    prepared(
        input=tmp_path / "x.jsonl",
        tokenizer="bytes",
        output=tmp_path / "out",
        prompt_field="question",
        completion_field="answer",
    )
    assert read_masked(tmp_path / "out") == [
        ([*"\u00e9?\u00fc!".encode(), 257], [0, 0, 0, 1, 1, 1, 1])
    ]
    prepared(
        input=tmp_path / "x.jsonl",
        tokenizer="bytes",
        output=tmp_path / "all",
        loss="all",
        prompt_field="question",
        completion_field="answer",
    )
    assert read_masked(tmp_path / "all") == [([*"\u00e9?\u00fc!".encode(), 257], [1] * 7)]
    assert not list((tmp_path / "all").glob("*.mask"))


@pytest.mark.parametrize("marked", [False, True])
def test_chats_are_rendered_and_masked_as_transformers_does(marked, chat_bpe, tmp_path):
    from transformers import AutoTokenizer

    write_lines(tmp_path / "x.jsonl", [{"messages": chat} for chat in CHATS])
    (tmp_path / "marked.jinja").write_text(MARKED)
    prepared(
        *(("--chat-template", tmp_path / "marked.jinja") if marked else ()),
        input=tmp_path / "x.jsonl",
        tokenizer=chat_bpe,
        output=tmp_path / "out",
    )
    loaded = AutoTokenizer.from_pretrained(tmp_path / "out" / "tokenizer")
    assert loaded.chat_template == (MARKED if marked else CHATML), (
        "the model's directory has the template it was trained with"
    )
    for (ids, mask), chat in zip(read_masked(tmp_path / "out"), CHATS, strict=True):
        wanted = loaded.apply_chat_template(
            chat, chat_template=MARKED, return_assistant_tokens_mask=True, return_dict=True
        )
        assert ids == wanted["input_ids"]
        assert mask == wanted["assistant_masks"] and 0 < sum(mask) < len(mask)


def test_a_conversational_prompt_masks_the_assistants_earlier_turns(chat_bpe, tmp_path):
    from transformers import AutoTokenizer

    chat = CHATS[0]
    write_lines(tmp_path / "x.jsonl", [{"prompt": chat[:4], "completion": chat[4:]}])
    loaded = AutoTokenizer.from_pretrained(chat_bpe)
    prepared(input=tmp_path / "x.jsonl", tokenizer=chat_bpe, output=tmp_path / "out")
    assert [counted(one, loaded) for one in read_masked(tmp_path / "out")] == ["  Bye.\n<|im_end|>"]


def test_a_template_that_shortens_earlier_turns_is_followed_or_refused(chat_bpe, tmp_path):
    from transformers import AutoTokenizer

    # As Qwen3: what was thought is dropped from all turns but the last.
    thinking = CHATML.replace(
        "{{ message.content }}",
        "{{ message.content if loop.last else message.content.split('</think>')[-1] }}",
    )
    (tmp_path / "t.jinja").write_text(thinking)
    chat = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>hm</think>b"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "<think>so</think>d"},
    ]
    write_lines(tmp_path / "x.jsonl", [{"messages": chat}])
    base = ("--tokenizer", chat_bpe, "--output")
    prepared(
        "--input",
        tmp_path / "x.jsonl",
        "--chat-template",
        tmp_path / "t.jinja",
        *base,
        tmp_path / "out",
    )
    loaded = AutoTokenizer.from_pretrained(chat_bpe)
    assert [counted(one, loaded) for one in read_masked(tmp_path / "out")] == [
        "b<|im_end|><think>so</think>d<|im_end|>"
    ]
    (tmp_path / "t.jinja").write_text(
        CHATML.replace("<|im_start|>assistant\n", "<|im_start|>bot\n")
    )
    refused = prepare(
        "--input",
        tmp_path / "x.jsonl",
        "--chat-template",
        tmp_path / "t.jinja",
        *base,
        tmp_path / "none",
    )
    assert (
        refused.returncode == 2
        and "x.jsonl:1: the chat template writes an assistant's turn otherwise" in refused.stderr
    )


BROKEN_CHATS = {  # name: (value of messages, what the message must hold)
    "no list": ("hello", 'field "messages" is a string, not a list of messages'),
    "ShareGPT": (
        [{"from": "human", "value": "x"}],
        'messages[0] is no message: {"role": …, "content": …} is wanted; "from" and "value" are to be',
    ),
    "no content": ([{"role": "user"}], 'messages[0] has no "content"'),
    "nobody answers": ([{"role": "user", "content": "x"}], "holds no assistant message"),
}


@pytest.mark.parametrize("case", BROKEN_CHATS)
def test_a_broken_chat_is_named(case, chat_bpe, tmp_path):
    messages, wanted = BROKEN_CHATS[case]
    write_lines(tmp_path / "x.jsonl", [{"messages": CHATS[1]}, {"messages": messages}])
    done = prepare(input=tmp_path / "x.jsonl", tokenizer=chat_bpe, output=tmp_path / "out")
    assert done.returncode == 0 and "1 broken record was left out" in done.stderr
    assert "x.jsonl:2: " in done.stderr and wanted in done.stderr
    assert len(read_documents(tmp_path / "out")) == 1


def test_a_broken_template_is_named_with_its_line(chat_bpe, tmp_path):
    (tmp_path / "t.jinja").write_text("{% for message in messages %}\n{{ message. }}\n{% endfor %}")
    write_lines(tmp_path / "x.jsonl", [{"messages": CHATS[0]}])
    done = prepare(
        input=tmp_path / "x.jsonl",
        tokenizer=chat_bpe,
        output=tmp_path / "out",
        chat_template=tmp_path / "t.jinja",
    )
    assert done.returncode == 2 and "t.jinja:2: not a chat template" in done.stderr


def texts(count: int) -> list[str]:
    return [f"{number} \u00e4 " + "word " * (number * 7919 % 400) for number in range(count)]


def test_parquet_rows_equal_json_lines_and_are_cut_between_row_groups(tmp_path):
    import pyarrow
    import pyarrow.parquet

    wanted = texts(4000)
    write_lines(tmp_path / "x.jsonl", [{"text": text} for text in wanted])
    pyarrow.parquet.write_table(
        pyarrow.table({"id": range(4000), "text": wanted}),
        tmp_path / "x.parquet",
        row_group_size=300,
        compression="none",
    )
    outputs = []
    for name, processes in (("x.jsonl", 2), ("x.parquet", 1), ("x.parquet", 3)):
        output = tmp_path / f"{name}{processes}"
        index = prepared(
            input=tmp_path / name, tokenizer="bytes", output=output, processes=processes
        )
        assert len(index["shards"]) >= 3
        outputs.append((read_documents(output), digests(output)))
    assert outputs[0][0] == outputs[1][0] == [[*text.encode(), 257] for text in wanted]
    assert outputs[1] == outputs[2]


def test_parquet_of_chats_and_a_broken_row(chat_bpe, tmp_path):
    import pyarrow
    import pyarrow.parquet

    write_lines(tmp_path / "x.jsonl", [{"messages": chat} for chat in CHATS])
    rows = [CHATS[0], [{"role": "user", "content": "x"}], CHATS[1]]
    pyarrow.parquet.write_table(pyarrow.table({"messages": rows}), tmp_path / "x.parquet")
    prepared(input=tmp_path / "x.jsonl", tokenizer=chat_bpe, output=tmp_path / "lines")
    done = prepare(input=tmp_path / "x.parquet", tokenizer=chat_bpe, output=tmp_path / "rows")
    assert done.returncode == 0 and "x.parquet:2: " in done.stderr
    assert read_masked(tmp_path / "lines") == read_masked(tmp_path / "rows")
    other = prepare(
        input=tmp_path / "x.parquet", text_field="body", tokenizer="bytes", output=tmp_path / "none"
    )
    assert (
        other.returncode == 2
        and 'none of the columns body, tools (there are: "messages")' in other.stderr
    )


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_compressed_files_give_what_they_hold(suffix, tmp_path):
    import pyarrow

    pack = {
        ".gz": gzip.compress,
        ".bz2": bz2.compress,
        ".xz": lzma.compress,
        ".zst": lambda data: pyarrow.compress(data, "zstd", asbytes=True),
    }[suffix]
    wanted = texts(2000)
    data = "".join(json.dumps({"text": text}) + "\n" for text in wanted).encode()
    (tmp_path / f"x.jsonl{suffix}").write_bytes(
        pack(data[:1000_000]) + pack(data[1000_000:]) if suffix == ".gz" else pack(data)
    )
    (tmp_path / f"y.txt{suffix}").write_bytes(pack(b"whole\n"))
    prepared(input=f"{tmp_path}/*{suffix}", tokenizer="bytes", output=tmp_path / "out")
    assert read_documents(tmp_path / "out") == [
        [*text.encode(), 257] for text in [*wanted, "whole\n"]
    ]


def test_validation_documents_are_kept_apart_by_content(tmp_path):
    wanted = [f"document {number}" for number in range(3000)]
    write_lines(tmp_path / "x.jsonl", [{"text": text} for text in wanted])
    write_lines(tmp_path / "y.jsonl", [{"text": text} for text in reversed(wanted)])
    sides = []
    for processes in (1, 3):
        output = tmp_path / str(processes)
        prepared(
            input=tmp_path / "x.jsonl",
            tokenizer="bytes",
            output=output,
            validation_share=0.1,
            processes=processes,
        )
        sides.append(digests(output))
    assert sides[0] == sides[1]
    few = prepare(
        input=write_lines(tmp_path / "z.jsonl", [{"text": "alone"}]),
        tokenizer="bytes",
        output=tmp_path / "z",
        validation_share=0.001,
    )
    assert (
        few.returncode == 0
        and "note: no document went into the validation split: 0.001 of 1 document is too few; raise --validation-share"
        in few.stderr
    )
    assert "1 document from 1 file in 1 shard" in few.stderr and "18 B of 18 B" in few.stderr, (
        few.stderr
    )
    some = prepare(
        input=tmp_path / "x.jsonl",
        tokenizer="bytes",
        output=tmp_path / "some",
        validation_share=0.1,
    )
    told = re.search(
        r"/some/validation: (\d+) tokens of (\d+) documents kept apart for evaluation", some.stderr
    )
    index = json.loads((tmp_path / "some" / "validation" / "index.json").read_text())
    assert [int(number) for number in told.groups()] == [
        index["num_tokens"],
        index["num_documents"],
    ]
    prepared(
        input=tmp_path / "y.jsonl", tokenizer="bytes", output=tmp_path / "y", validation_share=0.1
    )

    def side(folder):
        return {bytes(ids[:-1]).decode() for ids in read_documents(folder)}

    train, validation = side(tmp_path / "1"), side(tmp_path / "1" / "validation")
    assert (
        train | validation == set(wanted) and not train & validation and 240 < len(validation) < 360
    )
    assert side(tmp_path / "y" / "validation") == validation
    again = prepare(input=tmp_path / "x.jsonl", tokenizer="bytes", output=tmp_path / "1")
    assert again.returncode == 2 and "--overwrite" in again.stderr
    prepared(input=tmp_path / "x.jsonl", tokenizer="bytes", output=tmp_path / "1", overwrite=True)
    assert not (tmp_path / "1" / "validation").exists()


class Files(BaseHTTPRequestHandler):
    """Serves `files` (path → bytes); parts of them if `ranges`. The first `failures` reads of contents fail with 503."""

    files: dict[str, bytes] = {}
    ranges = True
    failures = 0

    def do_HEAD(self):
        self.answer(False)

    def do_GET(self):
        self.answer(True)

    def answer(self, send: bool):
        data = self.files.get(self.path.split("?")[0])
        if data is None:
            return self.send_error(404)
        if send and type(self).failures:
            type(self).failures -= 1
            return self.send_error(503)
        begin, end, code = 0, len(data), 200
        if self.ranges and (asked := self.headers.get("Range")):
            first, last = asked.removeprefix("bytes=").split("-")
            begin, end, code = int(first), min(int(last) + 1, len(data)), 206
        self.send_response(code)
        if code == 206:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(data)}")
        self.send_header("Content-Length", str(end - begin))
        self.send_header("ETag", f'"{len(data)}"')
        self.end_headers()
        if send:
            self.wfile.write(data[begin:end])

    def answer_json(self, value) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@contextmanager
def serving(kind: type[Files], files: dict[str, bytes]):
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (kind,), {"files": files}))
    thread = threading.Thread(target=httpd.serve_forever)
    thread.start()
    try:
        yield httpd
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()


@pytest.fixture
def server():
    with serving(Files, {}) as httpd:
        yield httpd


@pytest.mark.parametrize("ranges", [True, False])
def test_http_gives_the_same_as_local_files(ranges, server, tmp_path):
    wanted = texts(6000)
    write_lines(tmp_path / "x.jsonl", [{"text": text} for text in wanted])
    (tmp_path / "y.txt.gz").write_bytes(gzip.compress(b"packed"))
    handler = server.RequestHandlerClass
    handler.ranges, handler.failures = ranges, 0
    handler.files = {
        f"/data/{name}": (tmp_path / name).read_bytes() for name in ("x.jsonl", "y.txt.gz")
    }
    base = f"http://127.0.0.1:{server.server_port}/data"
    prepared(
        input=[tmp_path / "x.jsonl", tmp_path / "y.txt.gz"],
        tokenizer="bytes",
        output=tmp_path / "local",
    )
    index = prepared(
        input=[f"{base}/x.jsonl?version=3", f"{base}/y.txt.gz"],
        tokenizer="bytes",
        output=tmp_path / "remote",
        processes=2,
    )
    assert read_documents(tmp_path / "remote") == read_documents(tmp_path / "local")
    assert (len(index["shards"]) > 3) == ranges
    again = prepare(
        input=[f"{base}/x.jsonl?version=3", f"{base}/y.txt.gz"],
        tokenizer="bytes",
        output=tmp_path / "remote",
    )
    assert again.returncode == 0 and "already prepared" in again.stderr
    missing = prepare(input=f"{base}/z.jsonl", tokenizer="bytes", output=tmp_path / "none")
    assert (
        missing.returncode == 2
        and f"{base}/z.jsonl: no such file" in missing.stderr
        and "Traceback" not in missing.stderr
    )


def test_a_remote_read_that_fails_is_tried_again(server, tmp_path):
    handler = server.RequestHandlerClass
    handler.files = {"/x.txt": b"all of it"}
    handler.ranges, handler.failures = True, 2
    prepared(
        input=f"http://127.0.0.1:{server.server_port}/x.txt",
        tokenizer="bytes",
        output=tmp_path / "out",
    )
    assert read_documents(tmp_path / "out") == [[*b"all of it", 257]]


def write_tree(folder: Path) -> list[str]:
    """a.jsonl and deep/b.parquet, which has the first 500 of the texts that are returned."""
    import pyarrow
    import pyarrow.parquet

    wanted = texts(6000)
    (folder / "deep").mkdir(parents=True)
    write_lines(folder / "a.jsonl", [{"text": text} for text in wanted])
    pyarrow.parquet.write_table(
        pyarrow.table({"text": wanted[:500]}), folder / "deep" / "b.parquet", row_group_size=100
    )
    return wanted


def check_storage(url: str, wanted: list[str], folder: Path, environment: dict[str, str]) -> None:
    """`prepare` of a tree as write_tree writes it, where `url` is: the whole folder, a glob, the glob again, and what isn't there."""
    base = ("--tokenizer", "bytes", "--processes", 2, "--output")
    index = prepared("--input", url, *base, folder / "whole", environment=environment)
    assert read_documents(folder / "whole") == [
        [*text.encode(), 257] for text in [*wanted, *wanted[:500]]
    ]
    assert len(index["shards"]) > 3
    prepared("--input", f"{url}/*/*.parquet", *base, folder / "glob", environment=environment)
    assert len(read_documents(folder / "glob")) == 500
    again = prepare(
        "--input", f"{url}/*/*.parquet", *base, folder / "glob", environment=environment
    )
    assert again.returncode == 0 and "already prepared" in again.stderr
    for name, message in (("none.jsonl", "no such file"), ("*.txt", "no file matches")):
        refused = prepare(
            "--input", f"{url}/{name}", *base, folder / "none", environment=environment
        )
        assert (
            refused.returncode == 2
            and f"{url}/{name}: {message}" in refused.stderr
            and "Traceback" not in refused.stderr
        )


def test_s3_folders_globs_and_parquet(tmp_path):
    wanted = write_tree(tmp_path / "sft")
    with s3_server("acme") as (client, environment):
        for name in ("a.jsonl", "deep/b.parquet"):
            client.upload_file(str(tmp_path / "sft" / name), "acme", f"sft/{name}")
        check_storage("s3://acme/sft", wanted, tmp_path, environment)


class Hub(Files):
    """As much of huggingface.co as reading a dataset and a tokenizer takes: `files` are /datasets/ORG/NAME/FILE and /ORG/NAME/FILE."""

    def do_POST(self):  # paths-info
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        repository = self.path.removeprefix("/api").split("/paths-info/")[0]
        self.answer_json([one for one in self.tree(repository) if one["path"] in asked])

    def answer(self, send: bool):
        path = self.path.split("?")[0]
        if not path.startswith("/api/"):
            self.path = re.sub("/resolve/[^/]+", "", path)
            return super().answer(send)
        repository, _, rest = path.removeprefix("/api").removeprefix("/models").partition("/tree/")
        repository = repository.split("/revision/")[0]
        files = self.tree(repository)
        if not files:
            return self.send_error(404)
        folder = rest.partition("/")[2]
        inside = [one for one in files if one["path"].startswith(f"{folder}/" if folder else "")]
        below = {
            one["path"][len(folder) :].strip("/").split("/")[0]
            for one in inside
            if "/" in one["path"][len(folder) :].strip("/")
        }
        inside = [one for one in inside if "/" not in one["path"][len(folder) :].strip("/")]
        inside += [
            {"type": "directory", "oid": "2" * 40, "path": f"{folder}/{name}".strip("/")}
            for name in below
        ]
        self.answer_json(
            inside
            if rest
            else {
                "id": repository.strip("/"),
                "sha": "0" * 40,
                "siblings": [{"rfilename": one["path"]} for one in files],
            }
        )

    def tree(self, repository: str) -> list[dict]:
        return [
            {
                "type": "file",
                "oid": "1" * 40,
                "size": len(data),
                "path": name.removeprefix(repository + "/"),
            }
            for name, data in self.files.items()
            if name.startswith(repository + "/")
        ]

    def end_headers(self) -> None:
        self.send_header("X-Repo-Commit", "0" * 40)
        super().end_headers()


def test_the_hubs_datasets_and_tokenizers(bpe, tmp_path):
    wanted = texts(300)
    write_lines(tmp_path / "x.jsonl", [{"text": text} for text in wanted])
    files = {
        "/datasets/acme/sums/data/x.jsonl": (tmp_path / "x.jsonl").read_bytes(),
        "/datasets/acme/sums/README.md": b"not it",
    }
    files |= {f"/acme/model/{path.name}": path.read_bytes() for path in bpe.iterdir()}
    with serving(Hub, files) as httpd:
        environment = {
            "HF_ENDPOINT": f"http://127.0.0.1:{httpd.server_port}",
            "HF_HOME": str(tmp_path / "home"),
        }
        prepared(
            input="hf://datasets/acme/sums/data/*.jsonl",
            tokenizer="acme/model",
            output=tmp_path / "hub",
            environment=environment,
        )
        prepared(input=tmp_path / "x.jsonl", tokenizer=bpe, output=tmp_path / "local")
        assert read_documents(tmp_path / "hub") == read_documents(tmp_path / "local")
        refused = prepare(
            input=tmp_path / "x.jsonl",
            tokenizer="acme/other",
            output=tmp_path / "none",
            environment=environment,
        )
        assert (
            refused.returncode == 2
            and "--tokenizer acme/other: no such folder, and the hub says: " in refused.stderr
        )
