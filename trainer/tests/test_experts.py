"""Models with experts (Mixtral, Qwen3-MoE, dots1): the numbers of transformers, alone and with experts shared out; checkpoints for any layout;
what is refused."""

import json
import shutil

import experts
import families
import layouts
import parity
import pytest
import resume
from harness import Gang, read_batches
from safetensors.torch import load_file, save_file
from test_bad_models import retensor, rewrite
from test_schema import train
from test_stages import estimate


@pytest.mark.parametrize(
    "family,layout",
    [
        ("mixtral", "one rank"),
        ("qwen3-moe", "dp 2 x cp 2 x ep 2"),
        ("qwen3-moe", "dp 2 x ep 2, stage 2"),
        ("qwen3-moe-biases", "tp 2 x ep 4"),
        ("mixtral", "pp 2, zero-bubble"),
        ("dots1", "one rank"),
        ("dots1", "pp 2 x tp 2 x ep 4, stage 3"),
        ("dots1-tied", "tp 4 x ep 2"),
        ("dots1-tied", "tp 2"),
        ("dots1", "cp 2 x ep 2"),
    ],
)
def test_gradients_of_each_parameter_are_autograds(family, layout, trainer_bin, tokens, tmp_path):
    init = experts.make_init(tmp_path / "init", family)
    distance, name = layouts.compare_gradients(
        trainer_bin, tokens, tmp_path, init, layout, floor=experts.FLOOR
    )
    assert distance <= layouts.GRADIENT_BAR, name


@pytest.mark.parametrize(
    "family,layout,dtype",
    [
        ("mixtral", "ep 4, stage 3", "fp32"),
        ("qwen3-moe", "one rank", "fp32"),
        ("qwen3-moe-biases", "dp 2", "bf16"),
        ("dots1", "tp 2 x ep 4", "fp32"),
        ("dots1", "pp 2 x ep 2", "fp32"),
        ("dots1-tied", "ep 2", "bf16"),
    ],
)
def test_layouts_train_as_transformers_does(family, layout, dtype, trainer_bin, tokens, tmp_path):
    init = experts.make_init(tmp_path / "init", family)
    found = layouts.compare_steps(trainer_bin, tokens, tmp_path, init, layout, dtype, steps=8)
    assert found["logits_moved_by_training"] > 0.01
    for key, bar in layouts.BARS[dtype].items():
        assert found[key] <= bar, key
    assert found["logits"] <= (1e-5 if dtype == "fp32" else 0.05)


@pytest.mark.parametrize("layout", ["one rank", "ep 4, stage 3"])
@pytest.mark.parametrize("family,chosen", [("qwen3-moe", 1), ("qwen3-moe", 2), ("dots1", 1)])
def test_experts_without_tokens_and_all_tokens_on_one(
    family, chosen, layout, trainer_bin, tokens, tmp_path
):
    """The first `chosen` of those that are favoured get every token; the others' gradients are zero, not missing."""
    init = experts.make_init(
        tmp_path / "init", family, experts.favour([3, 5]), num_experts_per_tok=chosen
    )
    distance, name = layouts.compare_gradients(
        trainer_bin, tokens, tmp_path, init, layout, floor=experts.FLOOR
    )
    assert distance <= layouts.GRADIENT_BAR, name
    (batch,) = read_batches(tmp_path / "tokens.bin", parity.BATCH, parity.LENGTH + 1)
    for counts in experts.tokens_by_expert(init, batch):
        favoured = [3, 5][:chosen]
        assert counts == [
            parity.BATCH * parity.LENGTH if expert in favoured else 0 for expert in range(8)
        ]


@pytest.mark.parametrize(
    "kind,layout",
    [("batch", "one rank"), ("batch", "tp 2"), ("sequence", "tp 2 x ep 4"), ("sequence", "dp 2")],
)
def test_the_loss_that_balances_is_transformers(kind, layout, trainer_bin, tokens, tmp_path):
    init = experts.make_init(tmp_path / "init", "qwen3-moe")
    auxiliary = (experts.whole_batch if kind == "batch" else experts.by_sequence)(init, 0.5)
    told = []

    def noted(logits):
        loss = auxiliary(logits)
        told.append(loss.item())
        return loss

    ranks, more = layouts.LAYOUTS[layout]
    more = more | {"router_aux_loss": kind, "router_aux_loss_coef": 0.5}
    if kind == "batch":  # of a whole batch, as the loop beside it has it
        more["micro_batch_size"] = parity.BATCH
    found = parity.compare(
        trainer_bin, tokens, tmp_path, 4, ranks, init=init, auxiliary=noted, **more
    )
    for key, bar in layouts.BARS["fp32"].items():
        assert found[key] <= bar, key
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["aux_loss"] for line in lines] == pytest.approx(told, rel=2e-6)


