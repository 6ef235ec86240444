"""Reward models (reward): equal to autograd through transformers, the same in every layout and after a kill, and what is refused."""

import json
import signal
import subprocess

import experts
import preferences
import pytest
import rewards
import torch
from harness import Gang
from preferences import BATCH, LENGTH, make_pairs, run
from rewards import CENTER, PAD, SHOWN, config_of, documents, settings
from safetensors.torch import load_file, save_file
from test_schema import train
from test_stages import estimate


@pytest.fixture(scope="module")
def init(tmp_path_factory):
    return rewards.make_init(tmp_path_factory.mktemp("init") / "init")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return make_pairs(tmp_path_factory.mktemp("pairs") / "pairs")


@pytest.mark.parametrize(
    "family, more",
    [("llama", {}), ("llama", {"tie_word_embeddings": True}), ("qwen2", {})],
    ids=["llama", "tied", "qwen2"],
)
@pytest.mark.parametrize("center", [0, CENTER])
def test_it_trains_as_autograd_through_transformers_and_exports_the_same_scores(
    trainer_bin, pairs, tmp_path, family, more, center
):
    init = rewards.make_init(tmp_path / "init", family, **more)
    said = {"center_rewards_coefficient": center} if center else {}
    config = settings(init, pairs, reward=said, export=str(tmp_path / "model"))
    dump = tmp_path / "dump"
    ours = run(trainer_bin, config, 1, tmp_path / "run", dump_tokens=dump)
    model, order = rewards.load(init), rewards.pairs_by_step(dump, pairs)
    wanted = rewards.transformers_loop(model, documents(pairs), order, center)
    found = preferences.differences(ours, wanted)
    assert set(found) == set(SHOWN) and max(found.values()) <= 2e-5, found
    assert wanted[0]["loss"] - wanted[-1]["loss"] > 1e-2, "something was learnt"
    exported = rewards.load(tmp_path / "model")
    assert type(exported) is type(model) and exported.config.num_labels == 1
    with torch.no_grad():
        for pair in documents(pairs):
            for ours_, theirs in zip(rewards.rewards(exported, pair), rewards.rewards(model, pair)):
                assert abs(ours_ - theirs) <= 1e-4
    # Padded rows are scored at the same tokens as single ones.
    long, short = sorted(documents(pairs)[2], key=len, reverse=True)
    batch = torch.tensor([long, short + [PAD] * (len(long) - len(short))])
    with torch.no_grad():
        at_once = exported(input_ids=batch, attention_mask=(batch != PAD).long()).logits[:, 0]
        alone = rewards.rewards(exported, [long, short])
    assert max(abs(one - other).item() for one, other in zip(at_once, alone)) < 1e-5


def test_a_model_of_tokens_gets_a_score_that_is_drawn_by_the_seed(trainer_bin, pairs, tmp_path):
    init = rewards.make_causal(tmp_path / "init")
    scores = {}
    for name, seed, ranks in (("one", 42, 1), ("two", 42, 2), ("other", 43, 1)):
        still = {"learning_rate": 1e-30, "max_steps": 1, "zero_stage": 3, "seed": seed}
        config = settings(init, pairs, export=str(tmp_path / name), **still)
        run(trainer_bin, config, ranks, tmp_path / f"run-{name}")
        model = rewards.load(tmp_path / name)
        scores[name] = model.score.weight.detach()
        wanted = preferences.load(init).model.state_dict()
        assert all(torch.equal(its, wanted[key]) for key, its in model.model.state_dict().items())
    assert torch.equal(scores["one"], scores["two"])
    assert not torch.equal(scores["one"], scores["other"])
    assert 0.01 < scores["one"].std() < 0.04, "initializer_range is 0.02"


@pytest.mark.parametrize("pad", [PAD, 257, None], ids=["pad", "end", "none"])
def test_a_document_is_scored_at_its_last_token_that_is_no_padding(
    trainer_bin, pairs, tmp_path, pad
):
    # Documents end with token 257: where that is the padding, too, transformers scores the one before.
    init = rewards.make_init(tmp_path / "init", pad_token_id=pad)
    dump = tmp_path / "dump"
    ours = run(trainer_bin, settings(init, pairs), 1, tmp_path / "run", dump_tokens=dump)
    assert all(ids[-1] == 257 for pair in documents(pairs) for ids in pair)
    model, order = rewards.load(init), rewards.pairs_by_step(dump, pairs)
    wanted = rewards.transformers_loop(model, documents(pairs), order[:1], CENTER)
    assert max(preferences.differences(ours[:1], wanted).values()) <= 2e-5


