"""muster_tune: every trial once, whoever dies when."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from muster_score.leases import Leases
from muster_tune import attempt as running
from muster_tune import show
from muster_tune.__main__ import main
from muster_tune.attempt import Attempt, Outcome, Run
from muster_tune.reports import Objective, objective_of
from muster_tune.study import Study
from muster_tune.worker import Limits, Worker
from tune_helpers import (
    ENVIRONMENT,
    HERE,
    MINIMIZE,
    every_trial_once,
    left_behind,
    program,
    results,
    start,
    tune,
    words,
)
from tune_program import value_of

UNDER_MUSTER = {"MUSTER_JOB": "7_0", "MUSTER_PROGRESS_SOCKET": "/nowhere"}  # SIGTERM is heard


def wait_for(condition, timeout_s: float = 30):
    end_s = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < end_s, "it never came to that"
        time.sleep(0.01)
    return found


def attempts(folder: Path) -> list[list[str]]:
    log = folder / "log"
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


def test_trials_are_told_and_the_best_stands_at_the_end(tmp_path, agent):
    done = tune(words(tmp_path, 4), MUSTER_PROGRESS_SOCKET=str(agent.path), MUSTER_JOB="7_0")
    assert done.returncode == 0, done.stderr
    every_trial_once(tmp_path, 4)
    found = results(tmp_path)
    best = json.loads((tmp_path / "study/best.json").read_text())
    assert best["best"]["value"] == min(one["value"] for one in found)
    assert value_of(best["best"]["setting"]["x"]) == best["best"]["value"]
    told = agent.lines()
    assert {line["total_steps"] for line in told} == {4}
    steps = [line["step"] for line in told if "step" in line]
    assert steps == [0, 1, 2, 3, 4]
    assert told[-1]["best"] == best["best"]["value"]
    assert "4 trials done, 0 failed, 0 open, of 4" in done.stdout
    assert left_behind(tmp_path) == []
    assert tune(words(tmp_path, 4)).returncode == 0  # nothing is left to do
    assert len(attempts(tmp_path)) == 4


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_death_at_any_of_its_writes_loses_no_trial_and_counts_none_twice(tmp_path, when):
    text = "open(os.environ['RAN'], 'a').write(f'{x}\\n'); print(json.dumps({'loss': x}))"
    for count in range(1, 200):
        folder = tmp_path / str(count)
        folder.mkdir()
        given = program(folder, text, trials=2)
        own = {"MUSTER_JOB": "7_0", "RAN": str(folder / "ran")}
        died = subprocess.run(
            [sys.executable, HERE / "dies.py", "muster_tune", when, str(count), *given],
            env=ENVIRONMENT | own,
            stdout=subprocess.DEVNULL,
            timeout=60,
        ).returncode
        done = tune(given, **own)
        assert done.returncode == 0, done.stderr
        found = results(folder)
        assert [one["value"] for one in found] == [one["setting"]["x"] for one in found]
        assert len({one["value"] for one in found}) == 2
        assert json.loads((folder / "study/best.json").read_text())["trials"] == 2
        assert left_behind(folder) == []
        ran = (folder / "ran").read_text().split()
        assert 2 <= len(ran) <= 3  # what the death cost
        if died == 0:
            assert count > 8
            return
        assert died == 99
    raise AssertionError("it never came to its end")


def test_killed_and_stopped_again_and_again_three_workers_try_every_trial_once(tmp_path):
    given = words(tmp_path, 24, "--lease", "2", "--deaths", "100")
    dice = random.Random(1)
    workers: dict[str, subprocess.Popen] = {}
    hits = 0
    while True:
        for name in ("7_0", "7_1", "7_2"):
            worker = workers.get(name)
            if worker is None or worker.poll() in (-signal.SIGKILL, -signal.SIGTERM, 143):
                workers[name] = start(given, **UNDER_MUSTER | {"MUSTER_JOB": name})
        if any(worker.poll() is not None for worker in workers.values()):
            break
        if hits < 25:
            how = dice.choice([signal.SIGKILL, signal.SIGTERM])
            dice.choice(list(workers.values())).send_signal(how)
            hits += 1
        time.sleep(dice.random() * 0.3)  # so that it strikes anywhere
    for worker in workers.values():
        assert worker.wait(60) == 0, worker.stderr.read()
    every_trial_once(tmp_path, 24)
    assert hits == 25 and len(attempts(tmp_path)) <= 24 + hits


def test_a_stopped_trial_goes_on_from_its_checkpoint_and_no_death_is_counted(tmp_path):
    given = words(tmp_path, 1, "--deaths", "1")
    for attempt in (1, 2):
        worker = start(given, **UNDER_MUSTER, WAITS_AT_STEPS="2")
        waits = f"checkpoints/step-{2 * attempt}"
        wait_for(lambda waits=waits: list((tmp_path / "study/trials").rglob(waits)))
        worker.terminate()
        assert worker.wait(30) == 143
        assert "its trial is open again" in worker.stderr.read()
    assert tune(given, **UNDER_MUSTER).returncode == 0
    every_trial_once(tmp_path, 1)
    assert [int(begin) for _, begin in attempts(tmp_path)] == [0, 2, 4]
    assert list((tmp_path / "study/trials").rglob("checkpoints")) == []


def test_a_killed_worker_takes_what_it_runs_with_it(tmp_path):
    worker = start(program(tmp_path, "print(os.getpid(), flush=True)\ntime.sleep(600)"))

    def pid():
        log = next((tmp_path / "study/trials").rglob("rank-0.log"), None)
        return int(log.read_text() or 0) if log else 0

    running = wait_for(pid)
    worker.kill()
    worker.wait()
    wait_for(lambda: not alive(running))


def test_what_a_trial_has_started_ends_with_it(tmp_path):
    text = """
