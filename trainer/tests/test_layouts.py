"""Ranks that share out one model (tensor parallelism, pipelines): the numbers of transformers, checkpoints for any layout, what is refused."""

import json

import layouts
import parity
import pytest
import resume
from harness import Gang
from test_stages import estimate

SLICED = {"parallel": {"tp": 2}}
ZERO_BUBBLE = {"parallel": {"pp": 2, "pipeline": "zero_bubble"}}


@pytest.mark.parametrize(
    "family,layout",
    [
        ("llama2", "tp 4"),
        ("llama3", "tp 2"),
        ("llama3", "tp 4, stage 3"),
        ("llama-biases", "dp 2 x tp 2, stage 3"),
        ("mistral", "tp 2"),
        ("qwen2", "dp 2 x tp 2, two copies"),
        ("qwen3-biases", "dp 2 x tp 2"),
        ("qwen3", "pp 2 x dp 2 x tp 2, stage 2"),
        ("qwen3-biases", "dp 2 x cp 2, stage 3"),
        ("mistral", "tp 2 x cp 2"),
        ("llama2", "pp 2 x cp 3"),
        ("phi3", "tp 2 x cp 2"),
        ("gemma3", "dp 2 x tp 2, stage 3"),
        ("gemma2", "tp 2 x cp 2"),
        ("llama3", "pp 2 x tp 2 x cp 2"),  # a tied head: both ends hold it
    ],
)
def test_gradients_of_each_parameter_are_autograds(family, layout, trainer_bin, tokens, tmp_path):
    init = layouts.make_init(tmp_path / "init", family)
    distance, name = layouts.compare_gradients(trainer_bin, tokens, tmp_path, init, layout)
    assert distance <= layouts.GRADIENT_BAR, name


@pytest.mark.parametrize(
    "family,layout,dtype",
    [
        ("llama3", "dp 2 x tp 2", "fp32"),
        ("qwen2", "tp 4", "fp32"),
        ("qwen3", "dp 2 x tp 2, stage 3", "bf16"),
        ("mistral", "pp 2, interleaved x dp 2, stage 3", "fp32"),
        ("mistral", "cp 4, by document", "fp32"),
        ("qwen2", "tp 2 x cp 2", "bf16"),
        ("phi3", "tp 2", "fp32"),
        ("gemma3", "dp 2 x cp 2, stage 3", "fp32"),
        ("gemma2", "pp 2, zero-bubble x tp 2", "fp32"),
    ],
)
def test_layouts_train_as_transformers_does(family, layout, dtype, trainer_bin, tokens, tmp_path):
    init = layouts.make_init(tmp_path / "init", family)
    found = layouts.compare_steps(trainer_bin, tokens, tmp_path, init, layout, dtype, steps=8)
    assert found["logits_moved_by_training"] > 0.01
    for key, bar in layouts.BARS[dtype].items():
        assert found[key] <= bar, key
    assert found["logits"] <= (1e-5 if dtype == "fp32" else 0.05)


def test_a_run_goes_on_in_any_other_layout(trainer_bin, tokens, tmp_path):
    """Packed documents, a validation loss: dp 2 x tp 2, then tp 4, then two stages of dp 2, then cp 4, then dp 3."""
    more = {"packing": "bfd", "zero_stage": 2, "eval_interval": 6, "eval_data": str(tokens)}
    more |= {"eval_sequences": 8, "model": resume.TINY_MODEL | {"num_key_value_heads": 4}}
    settings = resume.config(tokens, max_steps=30, save_steps=6, **more)
    with Gang(trainer_bin, settings, 1, tmp_path / "whole") as whole:
        whole.finish()
    came_from, begin = [], 0
    for name, ranks, parallel, steps in (
        ("first", 4, {"tp": 2}, 6),
        ("second", 4, {"tp": 4}, 12),
        ("third", 4, {"pp": 2, "pipeline": "gpipe"}, 18),
        ("fourth", 4, {"cp": 4}, 24),
        ("fifth", 3, {}, 30),
    ):
        changed = settings | {"max_steps": steps, "parallel": parallel}
        with Gang(trainer_bin, changed, ranks, tmp_path / name, resume_from=came_from) as gang:
            gang.finish()
        for key in ("loss", "grad_norm", "eval_loss"):
            found = {line["step"]: line[key] for line in gang.lines if key in line}
            wanted = {line["step"]: line[key] for line in whole.lines if key in line}
            assert found == pytest.approx(
                {step: wanted[step] for step in wanted if begin < step <= steps}, rel=5e-6
            ), (name, key)
        index = json.loads((gang.checkpoint(steps) / "index.json").read_text())
        assert index["format"] == f"muster-checkpoint-{2 if 'tp' in parallel else 1}"
        came_from, begin = [gang.checkpoint(steps)], steps


