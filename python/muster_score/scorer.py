"""Answers the rows of a shard, and tells apart which are bad and whether it is the engine that died."""

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path

from muster_score import files
from muster_score.engines import EngineDied, answer_all
from muster_score.inputs import BadRow, InputError, Reader
from muster_score.leases import Lease, Leases
from muster_score.plan import Options, Plan
from muster_score.prompts import (
    Answer,
    Ask,
    ask_of,
    encode,
    encode_what_can_be,
    is_openai,
    openai_answer,
    openai_error,
    seed_of,
)


class Doubted(Exception):
    """No row of it works, and none of the whole job has yet: who is to blame can't be told."""

    def __init__(self, why: str, engine: bool):
        super().__init__(why)
        self.engine = engine  # whether it was asked, and failed


class Scorer:
    """`predicts`: the engine is the user's, and is given rows; else it is given Asks. `between` is called before each batch with the rows that are done, and
    by an engine that makes its own batches (Vllm.answer) after each of its steps."""

    def __init__(self, options: Options, plan: Plan, engine, predicts: bool, leases: Leases):
        self.options, self.plan, self.predicts, self.leases = options, plan, predicts, leases
        # The user's engine may do with its rows what it likes.
        self.engine = (lambda rows: engine(copy.deepcopy(rows))) if predicts else engine
        self.makes_batches = not predicts and hasattr(engine, "answer")
        self.reader = Reader()
        self.why = ""  # the first row that was bad here is so
        self._good = None  # what was answered once: the engine has to answer it again
        self._good_file: Path = plan.own / "good.json"

    def score(
        self, shard: int, lease: Lease, between: Callable[[int], None]
    ) -> tuple[list[bytes], int]:
        """Its lines, in the input's order, and how many rows are bad."""
        return _Shard(self, shard, lease).score(between)

    def good(self):
        """What any worker of this job has had answered, of this attempt or an earlier one; None: nothing has been yet."""
        if self._good is None and (place := files.read(self._good_file)) is not None:
            shard, row = place["shard"], place["row"]
            rows = self.reader.rows(self.plan.shards[shard])
            self._good = self.item(shard, row, next(one for i, one in enumerate(rows) if i == row))
        return self._good

    def works(self, item, shard: int, row: int) -> None:
        """`item` was answered, and written."""
        if self._good is None:
            files.create(self._good_file, {"shard": shard, "row": row})
        self._good = item

    def ask(self, items: list, between: Callable[[int], None] = lambda done: None) -> list:
        if self.makes_batches:
            return answer_all(lambda batch: self.engine.answer(batch, between), items)
        return answer_all(self.engine, items)

    def prove(self, why: str) -> None:
        """That the engine is alive, if there is anything to ask it."""
        if self.good() is not None and isinstance(self.ask([self.good()])[0], Exception):
            raise EngineDied(f"it can't answer any more what it has answered before: {why}")

    def item(self, shard: int, row: int, content: dict | BadRow) -> Ask | dict | BadRow:
        """What the engine is given for a row."""
        if isinstance(content, BadRow):
            return content
        answers_beside = not self.predicts and not is_openai(content)
        for name, option in (
            (self.options.error_column, "--error-column"),
            (self.options.answer_column if answers_beside else None, "--answer-column"),
        ):
            if name in content:
                raise _taken(self.plan.shards[shard].file.path, name, option)
        if self.predicts:
            return content
        sampling = self.options.sampling
        own = dataclasses.replace(sampling, seed=seed_of(sampling.seed, shard, row))
        return ask_of(content, self.options.column, own)