import subprocess
print(subprocess.Popen(["sleep", "600"]).pid, flush=True)
time.sleep(600)
"""
    assert tune(["--trial-time-limit", "1", *program(tmp_path, text)]).returncode == 1
    log = next((tmp_path / "study/trials").rglob("rank-0.log"))
    wait_for(lambda: not alive(int(log.read_text())))


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_trial_at_which_workers_die_fails_and_the_others_go_on(tmp_path):
    text = "if x == 2: os.kill(os.getppid(), 9)\nprint(json.dumps({'loss': x}))"
    given = program(tmp_path, text, trials=3)
    given = ["--deaths", "3", *given]
    codes = [tune(given, MUSTER_JOB="7_0").returncode for _ in range(4)]
    assert codes == [-9, -9, -9, 0]
    found = {one["setting"]["x"]: one for one in results(tmp_path)}
    assert (found[2]["state"], found[2]["cause"]) == ("failed", "3 workers died as they tried it")
    assert (found[1]["value"], found[3]["value"]) == (1, 3)


@pytest.mark.parametrize(
    "text, cause",
    [
        ("print('x is wrong', file=sys.stderr)\nsys.exit(3)", "exit 3: x is wrong"),
        ("os.kill(os.getpid(), 11)", "SIGSEGV"),
        ("raise MemoryError('CUDA out of memory')", "exit 1: MemoryError: CUDA out of memory"),
        ("print(json.dumps({'loss': float('nan')}))", "loss was no finite number"),
        ("print('{\"loss\": 1e999}')", "loss was no finite number"),
        ("print('{\"loss\": ' + '9' * 400 + '}')", "loss was no finite number"),
        ("import muster_runtime as m\nm.report(1, loss=1.0)\nm.report(2, loss=float('nan'))", "loss was no finite number"),
        ("print('[' * 100000)\nprint('{\"loss\": \"1\"}\\n{\"loss\": true}\\n{')", "the program told no loss: by muster_runtime.report(step, loss=…), or a line of JSON"),
        ("time.sleep(600)", "it took longer than --trial-time-limit 1 s"),
        ("import subprocess\nsubprocess.Popen(['sleep', '600'])\ntime.sleep(600)", "it took longer than --trial-time-limit 1 s"),
    ],
)  # fmt: skip
def test_what_fails_has_a_cause_and_doesnt_hold_up_the_others(tmp_path, text, cause):
    indented = "".join(f"    {line}\n" for line in text.splitlines())
    text = f"if x == 2:\n{indented}else:\n    print(json.dumps({{'loss': x}}))\n"
    done = tune(["--trial-time-limit", "1", *program(tmp_path, text, trials=3)])
    assert done.returncode == 0, done.stderr
    found = {one["setting"]["x"]: one for one in results(tmp_path)}
    assert (found[2]["state"], found[2]["cause"]) == ("failed", cause)
    assert found[2]["memory"] == ("memory" in cause)
    assert (found[1]["value"], found[3]["value"]) == (1, 3)
    assert f"failed: {cause}" in done.stdout


def test_a_study_in_which_nothing_works_ends_with_the_cause(tmp_path):
    given = program(tmp_path, "sys.exit('no GPU here')", trials=90, knob="x=1..1000")
    given = ["5" if word == "100" else word for word in given]
    done = tune(given)
    assert done.returncode == 1
    assert "no trial works: 5 failed, the last one with: exit 1: no GPU here" in done.stderr
    assert len(results(tmp_path)) == 5


def test_a_space_that_is_tried_whole_ends_the_study(tmp_path):
    done = tune(program(tmp_path, "print(json.dumps({'loss': x}))", trials=20))
    assert done.returncode == 0
    assert sorted(one["value"] for one in results(tmp_path)) == [1, 2, 3]
    assert "of 20 (all settings that fit have been tried)" in done.stdout


class Listed:
    """A sampler that keeps what it was told."""

    def __init__(self, settings):
        self.settings, self.told = settings, []

    def propose(self, trials):
        self.told.append([(trial.setting["x"], trial.state) for trial in trials])
        return self.settings[len(trials)] if len(trials) < len(self.settings) else None


PLAN = {"trials": 3, "direction": "minimize", "objective": "loss", "trainer": None}


def test_the_sampler_hears_of_what_failed_and_of_what_is_open(tmp_path):
    code = "import sys\nif {x} == 2: sys.exit(1)\nprint('{\"loss\": 1}')"
    run = Run([sys.executable, "-c", code], Objective("loss", True))
    study = Study(tmp_path / "study", PLAN)
    study.propose({"x": 9})
    other = Leases(tmp_path / "study/leases", "other", 60)
    held = other.take(0)  # another worker has the first one in hand
    sampler = Listed([None, {"x": 2}, {"x": 3}])
    worker = Worker(study, sampler, run, Limits(give_up_after=9), "me")
    worker._wait = lambda seconds: other.give_back(held)  # and leaves it
    worker.run()
    assert sampler.told == [[(9, "open")], [(9, "open"), (2, "failed")]]
    assert [one["state"] for one in results(tmp_path)] == ["done", "failed", "done"]


def test_of_two_workers_with_the_same_trial_the_first_result_counts(tmp_path):
    study, late = Study(tmp_path / "study", PLAN), Study(tmp_path / "study", PLAN)
    study.propose({"x": 1})
    late.propose({"x": 2})  # too late
    assert [trial.setting for trial in late.trials] == [{"x": 1}]
    assert study.end(study.trials[0], 1.0) is True
    assert late.end(late.trials[0], None, "it was slow") is False
    assert (late.trials[0].state, late.trials[0].value) == ("done", 1.0)


def test_a_late_attempts_reports_take_the_place_of_those_it_repeats(tmp_path):
    code = """
