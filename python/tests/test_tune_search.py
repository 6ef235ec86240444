"""muster_tune: knobs, samplers, and what estimates leave out. Without LightGBM and Optuna their own parts are skipped."""

import json
import os
import random
import stat
from pathlib import Path

import pytest
from muster_tune import history
from muster_tune.__main__ import main
from muster_tune.estimates import Estimator, NoAnswer, candidates
from muster_tune.proxy import Proxy, Record
from muster_tune.samplers import Begun, Random, Tpe
from muster_tune.space import Knob, Space, SpaceError, key_of, parse_knob, trainer_knob
from muster_tune.study import DONE, FAILED, OPEN, Study, Trial
from tune_helpers import MINIMIZE, results, tune


@pytest.mark.parametrize(
    "text, knob",
    [
        ("lr=1e-5,1e-4", Knob("lr", (1e-5, 1e-4))),
        ("a.b=none,2,true,null", Knob("a.b", ("none", 2, True, None))),
        ("n=NaN,-Infinity", Knob("n", ("NaN", "-Infinity"))),
        ("n=1..8", Knob("n", (), 1, 8, whole=True)),
        ("x=-0.5..1", Knob("x", (), -0.5, 1.0)),
        ("lr=log:1e-5..1e-2", Knob("lr", (), 1e-5, 1e-2, log=True)),
    ],
)
def test_knobs_are_read(text, knob):
    assert parse_knob(text) == knob
    dice = random.Random(1)
    assert all(knob.has(knob.draw(dice)) for _ in range(200))


@pytest.mark.parametrize(("text", "middle"), [("x=0..1", 0.5), ("x=log:1e-6..1e-2", 1e-4)])
def test_half_of_what_is_drawn_lies_below_a_ranges_middle(text, middle):
    dice, knob = random.Random(1), parse_knob(text)
    below = sum(knob.draw(dice) < middle for _ in range(1000))
    assert 420 < below < 580


