"""`parallel: auto`: which layout a run takes, that it trains as if that had been asked for, and what is said where none fits."""

import json
import re

import pytest
import resume
from harness import Gang
from test_stages import estimate

# Large enough that its state, not the process, decides what fits.
MODEL = resume.TINY_MODEL | {
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}


LEAST_MIB: dict[int, int] = {}  # by ranks, of MODEL


def settings(tokens, **more) -> dict:
    all_of = resume.config(tokens, max_steps=4, save_steps=0, parallel="auto", model=MODEL, **more)
    del all_of["micro_batch_size"]
    return all_of


def choose(trainer_bin, folder, given: dict, ranks: int, *more: str) -> dict:
    """The layout that `auto` would take on CPUs."""
    done = estimate(trainer_bin, folder, given, "--ranks", str(ranks), "--json", "true", *more)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)["chosen"]


def tight(trainer_bin, folder, given: dict, ranks: int) -> dict:
    """The same with about as little memory as a layout fits into, which isn't the one that is taken where there is plenty."""
    if ranks not in LEAST_MIB:
        fails, fits = 256, 1024
        while fits - fails > 4:
            middle = (fails + fits) // 2
            with_less = given | {"memory_per_rank": f"{middle}MiB"}
            done = estimate(trainer_bin, folder, with_less, "--ranks", str(ranks))
            fails, fits = (fails, middle) if done.returncode == 0 else (middle, fits)
        LEAST_MIB[ranks] = fits
    with_less = given | {"memory_per_rank": f"{LEAST_MIB[ranks]}MiB"}
    assert choose(trainer_bin, folder, with_less, ranks) != choose(
        trainer_bin, folder, given, ranks
    )
    return with_less


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("memory", ["plenty", "little"])
def test_auto_trains_as_the_layout_that_it_says(ranks, memory, trainer_bin, tokens, tmp_path):
    given = settings(tokens)
    if memory == "little":
        given = tight(trainer_bin, tmp_path, given, ranks)
    with Gang(trainer_bin, given, ranks, tmp_path / "auto") as auto:
        auto.finish()
    taken = auto.lines[0]["layout"]
    assert all(line["layout"] == taken for line in auto.lines)
    assert "layout: " in (tmp_path / "auto" / "0.out").read_text()
    explicit = {key: value for key, value in given.items() if key != "memory_per_rank"} | taken
    assert explicit["parallel"] != "auto"
    with Gang(trainer_bin, explicit, ranks, tmp_path / "explicit") as meant:
        meant.finish()
    for name in ("loss", "grad_norm"):
        assert auto.metric(name) == meant.metric(name), taken
    assert len(auto.lines) == 4
    if memory == "little" and ranks > 1:
        assert taken["zero_stage"] == 3 or taken["parallel"], taken


def test_less_memory_shares_out_more(trainer_bin, tmp_path):
    """Of what fits, the fastest; the same each time."""
    given = settings(tmp_path / "not there yet")
    taken = [choose(trainer_bin, tmp_path, given, 4) for _ in range(2)]
    assert taken[0] == taken[1]
    less = choose(trainer_bin, tmp_path, tight(trainer_bin, tmp_path, given, 4), 4)
    assert less != taken[0]
    assert less["zero_stage"] == 3 or less["parallel"], less


@pytest.mark.parametrize(
    "named",
    [
        {"zero_stage": 2, "recompute": "full", "micro_batch_size": 1},
        {"micro_batch_size": resume.BATCH},  # more than a rank's share
    ],
)
def test_keys_that_the_file_names_stay(named, trainer_bin, tmp_path):
    given = settings(tmp_path / "not there yet") | named
    taken = choose(trainer_bin, tmp_path, given, 4)
    assert taken | named == taken


@pytest.mark.parametrize(
    "named", [{}, {"recompute": "full", "micro_batch_size": 1}, {"memory_per_rank": "8GiB"}]
)
def test_estimate_says_what_auto_takes_on_gpus(named, trainer_bin, tmp_path):
    given = settings(tmp_path / "not there yet") | {"dtype": "bf16"} | named
    gpus = ["--ranks", "8", "--device", "h100-80g"]
    done = estimate(trainer_bin, tmp_path, given, *gpus)
    assert done.returncode == 0 and done.stdout.startswith("parallel: auto takes  "), done.stdout
    # As the search has it.
    search = estimate(trainer_bin, tmp_path, given, *gpus, "--search", "1", "--json", "true")
    best = json.loads(search.stdout)["layouts"][0]
    assert choose(trainer_bin, tmp_path, given, 8, *gpus[2:]) == best["fields"]