def test_an_export_of_a_shared_out_model_is_that_of_its_checkpoint(trainer_bin, tokens, tmp_path):
    settings = resume.config(tokens, max_steps=2, save_steps=0, export=str(tmp_path / "model"))
    for stage, parallel in ((1, {"tp": 2}), (3, {"tp": 2}), (2, {"tp": 2, "pp": 2})):
        changed = settings | {"parallel": parallel, "zero_stage": stage}
        with Gang(trainer_bin, changed, 4, tmp_path / f"run{stage}") as gang:
            gang.finish()
        parity.export_checkpoint(
            trainer_bin, gang.checkpoint(2), tokens, tmp_path / f"exported{stage}"
        )
        weights = [
            (folder / "model.safetensors").read_bytes()
            for folder in (tmp_path / "model", tmp_path / f"exported{stage}")
        ]
        assert weights[0] == weights[1]


@pytest.mark.parametrize(
    "changes,ranks,wanted",
    [
        (
            {"parallel": {"tp": 3}},
            3,
            "parallel.tp: 3 must divide the model's 2 key-value heads and the 3 ranks; use 1 (3 such groups)",
        ),
        (
            {"parallel": {"tp": 4}},
            8,
            "4 must divide the model's 2 key-value heads and the 8 ranks; use 2 (4 such groups)",
        ),
        (SLICED, 3, "the 3 ranks; use 1 (3 such groups), or take 2 or 4 ranks"),
        (SLICED | {"shard_size": 3}, 6, "3 is no multiple of parallel.tp, 2"),
        (SLICED | {"cuda_graphs": True}, 2, "trainer.cuda_graphs: a layer that ranks share out"),
        (
            {"parallel": {"cp": 3}},
            4,
            "parallel.cp: 3 parts must divide the 4 ranks; use 2 (2 such groups) or 4 (1), or take 3 or 6 ranks",
        ),
        (
            {"parallel": {"cp": 2, "tp": 2}},
            6,
            "2 parts of 2 ranks (tp) must divide the 6 ranks; use 1 (3 such groups) or 3 (1), or take 4 or 8 ranks",
        ),
        (
            {"parallel": {"cp": 2, "pp": 2}},
            6,
            "2 stages of 2 ranks (cp) must divide the 6 ranks; use 1 (3 such pipelines), or take 4 or 8 ranks",
        ),
        (
            {"parallel": {"cp": 2, "tp": 2}, "shard_size": 2},
            4,
            "trainer.shard_size: 2 is no multiple of parallel.tp times parallel.cp, 4",
        ),
        ({"parallel": {"cp": 2}, "cuda_graphs": True}, 2, "leave it or parallel.cp out"),
        ({"parallel": {"cp": 2, "cp_sharding": "ring"}}, 2, "one of auto, sequence, document"),
        ({"parallel": {"context_parallel_size": 2}}, 2, "context_parallel_size: use cp"),
        ({"parallel": {"tp": 0}}, 2, "parallel.tp: must be a whole number from 1 to 1024; got 0"),
        ({"parallel": 2}, 2, "trainer.parallel: must be a map, or auto; got 2"),
        (
            {"parallel": {"tensor_parallel_size": 2}},
            2,
            "trainer.parallel.tensor_parallel_size: use tp",
        ),
        (
            {"parallel": {"pp": 2}},
            3,
            "parallel.pp: 2 stages must divide the 3 ranks; use 1 (3 such pipelines), or take 2 or 4 ranks",
        ),
        (
            {"parallel": {"pp": 2}},
            1,
            "parallel.pp: 2 stages must divide the 1 rank; use 1 (1 such pipeline), or take 2 ranks",
        ),
        (
            {"parallel": {"pp": 4}},
            8,
            "4 stages need as many layers, and the model has 2; use 2 (4 such pipelines)",
        ),
        (
            {"parallel": {"pp": 2, "pipeline": "interleaved"}},
            4,
            "2 stages of 2 chunks need 4 layers, and the model has 2; use 1 (4 such pipelines), or pipeline: 1f1b",
        ),
        (
            {"parallel": {"pp": 2}, "shard_size": 4},
            4,
            "trainer.shard_size: 4 doesn't divide the 2 ranks of a stage; use one of 1, 2",
        ),
        ({"parallel": {"pp": 2}, "cuda_graphs": True}, 2, "leave it or parallel.pp out"),
        (
            {"parallel": {"pp": 2, "chunks": 3}},
            2,
            "parallel.chunks: goes with pipeline: interleaved alone",
        ),
        (
            {"parallel": {"pp": 2, "pipeline": "dualpipe"}},
            2,
            'must be one of gpipe, 1f1b, interleaved, zero_bubble; got "dualpipe"',
        ),
        ({"parallel": {"virtual_stages": 2}}, 2, "use chunks, with pipeline: interleaved"),
        (
            ZERO_BUBBLE | {"recompute": "full"},
            2,
            "zero_bubble puts off gradients of weights: recompute: full would compute",
        ),
        (ZERO_BUBBLE | {"zero_stage": 2}, 2, "use zero_stage: 1, or pipeline: 1f1b"),
        (ZERO_BUBBLE, 2, "deterministic: true adds a micro-batch's gradients"),
    ],
)
def test_layouts_that_cant_be_are_refused_with_those_that_can(
    changes, ranks, wanted, trainer_bin, tmp_path
):
    settings = resume.config(tmp_path, save_steps=0) | changes
    done = estimate(trainer_bin, tmp_path, settings, "--ranks", str(ranks))
    assert done.returncode == 2 and wanted in done.stderr, done.stderr