@pytest.mark.parametrize(
    "knobs, told",
    [
        ([], "there is nothing to try: give at least one --knob"),
        (["lr"], "--knob lr: write NAME=VALUE,VALUE"),
        (["lr="], "--knob lr=: one of its values is empty"),
        (["lr=1,,2"], "one of its values is empty"),
        (["lr=1,1"], "has a value twice"),
        (["l r=1"], "write NAME=VALUE,VALUE"),
        (["lr=2..1"], "LOW must be below HIGH"),
        (["lr=1..1e999"], "LOW must be below HIGH"),
        (["lr=log:0..1"], "LOW must be above 0"),
        (["a=1", "a=2"], "--knob a: stands twice"),
    ],
)
def test_a_wrong_knob_is_told_with_its_remedy(tmp_path, knobs, told, capsys):
    given = [word for knob in knobs for word in ("--knob", knob)]
    words = ["--study", str(tmp_path / "s"), *given, *MINIMIZE, "--", "true"]
    assert main(words) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    "words, told",
    [
        (["--knob", "x=1"], "give either --trainer, or what a trial runs"),
        (["--knob", "x=1", "--", "true"], "--objective and --direction are needed"),
        (["--trials", "0", "--", "true"], "--trials must be above 0"),
        (["--lease", "nan", "--", "true"], "--lease must be above 0"),
        (["--trainer", "{}", "--steps", "2"], "--steps must be above 2"),
        (["--trainer", "{}", "--direction", "minimize"], "tokens_per_s is to be maximized"),
        (["--trainer", "{}", "--objective", "loss"], "--direction is needed"),
        (["--sampler", "proxy", *MINIMIZE, "--", "true"], "go with --trainer"),
    ],
)
def test_wrong_words_are_told(tmp_path, words, told, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--study", str(tmp_path / "s"), *words])
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


def test_a_program_that_isnt_there_is_told(tmp_path, capsys):
    words = ["--study", str(tmp_path / "s"), "--knob", "x=1", *MINIMIZE, "--", "/nowhere/train"]
    assert main(words) == 2
    assert "/nowhere/train: there is no such program here" in capsys.readouterr().err


def test_several_processes_of_a_worker_are_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    words = ["--study", str(tmp_path / "s"), "--knob", "x=1", *MINIMIZE, "--", "true"]
    assert main(words) == 2
    assert "write processes_per_worker: 1 into the job" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


def test_the_trainers_knobs_need_no_values():
    assert trainer_knob("micro_batch", 24).values == (1, 2, 4, 8, 16)
    assert trainer_knob("micro_batch=4,6", 24) == Knob("micro_batch_size", (4, 6))
    assert trainer_knob("zero_stage", 1) == Knob("zero_stage", (0, 1, 2, 3))
    with pytest.raises(SpaceError, match="learning_rate=VALUE,VALUE"):
        trainer_knob("learning_rate", 1)


SPACE = Space([Knob("a", (1, 2, 3)), Knob("b", ("x", "y"))])


def every_setting(sampler) -> list[str]:
    trials: list[Trial] = []
    while (setting := sampler.propose(trials)) is not None:
        state = (DONE, FAILED, OPEN)[len(trials) % 3]
        trials.append(Trial(len(trials), setting, state, 1.0 if state == DONE else None))
    return [key_of(trial.setting) for trial in trials]


def test_random_proposes_each_setting_once_and_the_same_in_each_worker():
    found = every_setting(Random(SPACE, 1))
    assert sorted(found) == sorted(map(key_of, SPACE.all()))
    assert found == every_setting(Random(SPACE, 1)) != every_setting(Random(SPACE, 2))
    endless = Space([Knob("x", (), 0.0, 1.0)])
    first = Random(endless, 1).propose([])
    assert Random(endless, 1).propose([Trial(0, first)]) != first


def test_settings_that_were_named_come_first_each_once():
    firsts = [setting for setting in SPACE.all()][2:5]
    found = every_setting(Begun(firsts, Random(SPACE, 1)))
    assert found[:3] == [key_of(setting) for setting in firsts]
    assert sorted(found) == sorted(map(key_of, SPACE.all()))


@pytest.mark.parametrize(
    "first, told",
    [
        ("lr=1e-5", "--first lr=1e-5: kind is missing; a setting has every knob"),
        ("lr=1e-5,kind", "write KNOB=VALUE,KNOB=VALUE"),
        ("lr=1e-5,lr=1e-4,kind=a", "each knob once"),
        ("lr=1e-5,kind=a,n=1", "n is no knob; there are lr, kind"),
        ("lr=1e-3,kind=a", "lr=0.001 is none of what its --knob tries"),
        ("lr=x,kind=a", "lr=x is none of what its --knob tries"),
    ],
)
def test_a_wrong_first_setting_is_told_with_its_remedy(tmp_path, first, told, capsys):
    knobs = ["--knob", "lr=log:1e-5..1e-4", "--knob", "kind=a,b"]
    words = ["--study", str(tmp_path / "s"), *knobs, "--first", first, *MINIMIZE, "--", "true"]
    assert main(words) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


def test_tpe_proposes_each_setting_once():
    pytest.importorskip("optuna")
    assert sorted(every_setting(Tpe(SPACE, 1, True))) == sorted(map(key_of, SPACE.all()))


@pytest.mark.parametrize("minimize", [True, False])
def test_tpe_goes_where_it_was_good(minimize):
    pytest.importorskip("optuna")
    space = Space([Knob("x", (), 0.0, 1.0), Knob("kind", ("good", "bad"))])
    late, sign = [], 1 if minimize else -1
    for seed in range(4):
        sampler, trials = Tpe(space, seed, minimize), []
        for number in range(40):
            setting = sampler.propose(trials)
            value = sign * ((setting["x"] - 0.3) ** 2 + (setting["kind"] == "bad"))
            state, value = (FAILED, None) if setting["x"] > 0.9 else (DONE, value)
            trials.append(Trial(number, setting, state, value))
        late += trials[25:]
    good = sum(trial.setting["kind"] == "good" for trial in late)
    near = sum(abs(trial.setting["x"] - 0.3) < 0.2 for trial in late)
    assert good >= 40 and near >= 36  # at random 30 and 24 of 60


def test_tpe_begins_elsewhere_with_another_seed():
    pytest.importorskip("optuna")
    endless = Space([Knob("x", (), 0.0, 1.0)])
    first, again, other = (Tpe(endless, seed, True).propose([]) for seed in (1, 1, 2))
    assert first == again != other


# ---- the proxy ----


def estimate_of(setting: dict, memory: int = 1000, size: float = 1.0) -> dict:
    micro = 64 // setting["micro_batch_size"]
    return {
        "ranks": 1,
        "flops_per_step": 1e12 * size,
        "trained_parameters": int(1e6 * size),
        "micro_batches": micro,
        "micro_batch_size": setting["micro_batch_size"],
        "memory_bytes": memory + 100 * setting["micro_batch_size"],
        "gather_bytes_per_step": 1000,
        "memory": [],
    }


TRAINER = Space([trainer_knob("micro_batch", 64), trainer_knob("recompute", 64)])


def speed_of(setting: dict, size: float = 1.0) -> float:
    again = {"none": 1.0, "pointwise": 1.05, "keep_attention": 1.2, "full": 1.33}
    return 1e6 / (size * again[setting["recompute"]] + 2.0 / setting["micro_batch_size"])


def told_of(space: Space, **more) -> dict:
    return {key_of(s): {"estimate": estimate_of(s, **more)} for s in space.all()}


def test_what_cant_fit_is_not_proposed_nor_what_needs_more_than_what_ran_out():
    told = told_of(TRAINER)
    small = {key_of(s) for s in TRAINER.all() if s["micro_batch_size"] <= 16}
    for key in told:
        if json.loads(key)["micro_batch_size"] == 64:
            told[key] = {"why": "a rank doesn't fit", "memory": True}
    lost = {"micro_batch_size": 32, "recompute": "none"}
    trials = [Trial(0, lost, FAILED, None, "exit 1: out of memory", memory=True)]
    proxy = Proxy(TRAINER, told, [], None, 64, 2, 0)
    found = set()
    while (setting := proxy.propose(trials)) is not None:
        found.add(key_of(setting))
        trials.append(Trial(len(trials), setting, FAILED, None, "exit 1"))
    assert found == small


def test_the_users_own_setting_is_tried_first_if_it_fits():
    own = {"micro_batch_size": 2, "recompute": "full"}
    assert Proxy(TRAINER, told_of(TRAINER), [], own, 64, 2, 0).propose([]) == own
    told = told_of(TRAINER) | {key_of(own): {"why": "it doesn't fit", "memory": True}}
    assert Proxy(TRAINER, told, [], own, 64, 2, 0).propose([]) != own


def past_of(sizes: list[float]) -> list[Record]:
    return [
        Record(f"s{size}", s, estimate_of(s, size=size), 64, 2, speed_of(s, size))
        for size in sizes
        for s in TRAINER.all()
    ]


def test_the_proxy_finds_the_best_by_what_others_measured_and_soon_without():
    pytest.importorskip("lightgbm")
    best = max(map(speed_of, TRAINER.all()))
    for past, trials_to_best in ((past_of([0.5, 3.0]), 2), ([], 12)):
        proxy, trials = Proxy(TRAINER, told_of(TRAINER), past, None, 64, 2, 1), []
        while len(trials) < trials_to_best:
            setting = proxy.propose(trials)
            trials.append(Trial(len(trials), setting, DONE, speed_of(setting)))
        assert max(trial.value for trial in trials) >= 0.97 * best


def test_a_history_is_of_one_sku_and_a_broken_file_is_passed_over(tmp_path, capsys):
    study = Study(tmp_path / "study", {"trials": 2, "direction": "maximize"})
    setting = {"micro_batch_size": 2, "recompute": "none"}
    study.propose(setting)
    study.end(study.trials[0], 123.0)
    study.propose({"micro_batch_size": 4, "recompute": "none"})
    study.end(study.trials[1], None, "exit 1")
    config = {"global_batch_size": 4, "max_length": 8, "model": {"num_hidden_layers": 3}}
    for _ in range(2):  # as each worker does
        history.write(tmp_path / "past", study, told_of(TRAINER), config, "h100")
    for name, text in {"a": "{", "b": "[]", "c": '{"sku": "h100", "runs": [{}]}'}.items():
        (tmp_path / "past" / f"{name}.json").write_text(text)
    records = history.read(tmp_path / "past", "h100")
    assert [(r.setting, r.tokens_per_s, r.tokens_per_step, r.layers) for r in records] == [
        (setting, 123.0, 32, 3)
    ]
    assert capsys.readouterr().out.count("is passed over") == 3
    assert history.read(tmp_path / "past", "a100") == []


def test_of_a_long_history_the_newest_is_read(tmp_path, monkeypatch):
    run = {"setting": {}, "estimate": {}}
    for name, at, speed in (("b", 300, 3.0), ("a", 100, 1.0), ("c", 200, 2.0)):
        content = {"sku": "h100", "tokens_per_step": 1, "layers": 1}
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(content | {"runs": [run | {"tokens_per_s": speed}]}))
        os.utime(path, (at, at))
    monkeypatch.setattr(history, "MOST_RECORDS", 2)
    assert [record.tokens_per_s for record in history.read(tmp_path, "h100")] == [3.0, 2.0]


