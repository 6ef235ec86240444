"""What answers prompts. An engine is made once and called with a batch; it answers each of them (with a BadRow what it can't), or raises for the whole batch.
Muster's own are called with Asks, the user's with rows."""

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass

from muster_score import objects
from muster_score.inputs import BadRow, InputError
from muster_score.prompts import Answer, Ask, Sampling
from muster_score.stopping import Stopped


class EngineDied(Exception):
    """Nothing it is given works any more: the process has to be started again."""


class EngineWrong(InputError):
    """It can't be made of what was asked for, whoever tries: __cause__ is why."""


# ---- Muster's own ----


@dataclass
class Tokens:
    """An Ask, ready for a model."""

    place: int  # in the batch
    ids: list[int]
    room: int  # how many the answer may have
    sampling: Sampling


def tokens_of(tokenizer, batch: list[Ask], context: int | None) -> list[Tokens | BadRow]:
    return [_tokens(tokenizer, i, ask, context) for i, ask in enumerate(batch)]


def _tokens(tokenizer, place: int, ask: Ask, context: int | None) -> Tokens | BadRow:
    try:
        if isinstance(ask.prompt, str):
            ids = tokenizer(ask.prompt)["input_ids"]
        else:  # its template has written the special tokens
            text = tokenizer.apply_chat_template(
                ask.prompt, tokenize=False, add_generation_prompt=True
            )
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    except Exception as error:  # noqa: BLE001 (whatever a template raises)
        return BadRow(f"the prompt can't be turned into tokens: {type(error).__name__}: {error}")
    if not ids:
        return BadRow("the prompt is empty")
    room = ask.sampling.max_tokens
    if context is not None:
        room = min(room, context - len(ids))
    if room < 1:
        return BadRow(f"the prompt has {len(ids)} tokens; the model takes {context} with an answer")
    return Tokens(place, list(ids), room, ask.sampling)


class Transformers:
    def __init__(self, model: str, sampling: Sampling, **options):
        import torch
        import transformers

        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.torch, self.transformers = torch, transformers
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        found = transformers.AutoModelForCausalLM.from_pretrained(model, **options)
        self.model = found.to(device).eval()
        config = self.model.config.get_text_config()
        self.context = getattr(config, "max_position_embeddings", None)
        ends = self.model.generation_config.eos_token_id
        self.ends = set(ends if isinstance(ends, list) else [ends])

    def __call__(self, batch: list[Ask]) -> list[Answer | BadRow]:
        answers = tokens_of(self.tokenizer, batch, self.context)
        # What may not grow to the same length isn't generated together: a row that had its due would go on, past the model's context.
        rooms = {one.room for one in answers if isinstance(one, Tokens)}
        for room in sorted(rooms):
            rows = [one for one in answers if isinstance(one, Tokens) and one.room == room]
            for row, answer in zip(rows, self._generate(rows, room), strict=True):
                answers[row.place] = answer
        return answers

    def _generate(self, rows: list[Tokens], room: int) -> list[Answer]:
        width, pad = max(len(row.ids) for row in rows), self.tokenizer.pad_token_id
        ids = [[pad] * (width - len(row.ids)) + row.ids for row in rows]  # [rows, width]
        mask = [[0] * (width - len(row.ids)) + [1] * len(row.ids) for row in rows]
        tensor, device = self.torch.tensor, self.model.device
        given = {"input_ids": tensor(ids, device=device)}
        given["attention_mask"] = tensor(mask, device=device)
        options = {}
        if any(row.sampling.temperature > 0 for row in rows):
            draw = Draw(self.torch, [row.sampling for row in rows], device)
            options["logits_processor"] = self.transformers.LogitsProcessorList([draw])
        with self.torch.inference_mode():
            tokens = self.model.generate(
                **given,
                **options,
                max_new_tokens=room,
                do_sample=False,
                pad_token_id=pad,
            )
        tokens = tokens[:, width:].tolist()
        texts = self.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return [
            self._answer(row, own, text) for row, own, text in zip(rows, tokens, texts, strict=True)
        ]

    def _answer(self, row: Tokens, tokens: list[int], text: str) -> Answer:
        end = next((i for i, token in enumerate(tokens) if token in self.ends), None)
        count = len(tokens) if end is None else end + 1
        return Answer(text, "length" if end is None else "stop", len(row.ids), count)


