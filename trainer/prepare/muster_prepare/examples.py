"""From a record to the text that is tokenised, and to which of its characters count in the loss.

Four kinds of record, told apart by their fields (names as TRL and transformers have them):
  text                 a document; all of it counts
  prompt, completion   two strings; the completion counts. Or two lists of messages, rendered as below
  messages             a chat, rendered by the tokenizer's chat template; what the assistant says counts, with the token
                       that ends its turn. `tools`, if there, goes to the template
  prompt, chosen, rejected   two completions of one prompt, of which the first is preferred: two examples, one behind
                       the other, each as its prompt with its completion gives it
"""

import json
import re
from dataclasses import dataclass

from muster_prepare.errors import InputError
from muster_prepare.inputs import json_type

PAIR = ("chosen", "rejected")


@dataclass(frozen=True)
class Example:
    text: str
    spans: tuple[tuple[int, int], ...] | None  # characters [begin, end) that count; None: all
    ends: bool  # an end-of-document token follows, and counts


class Broken(Exception):
    """A record can't be used; the message says what is wrong with which field, and what would be right."""


class Fields:
    """Turns records into examples. Picklable by fork only (a compiled template)."""

    def __init__(
        self,
        text: str | None,
        prompt: str | None,
        completion: str | None,
        messages: str | None,
        mask: bool,
        template: "ChatTemplate | None",
    ):
        self._text, self._prompt, self._completion, self._messages = (
            text,
            prompt,
            completion,
            messages,
        )
        self._named = [name for name in (text, prompt, completion, messages) if name]
        self._mask = mask
        self._template = template

    def columns(self) -> list[str]:
        """Fields that a record may be read for."""
        kinds = ("text", "prompt", "completion", "messages", *PAIR)
        return [*(self._named or kinds), "tools"]

    def recipe(self) -> dict:
        return {
            "fields": [self._text, self._prompt, self._completion, self._messages],
            "mask": self._mask,
            "chat_template": self._template.source if self._template else None,
        }

    def is_pair(self, value: dict | str) -> bool:
        return not self._named and isinstance(value, dict) and all(name in value for name in PAIR)

    def examples(self, value: dict | str) -> list[Example]:
        """One, or of a pair the chosen's and the rejected's. Raises Broken."""
        if not self.is_pair(value):
            return [self._checked(self._example(value))]
        if not self._mask:
            raise InputError("--loss all is not for pairs of chosen and rejected; leave it out")
        prompt = self._field(value, "prompt")
        answers = [self._field(value, name) for name in PAIR]
        if len({isinstance(one, list) for one in (prompt, *answers)}) > 1:
            raise Broken(
                "prompt, chosen and rejected are partly text and partly lists of messages; give all three alike"
            )
        if not prompt:
            raise Broken(
                'field "prompt" is empty: there is nothing that chosen and rejected answer; fill it, or leave the record out'
            )
        return [
            self._checked(self._completed(value, prompt, answer, "prompt", name))
            for name, answer in zip(PAIR, answers)
        ]

    def _checked(self, example: Example) -> Example:
        if not example.text.isascii():
            try:
                example.text.encode()
            except UnicodeEncodeError as error:
                raise Broken(
                    f"its text holds half of a surrogate pair at character {error.start + 1}; write the whole character"
                ) from None
        return example

    def _example(self, value: dict | str) -> Example:
        if isinstance(value, str):  # a text file
            return Example(value, None, True)
        if (
            self._prompt
            or self._completion
            or (not self._named and "completion" in value and "prompt" in value)
        ):
            prompt_name, completion_name = (
                self._prompt or "prompt",
                self._completion or "completion",
            )
            return self._completed(
                value,
                self._field(value, prompt_name),
                self._field(value, completion_name),
                prompt_name,
                completion_name,
            )
        if self._messages or (not self._named and "messages" in value):
            name = self._messages or "messages"
            return self._chat(value, _messages(self._field(value, name), name), 0, name)
        name = self._text or "text"
        if name not in value and not self._named:
            raise Broken(
                f'no field "text", "messages", or "prompt" and "completion" ({_there_are(value)}); '
                "--text-field, --messages-field, or --prompt-field and --completion-field name it"
            )
        return Example(_text(self._field(value, name), name), None, True)

    def _completed(
        self, value: dict, prompt, completion, prompt_name: str, completion_name: str
    ) -> Example:
        """A prompt with one completion, two strings or two lists of messages; the completion counts."""
        if isinstance(prompt, list) and isinstance(completion, list):
            return self._chat(
                value,
                [*_messages(prompt, prompt_name), *_messages(completion, completion_name)],
                len(prompt),
                completion_name,
            )
        prompt, completion = _text(prompt, prompt_name), _text(completion, completion_name)
        if not completion:
            raise Broken(
                f'field "{completion_name}" is empty: nothing would count in the loss; fill it, or leave the record out'
            )
        return Example(
            prompt + completion,
            ((len(prompt), len(prompt) + len(completion)),) if self._mask else None,
            True,
        )

    def _field(self, value: dict, name: str):
        if name not in value:
            option = next(
                (
                    flag
                    for flag, given in (
                        ("prompt", self._prompt),
                        ("completion", self._completion),
                        ("messages", self._messages),
                    )
                    if given == name
                ),
                "text",
            )
            raise Broken(f'no field "{name}" ({_there_are(value)}); --{option}-field names it')
        return value[name]

    def _chat(self, value: dict, messages: list[dict], first: int, name: str) -> Example:
        if self._template is None:
            raise InputError(
                f'a record holds "{name}", but the tokenizer has no chat template; --chat-template FILE gives one'
            )
        tools = value.get("tools")
        if isinstance(tools, str):  # datasets keep them as JSON, as Arrow has no free-form type
            try:
                tools = json.loads(tools)
            except ValueError:
                raise Broken(
                    'field "tools" is a string that is not JSON; give the list itself, or its JSON'
                ) from None
        text, spans = self._template.render(messages, tools, first)
        if self._mask and not spans:
            raise Broken(
                f'field "{name}" holds no assistant message: nothing would count in the loss; add one, or --loss all'
            )
        return Example(text, spans if self._mask else None, False)