import json, os
done = os.environ["MUSTER_RESUME_FROM"]
for step in ([2, 3] if done else [1, 2, 3]):
    print(json.dumps({"step": step, "loss": step * 10 + bool(done)}), flush=True)
    print(json.dumps({"checkpoint": {"path": os.getcwd(), "step": 1}}), flush=True)
    kept = os.path.join(os.path.dirname(os.environ["MUSTER_CHECKPOINT_DIR"]), "reports.jsonl")
    while step == 2 and not done:  # killed once it has kept what it was told
        if open(kept).read().count("checkpoint") == 2: os.kill(os.getppid(), 9)
"""
    given = ["--study", f"{tmp_path}/study", "--knob", "x=1", "--trials", "1", *MINIMIZE]
    given += ["--reduce", "median", "--", sys.executable, "-c", code]
    assert [tune(given, MUSTER_JOB="7_0").returncode for _ in range(2)] == [-9, 0]
    assert [one["value"] for one in results(tmp_path)] == [21]  # of 10, 21, 31


def test_ranks_find_one_another_and_one_that_fails_ends_them_all(tmp_path):
    text = """
rank = int(os.environ["RANK"])
print(json.dumps({"rank": rank, "loss": int(os.environ["WORLD_SIZE"]) + 10 * rank}), flush=True)
if x == 2 and rank == 1: sys.exit("rank 1 has no memory left")
if x == 2: time.sleep(600)
"""
    given = ["--ranks", "2", *program(tmp_path, text, trials=2, knob="x=1,2")]
    began = time.monotonic()
    assert tune(given).returncode == 0
    assert time.monotonic() - began < 30  # and not the time limit
    found = {one["setting"]["x"]: one for one in results(tmp_path)}
    assert found[1]["value"] == 2
    assert found[2]["cause"] == "exit 1: rank 1 has no memory left"


def test_ranks_of_a_trial_have_all_of_torchruns_variables(tmp_path):
    text = """