@pytest.mark.parametrize(
    "ranks, more",
    [
        (2, {}),
        (3, {"zero_stage": 3, "micro_batch_size": 1}),
        (2, {"zero_stage": 3, "shard_size": 1, "offload": "parameters"}),
        (1, {"recompute": "full", "micro_batch_size": BATCH}),
        (2, {"parallel": {"tp": 2}}),
        (2, {"parallel": {"pp": 2}, "micro_batch_size": 1}),
    ],
    ids=["dp", "zero3-uneven", "offload", "recompute", "tp", "pp"],
)
def test_every_layout_trains_alike(trainer_bin, init, pairs, tmp_path, ranks, more):
    one = run(trainer_bin, settings(init, pairs), 1, tmp_path / "one")
    many = run(trainer_bin, settings(init, pairs, **more), ranks, tmp_path / "many")
    found = preferences.differences(many, [{name: line[name] for name in SHOWN} for line in one])
    assert max(found.values()) <= 2e-5, found


def test_an_estimate_counts_what_a_score_of_slices_sends(trainer_bin, init, pairs, tmp_path):
    said = settings(init, pairs, parallel={"tp": 2})
    done = estimate(trainer_bin, tmp_path, said, "--ranks", "2", "--json", "true")
    assert done.returncode == 0, done.stderr
    # A step's tokens of 64 numbers of 4 bytes, of which each rank sends half: 10 times in each of 2 layers, twice at the
    # embedding; and at the head one number each.
    tokens, row = 2 * BATCH * LENGTH, 64 * 4
    wanted = tokens * row // 2 * (2 * 10 + 2) + tokens * 4 // 2
    assert json.loads(done.stdout)["slice_bytes_per_step"] == wanted


def test_experts_that_ranks_share_out_train_alike(trainer_bin, pairs, tmp_path):
    init = experts.make_init(tmp_path / "init", "mixtral")
    base = settings(init, pairs, router_aux_loss="none")
    one = run(trainer_bin, base, 1, tmp_path / "one")
    many = run(trainer_bin, base | {"parallel": {"ep": 2}}, 2, tmp_path / "many")
    found = preferences.differences(many, [{name: line[name] for name in SHOWN} for line in one])
    assert max(found.values()) <= 2e-5, found


def test_a_killed_run_goes_on_to_the_same_bits(trainer_bin, init, pairs, tmp_path):
    config = settings(init, pairs, max_steps=40, save_steps=2, deterministic=True)
    whole = run(trainer_bin, config, 2, tmp_path / "whole")
    endless = config | {"max_steps": 100_000}
    with Gang(trainer_bin, endless, 2, tmp_path / "killed") as gang:
        gang.wait_for_step(12)
        gang.signal(signal.SIGKILL)
        gang.wait()
    step = gang.checkpoint_steps()[0]
    assert 0 < step < 40
    again = run(trainer_bin, config, 2, tmp_path / "again", resume_from=[gang.checkpoint(step)])
    kept = [{name: line[name] for name in SHOWN} for line in again]
    assert kept == [{name: line[name] for name in SHOWN} for line in whole[step:]]


def test_an_evaluation_tells_the_share_of_pairs_that_are_right(trainer_bin, init, tmp_path):
    pairs = make_pairs(tmp_path / "pairs", 30, "--validation-share", "0.3")
    held = documents(pairs / "validation")
    config = settings(init, pairs, eval_interval=5, export=str(tmp_path / "model"))
    line = run(trainer_bin, config, 2, tmp_path / "run")[-1]
    model = rewards.load(tmp_path / "model")
    with torch.no_grad():
        found = [rewards.rewards(model, pair) for pair in held]
    right = sum(float(chosen > rejected) for chosen, rejected in found) / len(found)
    loss = sum(rewards.cost(*pair, CENTER).item() for pair in found) / len(found)
    assert abs(line["eval_accuracy"] - right) < 1e-9 and abs(line["eval_loss"] - loss) < 1e-5
    assert "eval_accuracy=" in (tmp_path / "run" / "0.out").read_text()


