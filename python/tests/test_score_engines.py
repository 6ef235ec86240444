"""muster_score's own engines: transformers, and vLLM as far as it is known without it."""

import errno
import json
import shutil
import sys
import types

import pytest
from muster_score.engines import EngineDied, Transformers, answer_all, is_lasting, load
from muster_score.inputs import BadRow, InputError
from muster_score.prompts import Answer, Ask, Sampling
from muster_score.stopping import Stopped
from score_helpers import score, scored
from score_model import make_model

pytest.importorskip("torch")
pytest.importorskip("transformers")
GREEDY = Sampling(max_tokens=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    import torch

    torch.set_num_threads(1)
    return make_model(tmp_path_factory.mktemp("model"), context=64)


@pytest.fixture(scope="module")
def engine(folder):
    return Transformers(str(folder), GREEDY)


def asks(*prompts, sampling=GREEDY):
    return [Ask(prompt, sampling) for prompt in prompts]


def sampled(*prompts, temperature=1.0):
    return [Ask(prompt, Sampling(8, temperature, seed=i)) for i, prompt in enumerate(prompts)]


def test_transformers_answers_as_its_own_loop_does(folder, engine):
    import torch
    import transformers

    prompts = ["a b", "c", "d a b c"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    alone = []
    for prompt in prompts:
        given = tokenizer(prompt, return_tensors="pt")
        with torch.inference_mode():
            tokens = model.generate(**given, max_new_tokens=8, do_sample=False, pad_token_id=0)
        answer = tokens[0, given["input_ids"].shape[1] :]
        alone.append(tokenizer.decode(answer, skip_special_tokens=True))
    found = engine(asks(*prompts))
    assert [answer.text for answer in found] == alone
    assert found[0] == Answer(alone[0], "length", 2, 8)
    assert len(set(alone)) > 1


@pytest.mark.parametrize(
    ("answers", "wanted"),
    [
        (lambda batch: [x + 1 for x in batch], [2, 3]),
        (lambda batch: batch[:1], [1, 2]),  # too few for both, enough for one
        (lambda batch: [1 // (x - 1) for x in batch], [ZeroDivisionError, 1]),
    ],
)
def test_what_fails_as_a_batch_is_asked_one_by_one(answers, wanted):
    found = answer_all(answers, [1, 2])
    assert [type(x) if isinstance(x, Exception) else x for x in found] == wanted


def test_an_answer_ends_at_any_of_the_models_ends(folder, tmp_path):
    """Chat models have two or three: of the text, and of a turn."""
    whole = Transformers(str(folder), GREEDY)
    ids = whole.tokenizer(whole(asks("a b"))[0].text)["input_ids"]
    end = ids[2]
    for name, ends in (("one", end), ("last", [1, end]), ("first", [end, 1])):
        model = shutil.copytree(folder, tmp_path / name)
        path = model / "generation_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": ends}))
        found = Transformers(str(model), GREEDY)(asks("a b"))[0]
        count = ids.index(end) + 1
        assert (found.finish_reason, found.answer_tokens) == ("stop", count), name


def test_each_row_draws_for_itself_and_the_rows_beside_it_change_nothing(engine):
    rows = sampled(*["a b c"] * 9)
    together = [answer.text for answer in engine(rows)]
    assert len(set(together)) > 5
    assert [answer.text for answer in engine(rows)] == together
    for size in (2, 5):
        found = []
        for at in range(0, len(rows), size):
            found += engine(asks("d a b c a b") + rows[at : at + size])[1:]
        assert [answer.text for answer in found] == together
    mixed = engine([rows[3], *asks("a b c")])
    assert [answer.text for answer in mixed] == [together[3], engine(asks("a b c"))[0].text]


def test_drawn_tokens_have_the_probabilities_of_the_model():
    import torch
    from muster_score.engines import Draw

    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    for top_p, temperature in ((1.0, 1.0), (1.0, 2.0), (0.85, 1.0)):
        rows = [Sampling(1, temperature, top_p, seed) for seed in range(4000)]
        drawn = Draw(torch, rows, "cpu")(None, logits.expand(4000, 4)).argmax(-1)
        wanted = (logits[0] / temperature).softmax(-1)
        if top_p < 1:  # 0.64, 0.24: the second passes it
            wanted = torch.where(wanted >= wanted[1], wanted, 0.0)
            wanted /= wanted.sum()
        found = drawn.bincount(minlength=4) / 4000
        assert (found - wanted).abs().max() < 0.03
        assert (found[wanted == 0] == 0).all()


def test_what_is_too_long_or_empty_is_a_bad_row_and_an_answer_ends_where_the_context_does(engine):
    long, full, fits = (" ".join("a" * count) for count in (80, 64, 61))
    found = engine(asks("a b", long, full, fits, " "))
    assert "80 tokens; the model takes 64" in found[1].why and isinstance(found[2], BadRow)
    assert found[3].finish_reason == "length" and found[3].answer_tokens == 3
    assert found[4] == BadRow("the prompt is empty")
    assert found[0] == engine(asks("a b"))[0]


def test_a_body_s_max_tokens_cut_its_row_alone(engine):
    rows = [Ask("a b", Sampling(max_tokens=3)), Ask("a b", Sampling(max_tokens=8))]
    short, whole = engine(rows)
    assert (short.answer_tokens, whole.answer_tokens) == (3, 8)
    assert whole.text.startswith(short.text)


def tokenizer_with_bos():
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = ["<s>", "</s>", *"abcdefgh"]
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "a"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    found = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")
    found.chat_template = "{{ bos_token }} {% for m in messages %}{{ m.content }} {% endfor %}"
    return found


class Llm:
    """vLLM's, as far as it is used: takes two requests at a time, in steps of one token."""

    def __init__(self, model, **options):
        self.options, self.model_config = options, types.SimpleNamespace(max_model_len=8)
        self.llm_engine, self.waiting, self.running, self.given = self, [], {}, []

    def get_tokenizer(self):
        return tokenizer_with_bos()

    def add_request(self, name, prompt, parameters):
        assert isinstance(name, str) and name not in self.running
        self.given.append((prompt["prompt_token_ids"], parameters))
        # As many steps as the prompt has tokens, so that the shorter one ends first.
        self.waiting.append((name, len(prompt["prompt_token_ids"])))

    def has_unfinished_requests(self):
        return bool(self.waiting or self.running)

    def step(self):
        while self.waiting and len(self.running) < 2:
            self.running.update([self.waiting.pop(0)])
        self.running = {name: left - 1 for name, left in self.running.items()}
        ended = [name for name, left in self.running.items() if left == 0]
        for name in ended:
            del self.running[name]
        output = types.SimpleNamespace(text="x", finish_reason="stop", token_ids=[1, 2])
        done = [types.SimpleNamespace(request_id=n, finished=True, outputs=[output]) for n in ended]
        return [types.SimpleNamespace(request_id=n, finished=False) for n in self.running] + done

    def abort_request(self, names):
        self.waiting = [one for one in self.waiting if one[0] not in names]
        for name in names:
            self.running.pop(name, None)


@pytest.fixture
def vllm(monkeypatch):
    kinds = types.SimpleNamespace(FINAL_ONLY="final")
    fake = types.SimpleNamespace(
        LLM=Llm,
        SamplingParams=lambda **words: words,
        sampling_params=types.SimpleNamespace(RequestOutputKind=kinds),
    )
    monkeypatch.setitem(sys.modules, "vllm", fake)
    return load("vllm", "m", GREEDY, {"tensor_parallel_size": 2})


def test_vllm_gets_tokens_with_one_beginning_and_a_seed_for_each_row(vllm):
    assert vllm.engine.options == {"tensor_parallel_size": 2}
    chat = [{"role": "user", "content": "a b"}]
    found = vllm(sampled(chat, "a b", "a a a a a a a a"))
    assert found[:2] == [Answer("x", "stop", 3, 2)] * 2 and isinstance(found[2], BadRow)
    assert [ids for ids, _ in vllm.engine.given] == [[0, 2, 3]] * 2
    parameters = [one for _, one in vllm.engine.given]
    assert [one["seed"] for one in parameters] == [0, 1]
    assert parameters[0]["max_tokens"] == 5  # what is left of the context


def test_vllm_takes_a_row_as_another_is_done_and_says_how_many_are(vllm):
    done = []
    found = vllm.answer(asks("a b c d", "a", "a b"), done.append)
    # Prompts of 5, 2 and 3 tokens, with the one at the beginning: the third takes the second's place.
    assert done == [0, 1, 1, 1, 3]
    assert [answer.prompt_tokens for answer in found] == [5, 2, 3]


def test_a_row_that_vllm_refuses_costs_itself_alone(vllm, monkeypatch):
    def add(self, name, prompt, parameters):
        if len(prompt["prompt_token_ids"]) == 3:
            raise ValueError("not this one")
        Llm.add_request(self, name, prompt, parameters)

    monkeypatch.setattr(vllm.engine, "add_request", types.MethodType(add, vllm.engine))
    found = answer_all(vllm, asks("a", "a b", "a b c"))
    assert [isinstance(answer, ValueError) for answer in found] == [False, True, False]
    assert len(vllm.engine.given) == 2, "none was asked twice"


def test_vllm_has_nothing_left_of_what_was_stopped(vllm):
    def stop(done):
        raise Stopped

    with pytest.raises(Stopped):
        answer_all(lambda batch: vllm.answer(batch, stop), asks("a b c", "a", "a"))
    assert not vllm.engine.has_unfinished_requests()
    assert len(vllm(asks("a"))) == 1


def test_vllm_is_asked_row_by_row_after_a_step_that_failed(vllm, monkeypatch):
    steps = []

    def step(self):
        steps.append(dict(self.waiting) | self.running)
        if len(steps[-1]) > 1:
            raise ValueError("no")
        return Llm.step(self)

    monkeypatch.setattr(vllm.engine, "step", types.MethodType(step, vllm.engine))
    found = answer_all(vllm, asks("a", "b"))
    assert [answer.text for answer in found] == ["x", "x"]
    assert max(map(len, steps[1:])) == 1


def test_a_template_that_refuses_a_chat_costs_its_row_alone(engine):
    chat = [{"role": "user", "content": "a"}]
    found = engine([*asks("a b"), Ask(chat, GREEDY)])  # it has no template
    assert "can't be turned into tokens" in found[1].why and found[0].text


def test_a_class_may_ask_for_a_table_and_gives_one(tmp_path):
    pytest.importorskip("pyarrow")
    engine = load("score_engines:Lengths", "", GREEDY)
    assert engine([{"prompt": "ab"}, {"prompt": "c", "id": 1}]) == [{"length": 2}, {"length": 1}]
    with pytest.raises((ValueError, TypeError)):  # a batch that makes no table is asked row by row
        engine([{"prompt": "ab"}, {"prompt": 1}])
    (tmp_path / "in.jsonl").write_text('{"prompt": "ab"}\n{"prompt": 1}\n{"prompt": "abc"}\n')
    assert score(tmp_path, "--engine", "score_engines:Lengths").returncode == 0
    assert [line.get("length") for line in scored(tmp_path)] == [2, None, 3]


def test_a_table_needs_pyarrow(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match="pip install pyarrow"):
        load("score_engines:Lengths", "", GREEDY)


@pytest.mark.parametrize("code", [0, 1, None])
def test_an_engine_that_exits_has_died(code):
    def leaves(batch):
        sys.exit(code)

    with pytest.raises(EngineDied, match="sys.exit"):
        answer_all(leaves, [1, 2])


def test_which_ends_of_the_making_are_lasting():
    away = type("ConnectionError", (OSError,), {})
    gone = type("RepositoryNotFoundError", (OSError,), {})

    def after(error, cause):
        error.__cause__ = cause
        return error

    for error, local, lasting in (
        (ImportError("No module named 'vllm'"), False, True),
        (TypeError("unexpected keyword"), False, True),
        (ValueError("Free memory on device is less than desired"), False, False),
        (RuntimeError("CUDA error"), True, False),
        (OSError("/m does not appear to have a file named config.json"), True, True),
        (OSError(errno.ESTALE, "Stale file handle"), True, False),
        (after(OSError("no/such is not a valid model identifier"), gone("404")), False, True),
        (after(OSError("We couldn't connect"), away("refused")), False, False),
        (after(ValueError("no config"), away("refused")), False, False),
        (after(ValueError("no config"), OSError(errno.EIO, "I/O error")), True, False),
        (after(ValueError("no config"), RuntimeError("CUDA out of memory")), True, False),
        (after(AttributeError("no attribute 'close'"), RuntimeError("CUDA error")), True, False),
        (after(ValueError("no such type"), KeyError("qwen9")), True, True),
    ):
        assert is_lasting(error, local) == lasting, error


def test_so_has_one_that_exits_while_it_is_made():
    with pytest.raises(EngineDied, match="sys.exit"):
        load("score_engines:Leaves", "", GREEDY)