def test_jobs_that_have_trained_tell_the_sum_and_not_the_trees(tmp_path, capsys):
    config = {"global_batch_size": 4, "max_length": 8, "model": {"num_hidden_layers": 3}}
    jobs = [
        {"job": "7", "trainer": config | {"recompute": "full"}, "ranks": 2, "tokens_per_s": 50.0},
        {"job": "8", "trainer": config | {"colour": "red"}, "ranks": 2, "tokens_per_s": 50.0},
        {"job": "9", "trainer": config | {"model": {}}, "ranks": 2, "tokens_per_s": 50.0},
        {"job": "10", "trainer": config, "ranks": 2, "tokens_per_s": 0},
    ]
    asked = []

    def ask(of: dict, ranks: int) -> dict:
        asked.append(ranks)
        assert of["data"] == "/data"
        return {"why": "no such field"} if "colour" in of else {"estimate": {"ranks": ranks}}

    for _ in range(2):  # as each worker does
        records = history.of_jobs(jobs, {"data": "/data"}, tmp_path / "jobs.json", ask)
        assert [(r.study, r.setting, r.layers, r.tokens_per_s) for r in records] == [
            ("job 7", {"recompute": "full"}, 3, 50.0)
        ]
    assert asked == [2] * 4, "the second one reads what the first one kept"
    assert capsys.readouterr().out.count("is passed over") == 4


