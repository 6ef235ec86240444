"""deploy/examples/rank_search.py: what it counts without torch; where torch is, that the model does what was counted, and its peers of row tune-search."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

numpy = pytest.importorskip("numpy")

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLE = ROOT / "deploy" / "examples" / "rank_search.py"
sys.path += [str(EXAMPLE.parent), str(ROOT / "bench")]

import muster_runtime
import rank_clicks
import rank_search
import rank_space
from tune_helpers import ENVIRONMENT, results, tune


def setting(*words: str) -> dict:
    return rank_space.setting_of(["dim=2", "op1=none", "op2=none", *words], {})


@pytest.fixture
def clicks(tmp_path) -> Path:
    """A small file of made up clicks."""
    whole = rank_clicks.made_up(3, 3000)
    path = tmp_path / "clicks.npz"
    numpy.savez(path, ids=whole.ids, numbers=whole.numbers, clicks=whole.clicks)
    return path


# ---- FLOPs ----

# By hand: 3 fields and 2 numbers of dimension 2 are 4 rows, 8 values. The numbers' row by a layer of 16, 2*2*16 + 16 + 16 + 2*16*2 + 2 = 162, each id alone 3, the last layer 2 * what it reads + 1.
BASE = 162 + 3 + 1


@pytest.mark.parametrize(
    "words, flops",
    [
        ([], BASE + 2 * 8),
        (["op1=fc", "width1=5"], BASE + (2 * 8 * 5 + 5 + 5) + 2 * 5),
        (["op1=dot"], BASE + 2 * 4 * 4 * 2 + 2 * 6),
        (["op1=dcn", "width1=3"], BASE + (2 * 8 * 3 + 2 * 3 * 8 + 3 * 8) + 2 * 8),
        # gate: bias and ReLU of 3, then bias, sigmoid and product of 8
        (["op1=gate", "width1=3"], BASE + (2 * 8 * 3 + 6 + 2 * 3 * 8 + 24) + 2 * 8),
        # fm of one head, and of two: squares of 8, sums of rows and of squares, square, difference, half
        (["op1=fm", "width1=8"], BASE + (8 + 2 * (2 * 4 * 2) + 3 * 2) + 2 * 2),
        (["op1=fm", "width1=32"], BASE + (8 + 2 * (2 * 2 * 4 * 2) + 3 * 4) + 2 * 4),
        # the second reads 5 of the first, or 8 + 5; the end reads both blocks
        (
            ["op1=fc", "width1=5", "op2=fc", "from2=last", "width2=3"],
            BASE + (2 * 8 * 5 + 10) + (2 * 5 * 3 + 6) + 2 * 8,
        ),
        (
            ["op1=fc", "width1=5", "op2=fc", "from2=both", "width2=3"],
            BASE + (2 * 8 * 5 + 10) + (2 * 13 * 3 + 6) + 2 * 8,
        ),
        # dot of the first's 5 values as 4 rows (a layer to 4 * 2), and of those beside the features' 4
        (
            ["op1=fc", "width1=5", "op2=dot", "from2=last"],
            BASE + (2 * 8 * 5 + 10) + (2 * 5 * 8 + 8) + 2 * 4 * 4 * 2 + 2 * (5 + 6),
        ),
        (
            ["op1=fc", "width1=5", "op2=dot", "from2=both"],
            BASE + (2 * 8 * 5 + 10) + (2 * 5 * 8 + 8) + 2 * 8 * 8 * 2 + 2 * (5 + 28),
        ),
    ],
)
def test_flops_are_those_counted_by_hand(words, flops):
    assert rank_space.flops_of(setting(*words), fields=3, numbers=2) == flops


@pytest.mark.parametrize(
    "words",
    [
        ["op1=fc"],
        ["op1=fc", "width1=3", "op2=fc", "width2=1", "from2=both"],
        ["op1=dcn", "op2=fm", "width2=4", "width1=1"],
        ["op1=gate", "width3=7"],  # of a block that isn't there
    ],
)
def test_what_fills_a_budget_is_as_wide_as_fits_and_keeps_its_shares(words):
    shape, budget = (10, 3), 16_000
    drawn = setting(*words)
    found = rank_space.filled(drawn, *shape, budget)
    flops = rank_space.flops_of(found, *shape)
    head = rank_space.HEAD_WIDTH
    wider = found | {f"width{i}": found[f"width{i}"] + head * drawn[f"width{i}"] for i in (1, 2, 3)}
    assert flops <= budget < rank_space.flops_of(wider, *shape)
    shares = [drawn[f"width{i}"] for i in (1, 2, 3)]
    widths = [found[f"width{i}"] for i in (1, 2, 3)]
    whole = max(widths) / max(shares)
    assert all(abs(w - share * whole) <= 1 for w, share in zip(widths, shares, strict=True))
    assert {**found, **{f"width{i}": drawn[f"width{i}"] for i in (1, 2, 3)}} == drawn


def test_what_has_no_width_to_fill_stays_and_what_is_too_dear_is_the_least():
    assert rank_space.flops_of(rank_space.filled(setting("op1=fc"), 10, 3, 10), 10, 3) > 10
    assert rank_space.filled(setting("op1=fc"), 10, 3, 10)["width1"] == 1
    dots = setting("op1=dot")
    assert rank_space.flops_of(rank_space.filled(dots, 10, 3, 16_000), 10, 3) == (
        rank_space.flops_of(dots, 10, 3)
    )


def test_filling_needs_a_budget(capsys):
    assert rank_search.main(["train", "--fill"]) == rank_search.REFUSED
    assert "--fill: fills which --budget?" in capsys.readouterr().err


def test_the_model_does_what_was_counted():
    pytest.importorskip("torch")
    import rank_model
    import zoo

    dice = random.Random(0)
    for _ in range(40):
        words = [f"op{i}={dice.choice(rank_space.OPERATORS)}" for i in (1, 2, 3)]
        words += [f"from{i}={dice.choice(rank_space.SOURCES)}" for i in (1, 2, 3)]
        words += [f"width{i}={dice.choice((8, 16, 32, 64))}" for i in (1, 2, 3)]
        drawn = setting(*words, f"dim={dice.choice((4, 6))}")
        model = rank_model.model_of(drawn, (5, 7, 2), 3, 0)
        assert zoo.counted_flops(model, 3, 3) == rank_space.flops_of(drawn, 3, 3), drawn


def test_peers_are_as_wide_as_the_budget_allows():
    pytest.importorskip("torch")
    import zoo

    for peer in zoo.PEERS:
        width = zoo.widest(peer, 10, 3, 6, 1, 16_000)
        here, wider = (
            zoo.counted_flops(peer((1,) * 10, 3, 6, each, 1), 10, 3) for each in (width, width + 1)
        )
        assert here <= 16_000 < wider, peer
    assert zoo.widest(zoo.AutoInt, 10, 3, 12, 1, 16_000) == 0, "attention alone is above"


# ---- figures ----


def test_normalised_entropy_of_the_average_is_1_and_of_more_is_less():
    torch = pytest.importorskip("torch")
    import rank_model

    labels = torch.tensor([1.0, 0.0, 0.0, 0.0])
    average = torch.full((4,), 0.25).logit()
    assert rank_model.normalised_entropy(average, labels) == pytest.approx(1, abs=1e-6)
    # -ln 0.5 for all, over the entropy of 1/4: 0.693147 / 0.562335
    assert rank_model.normalised_entropy(torch.zeros(4), labels) == pytest.approx(1.232623)
    assert rank_model.normalised_entropy(4 * labels - 2, labels) < 0.5
    with pytest.raises(ValueError, match="the same label"):
        rank_model.normalised_entropy(average, torch.zeros(4))


@pytest.mark.parametrize(
    "points, front",
    [
        ([], []),
        ([(0.9, 100)], [0]),
        ([(0.9, 100), (0.8, 200), (0.85, 300)], [0, 1]),
        ([(0.8, 200), (0.9, 100), (0.8, 100)], [2]),
        ([(0.9, 100), (0.9, 100), (0.9, 200)], [0]),
    ],
)
def test_the_front_is_what_none_beats(points, front):
    assert rank_space.front_of(points) == front


# ---- data and knobs ----


def test_the_same_seed_makes_the_same_clicks_and_parts_share_no_row():
    one, again, other = (rank_clicks.made_up(seed, 3600) for seed in (1, 1, 2))
    assert (one.ids == again.ids).all() and (one.clicks == again.clicks).all()
    assert (one.clicks != other.clicks).any()
    parts = [one.part(name) for name in rank_clicks.ROWS]
    assert [len(part.clicks) for part in parts] == [2000, 600, 1000]
    assert (numpy.concatenate([part.numbers for part in parts]) == one.numbers).all()


@pytest.mark.parametrize(
    "arrays, told",
    [
        ({"ids": [[0]], "clicks": [1]}, "with ids, numbers and clicks: 'numbers is not a file"),
        ({"ids": [[0]], "numbers": [[1.0], [2.0]], "clicks": [1]}, "a row a sample"),
        ({"ids": [[-1]], "numbers": [[1.0]], "clicks": [1]}, "ids from 0 on"),
        ({"ids": [[0.5]], "numbers": [[1.0]], "clicks": [1]}, "ids from 0 on"),
        ({"ids": [[0]], "numbers": [[1.0]], "clicks": [2]}, "clicks of 0 or 1"),
    ],
)
def test_a_file_that_is_wrong_is_refused(tmp_path, capsys, arrays, told):
    path = tmp_path / "clicks.npz"
    numpy.savez(path, **{name: numpy.array(rows) for name, rows in arrays.items()})
    assert rank_search.main(["train", "--data", str(path)]) == rank_search.REFUSED
    assert told in capsys.readouterr().err


def test_a_file_that_is_none_of_numpys_is_refused(tmp_path, capsys):
    path = tmp_path / "clicks.npz"
    for content in (b"ids,clicks", b"PK\x03\x04broken", b""):
        path.write_bytes(content)
        assert rank_search.main(["train", "--data", str(path)]) == rank_search.REFUSED
        assert f"{path}: is no .npz file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "word, told",
    [
        ("op9=fc", "op9: is no knob"),
        ("dim", "dim: is no knob; write KNOB=VALUE"),
        ("op1=mlp", "op1=mlp: takes none, fc, dot, dcn, fm, gate"),
        ("from2=all", "from2=all: takes features, last, both"),
        ("dim=wide", "dim=wide: is no number"),
        ("lr=0", "lr=0: must be above 0"),
    ],
)
def test_a_knob_that_is_wrong_is_refused(capsys, word, told):
    assert rank_search.main(["train", word]) == rank_search.REFUSED
    assert told in capsys.readouterr().err


def test_knobs_are_the_workers_and_words_go_before():
    told = {"MUSTER_TRIAL_OP1": "gate", "MUSTER_TRIAL_WIDTH1": "64", "MUSTER_TRIAL_LR": "1e-2"}
    found = rank_space.setting_of(["width1=8"], told)
    assert (found["op1"], found["width1"], found["lr"]) == ("gate", 8, 0.01)
    assert found["dim"] == rank_space.DEFAULTS["dim"]
    with pytest.raises(ValueError, match="widht1: is no knob"):
        rank_space.setting_of([], {"MUSTER_TRIAL_WIDHT1": "8"})


def test_a_studys_settings_are_those_that_its_command_made():
    trial = {"op1": "fc", "lr": 0.008}
    command = ["python3", "rank_search.py", "train", "dim=6", "lr={lr}", "op2=none"]
    found = rank_search.setting_made(command, trial, (10, 3))
    assert (found["op1"], found["dim"], found["lr"], found["width1"]) == ("fc", 6, 0.008, 32)
    filled = rank_search.setting_made([*command, "--budget", "16000", "--fill"], trial, (10, 3))
    assert filled["width1"] > 32


# ---- trials ----


def test_a_trial_that_was_stopped_ends_as_if_it_hadnt_been(tmp_path, clicks, agent, monkeypatch):
    pytest.importorskip("torch")
    import rank_model

    words = ["train", "--data", str(clicks), "--steps", "12", "--batch", "100", "op2=dcn"]

    def run(name: str, resume: str = "") -> tuple[int, list[dict]]:
        monkeypatch.setattr(muster_runtime, "_channel", None)
        monkeypatch.setenv("MUSTER_PROGRESS_SOCKET", str(agent.path))
        monkeypatch.setenv("MUSTER_CHECKPOINT_DIR", str(tmp_path / name))
        monkeypatch.setenv("MUSTER_RESUME_FROM", resume)
        code = rank_search.main(words)
        muster_runtime._reports.flush()
        return code, agent.lines()

    code, whole = run("whole")
    assert code == 0
    train, at = rank_model.train, 5

    def stopped_at_step_5(*given):
        *others, after_step, state = given

        def and_told(step, *more):
            if step == at:
                muster_runtime._stopped.set()
            after_step(step, *more)

        return train(*others, and_told, state)

    with monkeypatch.context() as patch:
        patch.setattr(rank_model, "train", stopped_at_step_5)
        code, lines = run("stopped")
        muster_runtime._stopped.clear()
    assert code == rank_search.STOPPED and not any("ne" in line for line in lines)
    (saved,) = [line["checkpoint"] for line in lines if "checkpoint" in line]
    assert saved["step"] == at
    code, rest = run("rest", saved["path"])
    assert code == 0 and [line["loaded"]["step"] for line in rest if "loaded" in line] == [at]
    broken = tmp_path / "broken.pt"
    broken.write_bytes(Path(saved["path"]).read_bytes()[:2000])
    code, around = run("around", f"{broken},{saved['path']}")
    assert code == 0 and [line["ne"] for line in around if "ne" in line] == [whole[-1]["ne"]]
    assert [line["ne"] for line in rest if "ne" in line] == [whole[-1]["ne"]]


def test_a_study_refuses_what_is_above_the_budget_and_has_a_front(tmp_path, clicks):
    pytest.importorskip("torch")
    shape = len(rank_clicks.FIELDS), rank_clicks.NUMBERS
    cheap, dear = (
        rank_space.flops_of(rank_space.DEFAULTS | {"op1": op, "op2": "none"}, *shape)
        for op in ("fm", "fc")
    )
    assert cheap < dear
    # fmt: off
    done = tune(["--study", f"{tmp_path}/study", "--knob", "op1=fm,fc", "--knob", "op2=none", "--trials", "2", "--sampler", "random",
                 "--objective", "ne", "--direction", "minimize", "--give-up-after", "2",
                 "--", sys.executable, str(EXAMPLE), "train", "--data", str(clicks), "--budget", str(dear - 1), "--steps", "5"])
    # fmt: on
    assert done.returncode == 0, done.stderr
    found = {one["setting"]["op1"]: one for one in results(tmp_path)}
    assert found["fm"]["state"] == "done" and 0 < found["fm"]["value"] < 2
    refused = f"exit 2: {dear} FLOPs a sample are above the {dear - 1} of --budget"
    assert found["fc"]["state"] == "failed" and found["fc"]["cause"] == refused
    words = [sys.executable, EXAMPLE, "pareto", tmp_path / "study"]
    shown = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True)
    title, line = shown.stdout.splitlines()
    assert title.split() == ["TRIAL", "NE", "FLOPS", "MODEL"]
    trial, entropy, flops, *model = line.split()
    assert (entropy, int(flops)) == (f"{found['fm']['value']:.5f}", cheap)
    assert model[-4:] == ["fm", "32", "of", "features"]


def test_what_is_refused_doesnt_wait_for_torch():
    text = f"""import sys; sys.path.insert(0, {str(EXAMPLE.parent)!r}); import rank_search
code = rank_search.main(["train", "--budget", "100"]); print(code, "torch" in sys.modules)"""
    done = subprocess.run([sys.executable, "-c", text], env=ENVIRONMENT, capture_output=True)
    assert done.stdout.split() == [b"2", b"False"], done.stderr
