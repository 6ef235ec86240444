"""Preferences (dpo): equal to autograd through transformers, the same in every layout and after a kill, and what is refused."""

import json
import shutil
import signal
import subprocess
from pathlib import Path

import experts
import memory
import preferences
import pytest
import torch
from harness import Gang
from parity import make_init
from peft import PeftModel
from preferences import BATCH, LENGTH, LORA, SMOOTHING, make_pairs, run, settings, sides
from safetensors.torch import load_file
from test_prepare import read_masked
from test_schema import train
from transformers import LlamaConfig, LlamaForCausalLM

SHOWN = ("loss", "grad_norm", "rewards/chosen", "rewards/rejected", "rewards/margins")
LOSSES = {"sigmoid": {}, "hinge": {}, "ipo": {}, "robust": {"label_smoothing": SMOOTHING}}


@pytest.fixture(scope="module")
def init(tmp_path_factory) -> Path:
    return make_init(tmp_path_factory.mktemp("init") / "init")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> Path:
    return make_pairs(tmp_path_factory.mktemp("pairs") / "pairs")


def wants(loss_type: str, **more) -> dict:
    return {"beta": preferences.BETA, "loss_type": loss_type} | LOSSES[loss_type] | more


@pytest.mark.parametrize("loss_type", LOSSES)
def test_each_loss_trains_as_autograd_through_transformers(
    trainer_bin, init, pairs, tmp_path, loss_type
):
    config = settings(init, pairs, dpo=wants(loss_type), export=str(tmp_path / "model"))
    dump = tmp_path / "dump"
    ours = run(trainer_bin, config, 1, tmp_path / "run", dump_tokens=dump)
    model = preferences.load(init)
    wanted = preferences.transformers_loop(
        model,
        preferences.load(init),
        sides(pairs),
        preferences.pairs_by_step(dump, pairs),
        loss_type,
    )
    found = preferences.differences(ours, wanted)
    assert set(found) >= {*SHOWN, "rewards/accuracies", "logps/chosen", "logps/rejected"}
    assert max(found.values()) <= 2e-5, found
    assert abs(wanted[-1]["loss"] - wanted[0]["loss"]) > 1e-2, "something was learnt"
    exported = preferences.load(tmp_path / "model").state_dict()
    apart = max(
        (exported[name] - weight).abs().max().item() for name, weight in model.state_dict().items()
    )
    assert apart <= 1e-4, "of up to 5e-3 that weights moved"


def test_lora_s_reference_is_the_model_without_its_adapters(trainer_bin, init, pairs, tmp_path):
    still = settings(
        init, pairs, lora=LORA, max_steps=1, learning_rate=1e-30, export=str(tmp_path / "begin")
    )
    run(trainer_bin, still, 1, tmp_path / "first")
    dump = tmp_path / "dump"
    config = settings(init, pairs, lora=LORA)
    ours = run(trainer_bin, config, 1, tmp_path / "run", dump_tokens=dump)
    model = PeftModel.from_pretrained(
        preferences.load(init), tmp_path / "begin" / "adapter", is_trainable=True
    )
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.zero_()
    wanted = preferences.transformers_loop(
        model,
        preferences.load(init),
        sides(pairs),
        preferences.pairs_by_step(dump, pairs),
        "sigmoid",
    )
    found = preferences.differences(ours, wanted)
    assert max(found.values()) <= 2e-5, found
    assert wanted[-1]["rewards/margins"] > 1e-2, "something was learnt"
    assert not list(tmp_path.glob("run-job/*")), "no file of a reference"