def test_the_loss_that_balances_is_the_same_in_every_layout_with_packed_rows_and_padding(
    trainer_bin, tokens, tmp_path
):
    """Documents packed, ranks without rows of their own, pipelines: `auto` follows output_router_logits."""
    init = experts.make_init(tmp_path / "init", "mixtral")
    rewrite(init, output_router_logits=True, router_aux_loss_coef=0.3)
    told = {}
    for layout in ("one rank", "ep 4, stage 3", "pp 2 x ep 2"):
        ranks, more = layouts.LAYOUTS[layout]
        settings = parity.config(init, tokens, 3, tmp_path / "model") | more
        settings |= {"packing": "bfd", "global_batch_size": 10, "micro_batch_size": 1}
        settings.pop("export")
        with Gang(trainer_bin, settings, ranks, tmp_path / layout) as gang:
            gang.finish()
        told[layout] = gang.lines
    for lines in told.values():
        for line, wanted in zip(lines, told["one rank"], strict=True):
            for key in ("loss", "aux_loss", "grad_norm"):
                assert line[key] == pytest.approx(wanted[key], rel=5e-6), key


MOE = resume.TINY_MODEL | {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_key_value_heads": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}


@pytest.mark.parametrize("model", [MOE, experts.DOTS], ids=["qwen3_moe", "dots1"])
def test_a_run_goes_on_with_its_experts_shared_out_in_any_other_way(
    model, trainer_bin, tokens, tmp_path
):
    settings = resume.config(tokens, max_steps=15, save_steps=5, model=model)
    if model is experts.DOTS:
        settings["router_bias_speed"] = 0.01
    with Gang(trainer_bin, settings, 1, tmp_path / "whole") as whole:
        whole.finish()
    came_from, begin = [], 0
    for name, ranks, parallel, steps in (
        ("first", 4, {"ep": 4}, 5),
        ("second", 4, {"tp": 2, "ep": 2}, 10),
        ("third", 2, {"tp": 2}, 15),
    ):
        changed = settings | {"max_steps": steps, "parallel": parallel, "zero_stage": 3}
        with Gang(trainer_bin, changed, ranks, tmp_path / name, resume_from=came_from) as gang:
            gang.finish()
        for key in ("loss", "grad_norm"):
            found = {line["step"]: line[key] for line in gang.lines}
            wanted = {line["step"]: line[key] for line in whole.lines}
            assert found == pytest.approx(
                {step: wanted[step] for step in wanted if begin < step <= steps}, rel=5e-6
            ), (name, key)
        index = json.loads((gang.checkpoint(steps) / "index.json").read_text())
        # Experts are shared out whole: only tp cuts tensors.
        assert index["format"] == f"muster-checkpoint-{2 if 'tp' in parallel else 1}"
        states = [layouts.read_tensors(one.checkpoint(steps), "master") for one in (gang, whole)]
        biases = [name for name in states[1] if name.endswith(families.ROUTER_BIAS)]
        assert len(biases) == (1 if model is experts.DOTS else 0)
        for name in biases:
            assert states[1][name].any() and states[0][name].equal(states[1][name]), name
        came_from, begin = [gang.checkpoint(steps)], steps


def test_an_export_of_shared_out_experts_is_that_of_its_checkpoint(trainer_bin, tokens, tmp_path):
    settings = resume.config(
        tokens, max_steps=2, save_steps=0, model=MOE, export=str(tmp_path / "model")
    )
    changed = settings | {"parallel": {"tp": 2, "pp": 2, "ep": 2}, "zero_stage": 3}
    with Gang(trainer_bin, changed, 4, tmp_path / "run") as gang:
        gang.finish()
    parity.export_checkpoint(trainer_bin, gang.checkpoint(2), tokens, tmp_path / "exported")
    weights = [
        (tmp_path / folder / "model.safetensors").read_bytes() for folder in ("model", "exported")
    ]
    assert weights[0] == weights[1]


@pytest.mark.parametrize("family", ["mixtral", "qwen3-moe", "dots1"])
def test_experts_in_one_tensor_are_read_as_if_each_stood_by_itself(
    family, trainer_bin, tokens, tmp_path
):
    from transformers import AutoModelForCausalLM

    init = experts.make_init(tmp_path / "init", family)
    joined = tmp_path / "joined"
    shutil.copytree(init, joined)
    model = AutoModelForCausalLM.from_pretrained(init)
    state = {name: value.contiguous() for name, value in model.state_dict().items()}
    assert any(value.dim() == 3 for value in state.values())
    save_file(state, joined / "model.safetensors", {"format": "pt"})
    told = []
    for folder in (init, joined):
        settings = parity.config(folder, tokens, 1, tmp_path / f"model-{folder.name}")
        with Gang(trainer_bin, settings, 1, tmp_path / f"run-{folder.name}") as gang:
            gang.finish()
        told.append(gang.lines[0]["grad_norm"])
    assert told[0] == told[1]
    exported = load_file(tmp_path / "model-joined/model.safetensors")
    assert set(exported) == set(load_file(init / "model.safetensors"))


def test_adapters_stand_beside_the_linears_of_attention_alone(trainer_bin, tokens, tmp_path):
    init = experts.make_init(tmp_path / "init", "qwen3-moe")
    settings = parity.config(init, tokens, 2, tmp_path / "model") | {"lora": {"rank": 4}}
    norms = []
    for ranks, more in ((1, {}), (4, {"parallel": {"tp": 2, "ep": 4}, "zero_stage": 3})):
        with Gang(trainer_bin, settings | more, ranks, tmp_path / f"run{ranks}") as gang:
            gang.finish()
        norms.append([line["grad_norm"] for line in gang.lines])
    assert norms[1] == pytest.approx(norms[0], rel=5e-6)
    adapters = load_file(tmp_path / "model/adapter/adapter_model.safetensors")
    modules = {name.split(".")[-3] for name in adapters}
    # One layer has an MLP.
    assert modules == {f"{one}_proj" for one in ("q", "k", "v", "o", "gate", "up", "down")}
    assert {name.split(".")[4] for name in adapters if ".mlp." in name} == {"1"}
    before, after = (
        load_file(folder / "model.safetensors") for folder in (init, tmp_path / "model")
    )
    for name, value in after.items():
        if ".experts." in name or name.endswith("mlp.gate.weight"):
            assert value.equal(before[name]), name
    refused = train(
        trainer_bin, tmp_path, settings | {"lora": {"rank": 4, "target_modules": [r".*experts.*"]}}
    )
    assert refused.returncode == 2
    assert "experts and routers stay as they are" in refused.stderr


def test_estimate_counts_what_a_token_meets_and_who_has_which_experts(trainer_bin, tmp_path):
    settings = resume.config(tmp_path / "not there yet", save_steps=0, model=MOE)

    def told(ranks, **more):
        done = estimate(
            trainer_bin, tmp_path, settings | more, "--ranks", str(ranks), "--json", "true"
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def weights(answer):
        return {one["class"]: one["bytes"] for one in answer["memory"]}["weights"]

    plain = told(4)
    more = told(4, model=MOE | {"num_experts": 64})
    d, width, layers = MOE["hidden_size"], MOE["moe_intermediate_size"], MOE["num_hidden_layers"]
    added = 60 * layers * (3 * d * width + d)
    assert more["parameters"] - plain["parameters"] == added
    # The routers' products alone: 6 a parameter and token, 4 more of a row of a batch's tokens.
    tokens = settings["global_batch_size"] * settings["max_length"]
    assert more["flops_per_step"] - plain["flops_per_step"] == 6 * 60 * layers * d * tokens
    shared = told(4, parallel={"ep": 4})
    assert weights(plain) - weights(shared) == 3 * layers * 3 * d * width * 4
    assert shared["expert_bytes_per_step"] > 0 == plain["expert_bytes_per_step"]
    assert shared["uneven_memory_bytes"] > shared["memory_bytes"]
    assert "uneven_memory_bytes" not in plain
    # Experts that every token meets: in all that is counted, whoever has the others.
    dots, more = told(4, model=experts.DOTS), told(4, model=experts.DOTS | {"n_shared_experts": 3})
    added = 2 * (layers - 1) * 3 * d * width
    assert more["parameters"] - dots["parameters"] == added
    assert more["flops_per_step"] - dots["flops_per_step"] == 6 * added * tokens
    ep = told(4, model=experts.DOTS | {"n_shared_experts": 3}, parallel={"ep": 4})
    assert weights(more) - weights(ep) == 6 * (layers - 1) * 3 * d * width * 4
    tp = told(4, model=experts.DOTS | {"n_shared_experts": 3}, parallel={"tp": 2})
    assert tp["slice_bytes_per_step"] > told(4, parallel={"tp": 2})["slice_bytes_per_step"]


@pytest.mark.parametrize(
    "changes,ranks,wanted",
    [
        (
            {"parallel": {"ep": 3}},
            3,
            "parallel.ep: 3 must divide the model's 4 experts and the 3 ranks; use 1 (3 such groups)",
        ),
        (
            {"parallel": {"ep": 8}},
            8,
            "8 must divide the model's 4 experts and the 8 ranks; use 4 (2 such groups)",
        ),
        ({"parallel": {"ep": 4}}, 6, "the 6 ranks; use 2 (3 such groups), or take 4 or 8 ranks"),
        (
            {"parallel": {"ep": 4}, "shard_size": 2},
            4,
            "the 2 ranks that share one copy (shard_size); use 2 (2 such groups)",
        ),
        (
            {"parallel": {"ep": 2}, "model": resume.TINY_MODEL},
            2,
            "parallel.ep: is for models with experts",
        ),
        ({"parallel": {"expert_parallel_size": 2}}, 2, "expert_parallel_size: use ep"),
        ({"cuda_graphs": True}, 1, "a layer with experts is not recorded"),
        (
            {"router_aux_loss": "batch", "parallel": {"pp": 2}},
            2,
            "router_aux_loss: batch counts all layers at once",
        ),
        (
            {"router_aux_loss": "sequence", "model": resume.TINY_MODEL},
            1,
            "router_aux_loss: is for models with experts",
        ),
        (
            {"model": MOE | {"num_experts_per_tok": 5}},
            1,
            "num_experts_per_tok: 5 is above num_experts, 4",
        ),
        ({"model": MOE | {"num_experts": None}}, 1, "num_local_experts: is missing"),
        ({"model": MOE | {"num_local_experts": 8}}, 1, "num_experts: contradicts"),
        ({"model": MOE | {"mlp_only_layers": [2]}}, 1, "must be a list of layers from 0 to 1"),
        ({"model": MOE | {"decoder_sparse_step": 9}}, 1, "leaves no layer with experts"),
        ({"model": MOE | {"num_expert_per_tok": 2}}, 1, "Did you mean num_experts_per_tok?"),
        (
            {"model": resume.TINY_MODEL | {"num_experts": 4}},
            1,
            "num_experts: has no meaning for model_type llama",
        ),
    ],
)
def test_what_cant_be_is_refused_with_what_can(changes, ranks, wanted, trainer_bin, tmp_path):
    settings = resume.config(tmp_path, max_steps=1, save_steps=0, model=MOE) | changes
    done = estimate(trainer_bin, tmp_path, settings, "--ranks", str(ranks))
    assert done.returncode == 2, done.stderr
    assert wanted in done.stderr, done.stderr


BAD = {  # name: (what is done to the directory, what the message must hold)
    "an expert without weights": (
        lambda f: retensor(
            f, lambda t: {k: v for k, v in t.items() if ".0.mlp.experts.5." not in k}
        ),
        [
            "has weights of 7 experts in model.layers.0.mlp.experts where config.json means 8",
            "lacking: 5",
        ],
    ),
    "a matrix of an expert is missing": (
        lambda f: retensor(
            f, lambda t: {k: v for k, v in t.items() if ".2.mlp.experts.5.up_proj" not in k}
        ),
        ["has no model.layers.2.mlp.experts.5.up_proj.weight, which config.json's model has"],
    ),
    "fewer experts than weights": (
        lambda f: rewrite(f, num_local_experts=6),
        ["mlp.gate.weight is [8, 64] where config.json means [6, 64]", "of different models"],
    ),
    "more experts than weights": (
        lambda f: rewrite(f, num_local_experts=16),
        ["has weights of 8 experts in model.layers.0.mlp.experts where config.json means 16"],
    ),
    "an unknown field of a router": (
        lambda f: rewrite(f, scoring_func="sigmoid"),
        ["scoring_func: is no field of a qwen3_moe's router or experts that can be trained"],
    ),
    "shared experts": (
        lambda f: rewrite(f, shared_expert_intermediate_size=64),
        ["shared_expert_intermediate_size: is no field of a qwen3_moe's router or experts"],
    ),
    "too many chosen": (
        lambda f: rewrite(f, num_experts_per_tok=9),
        ["num_experts_per_tok: 9 is above num_local_experts, 8; a token can't meet more"],
    ),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return families.make(
        tmp_path_factory.mktemp("models") / "one", "qwen3-moe", shape={"num_hidden_layers": 3}
    )


@pytest.mark.parametrize("case", BAD)
def test_a_bad_directory_is_refused_with_its_place_and_a_remedy(
    case, trainer_bin, tokens, model, tmp_path
):
    damage, wanted = BAD[case]
    init = tmp_path / "init"
    shutil.copytree(model, init)
    damage(init)
    done = train(trainer_bin, tmp_path, parity.config(init, tokens, 1, tmp_path / "model"))
    assert done.returncode == 2, done.stderr
    assert not [words for words in wanted if words not in done.stderr], done.stderr