def told_of_four(trainer_bin, tmp_path, parallel: dict) -> dict:
    """The estimate of four ranks; its memory by class."""
    settings = resume.config(
        tmp_path, save_steps=0, zero_stage=0, micro_batch_size=4, parallel=parallel
    )
    done = estimate(trainer_bin, tmp_path, settings, "--ranks", "4", "--json", "true")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    return told | {"memory": {one["class"]: one["bytes"] for one in told["memory"]}}


def test_estimate_knows_slices(trainer_bin, tmp_path):
    whole, sliced = (told_of_four(trainer_bin, tmp_path, p) for p in ({}, {"tp": 2}))
    assert whole["parameters"] == sliced["parameters"]
    assert whole["micro_batches"] == 1 and sliced["micro_batches"] == 2
    for name in ("weights", "gradients", "moments", "activations kept"):
        assert sliced["memory"][name] == pytest.approx(whole["memory"][name] / 2, rel=0.02), name
    # Masters and moments of what a rank of four saves, in fp32.
    for told in (whole, sliced):
        assert told["saving_bytes"] == pytest.approx(12 * told["parameters"] / 4, rel=0.05)
    # A step's 512 tokens of 64 numbers of 4 bytes, of which each rank sends half: 10 times in each of 2 layers, and at the ends.
    assert sliced["slice_bytes_per_step"] == 512 * 64 * 4 // 2 * (2 * 10 + 4)
    assert whole["slice_bytes_per_step"] == 0