class Draw:
    """Samples with a generator for each row, so that a row's answer hangs on its own seed alone, and not on the rows beside it. Greedy decoding of logits with
    Gumbel noise is sampling from their softmax."""

    def __init__(self, torch, samplings: list[Sampling], device):
        self.torch, self.samplings = torch, samplings
        self.generators = [torch.Generator(device).manual_seed(one.seed) for one in samplings]

    def __call__(self, input_ids, scores):  # scores: [rows, vocabulary]
        scores = scores.clone()
        for i, sampling in enumerate(self.samplings):
            if sampling.temperature > 0:
                scores[i] = self._drawn(scores[i], sampling, self.generators[i])
        return scores

    def _drawn(self, logits, sampling: Sampling, generator):
        logits = logits.float() / sampling.temperature
        if sampling.top_p < 1:
            ordered, places = logits.sort(descending=True)
            before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
            logits[places[before >= sampling.top_p]] = -self.torch.inf
        waited = self.torch.empty_like(logits).exponential_(generator=generator)
        return logits - waited.clamp_min_(self.torch.finfo(waited.dtype).tiny).log()


class Vllm:
    """It is given all rows of a shard at once, and itself decides how many it works on: as one answer is done another row takes its place."""

    def __init__(self, model: str, sampling: Sampling, **options):
        import vllm

        self.engine, self.vllm = vllm.LLM(model=model, **options), vllm
        self.tokenizer = self.engine.get_tokenizer()
        self.context = self.engine.llm_engine.model_config.max_model_len
        self.asked = 0

    def __call__(self, batch: list[Ask]) -> list[Answer | BadRow]:
        return self.answer(batch, lambda done: None)

    def answer(self, batch: list[Ask], between: Callable[[int], None]) -> list:
        """`between` is called after each of the engine's steps with the rows that are done, and may raise."""
        answers = tokens_of(self.tokenizer, batch, self.context)
        rows: dict[str, Tokens] = {}  # that wait for an answer, by the engine's name of the request
        engine = self.engine.llm_engine
        try:
            for row in [one for one in answers if isinstance(one, Tokens)]:
                try:
                    rows[self._begin(row)] = row
                except Exception as error:  # noqa: BLE001 (vLLM refuses it: it costs itself alone)
                    answers[row.place] = error
            while engine.has_unfinished_requests():
                for done in filter(lambda one: one.finished, engine.step()):
                    row = rows.pop(done.request_id)
                    answers[row.place] = self._answer(row, done.outputs[0])
                between(len(batch) - len(rows))
        finally:
            if rows:  # it failed, or is to stop: what it is asked next is to be alone
                engine.abort_request(list(rows))
        return answers

    def _begin(self, row: Tokens) -> str:
        self.asked += 1
        name = str(self.asked)
        prompt = {"prompt_token_ids": row.ids}
        self.engine.llm_engine.add_request(name, prompt, self._parameters(row))
        return name

    def _parameters(self, row: Tokens):
        return self.vllm.SamplingParams(
            max_tokens=row.room,
            temperature=row.sampling.temperature,
            top_p=row.sampling.top_p,
            seed=row.sampling.seed,
            output_kind=self.vllm.sampling_params.RequestOutputKind.FINAL_ONLY,
        )

    @staticmethod
    def _answer(row: Tokens, output) -> Answer:
        return Answer(
            output.text, output.finish_reason or "stop", len(row.ids), len(output.token_ids)
        )


ENGINES = {"transformers": Transformers, "vllm": Vllm}


# ---- the user's ----


class ByTable:
    """A class with `arrow = True`: it is given a pyarrow.Table a batch. It gives one with as many rows, or a list as others do."""

    def __init__(self, engine: Callable):
        try:
            import pyarrow
        except ImportError as error:
            raise InputError(
                "the engine asks for Arrow (arrow = True), which needs pyarrow: pip install pyarrow"
            ) from error
        self.engine, self.pyarrow = engine, pyarrow

    def __call__(self, rows: list[dict]) -> list:
        names = dict.fromkeys(
            name for row in rows for name in row
        )  # a column that a row lacks is null
        table = {name: [row.get(name) for row in rows] for name in names}
        answers = self.engine(self.pyarrow.table(table))
        made = (self.pyarrow.Table, self.pyarrow.RecordBatch)
        return answers.to_pylist() if isinstance(answers, made) else answers


def check(name: str, model: str) -> None:
    """Before anything is read or loaded."""
    if objects.is_url(model):
        raise InputError(
            f"--model {model}: models in object stores aren't read. Copy it to a directory that all workers see, such as with aws s3 sync, and name that one"
        )
    if name in ENGINES and not model:
        raise InputError(f"--engine {name} needs --model")
    if name in ENGINES and model.startswith(("/", "./", "../")):
        _check_directory(name, model)
    if name not in ENGINES and ":" not in name:
        raise InputError(
            f"--engine {name}: must be {', '.join(ENGINES)}, or module:Class of your own"
        )


