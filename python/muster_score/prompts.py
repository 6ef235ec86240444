"""From a row to what the engine is asked, and from its answer to a line of the output. Lines of OpenAI's batch files have a form of their own:
platform.openai.com/docs/guides/batch."""

import dataclasses
import datetime
import decimal
import hashlib
import json
import time
from dataclasses import dataclass

from muster_score.inputs import BadRow

# A prompt is a text, or the messages of a chat.
Prompt = str | list[dict]


@dataclass(frozen=True)
class Sampling:
    max_tokens: int = 256
    temperature: float = 0.0  # 0: greedy
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Ask:
    """What Muster's own engines are given for a row. The sampling's seed is the row's own: its answer doesn't hang on the rows that it's asked with."""

    prompt: Prompt
    sampling: Sampling


@dataclass(frozen=True)
class Answer:
    text: str
    finish_reason: str = "stop"  # or "length": max_tokens cut it
    prompt_tokens: int | None = None
    answer_tokens: int | None = None


def seed_of(seed: int, shard: int, row: int) -> int:
    digest = hashlib.blake2b(f"{seed}/{shard}/{row}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


# ---- what is asked ----


def ask_of(row: dict, column: str, sampling: Sampling) -> Ask | BadRow:
    """`sampling`: what the command line says, with the row's seed."""
    if is_openai(row):
        return _ask_of_body(row["body"], sampling)
    prompt = row.get(column)
    if not isinstance(prompt, (str, list)):
        return BadRow(f"there is no text in column {column!r}")
    return _ask(prompt, sampling, f"column {column!r}")


def _ask(prompt: str | list, sampling: Sampling, place: str) -> Ask | BadRow:
    if isinstance(prompt, list):
        if prompt and all(isinstance(one, str) for one in prompt):
            return BadRow(f"{place} is a list of texts: give each a row of its own")
        prompt = _messages(prompt, place)
        return prompt if isinstance(prompt, BadRow) else Ask(prompt, sampling)
    return Ask(prompt, sampling) if prompt.strip() else BadRow(f"{place}: the prompt is empty")


def _messages(messages: list, place: str) -> list[dict] | BadRow:
    """With texts for contents: parts that are texts are put together."""
    found = []
    for i, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            return BadRow(f"{place}[{i}] is no message: it needs a role and a content")
        content = message.get("content")
        if isinstance(content, list):
            texts = [part.get("text") for part in content if isinstance(part, dict)]
            if len(texts) < len(content) or not all(isinstance(text, str) for text in texts):
                return BadRow(f"{place}[{i}].content has other parts than texts")
            content = "\n".join(texts)
        if not isinstance(content, str):
            return BadRow(f"{place}[{i}].content is no text")
        found.append(message | {"content": content})
    return found or BadRow(f"{place} has no messages")


# ---- OpenAI's batch files ----

# Of a body: what has no say in an answer, and what has none while it stands at the value that it has anyway.
_IGNORED = {"model", "messages", "prompt", "max_tokens", "max_completion_tokens", "temperature"}
_IGNORED |= {"top_p", "seed", "user", "metadata", "store", "service_tier", "safety_identifier"}
_IGNORED |= {"prompt_cache_key", "stream_options", "parallel_tool_calls"}
_USUAL = {"n": 1, "best_of": 1, "presence_penalty": 0, "frequency_penalty": 0, "top_logprobs": 0}
_USUAL |= {"response_format": {"type": "text"}, "tool_choice": "none", "modalities": ["text"]}


def is_openai(row: dict) -> bool:
    return isinstance(row.get("custom_id"), str) and isinstance(row.get("body"), dict)


def _ask_of_body(body: dict, sampling: Sampling) -> Ask | BadRow:
    for name, value in body.items():
        usual = value is None or value is False or value in ([], {}) or value == _USUAL.get(name)
        if name not in _IGNORED and not usual:
            return BadRow(f"body.{name} isn't supported: leave it out")
    most = body.get("max_completion_tokens")
    given = {
        "max_tokens": most if most is not None else body.get("max_tokens"),
        "temperature": body.get("temperature"),
        "top_p": body.get("top_p"),
        "seed": body.get("seed"),
    }
    given = {name: value for name, value in given.items() if value is not None}
    wrong = _wrong(given)
    if wrong:
        return BadRow(f"body.{wrong}")
    name = "messages" if body.get("messages") is not None else "prompt"
    prompt = body.get(name)
    if not isinstance(prompt, (str, list)):
        return BadRow("body has neither messages nor a prompt")
    if name == "messages" and isinstance(prompt, str):
        return BadRow("body.messages is no list of messages")
    return _ask(prompt, dataclasses.replace(sampling, **given), f"body.{name}")


def _wrong(given: dict) -> str:
    """Which of them can't be, and what it has to be."""
    for name, value in given.items():
        whole = isinstance(value, int) and not isinstance(value, bool)
        number = whole or isinstance(value, float)
        if name == "max_tokens" and not (whole and value >= 1):
            return f"max_tokens is {value!r}: it has to be 1 or more"
        if name == "temperature" and not (number and 0 <= value <= 100):
            return f"temperature is {value!r}: it has to be 0 or more"
        if name == "top_p" and not (number and 0 < value <= 1):
            return f"top_p is {value!r}: it has to be above 0, at most 1"
        if name == "seed" and not (whole and abs(value) < 1 << 63):
            return f"seed is {value!r}: it has to be a whole number"
    return ""


def openai_answer(row: dict, answer: Answer, place: str) -> dict:
    """`place`: which row of the job it is, for the ids."""
    chat = row["body"].get("messages") is not None
    choice = {"index": 0, "finish_reason": answer.finish_reason, "logprobs": None}
    if chat:
        choice |= {"message": {"role": "assistant", "content": answer.text}}
    else:
        choice |= {"text": answer.text}
    body = {
        "id": f"{'chatcmpl' if chat else 'cmpl'}-{place}",
        "object": "chat.completion" if chat else "text_completion",
        "created": int(time.time()),
        "model": row["body"].get("model", ""),
        "choices": [choice],
    }
    if answer.prompt_tokens is not None and answer.answer_tokens is not None:
        body["usage"] = {
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": answer.answer_tokens,
            "total_tokens": answer.prompt_tokens + answer.answer_tokens,
        }
    response = {"status_code": 200, "request_id": f"req-{place}", "body": body}
    return {
        "id": f"batch_req-{place}",
        "custom_id": row["custom_id"],
        "response": response,
        "error": None,
    }


def openai_error(row: dict, why: str, place: str) -> dict:
    error = {"code": "bad_row", "message": why}
    line = {"id": f"batch_req-{place}", "custom_id": row["custom_id"], "response": None}
    return line | {"error": error}


# ---- lines of the output ----


def encode(line: dict) -> bytes:
    """Raises ValueError, TypeError or RecursionError for what JSON can't say: NaN, bytes, objects."""
    text = json.dumps(line, ensure_ascii=False, default=_plain, allow_nan=False)
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:  # half of a character's two escapes
        return json.dumps(line, default=_plain, allow_nan=False).encode() + b"\n"


def encode_what_can_be(line: dict) -> bytes:
    """Of a row that can't be written as it is, the columns that can."""
    can = {}
    for name, value in line.items():
        try:
            encode({name: value})
        except (ValueError, TypeError, RecursionError):
            continue
        can[name] = value
    return encode(can)


def _plain(value):
    """Of numpy and torch, of dates and decimals."""
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} can't be written as JSON")