def test_estimate_knows_parts_of_rows(trainer_bin, tmp_path):
    whole, parts = (told_of_four(trainer_bin, tmp_path, p) for p in ({}, {"cp": 4}))
    assert (whole["micro_batches"], parts["micro_batches"]) == (1, 4)
    for name in ("weights", "gradients", "moments"):
        assert parts["memory"][name] == whole["memory"][name], name
    kept = "activations kept"
    assert 0.2 < parts["memory"][kept] / whole["memory"][kept] < 0.26
    # 16 rows of 64 tokens, 2 layers, 2 x 2 heads of 16; each rank sends 3 of 4 parts: twice fp32, and gradients.
    assert parts["context_bytes_per_step"] == 16 * 64 * 2 * (4 * 16) * (2 * 4 + 4) // 4 * 3
    assert whole["context_bytes_per_step"] == 0


def test_estimate_tells_which_ranks_belong_together(trainer_bin, tmp_path):
    settings = resume.config(tmp_path, save_steps=0, parallel={"tp": 2, "cp": 2, "pp": 2})
    done = estimate(trainer_bin, tmp_path, settings, "--ranks", "8", "--json", "true")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["ranks_multiple"] == 8
    assert told["placement"] == [
        {"group": "tp", "ranks": 2, "level": "island"},
        {"group": "tp·cp", "ranks": 4, "level": "host"},
        {"group": "pp", "ranks": 8, "level": "cluster"},
    ]
    alone = told_of_four(trainer_bin, tmp_path, {})
    assert (alone["ranks_multiple"], alone["placement"]) == (1, [])


def test_estimate_knows_stages(trainer_bin, tmp_path):
    told = {}
    for name, parallel in (
        ("1f1b", {"pp": 2}),
        ("gpipe", {"pp": 2, "pipeline": "gpipe"}),
        ("zero_bubble", {"pp": 2, "pipeline": "zero_bubble"}),
    ):
        settings = resume.config(
            tmp_path,
            save_steps=0,
            zero_stage=0,
            micro_batch_size=2,
            deterministic=False,
            parallel=parallel,
        )
        done = estimate(trainer_bin, tmp_path, settings, "--ranks", "2", "--json", "true")
        assert done.returncode == 0, done.stderr
        told[name] = json.loads(done.stdout)
    # What it advises is a layout that can be: zero_stage 3 and recompute: full can't, with zero_bubble.
    tight = ("--ranks", "2", "--device", "small", "--device-memory", "1MiB")
    done = estimate(trainer_bin, tmp_path, settings, *tight)
    assert "does not fit" in done.stdout and not done.stderr, done.stderr
    # 8 micro-batches of 2 rows; a layer and the embedding, a layer and the head.
    for name, bubble, in_flight in (
        ("1f1b", 1 / 9, [2, 1]),
        ("gpipe", 1 / 9, [8, 8]),
        ("zero_bubble", 1 / 25, [2, 2]),
    ):
        one = told[name]
        assert one["micro_batches"] == 8 and one["bubble_share"] == pytest.approx(bubble)
        assert [stage["layers"] for stage in one["stages"]] == [1, 1]
        if name != "zero_bubble":
            assert [stage["micro_batches_in_flight"] for stage in one["stages"]] == in_flight
        assert one["memory_bytes"] == max(stage["memory_bytes"] for stage in one["stages"])
        # 16 rows of 64 tokens of 64 numbers of 4 bytes, one way.
        assert one["pipeline_bytes_per_step"] == 16 * 64 * 64 * 4
        # On one host; how long that takes isn't known of CPUs.
        assert one["links"]["between_hosts"] == {"bytes_per_step": 0}
        kinds = ("gather", "reduce", "pipeline")
        sent = sum(one[f"{kind}_bytes_per_step"] for kind in kinds)
        assert one["links"]["within_host"] == {"bytes_per_step": sent}
        for stage in one["stages"]:
            assert stage["memory_bytes"] == sum(part["bytes"] for part in stage["memory"])
        assert one["stages"][one["stage"]]["memory"] == one["memory"]
    assert told["gpipe"]["memory_bytes"] > told["1f1b"]["memory_bytes"]


