"""What comes along with a job from where it is submitted: its directory and its variables."""

import json
import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest
from hostile_jobs import ANN, MALLORY, Host
from local_system import system_folder, wait_for
from namespaces import machines, why_not
from network_system import NetworkSystem
from small_system import configure, submit, task, wait_ended

SLOT = "queue: research\nresources: {gpus: 1, gpu_types: [cpu-slot]}\n"
RUN_TRUE = ["run", "--queue", "research", "-C", ".", "--", "true"]
TRAIN = """\
import os
from parts.model import NAME
print(NAME, os.environ["WANDB_MODE"], open("data.txt").read().strip(), os.path.basename(os.getcwd())[:8])
open("written-by-the-job", "w").close()
"""


def project(folder: Path) -> Path:
    """A newcomer's directory."""
    place = folder / "project"
    (place / "parts").mkdir(parents=True)
    (place / "train.py").write_text(TRAIN)
    (place / "data.txt").write_text("some data\n")
    (place / "parts" / "model.py").write_text("NAME = 'net'\n")
    (place / ".venv").mkdir()
    (place / ".venv" / "large").write_bytes(b"x" * 100)
    (place / "run.sh").write_text("#!/bin/sh\nexec python3 train.py\n")
    (place / "run.sh").chmod(0o755)
    return place


def in_directory(system, place: Path, words: list, **variables) -> subprocess.CompletedProcess:
    return subprocess.run(
        [system.bin_dir / "muster", *words],
        cwd=place,
        env=system.environment() | {"PATH": "/usr/bin:/bin"} | variables,
        capture_output=True,
        text=True,
        timeout=60,
    )


@contextmanager
def owners_host(bin_dir: Path):
    """A musterd of several users, and an agent that runs jobs as their owners."""
    with system_folder("/var/lib") as folder:
        host = Host(folder, bin_dir)
        try:
            host.make()
            host.configure_all()
            host.start_musterd()
            host.start_careless_agent()
            yield host
        finally:
            host.end()


def test_a_newcomers_first_own_script_runs(system):
    place = project(system.folder)
    words = ["run", "--queue", "research", "--gpus", "1"]
    without = in_directory(system, place, [*words, "--", "python3", "train.py"])
    assert without.returncode == 1
    assert "train.py lies in this directory, which doesn't come along" in without.stderr
    assert "With what it missed: muster run --queue research --gpus 1 -C . -- python3 train.py" in (
        without.stderr
    )
    words += ["-C", ".", "--env", "WANDB_MODE", "--"]
    done = in_directory(system, place, [*words, "python3", "train.py"], WANDB_MODE="offline")
    assert (done.returncode, done.stdout) == (0, "net offline some data workdir-\n"), done.stderr
    program = in_directory(system, place, [*words, "./run.sh"], WANDB_MODE="online")
    assert (program.returncode, program.stdout) == (0, "net online some data workdir-\n")
    unset = in_directory(system, place, [*words, "true"])
    assert unset.returncode == 2 and "WANDB_MODE" in unset.stderr
    assert not (place / "written-by-the-job").exists(), "it works on a copy"
    packs = [path for path in (system.folder / "store" / "packs").rglob("*") if path.is_file()]
    assert len(packs) == 1, "the same content is kept once"
    assert b"x" * 100 not in packs[0].read_bytes(), ".venv stays behind"


def test_a_directory_is_there_on_all_hosts_and_again_after_restarts(system):
    place = project(system.folder)
    (place / "job.yaml").write_text(
        "name: again\nworkdir: .\nworkers: 4\nmax_restarts: 3\n"
        + SLOT
        + "run: |\n  test -f data.txt\n"
        '  if [ -e first-was-here ]; then touch "$MUSTER_JOB_DIR/second-$RANK"; exit 0; fi\n'
        '  touch "$MUSTER_JOB_DIR/first-$RANK"\n'
        '  while [ ! -e "$MUSTER_JOB_DIR/go" ]; do sleep 0.05; done\n'
        "  touch first-was-here; exit 1\n"
    )
    number = submit_file(system, place / "job.yaml")
    directory = wait_for("its directory", lambda: system.job(number).get("directory"), 20)
    wait_for("all four ranks", lambda: len(list(Path(directory).glob("first-*"))) == 4, 20)
    shutil.rmtree(place)  # what was submitted is musterd's and the hosts' by now
    for name in ("musterd", "agent-lab-h01"):
        system.processes[name].kill()
        system.processes[name].wait(10)
    system.start_musterd()
    system.start_agent("lab", "h01")
    system.wait_hosts_up({"lab/h01", "lab/h02"})
    (Path(directory) / "go").touch()
    job = wait_ended(system, number)
    assert job["state"] == "SUCCEEDED", task(job)
    assert len(list(Path(directory).glob("second-*"))) == 4
    # Once more, by what the job itself says: it is still here.
    again = json.loads(system.run(["show", number, "-o", "json"]).stdout)["spec"]
    digest = again["tasks"][0]["workdir_digest"]
    job = wait_ended(
        system,
        submit(
            system,
            f"name: same\nworkdir: .\nworkdir_digest: {digest}\n{SLOT}run: test -f train.py\n",
        ),
    )
    assert job["state"] == "SUCCEEDED", task(job)