# ---- estimates, by a stand-in for muster-trainer ----

STAND_IN = """#!{python}
import json, sys
words = dict(zip(sys.argv[2::2], sys.argv[3::2]))
config = json.load(open(words["--config"]))
if "colour" in config:
    sys.exit("estimate: 1 problem\\n  trainer.colour: no such field.")
micro = config["micro_batch_size"]
if sys.argv[1] == "estimate":
    if config["recompute"] == "full":
        print("estimate: 1 problem\\n  trainer.recompute: full is none here", file=sys.stderr)
        sys.exit(2)
    if micro > 4:
        print("estimate: it needs\\n  too much", file=sys.stderr)
        sys.exit(3)
    print(json.dumps(dict(ranks=1, flops_per_step=1e9, trained_parameters=100, micro_batches=8 // micro,
                          micro_batch_size=micro, memory_bytes=micro * 100, memory=[])))
else:
    for step in range(1, config["max_steps"] + 1):
        slow = 100 if step <= 2 else 1
        print(json.dumps(dict(step=step, tokens_per_s=micro * 1000 / slow)), flush=True)
"""
CONFIG = {
    "model": {"num_hidden_layers": 2},
    "global_batch_size": 8,
    "max_length": 16,
    "max_steps": 1000,
    "export": "model",
}


@pytest.fixture
def trainer(tmp_path) -> Path:
    import sys

    path = tmp_path / "muster-trainer"
    text = STAND_IN.replace("{python}", sys.executable)
    text = text.replace('sys.exit("estimate', 'print("estimate').replace(
        'field.")', 'field.", file=sys.stderr)\n    sys.exit(2)'
    )
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def trainer_words(folder: Path, trainer: Path, *more: str) -> list[str]:
    given = ["--study", f"{folder}/study", "--trainer", json.dumps(CONFIG), "--steps", "5"]
    return [*given, "--trainer-bin", str(trainer), "--trials", "50", *more]