def test_pairs_that_are_too_long_are_left_out(trainer_bin, init, tmp_path):
    source = tmp_path / "pairs.jsonl"
    with open(source, "w") as file:
        for number, answer in enumerate(["7", "7" * 60, "77", "777"]):
            record = {"prompt": f"{number} and", "chosen": answer, "rejected": "8"}
            file.write(json.dumps(record) + "\n")
    done = preferences.prepare(source, tmp_path / "tokens")
    assert done.returncode == 0, done.stderr
    dump = tmp_path / "dump"
    config = settings(init, tmp_path / "tokens", global_batch_size=3, max_steps=1)
    run(trainer_bin, config, 1, tmp_path / "run", dump_tokens=dump)
    said = (tmp_path / "run" / "0.err").read_text()
    assert (
        f"note: of 4 pairs, 1 are left out, as an answer with its prompt is longer than max_length {LENGTH}"
        in said
    )
    assert sorted(rewards.pairs_by_step(dump, tmp_path / "tokens", 3)[0]) == [0, 2, 3]


def test_checkpoints_and_directories_become_each_other(trainer_bin, init, pairs, tmp_path):
    config = settings(init, pairs, max_steps=2, save_steps=2, export=str(tmp_path / "model"))
    run(trainer_bin, config, 2, tmp_path / "run")
    checkpoint = tmp_path / "run" / "checkpoints" / "step-00000002"
    for source, target in ((checkpoint, "again"), (tmp_path / "model", "step")):
        words = ["convert", "--input", source, "--output", tmp_path / target]
        done = subprocess.run([trainer_bin, *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    again = rewards.load(tmp_path / "again").state_dict()
    exported = rewards.load(tmp_path / "model").state_dict()
    assert all(torch.equal(again[name], its) for name, its in exported.items())
    assert config_of(tmp_path / "model")["architectures"] == ["LlamaForSequenceClassification"]


@pytest.mark.parametrize(
    "more, said",
    [
        ({"reward": {"center_rewards_coefficient": -1}}, "must be a number from 0; got -1"),
        ({"reward": {"num_labels": 1}}, "trainer.reward.num_labels: a reward is one number"),
        ({"dpo": {}}, "trainer.reward: dpo and reward exclude each other"),
        ({"packing": "bfd"}, "trainer.packing: with reward a row is a pair"),
        ({"parallel": {"cp": 2}}, "trainer.parallel.cp: is not supported yet with reward"),
        ({"cuda_graphs": True}, "trainer.cuda_graphs: is not supported yet with reward"),
        ({"z_loss": 0.1}, "trainer.z_loss: is not supported yet with reward"),
        ({"lora": {"rank": 4}}, "trainer.lora: is not supported yet with reward"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_does_not_go_with_it_is_refused_by_name(
    trainer_bin, init, pairs, tmp_path, more, said
):
    done = train(trainer_bin, tmp_path, settings(init, pairs, **more))
    assert done.returncode == 2 and said in done.stderr, done.stderr


def test_models_and_data_of_another_kind_are_refused(trainer_bin, init, pairs, tokens, tmp_path):
    def refused(config: dict, said: str) -> None:
        done = train(trainer_bin, tmp_path, config)
        assert done.returncode == 2 and said in done.stderr, done.stderr

    bare = {key: its for key, its in settings(init, tokens).items() if key != "reward"}
    refused(bare, "is a model for sequence classification, whose head knows no tokens; add reward")
    refused(settings(init, tokens), "holds no pairs, which reward trains on")
    two = rewards.make_init(tmp_path / "two", num_labels=2)
    refused(settings(two, pairs), "id2label: a model for sequence classification needs one label")
    none = experts.make_init(tmp_path / "none", "dots1")
    refused(settings(none, pairs), "trainer.reward: is not for model_type dots1")
    headless = rewards.make_init(tmp_path / "headless")
    weights = load_file(headless / "model.safetensors")
    del weights["score.weight"]
    save_file(weights, headless / "model.safetensors")
    refused(settings(headless, pairs), "has no score.weight, which config.json's model has")
