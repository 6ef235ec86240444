"""What a program finds when Muster starts it: torchrun's environment, its working directory, what setup made."""

import json
from pathlib import Path

import pytest
from small_system import submit, task, wait_ended

SLOT = "resources: {gpus: 1, gpu_types: [cpu-slot]}\n"
# Each process leaves its environment and working directory.
DUMP = """\
run: [/usr/bin/python3, -c, "import json, os; json.dump({'env': dict(os.environ), 'cwd': os.getcwd(), 'umask': os.umask(0)}, open(os.environ['MUSTER_JOB_DIR'] + '/rank' + os.environ.get('RANK', '0'), 'w'))"]
"""


def dumps(job: dict) -> dict[int, dict]:
    return {
        int(path.name[4:]): json.loads(path.read_text())
        for path in Path(job["directory"]).glob("rank*")
    }


def succeeded(system, text: str) -> dict:
    number = submit(system, text)
    job = wait_ended(system, number)
    assert job["state"] == "SUCCEEDED", (
        task(job),
        system.run(["logs", number], check=False).stdout,
    )
    return job


def test_every_process_has_torchruns_whole_environment(system):
    job = succeeded(
        system,
        "name: env\nqueue: research\nworkers: 3\nprocesses_per_worker: 2\nmax_restarts: 5\n"
        + SLOT
        + DUMP,
    )
    found = {rank: dump["env"] for rank, dump in dumps(job).items()}
    assert sorted(found) == [0, 1, 2, 3, 4, 5]
    for rank, env in found.items():
        expected = {
            "RANK": rank,
            "LOCAL_RANK": rank % 2,
            "WORLD_SIZE": 6,
            "LOCAL_WORLD_SIZE": 2,
            "GROUP_RANK": rank // 2,
            "GROUP_WORLD_SIZE": 3,
            "ROLE_RANK": rank,
            "ROLE_WORLD_SIZE": 6,
            "TORCHELASTIC_RESTART_COUNT": 0,
            "TORCHELASTIC_MAX_RESTARTS": 5,
            "MUSTER_JOB": job["number"],
            "MUSTER_TASK": "main",
            "MUSTER_ATTEMPT": 1,
            "MUSTER_RESUME_FROM": "",
            "MUSTER_JOB_DIR": job["directory"],
            "CUDA_VISIBLE_DEVICES": "",
            "MASTER_ADDR": "127.0.0.1",
        }
        assert {name: env.get(name) for name in expected} == {
            name: str(value) for name, value in expected.items()
        }
        assert "TORCHELASTIC_USE_AGENT_STORE" not in env
        assert (
            Path(env["MUSTER_CHECKPOINT_DIR"]).parts[-2:] == ("attempt-1", "checkpoints")
            and Path(env["MUSTER_CHECKPOINT_DIR"]).is_dir()
        )
        assert 0 < len(env["MUSTER_PROGRESS_SOCKET"]) <= 107
    for shared in ("MASTER_PORT", "TORCHELASTIC_RUN_ID", "MUSTER_CHECKPOINT_DIR"):
        assert len({env[shared] for env in found.values()}) == 1, f"{shared} differs inside a gang"
    assert 20000 <= int(found[0]["MASTER_PORT"]) <= 29999


def test_a_lone_process_is_no_rank_unless_its_task_asks_for_it(system):
    run = 'run: echo "${RANK-none} ${WORLD_SIZE-none} ${MASTER_PORT:+port} $MUSTER_RUN_ID" > "$MUSTER_JOB_DIR/found"\n'
    for more, want in (
        ("", "none none "),
        ("rank_variables: true\n", "0 1 port"),
        ("workers: {min: 1, max: 2}\n", None),
    ):
        job = succeeded(system, "name: alone\nqueue: research\n" + more + SLOT + run)
        *found, run_id = (Path(job["directory"]) / "found").read_text().rstrip("\n").split(" ")
        assert run_id == f"{job['uid']}.main.1"
        if want is None:  # a gang, of whatever size there was room for
            assert found[0] in ("0", "1") and found[1] in ("1", "2") and found[2] == "port"
        else:
            assert " ".join(found) == want


def test_checkpoints_in_an_object_store_are_named_and_resumed_from_as_others(system):
    tells = (
        "import json, os, socket, sys; path = os.environ['MUSTER_CHECKPOINT_DIR'] + '/step-1'; "
        "open(os.environ['MUSTER_JOB_DIR'] + '/resumed', 'w').write(os.environ['MUSTER_RESUME_FROM']); "
        "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(json.dumps({'checkpoint': {'step': 1, 'path': path}}).encode(), os.environ['MUSTER_PROGRESS_SOCKET']); "
        "sys.exit(os.environ['MUSTER_ATTEMPT'] == '1')"
    )
    job = succeeded(
        system,
        f"name: stored\nqueue: research\nmax_restarts: 1\ncheckpoint: {{storage: objects}}\n{SLOT}run: [/usr/bin/python3, -c, {json.dumps(tells)}]\n",
    )
    assert (
        (Path(job["directory"]) / "resumed").read_text()
        == f"s3://acme/muster/jobs/{Path(job['directory']).name}/main/attempt-1/checkpoints/step-1"
    )