def test_memory_per_rank_bounds_what_a_gpu_has(trainer_bin, tmp_path):
    given = settings(tmp_path / "not there yet") | {"dtype": "bf16"}
    for device, named, wanted in (
        ("h100-80g", "1000GiB", "fits: h100-80g has 80.00 GiB"),
        ("h100-80g", "40GiB", "fits: memory_per_rank is 40.00 GiB"),
        ("mystery", "40GiB", "fits: memory_per_rank is 40.00 GiB"),
    ):
        bounded = given | {"memory_per_rank": named}
        done = estimate(trainer_bin, tmp_path, bounded, "--ranks", "2", "--device", device)
        assert done.returncode == 0, done.stdout + done.stderr
        assert wanted in done.stdout, done.stdout
        assert "whether it fits" not in done.stdout, done.stdout


def test_a_rank_alone_offloads_parameters_with_stage_3(trainer_bin, tmp_path):
    given = settings(tmp_path / "not there yet") | {"dtype": "bf16", "offload": "parameters"}
    assert choose(trainer_bin, tmp_path, given, 1, "--device", "h100-80g")["zero_stage"] == 3


def test_a_bad_flag_is_one_problem(trainer_bin, tmp_path):
    given = settings(tmp_path / "not there yet")
    done = estimate(trainer_bin, tmp_path, given, "--ranks", "4", "--ranks-per-host", "x")
    assert done.returncode == 2
    assert done.stderr.startswith("estimate: 1 problem\n"), done.stderr
    assert "--ranks-per-host: must be a whole number from 1; got x" in done.stderr, done.stderr


@pytest.mark.parametrize("ranks", [1, 2])
def test_where_none_fits_one_rank_says_so_and_all_end(ranks, trainer_bin, tokens, tmp_path):
    given = settings(tokens) | {"memory_per_rank": "300MiB"}
    with Gang(trainer_bin, given, ranks, tmp_path / "run") as gang:
        assert gang.wait() == [2] * ranks
    said = (tmp_path / "run" / "0.err").read_text()
    assert "trainer.parallel: auto: of " in said and "the smallest needs" in said, said
    assert "; take devices with more memory, or a smaller model" in said, said
    assert re.search(r"; memory_per_rank: \d+MiB would do, where a rank has as much;", said), said
    for rank in range(1, ranks):
        assert not (tmp_path / "run" / f"{rank}.err").read_text(), "one rank says it"
    told = estimate(trainer_bin, tmp_path, given, "--ranks", str(ranks))
    assert told.returncode == 3 and "none fits" in told.stdout, told.stdout
    assert "counted for ranks on CPUs" in told.stdout and "add --device" in told.stdout, told.stdout


def test_more_ranks_choose_anew_and_go_on(trainer_bin, tokens, tmp_path):
    given = settings(tokens, eval_interval=0) | {"max_steps": 12}
    with Gang(trainer_bin, given, 1, tmp_path / "whole") as whole:
        whole.finish()
    came_from, begin, taken = [], 0, []
    for ranks, steps in ((4, 4), (2, 8), (1, 12)):
        part = given | {"max_steps": steps, "save_steps": 4}
        if ranks > 1:
            part = tight(trainer_bin, tmp_path, part, ranks)
        with Gang(trainer_bin, part, ranks, tmp_path / f"{ranks}", resume_from=came_from) as gang:
            gang.finish()
        taken.append(gang.lines[0]["layout"])
        wanted = {
            step: loss for step, loss in whole.metric("loss").items() if begin < step <= steps
        }
        assert gang.metric("loss") == pytest.approx(wanted, rel=5e-6)
        came_from, begin = [gang.checkpoint(steps)], steps
    assert taken[0] != taken[1] != taken[2]


@pytest.mark.parametrize(
    "more,wanted",
    [
        ({"parallel": "automatic"}, "trainer.parallel: must be a map, or auto"),
        (
            {"parallel": {"tp": 1}, "memory_per_rank": "1GiB"},
            "memory_per_rank: is for parallel: auto",
        ),
        ({"memory_per_rank": "much"}, "trainer.memory_per_rank: must be a size such as 80GiB"),
        (
            {"router_aux_loss": "batch"},
            "trainer.micro_batch_size: is missing: router_aux_loss: batch is over all rows",
        ),
    ],
)
def test_what_is_no_choice_is_refused(more, wanted, trainer_bin, tmp_path):
    done = estimate(trainer_bin, tmp_path, settings(tmp_path / "not there yet") | more)
    assert done.returncode == 2 and wanted in done.stderr, done.stderr
