"""Programs in container images: as outside of them, and with nothing but the image and what is theirs."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hostile_jobs import ANN
from images import small_image
from in_images import ENDS, SLOT, both_ends, count_and_kill, meet
from local_system import LocalSystem, job_processes, kill_all, wait_for
from small_system import submit, task, wait_ended
from test_along import owners_host

pytestmark = pytest.mark.skipif(
    subprocess.run(["unshare", "--user", "true"], capture_output=True).returncode != 0,
    reason="no namespaces of users here",
)


@pytest.fixture(scope="session")
def images(tmp_path_factory) -> Path:
    """A folder that everybody may enter, with `plain` and `python`."""
    folder = tmp_path_factory.mktemp("images")
    part = folder
    while part != Path(tempfile.gettempdir()):  # how deep it lies depends on pytest-xdist
        part.chmod(0o755)
        part = part.parent
    small_image(folder / "plain")
    small_image(folder / "python", python=True)
    return folder


@pytest.mark.parametrize("name", ENDS)
def test_output_and_end_are_those_of_outside(system, images, name):
    outside, inside = both_ends(system, name, images / "plain")
    assert inside[:3] == outside[:3]
    if name == "missing":  # there it is missed, is said besides
        assert "exec no-such-program" in outside[3]
        assert f"exec no-such-program (in the image {images}/plain)" in inside[3]
    else:
        assert inside[3] == outside[3]


def test_a_program_sees_the_image_and_what_is_its_own(system, images):
    script = (
        "test -e /only-in-the-image\n"
        "! test -e /usr/bin/python3 && ! test -e /etc/debian_version\n"
        "! touch /here 2> /dev/null && touch $MUSTER_JOB_DIR/here /tmp/$MUSTER_SHIM_TOKEN\n"
        "test -w /dev/null && test -r /proc/self/status && test -e /sys/kernel\n"
        "test -e /etc/resolv.conf || ! test -e /host/etc/resolv.conf\n"
        "test $PWD = $MUSTER_JOB_DIR/main/attempt-1\n"
    )
    indented = "".join(f"  {line}\n" for line in script.splitlines())
    number = submit(system, f"image: {images}/plain\n{SLOT}run: |\n{indented}")
    job = wait_ended(system, number)
    assert job["state"] == "SUCCEEDED", (task(job), system.run(["logs", number]).stdout)
    assert (Path(job["directory"]) / "here").exists()


def test_a_gang_meets_over_two_hosts(system, images):
    job, came = meet(system, images / "python")
    assert (job["state"], came) == ("SUCCEEDED", "[0, 1, 2, 3]"), task(job)
    assert len({part["host"] for part in task(job)["attempts"][-1]["placements"]}) == 2


def test_it_goes_on_from_its_checkpoint_after_it_was_killed(system, images):
    job, said = count_and_kill(system, images / "python")
    assert job["state"] == "SUCCEEDED", (task(job), said)
    assert "counted to 20 from True" in said
    assert int(task(job)["attempts"][-1]["resumed_step"]) == 5


def test_what_is_no_image_is_told_with_the_remedy(system, images):
    (images / "archive.tar").write_text("")
    named = system.folder / "named.yaml"
    named.write_text(f"{SLOT}image: debian:12\nrun: ls\n")
    for words in (["validate", named], ["submit", "-y", named]):
        done = system.run(words, check=False)
        assert done.returncode != 0
        assert "image: must be the absolute path of a directory" in done.stderr, done.stderr
    for path, said in (
        ("/no/such/image", "image /no/such/image: No such file or directory"),
        (f"{images}/archive.tar", "is no directory; unpack it into one"),
    ):
        job = wait_ended(system, submit(system, f"image: {path}\n{SLOT}run: 'true'\n"))
        assert job["state"] == "FAILED" and said in str(task(job)), (job, said)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be several users")
def test_it_runs_as_its_owner_who_gains_nothing(bin_dir, images):
    with owners_host(bin_dir) as host:
        for folder in (host.public, host.secrets):
            subprocess.run(["cp", "-a", images / "plain", folder / "image"], check=True)

        def as_ann(image: Path) -> str:
            """What it printed, and why it ended."""
            path = host.public / "job.yaml"
            path.write_text(
                f"image: {image}\n{SLOT}run: |\n  id -u; id -un; cat /proc/self/status; touch mine\n"
                f"  ls {host.folder}/agents/lab-h01 2>&1 || true\n"
            )
            done = subprocess.run(
                [host.bin_dir / "muster", "submit", "-y", "-d", "-o", "name", path],
                capture_output=True,
                text=True,
                timeout=60,
                user=ANN,
                group=ANN,
                extra_groups=[],
                cwd="/",
                env=host.environment() | {"HOME": "/"},
            )
            number = int(done.stdout)
            return str(host.wait_end(number)) + host.run(["logs", number], check=False).stdout

        said = as_ann(host.public / "image")
        for part in (
            f"{ANN}\nann\n",
            "CapEff:\t0000000000000000",
            "NoNewPrivs:\t1",
            "cannot access",
        ):
            assert part in said, said
        (mine,) = (host.folder / "storage" / "ann").rglob("mine")
        assert mine.stat().st_uid == ANN
        assert "Permission denied" in as_ann(host.secrets / "image")
        assert "/tmp is private to each job" in as_ann(Path("/tmp/image"))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be an ordinary user")
def test_an_ordinary_users_own_agent_runs_it_and_finds_what_is_left_of_it(bin_dir, images, folder):
    """It has no PID namespace: what is left is found by its environment, which lies across a user namespace."""
    folder.chmod(0o755)
    home = folder / "home"
    home.mkdir()
    os.chown(home, ANN, ANN)
    for name in ("muster", "musterd", "muster-agent", "muster-shim"):
        shutil.copy2(bin_dir / name, folder)
    environment = LocalSystem(folder, folder).environment() | {
        "XDG_RUNTIME_DIR": str(home),
        "HOME": str(home),
    }
    for name in ("MUSTER_SERVER", "MUSTER_CONFIG", "MUSTER_BIN_DIR"):
        environment.pop(name, None)
    options = {"user": ANN, "group": ANN, "extra_groups": [], "env": environment, "cwd": home}

    def muster(*words) -> subprocess.CompletedProcess:
        return subprocess.run(
            [folder / "muster", *words], capture_output=True, text=True, timeout=60, **options
        )

    with open(folder / "up.log", "wb") as log:
        up = subprocess.Popen(
            [folder / "muster", "up", "--data-dir", home / "data"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            **options,
        )
    try:
        wait_for(
            "muster up to have a host",
            lambda: "HOST_UP" in muster("host", "list", "-o", "json").stdout,
            20,
        )
        (home / "job.yaml").write_text(
            f"image: {images}/plain\nrun: |\n  id -u\n  (trap '' TERM; exec setsid sleep 4242 < /dev/null > /dev/null 2>&1) &\n"
            "  sleep 0.3; touch $MUSTER_JOB_DIR/was-here\n"
        )
        done = muster("submit", "-y", "job.yaml")
        assert done.returncode == 0, done.stdout + done.stderr
        assert muster("logs", "1").stdout == f"{ANN}\n"
        (mine,) = (home / "data").rglob("was-here")
        assert mine.stat().st_uid == ANN
        assert not job_processes(folder)
    finally:
        up.terminate()
        try:
            up.wait(15)
        finally:
            up.kill()
            kill_all(folder)