class ChatTemplate:
    """A tokenizer's Jinja template. `specials`: names and texts of its special tokens (bos_token, …), which the
    template may use; `endings`: tokens that may end a turn; `origin`: where it stands, for errors."""

    def __init__(self, source: str, specials: dict[str, str], endings: list[str], origin: str):
        self.source = source
        self._library, self._specials, self._origin = None, specials, origin
        self._marks_generation = re.search(r"\{%-?\s*generation\s*-?%\}", source) is not None
        self._ending = (
            re.compile(
                "(?:" + "|".join(map(re.escape, sorted(endings, key=len, reverse=True))) + ")"
            )
            if endings
            else None
        )

    def render(
        self, messages: list[dict], tools: list | None, first: int
    ) -> tuple[str, tuple[tuple[int, int], ...]]:
        """The whole chat, and the characters that the assistant says in messages[first:]. Raises Broken.

        A template with {% generation %} says so itself. For another one, a turn is what the chat has after what it
        would be given as a prompt for that turn (add_generation_prompt).
        """
        turns = [
            number
            for number in range(first, len(messages))
            if messages[number]["role"] == "assistant"
        ]
        if self._marks_generation:
            text, spans = self._render(messages, tools, False, True)
            earlier = sum(message["role"] == "assistant" for message in messages[:first])
            return text, tuple(spans[earlier:])
        text, _ = self._render(messages, tools, False, False)
        spans = []
        for number in turns:
            before, _ = self._render(messages[:number], tools, True, False)
            if not text.startswith(before):
                raise Broken(
                    "the chat template writes an assistant's turn otherwise than its own generation prompt begins "
                    "it, so the turn can't be told; give one with {% generation %} (--chat-template), or --loss all"
                )
            after, _ = (
                self._render(messages[: number + 1], tools, False, False)
                if number + 1 < len(messages)
                else (text, None)
            )
            end = (
                len(after)
                if text.startswith(after)
                else self._end_of_turn(text, len(before), messages[number])
            )
            spans.append((len(before), self._without_filler(text, len(before), end)))
        return text, tuple(spans)

    def _render(self, messages: list[dict], tools: list | None, prompt: bool, marks: bool):
        if self._library is None:
            self._load()
        try:
            texts, spans = self._library.render_jinja_template(
                [messages],
                tools=tools,
                chat_template=self.source,
                add_generation_prompt=prompt,
                return_assistant_tokens_mask=marks,
                **self._specials,
            )
        except InputError:
            raise
        except Exception as error:  # templates raise what they like
            raise Broken(
                f"the chat template refuses it: {' '.join(str(error).split())[:200]}; mend the chat, or give another template (--chat-template)"
            ) from None
        return texts[0], spans[0] if marks else None

    def _load(self) -> None:
        import jinja2
        import transformers.utils.chat_template_utils as library  # here: it takes a second, and most inputs need none

        try:
            library._compile_jinja_template(self.source)
        except jinja2.TemplateError as error:
            where = f":{error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
            raise InputError(f"{self._origin}{where}: not a chat template: {error}") from None
        self._library = library

    def _end_of_turn(self, text: str, begin: int, message: dict) -> int:
        """For a template that shortens earlier turns (Qwen3 drops what was thought): where its content ends."""
        content = message.get("content")
        content = content.rsplit("</think>", 1)[-1].strip() if isinstance(content, str) else ""
        at = text.find(content, begin) if content else -1
        if at < 0:
            raise Broken(
                "the chat template changes an earlier turn of the assistant, which then can't be told; "
                "give one with {% generation %} (--chat-template), or --loss all"
            )
        end = at + len(content)
        ending = self._ending.match(text, end) if self._ending else None
        return ending.end() if ending else end

    def _without_filler(self, text: str, begin: int, end: int) -> int:
        """`end` without the white space that a template puts behind the token that ends a turn: nobody generates it."""
        kept = len(text[begin:end].rstrip()) + begin
        if self._ending:
            for found in self._ending.finditer(text, begin, kept):
                if found.end() == kept:
                    return kept
        return end


def _messages(value, name: str) -> list[dict]:
    if not isinstance(value, list):
        raise Broken(
            f'field "{name}" is {json_type(value)}, not a list of messages; write [{{"role": "user", "content": "…"}}, …], or name another field'
        )
    for number, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            hint = (
                '; "from" and "value" are to be "role" and "content"'
                if isinstance(message, dict) and "from" in message
                else ""
            )
            raise Broken(
                f'{name}[{number}] is no message: {{"role": …, "content": …}} is wanted{hint}'
            )
        if "content" not in message and "tool_calls" not in message:
            raise Broken(f'{name}[{number}] has no "content"; give what is said, or "tool_calls"')
    return value


def _text(value, name: str) -> str:
    if not isinstance(value, str):
        raise Broken(
            f'field "{name}" is {json_type(value)}, not a string; put it in quotes, or name another field'
        )
    return value


def _there_are(value: dict) -> str:
    return "there are: " + (", ".join(json.dumps(key) for key in list(value)[:8]) or "none")