seen = {name: os.environ[name] for name in os.environ if re.match("RANK$|(LOCAL|GROUP|ROLE|TORCHELASTIC|WORLD|MASTER|TUNE)_", name)}
with open(f"{os.path.dirname(sys.argv[0])}/seen-{x}-{seen['RANK']}", "w") as file: json.dump(seen, file)
print(json.dumps({"loss": 1}))
"""
    given = ["--ranks", "2", *program(tmp_path, "import re\n" + text, trials=2, knob="x=1,2")]
    done = tune(given, MUSTER_RUN_ID="u.main.1", TUNE_PAST_JOBS="[]")
    assert done.returncode == 0, done.stderr
    runs = {}
    for x in (1, 2):
        for rank in ("0", "1"):
            seen = json.loads((tmp_path / f"seen-{x}-{rank}").read_text())
            runs[x, rank] = seen.pop("TORCHELASTIC_RUN_ID"), seen.pop("MASTER_PORT")
            own = {name: rank for name in ("RANK", "LOCAL_RANK", "ROLE_RANK")}
            world = {name: "2" for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE")}
            group = {"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
            elastic = {f"TORCHELASTIC_{name}": "0" for name in ("RESTART_COUNT", "MAX_RESTARTS")}
            assert seen == own | world | group | elastic
    assert runs[1, "0"] == runs[1, "1"] and runs[2, "0"] == runs[2, "1"]
    assert runs[1, "0"][0] != runs[2, "0"][0]
    assert all(run.startswith("u.main.1.") for run, _ in runs.values())


def test_values_reach_the_program_as_variables_too(tmp_path):
    code = "import os, json; print(json.dumps({'loss': float(os.environ['MUSTER_TRIAL_A_B'])}))"
    given = ["--study", f"{tmp_path}/study", "--knob", "a.b=0.5", "--trials", "1", *MINIMIZE]
    assert tune([*given, "--", sys.executable, "-c", code]).returncode == 0
    assert results(tmp_path)[0]["value"] == 0.5
    assert "MUSTER_TRIAL" not in os.environ


# ---- what counts as the best ----


@pytest.mark.parametrize(("direction", "best"), [("minimize", 2), ("maximize", 1)])
def test_the_best_is_the_least_or_the_most_as_asked_and_the_first_of_those(
    tmp_path, direction, best
):
    study = Study(tmp_path / "study", PLAN | {"trials": 5, "direction": direction})
    for number, value in enumerate([2.0, 3.0, 1.0, None, {"minimize": 1.0, "maximize": 3.0}]):
        study.propose({"x": number})
        value = value[direction] if isinstance(value, dict) else value
        study.end(study.trials[number], value, "" if value is not None else "exit 1")
    assert study.best().number == best
    study.finish()
    told = json.loads((tmp_path / "study/best.json").read_text())
    assert (told["best"]["trial"], told["best"]["setting"]) == (best, {"x": best})
    assert show.table(study).splitlines()[2].split()[0] == str(best)


@pytest.mark.parametrize(
    ("reduce", "minimize", "value"),
    [
        ("last", True, 3.0),
        ("last", False, 3.0),
        ("median", True, 3.0),
        ("best", True, 1.0),
        ("best", False, 7.0),
    ],
)
def test_an_objective_is_made_of_its_values_as_asked(tmp_path, reduce, minimize, value):
    lines = [{"step": step, "value": of} for step, of in enumerate([4.0, 1.0, 7.0, 2.0, 3.0])]
    (tmp_path / "reports.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert objective_of([tmp_path], Objective("loss", minimize, reduce)) == value


def test_what_other_ranks_report_does_not_count(tmp_path):
    text = """
