"""Secrets: jobs get them, their owner's alone, and nobody finds them."""

import os
import subprocess
from pathlib import Path

import pytest
from planted_secrets import planted
from small_system import start, submit, task, wait_ended

SLOT = "queue: research\nresources: {gpus: 1, gpu_types: [cpu-slot]}\n"


@pytest.fixture
def keeping(bare):
    """A system that has a master key."""
    from small_system import configure

    configure(bare)
    with open(bare.folder / "etc" / "musterd.yaml", "a") as config:
        config.write(f"master_key: {bare.folder}/etc/master.key\n")
    bare.start_musterd()
    for host in ("h01", "h02"):
        bare.start_agent("lab", host)
    bare.wait_hosts_up({"lab/h01", "lab/h02"})
    return bare


def test_a_secret_reaches_every_rank_and_its_newest_value_counts(keeping):
    assert not (keeping.folder / "etc" / "master.key").exists(), "nobody needs it yet"
    keeping.run(["secret", "set", "HF_TOKEN"], text="first\n")
    assert oct((keeping.folder / "etc" / "master.key").stat().st_mode & 0o777) == "0o400"
    keeping.run(["secret", "set", "HF_TOKEN"], text="sesame\n")
    text = (
        "name: gang\nworkers: 4\nsecrets: [HF_TOKEN, HF_TOKEN=OTHER]\n"
        + SLOT
        + 'run: printf %s "$HF_TOKEN $OTHER" > "$MUSTER_JOB_DIR/rank-$RANK"\n'
    )
    job = wait_ended(keeping, submit(keeping, text))
    assert job["state"] == "SUCCEEDED", task(job)
    ranks = sorted(Path(job["directory"]).glob("rank-*"))
    assert [path.read_text() for path in ranks] == ["sesame sesame"] * 4
    # Also after a restart of everything.
    for name in ("musterd", "agent-lab-h01", "agent-lab-h02"):
        keeping.processes[name].kill()
        keeping.processes[name].wait(10)
    keeping.start_musterd()
    for host in ("h01", "h02"):
        keeping.start_agent("lab", host)
    keeping.wait_hosts_up({"lab/h01", "lab/h02"})
    done = keeping.run(
        ["run", "--queue", "research", "--secret", "HF_TOKEN=TOKEN", "--", "printenv", "TOKEN"]
    )
    assert done.stdout == "sesame\n"


def test_what_is_wrong_with_a_secret_is_told_with_the_remedy(keeping):
    keeping.run(["secret", "set", "A"], text="value")
    run = ["run", "--queue", "research", "--secret"]
    cases = (
        (
            [*run, "NO_SUCH", "--", "true"],
            "--secret: you have no secret NO_SUCH here; muster secret set",
        ),
        ([*run, "A=OF-MINE", "--", "true"], '--secret: "A=OF-MINE" names no secret'),
        ([*run, "A=RANK", "--", "true"], "RANK may not be set"),
        ([*run, "A", "--env", "A=1", "--", "true"], "A is in env:, too"),
        (["secret", "set", "A", "value"], "does not take this"),
        (["secret", "delete", "NO_SUCH"], "you have no secret NO_SUCH"),
        (["secret", "set", "A-B"], "letters, digits and '_'"),
    )
    for words, said in cases:
        done = keeping.run(words, check=False, text="value")
        assert done.returncode != 0 and said in done.stderr, (words, done.stderr)
    assert keeping.run(["secret", "set", "EMPTY"], check=False, text="").returncode != 0
    keeping.run(["secret", "set", "GONE"], text="value")
    assert keeping.run(["secret", "list", "-o", "name"]).stdout == "A\nGONE\n"
    keeping.run(["host", "drain", "lab/h01"])
    keeping.run(["host", "drain", "lab/h02"])
    number = submit(keeping, f"name: waits\nsecrets: [GONE]\nmax_restarts: 0\n{SLOT}run: 'true'\n")
    keeping.run(["secret", "delete", "GONE"])
    keeping.run(["host", "resume", "lab/h01"])
    job = wait_ended(keeping, number)
    assert job["state"] == "FAILED" and "secret GONE" in job["detail"], job


def test_a_musterd_without_a_key_says_what_it_needs(bare):
    start(bare)
    done = bare.run(["secret", "set", "A"], check=False, text="value")
    assert done.returncode != 0 and "master_key: in its musterd.yaml" in done.stderr, done.stderr


def test_another_key_is_told_at_the_start(keeping):
    keeping.run(["secret", "set", "A"], text="value")
    keeping.processes["musterd"].terminate()
    keeping.processes["musterd"].wait(10)
    key = keeping.folder / "etc" / "master.key"
    key.chmod(0o600)
    key.write_text("0" * 64 + "\n")
    key.chmod(0o400)
    done = subprocess.run(
        [keeping.bin_dir / "musterd", "--config", keeping.folder / "etc" / "musterd.yaml"],
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.returncode == 2 and "Put the master key there" in done.stderr, done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be several users")
def test_a_secret_given_in_any_way_is_found_nowhere(bin_dir):
    with planted(bin_dir) as plants:
        proved, wrong, found = plants.all_ways()
    assert proved == 6 and not wrong, (proved, wrong)
    assert not found, "\n".join(found)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be several users")
def test_one_that_is_given_in_the_environment_is_found(bin_dir):
    """Else that nothing was found would say little."""
    with planted(bin_dir) as plants:
        _, _, found = plants.all_ways(unsealed="from_stdin")
    for where in ("file store/muster.db", "backup", "muster show"):
        assert any(line.startswith(where) for line in found), (where, found)
