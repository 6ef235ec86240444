"""What answers prompts. An engine is made once and called with a batch; it answers each of them, or raises for the whole batch."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from muster_score.inputs import InputError


@dataclass(frozen=True)
class Sampling:
    max_tokens: int = 256
    temperature: float = 0.0  # 0: greedy
    top_p: float = 1.0
    seed: int = 0


class EngineDied(Exception):
    """Nothing it is given works any more: the process has to be started again."""


# A prompt is a text, or the messages of a chat.
Prompt = str | list[dict]


class Transformers:
    def __init__(self, model: str, sampling: Sampling):
        import torch
        import transformers

        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.torch, self.sampling = torch, sampling
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(model, padding_side="left")
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        self.model = transformers.AutoModelForCausalLM.from_pretrained(model).to(device).eval()

    def __call__(self, prompts: list[Prompt]) -> list[str]:
        texts = [
            prompt
            if isinstance(prompt, str)
            else self.tokenizer.apply_chat_template(
                prompt, tokenize=False, add_generation_prompt=True
            )
            for prompt in prompts
        ]
        given = self.tokenizer(texts, return_tensors="pt", padding=True).to(self.model.device)
        options = {"max_new_tokens": self.sampling.max_tokens, "do_sample": False}
        if self.sampling.temperature > 0:
            options |= {"do_sample": True, "temperature": self.sampling.temperature}
            options |= {"top_p": self.sampling.top_p}
            self.torch.manual_seed(self.sampling.seed)  # the same shard, the same answers
        with self.torch.inference_mode():
            tokens = self.model.generate(
                **given, **options, pad_token_id=self.tokenizer.pad_token_id
            )
        return self.tokenizer.batch_decode(
            tokens[:, given["input_ids"].shape[1] :], skip_special_tokens=True
        )


class Vllm:
    def __init__(self, model: str, sampling: Sampling):
        import vllm

        self.engine = vllm.LLM(model=model)
        self.sampling = vllm.SamplingParams(
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=sampling.seed,
        )

    def __call__(self, prompts: list[Prompt]) -> list[str]:
        answers: list[str] = [""] * len(prompts)
        for chat, call in ((False, self.engine.generate), (True, self.engine.chat)):
            places = [i for i, prompt in enumerate(prompts) if isinstance(prompt, list) == chat]
            if not places:
                continue
            done = call([prompts[i] for i in places], self.sampling, use_tqdm=False)
            for place, answer in zip(places, done, strict=True):
                answers[place] = answer.outputs[0].text
        return answers


ENGINES = {"transformers": Transformers, "vllm": Vllm}


def load(name: str, model: str, sampling: Sampling) -> Callable[[list], list]:
    """`name`: one of ENGINES, or module:Class of the user's, which is made without arguments and called with the rows of a batch."""
    if name in ENGINES:
        if not model:
            raise InputError(f"--engine {name} needs --model")
        return ENGINES[name](model, sampling)
    module, colon, member = name.partition(":")
    if not colon:
        raise InputError(
            f"--engine {name}: must be {', '.join(ENGINES)}, or module:Class of your own"
        )
    try:
        made = getattr(importlib.import_module(module), member)
    except (ImportError, AttributeError) as error:
        raise InputError(f"--engine {name}: {error}. Is its directory in PYTHONPATH?") from error
    return made()


def answer_all(engine: Callable[[list], list], batch: list) -> list:
    """An answer each, or the exception in its place. What the engine can't do for a whole batch it is asked for one by one: a bad row costs itself
    alone."""
    try:
        return _checked(engine, batch)
    except Exception as error:  # noqa: BLE001 (whatever a model or a user's class raises)
        if len(batch) == 1:
            return [error]
    answers = []
    for one in batch:
        try:
            answers += _checked(engine, [one])
        except Exception as error:  # noqa: BLE001
            answers.append(error)
    return answers


def _checked(engine: Callable[[list], list], batch: list) -> list:
    answers = list(engine(batch))
    if len(answers) != len(batch):
        raise ValueError(f"the engine gave {len(answers)} answers for {len(batch)} rows")
    return answers