def test_the_search_finds_layouts_that_are_what_it_says(trainer_bin, tmp_path):
    settings = resume.config(tmp_path / "not there yet", save_steps=0, global_batch_size=32)
    gpu = ["--ranks", "16", "--device", "h100-80g"]
    done = estimate(trainer_bin, tmp_path, settings, *gpu, "--search", "3", "--json", "true")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert len(told["layouts"]) == 3
    times = [one["step_time_s"] for one in told["layouts"]]
    assert times == sorted(times) and times[0] <= told["given"]["step_time_s"]
    for one in told["layouts"]:
        # What a user would put into the job file gives the run that was meant.
        meant = settings | one["fields"]
        again = estimate(trainer_bin, tmp_path, meant, *gpu, "--json", "true")
        same = json.loads(again.stdout)
        assert same["memory_bytes"] == one["memory_bytes"], one
        assert same["step_time_s"] == pytest.approx(one["step_time_s"]), one
        for key in ("placement", "ranks_multiple"):
            assert same[key] == one[key], one
    least = min(one["memory_bytes"] for one in told["layouts"])
    tight = ["--search", "3", "--device-memory", str(1 << 30)]
    assert least > 1 << 30
    none = estimate(trainer_bin, tmp_path, settings, *gpu, *tight)
    assert none.returncode == 3 and "no layout fits" in none.stdout, none.stdout


def test_links_as_given_count_with_and_without_a_search(trainer_bin, tmp_path):
    settings = resume.config(tmp_path / "not there yet", save_steps=0, parallel={"tp": 2, "pp": 2})
    gpu = ["--ranks", "16", "--device", "h100-80g", "--json"]
    slow = ["--within-host", "1", "--between-hosts", "0.1"]
    plain = json.loads(estimate(trainer_bin, tmp_path, settings, *gpu).stdout)
    alone = json.loads(estimate(trainer_bin, tmp_path, settings, *gpu, *slow).stdout)
    search = estimate(trainer_bin, tmp_path, settings, *gpu, *slow, "--search", "1")
    assert alone["step_time_s"] > plain["step_time_s"]
    given = json.loads(search.stdout)["given"]
    assert given["step_time_s"] == pytest.approx(alone["step_time_s"])
    assert alone["links"]["within_host"]["seconds_per_step"] == pytest.approx(
        alone["links"]["within_host"]["bytes_per_step"] / 1e9
    )


@pytest.mark.parametrize(
    "words,wanted",
    [
        (["--device", "h100-80g", "--between-hosts", "fast"], "--between-hosts: must be GB/s"),
        (["--device", "h100-80g", "--within-host", "-5"], "one way; got -5"),
        (["--within-host", "5"], "--within-host: goes with --device GPU"),
        (["--device-memory", "80GiB"], "--device-memory: goes with --device GPU"),
        (["--device", "cpu-slot"], "--device: must be a GPU, such as h100-80g; got cpu-slot"),
        (["--ranks", "sixteen"], "--ranks: must be a whole number from 1; got sixteen"),
    ],
)
def test_a_flag_that_says_nothing_is_one_problem(trainer_bin, tmp_path, words, wanted):
    settings = resume.config(tmp_path / "not there yet", save_steps=0, parallel={"pp": 2})
    done = estimate(trainer_bin, tmp_path, settings, "--ranks", "8", *words)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith("estimate: 1 problem\n") and wanted in done.stderr, done.stderr


@pytest.mark.parametrize(
    "words,wanted",
    [
        (["--search", "3"], "--search: needs --device"),
        (["--search", "3", "--device", "b1000-40g"], "doesn't know the peak of b1000-40g"),
        (["--search", "3", "--device", "H100"], "needs to know the memory of H100"),
        (["--search", "many", "--device", "h100-80g"], "how many layouts to tell"),
        (["--search", "3", "--device", "h100-80g", "--within-host", "fast"], "must be GB/s"),
        (["--search", "3", "--device", "h100-80g", "--ranks-per-host", "0"], "--ranks-per-host"),
    ],
)
def test_a_search_says_what_it_misses(trainer_bin, tmp_path, words, wanted):
    settings = resume.config(tmp_path / "not there yet", save_steps=0)
    done = estimate(trainer_bin, tmp_path, settings, "--ranks", "8", *words)
    assert done.returncode == 2
    assert wanted in done.stderr, done.stderr