def test_setup_env_and_workdir_reach_the_processes(system):
    (system.folder / "code").mkdir()
    job = succeeded(
        system,
        f"name: set\nqueue: research\nworkers: 2\nworkdir: {system.folder}/code\nenv: {{COLOUR: green, NUMBER: 1e3}}\n"
        'setup: |\n  echo made >> "$MUSTER_JOB_DIR/setups"\n  export FROM_SETUP="$COLOUR and more"\n'
        + SLOT
        + DUMP,
    )
    for dump in dumps(job).values():
        assert dump["cwd"] == f"{system.folder}/code"
        assert (
            dump["env"]["COLOUR"] == "green"
            and dump["env"]["NUMBER"] == "1e3"
            and dump["env"]["FROM_SETUP"] == "green and more"
        )
    assert (Path(job["directory"]) / "setups").read_text() == "made\n" * 2, (
        "setup runs once a worker"
    )


def test_the_submitters_shell_does_not_leak_into_jobs(system, monkeypatch):
    monkeypatch.setenv("PRIVATE_TOKEN", "hunter2")
    job = succeeded(system, "name: leak\nqueue: research\n" + SLOT + DUMP)
    assert "PRIVATE_TOKEN" not in dumps(job)[0]["env"]


def test_a_setup_that_fails_fails_the_attempt_and_says_so(system):
    number = submit(
        system,
        'name: broken\nqueue: research\nmax_restarts: 0\nsetup: echo no token here >&2; exit 9\nrun: touch "$MUSTER_JOB_DIR/ran"\n'
        + SLOT,
    )
    job = wait_ended(system, number)
    assert (job["state"], job["cause"]) == ("FAILED", "SETUP_FAILED") and "9" in task(job)[
        "attempts"
    ][-1]["detail"]
    assert not (Path(job["directory"]) / "ran").exists()
    assert "no token here" in system.run(["logs", number]).stdout


@pytest.mark.parametrize(
    ("fields", "missing"),
    [
        ("workdir: /nowhere/at/all\nrun: ls\n", "/nowhere/at/all"),
        ("run: [no-such-program, --flag]\n", "no-such-program"),
    ],
    ids=["workdir", "program"],
)
def test_what_is_not_there_is_named_by_the_job_that_wants_it(system, fields, missing):
    number = submit(system, f"name: nowhere\nqueue: research\nmax_restarts: 0\n{fields}{SLOT}")
    job = wait_ended(system, number)
    attempts = task(job)["attempts"]
    assert (job["state"], job["cause"], len(attempts)) == ("FAILED", "PROGRAM_ERROR", 1), job
    assert missing in attempts[-1]["detail"] and missing in job["detail"]


def test_a_shell_program_stops_at_its_first_error_and_its_exit_code_is_told(system):
    number = submit(
        system,
        'name: strict\nqueue: research\nmax_restarts: 0\nrun: |\n  false | true\n  touch "$MUSTER_JOB_DIR/ran"\n'
        + SLOT,
    )
    job = wait_ended(system, number)
    assert (job["state"], job["cause"]) == ("FAILED", "PROGRAM_ERROR") and not (
        Path(job["directory"]) / "ran"
    ).exists()


def test_a_job_goes_on_from_the_newest_checkpoint_of_one_that_ended(system):
    tells = (
        "import json, os, socket, sys; path = os.environ['MUSTER_CHECKPOINT_DIR'] + '/step-1'; open(path, 'w').close(); "
        "open(os.environ['MUSTER_JOB_DIR'] + '/resumed', 'w').write(os.environ['MUSTER_RESUME_FROM']); "
        "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(json.dumps({'checkpoint': {'step': 1, 'path': path}}).encode(), os.environ['MUSTER_PROGRESS_SOCKET'])"
    )
    first = succeeded(
        system,
        f"name: first\nqueue: research\n{SLOT}run: [/usr/bin/python3, -c, {json.dumps(tells)}]\n",
    )
    again = system.json("resume", first["number"], "-y", "--detach", "--set", "name=again")
    job = wait_ended(system, again["number"])
    assert (job["state"], job["spec"]["name"]) == ("SUCCEEDED", "again")
    told = Path(job["directory"], "resumed").read_text()
    assert told == task(first)["checkpoints"][-1]["path"] and Path(told).exists()
