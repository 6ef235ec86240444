"""Run by test_two_tower.py in the environment that has TorchRec."""

import itertools
import math
import sys
from pathlib import Path

import muster_runtime
import pytest
import torch
import two_tower
import two_tower_model
import two_tower_sharding as sharding
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from two_tower import OPTIMIZERS, Batches, Settings, TwoTower, batch_softmax
from two_tower_data import World
from two_tower_score import Items

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


def rank_of(model: TwoTower, monkeypatch, rank: int = 0) -> TwoTower:
    """As Lightning would have it train, without a Trainer."""
    monkeypatch.setattr(TwoTower, "global_rank", rank)
    monkeypatch.setattr(TwoTower, "global_step", 0)
    monkeypatch.setattr(TwoTower, "log", lambda *_: None)
    return model


def step_of(model: TwoTower, pairs: list) -> float:
    """Its loss, with gradients."""
    loss = model.training_step(Batches(World(**SMALL), model.tokenizer)(pairs), 0)
    loss.backward()
    return float(loss)


PAIRS = [(1, 2), (3, 4), (5, 2), (7, 9), (1, 11), (30, 4)]
SHARES = torch.linspace(0.01, 0.2, SMALL["items"]).log()


def whole_step(monkeypatch) -> dict:
    model = rank_of(model_of(), monkeypatch)
    model.log_shares = SHARES
    loss = step_of(model, PAIRS)
    return {"loss": loss, "gradients": {name: p.grad for name, p in model.named_parameters()}}


def one_of_two(rank: int, folder: str) -> None:
    """A rank of its own process: a step of its half, and an export of tables that are shared out."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
    )
    with pytest.MonkeyPatch.context() as monkeypatch:
        model = rank_of(model_of(), monkeypatch, rank)
        model.log_shares = SHARES
        told = {"loss": step_of(model, PAIRS[3 * rank : 3 * rank + 3]), "kept": model.losses}
        told["gradients"] = {}
        for name, parameter in model.named_parameters():
            torch.distributed.all_reduce(parameter.grad)
            told["gradients"][name] = parameter.grad / 2  # as DDP does
        shared = TwoTower(Settings(**SMALL), row_wise=True)
        shared.load_state_dict(model.state_dict())
        shared.configure_model()
        two_tower.export(shared, Path(folder) / "shared")
        if rank == 0:
            two_tower.export(model, Path(folder) / "whole")
    torch.save(told, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def test_two_ranks_do_what_one_does_and_export_all_rows_of_the_tables(tmp_path, monkeypatch):
    torch.multiprocessing.spawn(one_of_two, (str(tmp_path),), nprocs=2)
    whole = whole_step(monkeypatch)
    told = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    assert sum(one["loss"] for one in told) / 2 == pytest.approx(whole["loss"], rel=1e-5)
    for one in told:
        assert one["kept"] == {1: pytest.approx(whole["loss"], rel=1e-5)}
        for name, gradient in whole["gradients"].items():
            torch.testing.assert_close(one["gradients"][name], gradient, atol=1e-6, rtol=1e-4)
    shared, alike = (two_tower.load(tmp_path / name).state_dict() for name in ("shared", "whole"))
    torch.testing.assert_close(dict(shared), dict(alike), atol=0, rtol=0)


@pytest.mark.parametrize("rows", [0, 1, 2, 5, 6])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_each_row_of_a_table_is_of_one_rank(monkeypatch, rows, ranks):
    table = torch.arange(2 * rows).view(rows, 2)
    monkeypatch.setattr(sharding.distributed, "get_world_size", lambda: ranks)
    parts = []
    for rank in range(ranks):
        monkeypatch.setattr(sharding.distributed, "get_rank", lambda rank=rank: rank)
        parts.append(sharding.own_rows(table))
    assert torch.equal(torch.cat(parts), table)


def test_items_are_scored_by_their_numbers_in_whatever_order(world, tmp_path, monkeypatch):
    model = model_of()
    two_tower.export(model, tmp_path)
    monkeypatch.setenv("TWO_TOWER_MODEL", str(tmp_path))
    wanted = two_tower.item_vectors(model.eval(), Batches(world, model.tokenizer))
    order = [7, 3, 29, 0]
    columns = {"text": world.item_text, "categories": world.item_categories}
    columns["dense"] = world.item_dense.tolist()
    rows = [{"item": i} | {name: values[i] for name, values in columns.items()} for i in order]
    found = torch.tensor([answer["vector"] for answer in Items()(rows)])
    torch.testing.assert_close(found, wanted[order], atol=1e-6, rtol=0)


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


def test_a_training_corrects_by_how_often_its_items_are_there(tmp_path, monkeypatch):
    monkeypatch.setenv("MUSTER_CHECKPOINT_DIR", str(tmp_path / "checkpoints"))
    words = ["--steps", "1", "--batch", "64", "--users", "40", "--items", "30", "--seed", "1"]
    monkeypatch.setattr(sys, "argv", ["two_tower.py", *words, "--export", str(tmp_path)])
    trained = []
    monkeypatch.setattr(two_tower, "export", lambda model, directory: trained.append(model))
    two_tower.main()
    items = World(**SMALL).interactions(64)[:, 1]
    wanted = torch.from_numpy(two_tower.shares_of(items, SMALL["items"]))
    torch.testing.assert_close(trained[0].log_shares, wanted)
