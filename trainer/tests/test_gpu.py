"""Training on a GPU (tests/gpu.sh): one rank, as there is one; against the same run by plain operations, and against the CPU."""

import os
from pathlib import Path

import gpu
import plain_models
import pytest
import resume
import torch
from harness import TINY_MODEL, Gang, relative

STEPS = 20
pytestmark = pytest.mark.skipif(not gpu.name(), reason="no GPU here")

EXPERTS = TINY_MODEL | {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
CAPPED = TINY_MODEL | {  # caps that scores and logits of a small model come near to
    "architectures": ["Gemma2ForCausalLM"],
    "model_type": "gemma2",
    "hidden_act": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "head_dim": 32,
    "query_pre_attn_scalar": 8,
    "sliding_window": 24,
    "attn_logit_softcapping": 0.5,
    "final_logit_softcapping": 1.0,
}
CAUSAL = TINY_MODEL | {"pad_token_id": 258}  # which no text has: reward models want one
PAIRED = {  # what pairs of answers train
    "dpo": {"dpo": {"beta": 0.3}},
    "dpo of adapters": {"dpo": {"beta": 0.3}, "lora": {"rank": 4}},
    "reward": {"reward": {}},
}
RUNS = {  # name: (settings, farthest that losses may be from those by reference_ops)
    "fp32": ({}, 1e-5),
    "bf16": ({"dtype": "bf16"}, 2e-3),
    "bf16, split masters, bf16 moments": (
        {"dtype": "bf16", "masters": "split", "moments": "bf16"},
        5e-3,
    ),
    "moments in 8 bits": ({"dtype": "bf16", "moments": "int8"}, 5e-3),
    "recompute": ({"dtype": "bf16", "recompute": "full"}, 2e-3),
    "recompute pointwise": ({"dtype": "bf16", "recompute": "pointwise"}, 2e-3),
    "sums as trees": ({"dtype": "bf16", "deterministic": "elastic"}, 2e-3),
    "experts": ({"model": EXPERTS}, 1e-3),  # where two are alike, rounding may choose the other
    "caps": ({"model": CAPPED}, 1e-4),
    "caps, bf16, packed": ({"model": CAPPED, "dtype": "bf16", "packing": "bfd"}, 5e-3),
    "CUDA graphs": ({"dtype": "bf16", "cuda_graphs": True}, 2e-3),
    "packed": ({"dtype": "bf16", "packing": "bfd"}, 2e-3),
    "offload": ({"dtype": "bf16", "offload": "optimizer"}, 2e-3),
    "offload parameters": (
        {"dtype": "bf16", "zero_stage": 3, "offload": "parameters", "poison": True},
        2e-3,
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_kernels_train_as_plain_operations_do(name, trainer_bin, tokens, tmp_path):
    settings, farthest = RUNS[name]
    losses = []
    for reference in (False, True):
        more = {
            key: value
            for key, value in settings.items()
            if not reference or key not in ("masters", "moments")
        }
        config = (
            resume.config(
                tokens, max_steps=STEPS, save_steps=0, deterministic=False, reference_ops=reference
            )
            | more
        )
        with Gang(trainer_bin, config, 1, tmp_path / str(reference)) as gang:
            gang.finish()
        losses.append(gang.metric("loss"))
    assert max(relative(losses[0][step], losses[1][step]) for step in losses[1]) <= farthest


@pytest.mark.parametrize(
    "name", ["fp32", "bf16", "recompute", "packed", "offload", "offload parameters"]
)
def test_cuda_graphs_change_no_bit(name, trainer_bin, tokens, tmp_path):
    losses = []
    for graphs in (False, True):
        config = (
            resume.config(tokens, max_steps=STEPS, save_steps=0, cuda_graphs=graphs) | RUNS[name][0]
        )
        with Gang(trainer_bin, config, 1, tmp_path / str(graphs)) as gang:
            gang.finish()
        assert "cuda_graphs is off" not in gang.stderr()
        losses.append([gang.metric("loss"), gang.metric("grad_norm")])
    assert gang.metric("graph_replays")[STEPS] > 0
    if name == "packed":  # FlashAttention may cut its work by the longest document
        assert (
            max(
                relative(losses[0][of][step], losses[1][of][step])
                for of in (0, 1)
                for step in losses[0][of]
            )
            <= 1e-3
        )
    else:
        assert losses[0] == losses[1]


def rank_file(gang) -> bytes:
    (file,) = gang.checkpoint(STEPS).glob("*.safetensors")
    return file.read_bytes()


@pytest.mark.parametrize("name", ["offload", "offload parameters"])
def test_what_is_offloaded_changes_no_bit(name, trainer_bin, tokens, tmp_path):
    """Its updates run beside the next forward pass; checkpoints and evaluations between wait for them."""
    found = []
    for settings in (RUNS["bf16"][0], RUNS[name][0]):
        config = resume.config(tokens, max_steps=STEPS, save_steps=7) | settings
        with Gang(trainer_bin, config, 1, tmp_path / str(len(found))) as gang:
            gang.finish()
        found.append([gang.metric("loss"), gang.metric("grad_norm"), rank_file(gang)])
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["bf16", "bf16, split masters, bf16 moments", "moments in 8 bits"])
def test_a_copy_beside_training_is_the_file_that_is_written_in_place(
    name, trainer_bin, tokens, tmp_path
):
    found = []
    for beside in (True, False):
        config = resume.config(
            tokens, max_steps=STEPS + 1, save_steps=STEPS, save_in_background=beside
        )
        with Gang(trainer_bin, config | RUNS[name][0], 1, tmp_path / str(beside)) as gang:
            gang.finish()
        found.append(rank_file(gang))
    assert found[0] == found[1]


def test_products_in_8_bits_train_as_the_cpus_do(trainer_bin, tokens, tmp_path):
    """Where the GPU has none, that is said by name."""
    runs, has_them = [], gpu.compute_capability() >= 8.9
    for hidden in ({}, {"CUDA_VISIBLE_DEVICES": ""}):
        config = resume.config(tokens, max_steps=STEPS, save_steps=0, deterministic=False)
        config |= {"matmul": "fp8", "dtype": "bf16"}
        with Gang(trainer_bin, config, 1, tmp_path / str(len(runs)), **hidden) as gang:
            if not has_them:
                gang.wait()
                assert "trainer.matmul: fp8 needs a GPU of compute capability" in gang.stderr()
                return
            gang.finish()
        runs.append(gang.metric("loss"))
    assert max(relative(runs[0][step], runs[1][step]) for step in runs[1]) <= 1e-2


def test_a_gpu_trains_as_the_cpu_does(trainer_bin, tokens, tmp_path):
    losses = []
    for hidden in ({}, {"CUDA_VISIBLE_DEVICES": ""}):
        config = resume.config(tokens, max_steps=STEPS, save_steps=0, deterministic=False)
        with Gang(trainer_bin, config, 1, tmp_path / str(len(losses)), **hidden) as gang:
            gang.finish()
        losses.append(gang.metric("loss"))
    assert max(relative(losses[0][step], losses[1][step]) for step in losses[1]) <= 1e-5
    assert os.environ.get("CUDA_VISIBLE_DEVICES") != ""


def as_the_cpu_does(config: dict, trainer_bin: str, folder: Path) -> float:
    """How far losses on the GPU are from those on the CPU."""
    del config["model"]
    config["init"] = str(plain_models.write(folder / "init", CAUSAL, torch.float32))
    losses = []
    for hidden in ({}, {"CUDA_VISIBLE_DEVICES": ""}):
        with Gang(trainer_bin, config, 1, folder / str(len(losses)), **hidden) as gang:
            gang.finish()
        losses.append(gang.metric("loss"))
    assert len(losses[1]) == STEPS
    return max(relative(losses[0][step], losses[1][step]) for step in losses[1])


@pytest.mark.parametrize("quantised", [False, True])
def test_adapters_with_dropout_train_as_the_cpus_do(quantised, trainer_bin, tokens, tmp_path):
    config = resume.config(tokens, max_steps=STEPS, save_steps=0, deterministic=False)
    config |= {"lora": {"rank": 4, "dropout": 0.1}}
    config |= {"quantize": {"type": "nf4"}} if quantised else {}
    assert as_the_cpu_does(config, trainer_bin, tmp_path) <= 1e-4


@pytest.fixture(scope="session")
def pairs(tmp_path_factory) -> Path:
    """Token shards of pairs of answers; MUSTER_PAIRS names ready ones."""
    if ready := os.environ.get("MUSTER_PAIRS"):
        return Path(ready)
    import preferences

    return preferences.make_pairs(tmp_path_factory.mktemp("pairs") / "pairs")


@pytest.mark.parametrize("name", PAIRED)
def test_pairs_train_as_the_cpus_do(name, trainer_bin, pairs, tmp_path):
    config = resume.config(pairs, max_steps=STEPS, save_steps=0, deterministic=False)
    config |= {"max_length": 40, "global_batch_size": 6} | PAIRED[name]
    assert as_the_cpu_does(config, trainer_bin, tmp_path) <= 1e-4
