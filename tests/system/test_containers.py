"""Programs in container images: as outside of them, and with nothing but the image and what is theirs."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from hostile_jobs import ANN
from images import small_image
from local_system import LocalSystem, job_processes, kill_all, wait_for
from small_system import submit, task, wait_ended
from test_along import owners_host, project

pytestmark = pytest.mark.skipif(
    subprocess.run(["unshare", "--user", "true"], capture_output=True).returncode != 0,
    reason="no namespaces of users here",
)
SLOT = "queue: research\nresources: {gpus: 1, gpu_types: [cpu-slot]}\nmax_restarts: 0\n"
# Ends of every kind; what is printed, and how it ends, is the same with an image and without.
ENDS = {
    "hello": "run: [bash, -c, 'echo hello from $USER; echo and this >&2']\n",
    "exit-3": "run: exit 3\n",
    "killed": "run: kill -KILL $$\n",
    "missing": "run: [no-such-program]\n",
    "setup": "setup: |\n  echo in setup\n  export FOUND=by-setup\nrun: echo $FOUND $RANK of $WORLD_SIZE\n",
    "setup-fails": "setup: exit 7\nrun: 'true'\n",
    "variables": "env: {A: b c}\nrun: printenv A HOME MUSTER_TASK; id -un; umask; pwd -P\nworkdir: {folder}\n",
}
# A gang meets at MASTER_ADDR as torch would; rank 0 writes down who came.
MEET = """\
import os, socket, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
at = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
assert open("/only-in-the-image").read() == "yes\\n"
if rank == 0:
    server = socket.create_server(("", at[1]))
    came = {0} | {int(server.accept()[0].recv(9)) for _ in range(world - 1)}
    open(os.environ["MUSTER_JOB_DIR"] + "/came", "w").write(str(sorted(came)))
else:
    for i in range(200):
        try:
            socket.create_connection(at).send(b"%d" % rank)
            break
        except OSError:
            time.sleep(0.05)
"""
# Counts to 20 with a checkpoint a step; waits at 5 to be killed.
COUNT = """\
import json, os, socket, time
tell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
tell.connect(os.environ["MUSTER_PROGRESS_SOCKET"])
say = lambda line: tell.send(json.dumps(line).encode())
step = 0
for path in filter(None, os.environ["MUSTER_RESUME_FROM"].split(",")):
    step = int(open(path).read())
    say({"loaded": {"step": step, "path": path}})
    break
while step < 20:
    step += 1
    path = f"{os.environ['MUSTER_CHECKPOINT_DIR']}/{step}"
    open(path, "w").write(str(step))
    say({"step": step, "total_steps": 20, "loss": 1.0})
    say({"checkpoint": {"step": step, "path": path}})
    time.sleep(60 if step == 5 else 0.15)
print("counted to", step, "from", os.environ["MUSTER_RESUME_FROM"].count("/") > 0)
"""


@pytest.fixture(scope="session")
def images(tmp_path_factory) -> Path:
    """A folder that everybody may enter, with `plain` and `python`."""
    folder = tmp_path_factory.mktemp("images")
    for parent in (folder, folder.parent, folder.parent.parent):
        parent.chmod(0o755)
    small_image(folder / "plain")
    small_image(folder / "python", python=True)
    return folder


def outcome(system, text: str, name: str) -> tuple:
    number = submit(system, text, name)
    job = wait_ended(system, number)
    last = task(job)["attempts"][-1]
    ends = [
        (end.get("exit_code", 0), end.get("signal", 0), end.get("cause"))
        for end in last.get("exits", [])
    ]
    return job["state"], last.get("cause"), ends, system.run(["logs", number]).stdout


@pytest.mark.parametrize("name", ENDS)
def test_output_and_end_are_those_of_outside(system, images, name):
    text = f"name: {name}\n" + SLOT + ENDS[name].replace("{folder}", str(system.folder))
    outside = outcome(system, text, name)
    inside = outcome(system, text + f"image: {images}/plain\n", f"{name}-inside")
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
    text = f"name: meet\nworkers: 4\nimage: {images}/python\nworkdir: .\n{SLOT}"
    place = project(system.folder)
    (place / "meet.py").write_text(MEET)
    (place / "job.yaml").write_text(text + "run: [python3, meet.py]\n")
    number = system.submit(place / "job.yaml")["number"]
    job = wait_ended(system, number)
    assert job["state"] == "SUCCEEDED", (task(job), system.run(["logs", number]).stdout)
    assert (Path(job["directory"]) / "came").read_text() == "[0, 1, 2, 3]"
    hosts = {part["host"] for part in task(job)["attempts"][-1]["placements"]}
    assert len(hosts) == 2


def test_it_goes_on_from_its_checkpoint_after_it_was_killed(system, images):
    place = project(system.folder)
    (place / "count.py").write_text(COUNT)
    (place / "job.yaml").write_text(
        f"name: count\nimage: {images}/python\nworkdir: .\n"
        + SLOT.replace("max_restarts: 0", "max_restarts: 2")
        + "run: [python3, count.py]\n"
    )
    number = system.submit(place / "job.yaml")["number"]

    def fifth():
        return any(int(c["step"]) == 5 for c in task(system.job(number)).get("checkpoints", []))

    wait_for("its fifth checkpoint", fifth, 30)
    (rank,) = job_processes(system.folder)
    os.kill(rank, signal.SIGKILL)
    job = wait_ended(system, number)
    said = system.run(["logs", number]).stdout
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
    for name in ("MUSTER_SERVER", "MUSTER_CONFIG"):
        environment.pop(name)
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
