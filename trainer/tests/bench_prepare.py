"""bench/run.sh prepare: `muster-trainer prepare` against the `tokenizers` library alone on all cores, in the same run.

The peer encodes the same texts, in memory already, in batches on its own threads; its clock runs while it encodes. Ours
is the whole command, start to published index. Both run alternately; the least wall time of each counts, as the machine
may do other things. Before that: the output for 1, 2 and 7 processes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import PREPARE, clean_environment, figure, machine, report

CORPUS = PREPARE.parent.parent / "deploy" / "corpus.py"
PEER = """
import json, sys, time, tokenizers
tokenizer = tokenizers.Tokenizer.from_file(sys.argv[1])
texts = [json.loads(line)["text"] for line in open(sys.argv[2], encoding="utf-8")]
begin = time.perf_counter()
tokens = 0
for at in range(0, len(texts), 1000):
    tokens += sum(len(encoding.ids) for encoding in tokenizer.encode_batch_fast(texts[at:at + 1000], add_special_tokens=False))
print(time.perf_counter() - begin, tokens)
"""


def write_corpus(folder: Path, size: int) -> Path:
    """This machine's documentation, in documents of some paragraphs, as JSON lines of about `size` bytes."""
    subprocess.run(
        [sys.executable, CORPUS, "--output", folder / "texts", "--max-bytes", str(4_000_000)],
        check=True,
        capture_output=True,
    )
    pieces = []
    for path in sorted((folder / "texts").rglob("*.txt")) or sorted((folder / "texts").rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            text = path.read_text(encoding="utf-8", errors="replace")
            pieces += [text[at : at + 2000 + at % 3000] for at in range(0, len(text), 4000)]
    with open(folder / "corpus.jsonl", "w", encoding="utf-8") as file:
        number = written = 0
        while written < size:
            written += file.write(
                json.dumps(
                    {"id": number, "text": f"{number} {pieces[number % len(pieces)]}"},
                    ensure_ascii=False,
                )
                + "\n"
            )
            number += 1
    return folder / "corpus.jsonl"


def train_tokenizer(corpus: Path, folder: Path) -> Path:
    import tokenizers

    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=16_000,
        special_tokens=["<|end|>"],
        show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    with open(corpus, encoding="utf-8") as file:
        tokenizer.train_from_iterator(
            (json.loads(line)["text"] for _, line in zip(range(1000), file)), trainer
        )
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}'
    )
    return folder


def ours(corpus: Path, tokenizer: Path, output: Path, processes: int) -> float:
    begin = time.perf_counter()
    subprocess.run(
        [
            sys.executable,
            PREPARE,
            "--input",
            corpus,
            "--tokenizer",
            tokenizer,
            "--output",
            output,
            "--processes",
            str(processes),
        ],
        check=True,
        capture_output=True,
        env=clean_environment(),
    )
    return time.perf_counter() - begin


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus = write_corpus(folder, 12_000_000 if quick else 100_000_000)
        tokenizer = train_tokenizer(corpus, folder / "tokenizer")
        sample = folder / "sample.jsonl"
        sample.write_bytes(b"".join(line for _, line in zip(range(2500), open(corpus, "rb"))))
        outputs = []
        for processes in (1, 2, 7):
            ours(sample, tokenizer, folder / f"p{processes}", processes)
            outputs.append(
                {
                    path.name: path.read_bytes()
                    for path in (folder / f"p{processes}").glob("*")
                    if path.is_file()
                }
            )
        size = corpus.stat().st_size / 1e6
        walls, peers = [], []
        for number in range(2 if quick else 4):
            walls.append(ours(corpus, tokenizer, folder / f"out{number}", cores))
            done = subprocess.run(
                [sys.executable, "-c", PEER, tokenizer / "tokenizer.json", corpus],
                check=True,
                capture_output=True,
                text=True,
                env={**os.environ, "TOKENIZERS_PARALLELISM": "true"},
            )
            peers.append(float(done.stdout.split()[0]))
            print(
                f"run {number}: prepare {walls[-1]:.2f} s, tokenizers alone {peers[-1]:.2f} s, {size:.0f} MB, {done.stdout.split()[1]} tokens"
            )
    print(machine())
    return report(
        [
            figure(
                "prepare, MB/s against tokenizers alone on all cores",
                round(min(peers) / min(walls), 3),
                "x",
                0.9,
                peer=f"{size / min(peers):.1f} MB/s; ours {size / min(walls):.1f}",
                at_most=False,
            ),
            figure(
                "outputs that differ for 1, 2 and 7 processes",
                sum(output != outputs[0] for output in outputs),
                "",
                0,
            ),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