class _Shard:
    def __init__(self, scorer: Scorer, number: int, lease: Lease):
        self.scorer, self.number, self.lease = scorer, number, lease
        self.rows = list(scorer.reader.rows(scorer.plan.shards[number]))
        self.items = [scorer.item(number, i, row) for i, row in enumerate(self.rows)]
        self.lines = [b""] * len(self.rows)
        self.bad = 0
        self.why = ""  # the first bad row is so
        self.failed = ""  # the engine has, at last

    def score(self, between: Callable[[int], None]) -> tuple[list[bytes], int]:
        for i, item in enumerate(self.items):
            if not isinstance(item, BadRow) and self.lease.deadly(i):
                item = BadRow("the process that was asked it died, again and again")
            if isinstance(item, BadRow):
                self.items[i] = item
                self._put(i, item)
        if self.lease.careful:
            self.scorer.prove("it is asked before a shard that others died of")
        done = 0
        for batch in self._batches():
            between(done)
            if self.lease.careful:
                self.scorer.leases.hold(self.lease, batch[0])
            self._answer(batch, lambda more, before=done: between(before + more))
            done += len(batch)
        if self.lease.careful:
            self.scorer.leases.hold(self.lease, None)
        if self.scorer.good() is None:
            raise Doubted(self.failed or self.why, bool(self.failed))
        return self.lines, self.bad

    def _batches(self) -> list[list[int]]:
        """Which rows are asked together. Those of a length, as the shorter are padded; the longest first, so that what doesn't fit shows at once."""
        asked = [i for i, item in enumerate(self.items) if not isinstance(item, BadRow)]
        if not self.scorer.predicts:
            asked.sort(key=lambda i: -_length(self.items[i]))
        size = self.scorer.options.batch_size
        if self.lease.careful:
            size = 1
        elif self.scorer.makes_batches:
            size = max(1, len(asked))
        return [asked[at : at + size] for at in range(0, len(asked), size)]

    def _answer(self, batch: list[int], between: Callable[[int], None]) -> None:
        answers = self.scorer.ask([self.items[i] for i in batch], between)
        for i, answer in zip(batch, answers, strict=True):
            if self._put(i, answer):
                self.scorer.works(self.items[i], self.number, i)
        self._doubt(answers)
        self._refuse_bad()

    def _doubt(self, answers: list) -> None:
        """Bad rows are kept, and an engine that died must not make bad rows of all that come after. If the last that it was asked has failed, it may have died."""
        asked = [answer for answer in answers if not isinstance(answer, BadRow)]
        if asked and isinstance(asked[-1], Exception):
            self.failed = f"{asked[-1]!r}"
            self.scorer.prove(self.failed)

    def _refuse_bad(self) -> None:
        if self.why and not self.scorer.options.keep_bad_rows and self.scorer.good() is not None:
            raise InputError(f"a row can't be scored (--bad-rows keep goes on): {self.why}")

    def _put(self, i: int, answer) -> bool:
        """Whether the row is good."""
        if isinstance(answer, Exception):
            answer = BadRow(f"{type(answer).__name__}: {answer}")
        if not isinstance(answer, BadRow):
            try:
                self.lines[i] = encode(self._good_line(i, answer))
                return True
            except (ValueError, TypeError, RecursionError) as error:
                answer = BadRow(f"it can't be written: {error}")
        self.bad += 1
        self.why = self.why or answer.why
        self.scorer.why = self.scorer.why or answer.why
        self.lines[i] = encode_what_can_be(self._bad_line(i, answer.why))
        return False

    def _good_line(self, i: int, answer) -> dict:
        row, options = self.rows[i], self.scorer.options
        if is_openai(row) and not self.scorer.predicts:
            given = answer if isinstance(answer, Answer) else Answer(answer)
            return openai_answer(row, given, self._place(i))
        if isinstance(answer, Answer):
            answer = answer.text
        given = answer if isinstance(answer, dict) else {options.answer_column: answer}
        path = self.scorer.plan.shards[self.number].file.path
        if options.error_column in given:
            raise _taken(f"{path}: the engine's answer", options.error_column, "--error-column")
        if not isinstance(answer, dict) and options.answer_column in row:
            raise _taken(path, options.answer_column, "--answer-column")
        return row | given

    def _bad_line(self, i: int, why: str) -> dict:
        row = self.rows[i]
        if isinstance(row, BadRow):
            return {"line": row.text, self.scorer.options.error_column: why}
        if is_openai(row) and not self.scorer.predicts:
            return openai_error(row, why, self._place(i))
        return row | {self.scorer.options.error_column: why}

    def _place(self, i: int) -> str:
        return f"{self.number:08}-{i:06}"


def _length(ask: Ask) -> int:
    if isinstance(ask.prompt, str):
        return len(ask.prompt)
    return sum(len(message["content"]) for message in ask.prompt)


def _taken(place: str, name: str, option: str) -> InputError:
    return InputError(
        f"{place}: a row has {name!r} already, which the output would have, too. Name it otherwise with {option}"
    )