def submit_file(system, path: Path) -> int:
    return system.submit(path)["number"]


def test_one_that_is_missing_or_too_large_is_refused_with_the_remedy(system):
    place = project(system.folder)
    (place / "model.pt").touch()
    os.truncate(place / "model.pt", 80 << 20)
    done = in_directory(system, place, RUN_TRUE)
    assert done.returncode == 2
    for said in ("model.pt (80MiB)", "at most 64MiB", ".musterignore", "--workdir /PATH"):
        assert said in done.stderr, done.stderr
    (place / ".musterignore").write_text("*.pt\n")
    assert in_directory(system, place, RUN_TRUE).returncode == 0
    path = place / "job.yaml"
    path.write_text(f"workdir: .\nworkdir_digest: {'a' * 64}\n{SLOT}run: ls\n")
    never = system.run(["submit", "-y", path], check=False)
    assert never.returncode == 2
    assert "1:10  workdir: no packed directory of yours" in never.stderr, never.stderr
    assert "Leave workdir_digest out" in never.stderr
    assert not [job for job in system.jobs() if job["spec"]["name"] == "job"]


def test_a_users_directories_together_have_a_limit(bare):
    configure(bare, "queues: [{name: research}]\n", hosts=("h01",))
    with open(bare.folder / "etc" / "musterd.yaml", "a") as config:
        config.write("packed_per_user: 100KiB\n")
    bare.start_musterd()
    bare.start_agent("lab", "h01")
    bare.wait_hosts_up({"lab/h01"})
    place = project(bare.folder)
    assert in_directory(bare, place, RUN_TRUE).returncode == 0
    (place / "more").write_bytes(b"y" * 101 * 1024)
    done = in_directory(bare, place, RUN_TRUE)
    assert done.returncode != 0
    for said in ("a user may have 100KiB", ".musterignore", "packed_per_user"):
        assert said in done.stderr, done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be several users")
def test_it_is_its_owners_alone(bin_dir):
    with owners_host(bin_dir) as host:
        folder = host.folder
        place = project(host.public)
        (place / "train.py").write_text("the secret sauce")
        (place / "secret").write_text("ann's own")
        os.chown(place / "secret", ANN, ANN)
        (place / "secret").chmod(0o600)

        def as_user(uid: int, *words) -> subprocess.CompletedProcess:
            return subprocess.run(
                [host.bin_dir / "muster", *words],
                capture_output=True,
                text=True,
                timeout=60,
                user=uid,
                group=uid,
                extra_groups=[],
                cwd=place,
                env=host.environment() | {"HOME": "/"},
            )

        run = ["run", "--queue", "research", "-C", "."]
        done = as_user(ANN, *run, "--", "stat", "-c", "%u %a", "secret", ".")
        assert done.returncode == 0, done.stderr
        # What nobody else could read is in a directory that nobody else may enter.
        assert done.stdout.splitlines() == [f"{ANN} 644", f"{ANN} 700"], done.stdout
        (of_ann,) = [path for path in (folder / "store" / "packs").rglob("*") if path.is_file()]
        named = f"queue: research\nworkdir: .\nworkdir_digest: {of_ann.name}\nrun: cat secret\n"
        (host.public / "named.yaml").write_text(named)
        stolen = as_user(MALLORY, "submit", "-y", host.public / "named.yaml")
        assert stolen.returncode == 2 and "no packed directory of yours" in stolen.stderr
        again = as_user(ANN, "submit", "-y", "-d", host.public / "named.yaml")
        assert again.returncode == 0, again.stderr
        (place / "secret").chmod(0o644)
        # The same content is another one where somebody else sends it.
        assert as_user(MALLORY, *run, "--", "true").returncode == 0
        names = [p.name for p in (folder / "store" / "packs").rglob("*") if p.is_file()]
        assert names == [of_ann.name] * 2


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can be done here")
def test_an_agent_of_another_machine_fetches_it(bare):
    with machines(["m", "h01"]) as made:
        net = NetworkSystem(bare, made)
        net.start_musterd(["h01"])
        net.join("h01")
        place = project(bare.folder)
        (place / "large").write_bytes(os.urandom(3 << 20))  # more than one piece
        words = ["run", "-C", ".", "--env", "WANDB_MODE=offline", "--", "python3", "train.py"]
        done = in_directory(bare, place, words)
        assert (done.returncode, done.stdout) == (0, "net offline some data workdir-\n"), (
            done.stderr
        )
