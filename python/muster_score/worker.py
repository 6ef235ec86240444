"""One worker: takes shards until every part is there."""

import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import muster_runtime

from muster_score import files
from muster_score.engines import EngineDied, answer_all
from muster_score.inputs import (
    BadRow,
    InputError,
    Shard,
    find_files,
    fingerprint,
    rows_of,
    shards_of,
)
from muster_score.leases import Leases

STOPPED = 143  # exit code after SIGTERM


@dataclass
class Options:
    input: str
    output: str
    column: str = "prompt"
    answer_column: str = "answer"
    batch_size: int = 16
    shard_rows: int = 1000
    keep_bad_rows: bool = True
    lease_s: float = 60
    settings: dict = field(default_factory=dict)  # what else makes the answers what they are


class Stopped(Exception):
    pass


class Doubted(Exception):
    """A row failed, and the engine has not answered any yet: who is to blame can't be told."""


def batches(rows: Iterator, size: int) -> Iterator[list]:
    batch = []
    for row in rows:
        batch.append(row)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


class Worker:
    def __init__(
        self, options: Options, engine: Callable[[list], list], predicts: bool, owner: str
    ):
        self.options, self.engine, self.predicts, self.owner = options, engine, predicts, owner
        self.output = Path(options.output).resolve()
        self.own = self.output / "_muster_score"
        self.shards: list[Shard] = []
        self.done = bytearray()
        self.done_rows = self.total_rows = 0
        self.good = None  # a prompt that was answered: the engine has to answer it again
        self.doubt = ""
        self.put_off: set[int] = set()  # shards of which no row worked while nothing had yet
        self.began_s, self.own_rows = time.monotonic(), 0

    # ---- the plan ----

    def plan(self) -> None:
        """The first worker's counts; the others, and later ones, read it."""
        leases = self.own / "leases"
        leases.mkdir(parents=True, exist_ok=True)
        (self.own / "parts").mkdir(exist_ok=True)
        (self.own / "bad").mkdir(exist_ok=True)
        path = self.own / "plan.json"
        settings = self.options.settings | {
            "column": self.options.column,
            "answer_column": self.options.answer_column,
        }
        plan = files.read(path)
        inputs = find_files(self.options.input)
        if plan is None:
            shards = shards_of(inputs, self.options.shard_rows)
            if not shards:
                raise InputError(f"--input {self.options.input}: there are no rows")
            numbered = [[inputs.index(shard.file), shard.begin, shard.rows] for shard in shards]
            plan = {"input": fingerprint(inputs), "settings": settings, "shards": numbered}
            if not files.create(path, plan):
                plan = files.read(path)
        if plan["input"] != fingerprint(inputs):
            raise InputError(
                f"{self.output}: its parts are of another input, or the input has changed since. Take another --output, or remove this one"
            )
        if plan["settings"] != settings:
            raise InputError(
                f"{self.output}: its parts were made with {plan['settings']}, and now it is {settings}. Take another --output, or remove this one"
            )
        self.shards = [Shard(inputs[file], begin, rows) for file, begin, rows in plan["shards"]]
        self.done = bytearray(len(self.shards))
        self.total_rows = sum(shard.rows for shard in self.shards)
        self.leases = Leases(leases, self.owner, self.options.lease_s)

    def part(self, shard: int) -> Path:
        return self.output / f"part-{shard:08}.jsonl"

    def _look(self, shard: int) -> bool:
        if not self.done[shard] and self.part(shard).exists():
            self.done[shard] = 1
            self.done_rows += self.shards[shard].rows
        return bool(self.done[shard])

    def report(self) -> None:
        seconds = max(1e-9, time.monotonic() - self.began_s)
        muster_runtime.report(
            self.done_rows,
            total_steps=self.total_rows,
            rows_per_s=self.own_rows / seconds,
        )

    # ---- working ----

    def run(self) -> None:
        """Returns once all parts are there. Stopped: it was told to stop."""
        self.plan()
        # Workers begin at different places, or each would find the others' leases first.
        start = hash_of(self.owner) % len(self.shards)
        while True:
            left = 0
            for i in range(len(self.shards)):
                shard = (start + i) % len(self.shards)
                if self._look(shard):
                    continue
                left += 1
                self._stop_if_told()
                lease = (
                    self.leases.take(shard)
                    if self.good is not None or shard not in self.put_off
                    else None
                )
                if lease is not None:
                    self._work(shard, lease)
                    left -= self._look(shard)
            self.report()
            if left == 0:
                break
            if self.put_off and self.good is None and self._all_put_off():
                raise EngineDied(f"no row works at all: {self.doubt}")
            self._wait(min(1.0, self.options.lease_s / 4))
        self._finish()

    def _all_put_off(self) -> bool:
        return all(done or shard in self.put_off for shard, done in enumerate(self.done))

    def _stop_if_told(self) -> None:
        if muster_runtime.should_stop():
            raise Stopped

    def _wait(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self._stop_if_told()
            time.sleep(0.05)

    def _work(self, shard: int, lease: Path) -> None:
        if self._look(shard):
            self.leases.forget(shard)
            return
        working = threading.Event()
        renewing = threading.Thread(target=self._renew, args=(lease, working), daemon=True)
        renewing.start()
        written = self.own / "parts" / f"{lease.name}.{uuid.uuid4().hex}"
        try:
            bad = self._write_part(shard, written)
            if (
                bad
            ):  # of this file alone: of two workers the one that loses may have counted otherwise
                found = {"shard": shard, "bad": bad, "inode": written.stat().st_ino}
                files.create(self.own / "bad" / f"{shard:08}.{uuid.uuid4().hex}", found)
            # The commit: from here on the part is there, and it is this one.
            files.publish(written, self.part(shard))
        except BaseException as error:
            written.unlink(missing_ok=True)
            working.set()
            renewing.join()
            self.leases.give_back(lease)
            if not isinstance(error, Doubted):
                raise
            self.put_off.add(shard)
            self.doubt = str(error)
            return
        working.set()
        renewing.join()
        self.own_rows += self.shards[shard].rows
        self._look(shard)
        self.leases.forget(shard)
        self.report()

    def _renew(self, lease: Path, working: threading.Event) -> None:
        while not working.wait(self.options.lease_s / 4):
            self.leases.renew(lease)

    def _write_part(self, shard: int, path: Path) -> int:
        """How many of its rows are bad."""
        bad = 0
        with path.open("w") as file:
            for batch in batches(rows_of(self.shards[shard]), self.options.batch_size):
                self._stop_if_told()
                for line, is_bad in self._answers(batch):
                    bad += is_bad
                    file.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")
            file.flush()
            os.fsync(file.fileno())
        return bad

    def _answers(self, batch: list) -> Iterator[tuple[dict, bool]]:
        asked, prompts = [], []
        for i, row in enumerate(batch):
            prompt = row if isinstance(row, BadRow) else self._prompt(row)
            if not isinstance(prompt, BadRow):
                asked.append(i)
                prompts.append(prompt)
            else:
                batch[i] = (row, prompt)
        answers = dict(zip(asked, answer_all(self.engine, prompts), strict=True)) if asked else {}
        self._doubt(prompts, list(answers.values()))
        for i, row in enumerate(batch):
            if i not in answers:
                yield self._bad(*row)
            elif isinstance(answers[i], Exception):
                yield self._bad(row, BadRow(f"{type(answers[i]).__name__}: {answers[i]}"))
            else:
                yield self._good(row, answers[i]), False

    def _doubt(self, prompts: list, answers: list) -> None:
        """Bad rows are kept, and an engine that died must not make bad rows of all that come after."""
        works = [not isinstance(answer, Exception) for answer in answers]
        if any(works):
            self.good = prompts[works.index(True)]
        elif answers and self.good is None:
            raise Doubted(f"{answers[-1]!r}")
        elif answers and isinstance(answer_all(self.engine, [self.good])[0], Exception):
            raise EngineDied(
                f"it can't answer any more what it has answered before: {answers[-1]!r}"
            )

    def _prompt(self, row: dict):
        if self.predicts:
            return row
        if is_openai(row):
            body = row["body"] if isinstance(row["body"], dict) else {}
            prompt = body.get("messages", body.get("prompt"))
        else:
            prompt = row.get(self.options.column)
        if isinstance(prompt, str) or (isinstance(prompt, list) and prompt):
            return prompt
        if is_openai(row):
            return BadRow("body has neither messages nor a prompt")
        return BadRow(f"there is no text in column {self.options.column!r}")

    def _good(self, row: dict, answer) -> dict:
        if is_openai(row) and not self.predicts:
            return openai_answer(row, answer)
        if isinstance(answer, dict):
            return row | answer
        return row | {self.options.answer_column: answer}

    def _bad(self, row: dict | BadRow, bad: BadRow) -> tuple[dict, bool]:
        if not self.options.keep_bad_rows:
            raise InputError(f"a row can't be scored (--bad-rows keep goes on): {bad.why}")
        if isinstance(row, BadRow):
            return {"line": row.text, "error": bad.why}, True
        if is_openai(row) and not self.predicts:
            error = {"code": "bad_row", "message": bad.why}
            return {"custom_id": row["custom_id"], "response": None, "error": error}, True
        return row | {"error": bad.why}, True

    def _finish(self) -> None:
        """What the whole is, by the worker that is first to see it done."""
        bad = {}
        for path in sorted((self.own / "bad").glob("0*")):
            found = files.read(path)
            part = self.part(found["shard"])
            if part.stat().st_ino == found["inode"]:
                bad[part.name] = found["bad"]
        files.create(
            self.output / "manifest.json",
            {
                "rows": self.total_rows,
                "bad_rows": sum(bad.values()),
                "parts": len(self.shards),
                "bad_rows_by_part": bad,
                "settings": files.read(self.own / "plan.json")["settings"],
            },
        )
        for left in (self.own / "parts").iterdir():  # of workers that were killed
            left.unlink(missing_ok=True)


def is_openai(row: dict) -> bool:
    """A line of OpenAI's batch files: platform.openai.com/docs/guides/batch."""
    return "custom_id" in row and "body" in row


def openai_answer(row: dict, text: str) -> dict:
    chat = "messages" in row["body"]
    choice = {"index": 0, "finish_reason": "stop"}
    choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    body = {
        "object": "chat.completion" if chat else "text_completion",
        "model": row["body"].get("model", ""),
        "choices": [choice],
    }
    response = {"status_code": 200, "request_id": row["custom_id"], "body": body}
    return {"custom_id": row["custom_id"], "response": response, "error": None}


def hash_of(text: str) -> int:
    """The same in each process."""
    value = 14695981039346656037
    for byte in text.encode():
        value = (value ^ byte) * 1099511628211 % 2**64
    return value