import muster_runtime
rank = int(os.environ["RANK"])
muster_runtime.report(1 + rank, loss=1.0 + rank)
"""
    assert tune(["--ranks", "2", *program(tmp_path, text)]).returncode == 0
    assert [one["value"] for one in results(tmp_path)] == [1.0]


def test_a_last_line_without_its_end_counts(tmp_path):
    text = "print(json.dumps({'loss': 9}))\nsys.stdout.write(json.dumps({'loss': x}))\n"
    assert tune(program(tmp_path, text, trials=3)).returncode == 0
    assert sorted(one["value"] for one in results(tmp_path)) == [1, 2, 3]


# ---- a trial that is stopped ----


def attempt_of(folder: Path, code: str, **more) -> Attempt:
    run = Run([sys.executable, "-c", code], Objective("loss", True), **more)
    return Attempt(run, {"x": 1}, 0, folder / "1")


def test_a_trial_that_does_not_hear_a_stop_is_ended_once_its_grace_is_over(tmp_path):
    deaf = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\n"
    deaf += "print('{\"loss\": 1}', flush=True)\ntime.sleep(30)"
    kept, began_s = tmp_path / "1/reports.jsonl", time.monotonic()
    outcome = attempt_of(tmp_path, deaf, grace_s=0.3, time_limit_s=60).run(
        lambda: kept.read_text() != "", int
    )
    assert outcome == Outcome(stopped=True)
    assert time.monotonic() - began_s < 20


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("import sys; sys.exit(143)", Outcome(stopped=True)),
        ("print('{\"loss\": 1}')", Outcome(value=1.0)),  # it was whole
    ],
)
def test_a_trial_that_heard_the_stop_before_its_worker_has_not_failed(
    tmp_path, monkeypatch, code, outcome
):
    told, end = [], running._end
    monkeypatch.setattr(running, "_end", lambda ranks: told.append(True) or end(ranks))
    assert attempt_of(tmp_path, code).run(lambda: bool(told), int) == outcome


# ---- the same study ----


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (["--trials", "2"], "trials 1, and now it is 2"),
        (["--direction", "maximize"], "direction 'minimize', and now it is 'maximize'"),
        (["--objective", "accuracy"], "objective 'loss', and now it is 'accuracy'"),
        (["--reduce", "best"], "reduce 'last', and now it is 'best'"),
        (["--knob", "y=1"], "knobs "),
        (["--ranks", "2"], "ranks 1, and now it is 2"),
        (["--trial-time-limit", "9"], "time_limit_s 600"),
        (["--", "--more"], "command "),
        (["--seed", "7"], ""),  # what is proposed next, and not what a trial is
    ],
)
def test_trials_that_compare_with_no_others_are_not_mixed(tmp_path, changed, told, capsys):
    given = program(tmp_path, "print(json.dumps({'loss': 1}))")
    assert main(given) == 0
    at = given.index("--")
    words = [*given, *changed[1:]] if changed[0] == "--" else given[:at] + changed + given[at:]
    assert main(words) == (1 if told else 0)
    said = capsys.readouterr().err
    assert told in said and ("Take another directory" in said) == bool(told)


def test_another_seed_proposes_other_settings_and_the_same_one_the_same(tmp_path):
    def proposed(name: str, seed: str) -> list[int]:
        folder = tmp_path / name
        folder.mkdir()
        given = program(folder, "print(json.dumps({'loss': x}))", trials=2, knob="x=1..1000000")
        assert main(["--seed", seed, *given]) == 0
        return [one["setting"]["x"] for one in results(folder)]

    first = proposed("a", "1")
    assert proposed("b", "1") == first
    assert not set(proposed("c", "2")) & set(first)