@pytest.mark.parametrize(
    "ranks,more",
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
@pytest.mark.parametrize("adapted", [False, True], ids=["full", "lora"])
def test_every_layout_trains_alike(trainer_bin, init, pairs, tmp_path, ranks, more, adapted):
    base = settings(init, pairs, **({"lora": LORA} if adapted else {}))
    one = run(trainer_bin, base, 1, tmp_path / "one")
    many = run(trainer_bin, base | more, ranks, tmp_path / "many")
    names = [*SHOWN, "rewards/accuracies", "logps/chosen", "logps/rejected"]
    found = preferences.differences(many, [{name: line[name] for name in names} for line in one])
    assert max(found.values()) <= 2e-5, found


def test_experts_that_ranks_share_out_train_alike(trainer_bin, pairs, tmp_path):
    init = experts.make_init(tmp_path / "init", "mixtral")
    base = settings(init, pairs, router_aux_loss="none")
    one = run(trainer_bin, base, 1, tmp_path / "one")
    many = run(trainer_bin, base | {"parallel": {"ep": 2}}, 2, tmp_path / "many")
    found = preferences.differences(many, [{name: line[name] for name in SHOWN} for line in one])
    assert max(found.values()) <= 2e-5, found
    done = train(trainer_bin, tmp_path, base | {"router_aux_loss": "sequence"})
    assert done.returncode == 2 and "set router_aux_loss: none" in done.stderr, done.stderr


def test_bf16_follows_fp32_and_the_last_row_of_ranks_that_have_none_counts_for_nothing(
    trainer_bin, init, pairs, tmp_path
):
    exact = run(trainer_bin, settings(init, pairs), 1, tmp_path / "fp32")
    rough = run(trainer_bin, settings(init, pairs, dtype="bf16"), 4, tmp_path / "bf16")
    for line, its in zip(exact, rough):
        assert abs(line["loss"] - its["loss"]) < 0.05 and line != its


@pytest.mark.parametrize("adapted", [False, True], ids=["full", "lora"])
def test_a_killed_run_goes_on_to_the_same_bits(trainer_bin, init, pairs, tmp_path, adapted):
    more = {"lora": LORA | {"dropout": 0.1}} if adapted else {}
    config = settings(init, pairs, max_steps=40, save_steps=2, deterministic=True, **more)
    whole = run(trainer_bin, config, 2, tmp_path / "whole")
    job = tmp_path / "job"
    job.mkdir()
    endless = config | {"max_steps": 100_000}
    with Gang(trainer_bin, endless, 2, tmp_path / "killed", MUSTER_JOB_DIR=str(job)) as gang:
        gang.wait_for_step(12)
        gang.signal(signal.SIGKILL)
        gang.wait()
    step = gang.checkpoint_steps()[0]
    assert 0 < step < 40
    again = run(
        trainer_bin, config, 2, tmp_path / "again", job=job, resume_from=[gang.checkpoint(step)]
    )
    kept = [{name: line[name] for name in SHOWN} for line in again]
    assert kept == [{name: line[name] for name in SHOWN} for line in whole[step:]]


def test_a_reference_is_of_the_weights_before_training_whether_its_file_is_there_or_not(
    trainer_bin, init, pairs, tmp_path
):
    config = settings(init, pairs, save_steps=2, deterministic=True)
    job = tmp_path / "job"
    whole = run(trainer_bin, config, 1, tmp_path / "whole", job=job)
    (file,) = job.glob("reference-logps/*.safetensors")
    first, saved = (
        load_file(file)["logps"].clone(),
        tmp_path / "whole" / "checkpoints" / "step-00000002",
    )

    def go_on(name: str) -> list[dict]:
        return run(trainer_bin, config, 1, tmp_path / name, job=job, resume_from=[saved])

    def rewards(lines: list[dict]) -> list[float]:
        return [line["rewards/chosen"] for line in lines]

    assert rewards(go_on("kept")) == rewards(whole[2:])
    assert "computing" not in (tmp_path / "kept" / "0.err").read_text()
    # That it is read shows in what a file with other numbers does; it is told from a damaged one by its sha256.
    file.write_bytes(file.read_bytes()[:-1] + b"\x7f")
    assert rewards(go_on("damaged")) == rewards(whole[2:])
    assert (
        "does not match its sha256; they are computed anew"
        in (tmp_path / "damaged" / "0.err").read_text()
    )
    shutil.rmtree(file.parent)
    assert rewards(go_on("gone")) == rewards(whole[2:])
    assert torch.equal(load_file(file)["logps"], first)


def test_a_stop_while_the_reference_is_computed_ends_the_run(trainer_bin, init, tmp_path):
    pairs = make_pairs(tmp_path / "pairs", 3000)
    job = tmp_path / "job"
    job.mkdir()
    config = settings(init, pairs, micro_batch_size=1)
    with Gang(trainer_bin, config, 2, tmp_path / "run", MUSTER_JOB_DIR=str(job)) as gang:
        gang.wait_for_line(b"first_collective_s=")
        gang.signal(signal.SIGTERM, ranks=[1])
        gang.finish()
    assert gang.lines == [] and not list(job.iterdir())


def test_an_evaluation_counts_pairs(trainer_bin, init, tmp_path):
    pairs = make_pairs(tmp_path / "pairs", 30, "--validation-share", "0.3")
    held = sides(pairs / "validation")
    assert 2 < len(held) < 20 and len(held) + len(sides(pairs)) == 30
    config = settings(init, pairs, eval_interval=2, max_steps=2)
    found = run(trainer_bin, config, 2, tmp_path / "run")[-1]["eval_loss"]
    last = run(trainer_bin, config | {"export": str(tmp_path / "model")}, 1, tmp_path / "again")
    assert abs(last[-1]["eval_loss"] - found) < 1e-5
    model, base = preferences.load(tmp_path / "model"), preferences.load(init)
    with torch.no_grad():
        wanted = [
            preferences.cost(
                "sigmoid",
                *(preferences.logps(model, *side) - preferences.logps(base, *side) for side in one),
                (1, 1),
            ).item()
            for one in held
        ]
    assert abs(found - sum(wanted) / len(wanted)) < 1e-5


def test_every_row_of_a_step_is_a_whole_pair_and_an_epoch_has_each_once(
    trainer_bin, init, pairs, tmp_path
):
    dump = tmp_path / "dump"
    count = len(sides(pairs))
    config = settings(init, pairs, global_batch_size=4, max_steps=2 * count // 4)
    run(trainer_bin, config, 3, tmp_path / "run", dump_tokens=dump)
    order = sum(preferences.pairs_by_step(dump, pairs, 4), [])  # raises where a row is no pair
    assert sorted(order[:count]) == sorted(order[count:]) == list(range(count))
    assert order[:count] != order[count:] != list(range(count))


def test_long_answers_lose_their_ends_and_pairs_without_an_answer_are_left_out(
    trainer_bin, init, tmp_path
):
    answers = [("7", "8"), ("7" * 60, "8"), ("7" * 60, "8" * 60)]
    source = tmp_path / "pairs.jsonl"
    with open(source, "w") as file:
        for number, (chosen, rejected) in enumerate(answers):
            record = {"prompt": f"{number} and", "chosen": chosen, "rejected": rejected}
            file.write(json.dumps(record) + "\n")
        full = {"prompt": "9" * LENGTH, "chosen": "7", "rejected": "8"}
        file.write(json.dumps(full) + "\n")
    done = preferences.prepare(source, tmp_path / "tokens")
    assert done.returncode == 0, done.stderr
    dump = tmp_path / "dump"
    config = settings(init, tmp_path / "tokens", global_batch_size=3, max_steps=1)
    ours = run(trainer_bin, config, 1, tmp_path / "run", dump_tokens=dump)
    said = (tmp_path / "run" / "0.err").read_text()
    assert "note: of 4 pairs, 2 lose their ends at max_length 40, and 1 are left out" in said
    assert sorted(preferences.pairs_by_step(dump, tmp_path / "tokens", 3)[0]) == [0, 1, 2]
    model = preferences.load(init)
    with torch.no_grad():
        found = [preferences.logps(model, *one[0]) for one in sides(tmp_path / "tokens")[:3]]
    assert abs(ours[0]["logps/chosen"] - sum(found).item() / 3) < 1e-4


def test_text_and_chats_are_prepared_as_prompts_with_completions_are(tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )

    def say(role: str, content: str) -> list[dict]:
        return [{"role": role, "content": content}]

    prompt, right, wrong = say("user", "2 and 2?"), say("assistant", "4"), say("assistant", "five")
    kinds = {"text": ("2 and 2 is ", "4", "five"), "chat": (prompt, right, wrong)}
    for kind, (prompt, chosen, rejected) in kinds.items():
        pair, single = tmp_path / f"{kind}-pair.jsonl", tmp_path / f"{kind}-single.jsonl"
        pair.write_text(json.dumps({"prompt": prompt, "chosen": chosen, "rejected": rejected}))
        single.write_text(
            "".join(
                json.dumps({"prompt": prompt, "completion": one}) + "\n"
                for one in (chosen, rejected)
            )
        )
        for source in (pair, single):
            done = preferences.prepare(
                source, source.with_suffix(""), "--chat-template", str(template)
            )
            assert done.returncode == 0, done.stderr
        assert read_masked(pair.with_suffix("")) == read_masked(single.with_suffix(""))
        assert json.loads((pair.with_suffix("") / "index.json").read_text())["pairs"] is True
        assert "pairs" not in json.loads((single.with_suffix("") / "index.json").read_text())


@pytest.mark.parametrize(
    "record,said",
    [
        ({"chosen": "4", "rejected": "5"}, 'no field "prompt"'),
        ({"prompt": "", "chosen": "4", "rejected": "5"}, 'field "prompt" is empty'),
        ({"prompt": "2", "chosen": "", "rejected": "5"}, 'field "chosen" is empty'),
        ({"prompt": "2", "chosen": "4", "rejected": 5}, 'field "rejected" is a number'),
        ({"prompt": "2", "chosen": [], "rejected": "5"}, "give all three alike"),
    ],
    ids=["no-prompt", "empty-prompt", "empty", "number", "mixed"],
)
def test_a_broken_pair_is_left_out_whole_and_told_of(tmp_path, record, said):
    source = tmp_path / "pairs.jsonl"
    preferences.write_pairs(source, 2)
    with open(source, "a") as file:
        file.write(json.dumps(record) + "\n")
    done = preferences.prepare(source, tmp_path / "tokens")
    assert done.returncode == 0 and said in done.stderr, done.stderr
    assert len(read_masked(tmp_path / "tokens")) == 4


def test_pairs_are_refused_beside_other_records_and_with_all_of_the_loss(tmp_path):
    source = tmp_path / "pairs.jsonl"
    preferences.write_pairs(source, 2)
    done = preferences.prepare(source, tmp_path / "all", "--loss", "all")
    assert done.returncode == 2 and "--loss all is not for pairs" in done.stderr
    with open(source, "a") as file:
        file.write(json.dumps({"text": "something else"}) + "\n")
    done = preferences.prepare(source, tmp_path / "mixed")
    assert done.returncode == 2 and "2 records are pairs (chosen, rejected) and 1 are not" in (
        done.stderr
    )
    assert not (tmp_path / "mixed" / "index.json").exists()


@pytest.mark.parametrize(
    "more,said",
    [
        ({"dpo": {"beta": 0}}, "trainer.dpo.beta: must be a number above 0; got 0"),
        ({"dpo": {"loss_type": "kto"}}, "trainer.dpo.loss_type: must be one of sigmoid, hinge"),
        (
            {"dpo": {"label_smoothing": 0.1}},
            "trainer.dpo.label_smoothing: is for loss_type: robust",
        ),
        ({"dpo": {"ref_model": "x"}}, "trainer.dpo.ref_model: the reference is the model of init"),
        ({"dpo": {"bta": 1}}, "trainer.dpo.bta: no such field. Did you mean beta?"),
        ({"packing": "bfd"}, "trainer.packing: with dpo a row is a pair; leave it out"),
        ({"parallel": {"cp": 2}}, "trainer.parallel.cp: is not supported yet with dpo"),
        ({"cuda_graphs": True}, "trainer.cuda_graphs: is not supported yet with dpo"),
        ({"z_loss": 1e-4}, "trainer.z_loss: is not supported yet with dpo"),
        ({"max_length": 1}, "trainer.max_length: must be at least 2 with dpo"),
        ({"mixture": [{"data": "x", "weight": 1}], "data": None}, "trainer.mixture: is not supp"),
        ({"model": {"model_type": "llama"}, "init": None}, "give init instead of model"),
        (
            {"dpo": None},
            "holds pairs of a chosen and a rejected answer, which dpo: {} and reward: {} train on",
        ),
    ],
)
def test_what_preferences_do_not_go_with_is_refused(trainer_bin, init, pairs, tmp_path, more, said):
    config = {
        key: value for key, value in (settings(init, pairs) | more).items() if value is not None
    }
    done = train(trainer_bin, tmp_path, config)
    assert done.returncode == 2 and said in done.stderr, done.stderr


def test_data_without_pairs_is_refused(trainer_bin, init, tokens, tmp_path):
    done = train(trainer_bin, tmp_path, settings(init, tokens))
    assert done.returncode == 2 and "holds no pairs, which dpo trains on" in done.stderr


@pytest.mark.parametrize("adapted,recompute", [(False, "none"), (True, "full")])
def test_the_estimate_counts_both_sides_of_a_pair(trainer_bin, tmp_path, adapted, recompute):
    init = tmp_path / "init"
    LlamaForCausalLM(LlamaConfig(**memory.MODEL)).save_pretrained(init)
    source = tmp_path / "pairs.jsonl"
    with open(source, "w") as file:
        for number in range(8):
            answers = {"chosen": f"{number} " * 200, "rejected": f"{number + 1} " * 200}
            file.write(json.dumps({"prompt": "count: "} | answers) + "\n")
    done = preferences.prepare(source, tmp_path / "tokens")
    assert done.returncode == 0, done.stderr
    config = memory.config(tmp_path / "tokens", init=str(init), dpo={}, recompute=recompute)
    config |= {"global_batch_size": 4, "micro_batch_size": 4, "max_steps": 2, "threads": 1}
    config |= {"lora": {"rank": 8}} if adapted else {}
    config.pop("model", None)
    lines = run(trainer_bin, config, 1, tmp_path / "run")
    peak = max(line["memory_peak_bytes"] for line in lines)
    words = ["estimate", "--config", tmp_path / "run" / "trainer.json", "--json", "true"]
    said = subprocess.run([trainer_bin, *words], check=True, capture_output=True, text=True)
    estimate = json.loads(said.stdout)["memory_bytes"]
    assert 0.9 <= estimate / peak <= 1.1, (estimate, peak)