def test_trials_of_the_trainer_are_short_runs_of_what_is_possible(tmp_path, trainer):
    given = ["--sampler", "random", "--knob", "micro_batch", "--knob", "recompute=none,full"]
    done = tune(trainer_words(tmp_path, trainer, *given, "--history", f"{tmp_path}/past"))
    assert done.returncode == 0, done.stderr
    found = {key_of(one["setting"]): one for one in results(tmp_path)}
    assert len(found) == 8  # random leaves nothing out
    good = found[key_of({"micro_batch_size": 4, "recompute": "none"})]
    assert good["value"] == 4000  # the median, without the first two steps
    config = json.loads(next((tmp_path / "study/trials").rglob("config.json")).read_text())
    assert config["max_steps"] == 5 and "export" not in config
    assert "--set trainer.micro_batch_size=8" in done.stdout
    assert len(history.read(tmp_path / "past", "cpu")) == 3  # those that have an estimate


def test_the_proxy_tries_only_what_is_possible_and_fits(tmp_path, trainer):
    pytest.importorskip("lightgbm")
    given = ["--knob", "micro_batch", "--knob", "recompute=none,full"]
    done = tune(trainer_words(tmp_path, trainer, *given))
    assert done.returncode == 0, done.stderr
    found = {one["setting"]["micro_batch_size"]: one["value"] for one in results(tmp_path)}
    assert found == {1: 1000, 2: 2000, 4: 4000}


@pytest.mark.parametrize(
    "past, said",
    [
        ([{"job": "7", "trainer": CONFIG | {"micro_batch_size": 2, "recompute": "none"}, "ranks": 1, "tokens_per_s": 2e3}], ""),
        ([{"job": "7"}], "TUNE_PAST_JOBS is passed over"),
        ([{"job": "7", "trainer": CONFIG | {"micro_batch_size": 1, "recompute": "none"}, "ranks": 1, "tokens_per_s": -1}], "job 7 is passed over"),
    ],
)  # fmt: skip
def test_a_tuning_takes_what_is_known_of_jobs_and_works_without(tmp_path, trainer, past, said):
    pytest.importorskip("lightgbm")
    given = ["--knob", "micro_batch", "--knob", "recompute=none"]
    done = tune(trainer_words(tmp_path, trainer, *given), TUNE_PAST_JOBS=json.dumps(past))
    assert done.returncode == 0, done.stderr
    assert {one["value"] for one in results(tmp_path)} == {1000, 2000, 4000}
    assert said in done.stdout and ("is passed over" in done.stdout) == bool(said)


@pytest.mark.parametrize(
    "knobs, told",
    [
        (["colour=red,blue"], "trainer.colour: no such field."),
        (["recompute=full", "micro_batch_size=1,2"], "no setting of these knobs is possible: trainer.recompute: full"),
        (["recompute=none", "micro_batch_size=8"], "no setting of these knobs is possible: too much"),
    ],
)  # fmt: skip
def test_knobs_that_cant_be_are_told_before_any_trial(tmp_path, trainer, knobs, told):
    given = [word for knob in knobs for word in ("--knob", knob)]
    done = tune(trainer_words(tmp_path, trainer, *given))
    assert done.returncode == 2
    assert told in done.stderr
    assert results(tmp_path) == []


def test_of_a_large_space_the_same_candidates_are_drawn_by_all():
    space = Space([Knob("a", tuple(range(100))), Knob("b", tuple(range(100)))])
    drawn = candidates(space)
    assert drawn == candidates(space)
    assert len({key_of(setting) for setting in drawn}) == 400
    assert all(map(space.has, drawn))


@pytest.mark.parametrize("stopped", [False, True])
def test_an_estimate_that_was_ended_says_nothing_and_is_asked_again(tmp_path, stopped):
    trainer = tmp_path / "trainer"
    trainer.write_text(
        f"#!/bin/sh\n[ -e {tmp_path}/now ] && echo '{{}}' && exit 0\nkill -TERM $$\n"
    )
    trainer.chmod(0o755)
    estimator = Estimator(str(trainer), {}, 1, "", "")
    space = Space([parse_knob("lr=1,2,3")])
    calls = []

    def between():
        calls.append(1)
        if stopped and len(calls) > 1:
            raise InterruptedError

    with pytest.raises(InterruptedError if stopped else NoAnswer):
        estimator.ask_all(space, tmp_path / "estimates", between)
    assert list((tmp_path / "estimates").iterdir()) == [], "nobody else takes it for an answer"
    (tmp_path / "now").touch()
    told = estimator.ask_all(space, tmp_path / "estimates")
    assert list(told.values()) == [{"estimate": {}}] * 3