def _check_directory(name: str, model: str) -> None:
    host = os.uname().nodename
    try:
        os.stat(model)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(
            f"--model {model}: there is no such directory on {host}. Name one that all workers see"
        ) from error
    except OSError:
        return  # such as of a file server: loading it says more
    if name == "transformers" and not os.path.isdir(model):
        raise InputError(
            f"--model {model}: is a file. Name its directory, which has config.json and the weights"
        )


def load(
    name: str, model: str, sampling: Sampling, options: dict | None = None
) -> Callable[[list], list]:
    """`name`: one of ENGINES, or module:Class of the user's, which is made with the options alone and called with the rows of a batch."""
    check(name, model)
    options = options or {}
    try:
        if name in ENGINES:
            return ENGINES[name](model, sampling, **options)
        module, _, member = name.partition(":")
        try:
            made = getattr(importlib.import_module(module), member)
        except (ImportError, AttributeError) as error:
            raise InputError(
                f"--engine {name}: {error}. Is its directory in PYTHONPATH?"
            ) from error
        engine = made(**options)
        return ByTable(engine) if getattr(engine, "arrow", False) is True else engine
    except InputError:
        raise
    except SystemExit as error:
        raise EngineDied(f"it called sys.exit({error.code!r}) while it was made") from error
    except Exception as error:  # noqa: BLE001 (whatever a library or a user's class raises)
        said = f"--engine {name} can't be made: {type(error).__name__}: {error}"
        if is_lasting(error, os.path.isdir(model)):
            raise EngineWrong(said) from error
        raise EngineDied(said) from error


# Of the program, its options or the model's files. What has the device or the network for a cause
# is none of them: RuntimeError, torch's OutOfMemoryError, an OSError of a file server.
_MISTAKES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    FileNotFoundError,
    ImportError,
    IsADirectoryError,
    LookupError,
    NameError,
    NotADirectoryError,
    NotImplementedError,
    PermissionError,
    SyntaxError,
    TypeError,
    ValueError,
)
# Of huggingface_hub, which transformers and vLLM wrap: there is no such model, or not for this user.
_NO_MODEL = (
    "RepositoryNotFoundError",
    "RevisionNotFoundError",
    "GatedRepoError",
    "HFValidationError",
)
_AWAY = ("ConnectionError", "ConnectError", "Timeout", "TimeoutError")  # ends of names


def is_lasting(error: BaseException, local: bool) -> bool:
    """That an engine which failed so while it was made would fail again. `local`: its model is a directory here."""
    chain, one = [], error
    while one is not None and len(chain) < 16:
        chain.append(one)
        one = one.__cause__ or one.__context__
    names = [type(one).__name__ for one in chain]
    if any(name.endswith(_AWAY) for name in names):
        return False
    if any(name in _NO_MODEL for name in names):
        return True
    # vLLM calls it a ValueError that a device has none left.
    if any("memory" in str(one).lower() for one in chain):
        return False
    # What came first may be the device's: tidying up after it fails with an AttributeError.
    return all(_is_mistake(one, local) for one in chain)


def _is_mistake(error: BaseException, local: bool) -> bool:
    # The kernel's own errors have a number; without one a library says what a directory lacks.
    lacks_file = local and isinstance(error, OSError) and error.errno is None
    return lacks_file or isinstance(error, _MISTAKES)


# ---- asking ----


def answer_all(engine: Callable[[list], list], batch: list) -> list:
    """An answer each, or the exception in its place. What the engine can't do for a whole batch it is asked for one by one: a bad row costs itself
    alone."""
    try:
        return _checked(engine, batch)
    except (EngineDied, Stopped):
        raise
    except Exception as error:  # noqa: BLE001 (whatever a model or a user's class raises)
        if len(batch) == 1:
            return [error]
    answers = []
    for one in batch:
        try:
            answers += _checked(engine, [one])
        except (EngineDied, Stopped):
            raise
        except Exception as error:  # noqa: BLE001
            answers.append(error)
    return answers


def _checked(engine: Callable[[list], list], batch: list) -> list:
    try:
        answers = list(engine(batch))
    except SystemExit as error:
        raise EngineDied(f"it called sys.exit({error.code!r})") from error
    if len(answers) != len(batch):
        raise ValueError(f"the engine gave {len(answers)} answers for {len(batch)} rows")
    return answers
