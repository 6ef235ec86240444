"""A disk that is really full: a small file system of the test's own, in a mount namespace of its own."""

import json
import subprocess

import pytest
import resume
from harness import clean_environment

MOUNTED = 'mount -t tmpfs -o size="$1" tmpfs "$2" && shift 2 && for config; do "$TRAINER" train --config "$config"; echo "exit=$?"; ls -A "$DISK"; done'


def namespace(*command: str, **more) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", *command],
        capture_output=True,
        text=True,
        timeout=120,
        **more,
    )


@pytest.fixture(scope="module", autouse=True)
def may_mount(tmp_path_factory):
    folder = tmp_path_factory.mktemp("disk")
    tried = namespace("mount", "-t", "tmpfs", "tmpfs", str(folder))
    if tried.returncode != 0:
        pytest.skip(f"no namespaces with mounts here: {tried.stderr.strip()}")


def run(trainer_bin, disk, size: str, configs, **environment: str) -> subprocess.CompletedProcess:
    """Runs the trainer with each, one after another, `disk` being a file system of `size`."""
    disk.mkdir()
    paths = []
    for number, config in enumerate(configs):
        paths.append(disk.parent / f"{number}.json")
        paths[-1].write_text(json.dumps(config))
    return namespace(
        "sh",
        "-c",
        MOUNTED,
        "sh",
        size,
        str(disk),
        *map(str, paths),
        cwd=disk.parent,
        env=clean_environment(TRAINER=trainer_bin, DISK=str(disk), **environment),
    )


def test_a_checkpoint_that_finds_no_room_leaves_the_one_before_which_loads(
    trainer_bin, tokens, tmp_path
):
    disk = tmp_path / "disk"
    steps = [resume.config(tokens, max_steps=count, save_steps=2) for count in (4, 5)]
    done = run(
        trainer_bin,
        disk,
        "2400k",
        steps,
        MUSTER_CHECKPOINT_DIR=str(disk),
        MUSTER_CHECKPOINT_KEEP="2",
    )  # room for one and a half
    first, second = done.stdout.split("exit=", 2)[0], done.stdout.split("exit=", 2)[1]
    assert (
        "checkpoint step=2 " in first
        and "step=4 " in first
        and first.count("checkpoint step=") == 1
    ), done.stderr
    assert f"checkpoint of step 4 failed: rank 0: cannot write {disk}" in done.stderr, done.stderr
    assert "No space left on device; free some, or name a place that has more" in done.stderr
    # Nothing of the failed one is left, and the run after goes on from the good one.
    assert (
        second.startswith("1\nstep-00000002\n") and "step=3 " in second and "step=5 " in second
    ), done.stdout
    assert f"resumed from {disk}/step-00000002 at step 2" in done.stderr


CASES = {  # name: (what is written to the disk, the end of the run, what is said)
    "export": (lambda disk: {"export": str(disk / "model")}, 1, "export failed: cannot write"),
    "profile": (lambda disk: {"profile_steps": 1}, 0, "the profile can't be written to"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_else_finds_no_room_says_so_and_leaves_nothing_behind(
    case, trainer_bin, tokens, tmp_path
):
    settings, code, said = CASES[case]
    disk = tmp_path / "disk"
    done = run(
        trainer_bin,
        disk,
        "64k",
        [resume.config(tokens, max_steps=2, save_steps=0) | settings(disk)],
        MUSTER_JOB_DIR=str(disk),
    )
    assert said in done.stderr and str(disk) in done.stderr, done.stderr
    assert "step=2 " in done.stdout
    left = done.stdout.split("exit=")[1].split()
    assert left[0] == str(code) and left[1:] in ([], ["profile"]), done.stdout
