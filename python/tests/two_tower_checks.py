"""Run by test_two_tower.py in the environment that has TorchRec."""

import itertools
import math
import sys

import muster_runtime
import pytest
import torch
import two_tower
import two_tower_model
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from two_tower import OPTIMIZERS, Batches, Settings, TwoTower, batch_softmax
from two_tower_data import World

SMALL = {"users": 40, "items": 30, "seed": 1}


@pytest.fixture(scope="module")
def world():
    return World(**SMALL)


def model_of(**more) -> TwoTower:
    torch.manual_seed(0)
    return TwoTower(Settings(**SMALL, **more))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_optimizer_is_the_one_that_is_asked_for_and_has_all_parameters(name):
    model = model_of(optimizer=name)
    optimizer = model.configure_optimizers()
    assert type(optimizer).__name__.lower() == name
    has = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
    assert has == sum(p.numel() for p in model.parameters())


def test_padding_changes_nothing(world):
    """Beside a row with more words and longer bags a row's vector is what it is alone."""
    model = model_of().eval()
    texts = [" ".join(text.split()[: 1 + i % 6]) for i, text in enumerate(world.user_text)]
    world.user_text = texts
    batches = Batches(world, model.tokenizer)
    together = model.query(batches.queries(torch.arange(40)))
    for user in (0, 7, 39):
        one = batches.queries(torch.tensor([user]))
        words = len(texts[user].split())
        one.tokens, one.mask = one.tokens[:, :words], one.mask[:, :words]
        torch.testing.assert_close(model.query(one)[0], together[user], atol=1e-6, rtol=0)


def test_a_bag_is_the_sum_of_its_ids():
    model = model_of()
    bags = two_tower_model.bags_of({"user": [[1], [2]], "history": [[3, 5], []]})
    found = model.query.bags(bags).to_dict()["history"]
    table = model.query.bags.embedding_bags["history_table"].weight
    torch.testing.assert_close(found[0], table[3] + table[5])
    assert found[1].abs().sum() == 0


def test_the_loss_is_a_softmax_with_log_q_without_the_own_item_a_second_time():
    queries, items = torch.randn(2, 4), torch.randn(3, 4)
    shares = torch.tensor([0.5, 0.2, 0.3])
    ids = torch.tensor([7, 8, 7])  # items 0 and 2 are the same one
    loss = batch_softmax(queries, items, shares.log(), ids, ids[:2], 0)
    scores = (queries @ items.T) / two_tower.TEMPERATURE
    first = math.exp(scores[0, 0]) / 0.5, math.exp(scores[0, 1]) / 0.2
    second = [math.exp(score) / share for score, share in zip(scores[1], shares, strict=True)]
    wanted = -math.log(first[0] / sum(first)) - math.log(second[1] / sum(second))
    assert float(loss) == pytest.approx(wanted / 2, rel=1e-4)


def exported_llama(folder):
    """A directory as muster-trainer exports one."""
    config = LlamaConfig(vocab_size=80, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(70)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w69").save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", ["whole", "adapter", "trained by an adapter"])
def test_an_exported_directory_is_an_encoder(world, tmp_path, kind):
    directory, rank = exported_llama(tmp_path / "base"), 0
    if kind == "adapter":
        from peft import LoraConfig, get_peft_model

        whole = LlamaForCausalLM.from_pretrained(directory)
        wanted = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
        get_peft_model(whole, wanted).save_pretrained(directory / "adapter")
        directory = directory / "adapter"  # which has no tokenizer of its own
    elif kind == "trained by an adapter":
        rank = 2
    model = model_of(encoder=str(directory), lora_rank=rank)
    batches = Batches(world, model.tokenizer)
    batch = batches([(1, 2), (3, 4)])
    vectors = model.query(batch["query"])
    vectors.sum().backward()
    assert vectors.shape == (2, two_tower_model.WIDTH) and vectors.isfinite().all()
    trained = [name for name, p in model.named_parameters() if p.grad is not None and ".encoder." in name]  # fmt: skip
    assert trained and all("lora_" in name for name in trained) == bool(rank)


def test_an_export_that_breaks_off_leaves_the_one_that_was_there(tmp_path, monkeypatch):
    two_tower.export(model_of(), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def breaks_off(state, file):
        with open(file, "wb") if not hasattr(file, "write") else file as half:
            half.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(torch, "save", breaks_off)
    with pytest.raises(OSError, match="no space left"):
        two_tower.export(model_of(optimizer="sgd"), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert two_tower.load(tmp_path).settings == Settings(**SMALL)


@pytest.mark.parametrize("stopped_at", [1, 2, None])
def test_a_training_that_was_stopped_before_its_last_step_exports_nothing(
    tmp_path, monkeypatch, stopped_at
):
    monkeypatch.setenv("MUSTER_CHECKPOINT_DIR", str(tmp_path / "checkpoints"))
    steps = itertools.count(1)
    monkeypatch.setattr(muster_runtime, "decide", lambda: (next(steps) == stopped_at, False))
    words = {"--steps": 2, "--batch": 8, "--users": 40, "--items": 30, "--export": tmp_path / "model"}  # fmt: skip
    line = ["two_tower.py", *(str(word) for pair in words.items() for word in pair)]
    monkeypatch.setattr(sys, "argv", line)
    if stopped_at == 1:
        with pytest.raises(SystemExit, match=f"^{two_tower.STOPPED}$"):
            two_tower.main()
    else:
        two_tower.main()
    assert (tmp_path / "model").exists() == (stopped_at != 1)
