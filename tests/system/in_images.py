"""Jobs that run in an image and outside of one: ends of every kind, a gang that meets, one that counts on after it was killed."""

import os
import signal
from pathlib import Path

from local_system import job_processes, wait_for
from small_system import submit, task, wait_ended

SLOT = "queue: research\nresources: {gpus: 1, gpu_types: [cpu-slot]}\nmax_restarts: 0\n"
# What is printed, and how it ends, is the same with an image and without.
ENDS = {
    "hello": "run: [bash, -c, 'echo hello from $USER; echo and this >&2']\n",
    "exit-3": "run: exit 3\n",
    "killed": "run: kill -KILL $$\n",
    "missing": "run: [no-such-program]\n",
    "setup": "setup: |\n  echo in setup\n  export FOUND=by-setup\nrun: echo $FOUND $RANK of $WORLD_SIZE\nrank_variables: true\n",
    "setup-fails": "setup: exit 7\nrun: 'true'\n",
    "variables": "env: {A: b c}\nrun: printenv A HOME MUSTER_TASK; id -un; umask; pwd -P\nworkdir: {folder}\n",
}
# A gang meets at MASTER_ADDR as torch would; rank 0 writes down who came.
MEET = """\
import os, socket, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
at = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
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


def outcome(system, text: str, name: str) -> tuple:
    """State, cause, how each rank ended, and what was printed."""
    number = submit(system, text, name)
    job = wait_ended(system, number)
    last = task(job)["attempts"][-1]
    ends = [
        (end.get("exit_code", 0), end.get("signal", 0), end.get("cause"))
        for end in last.get("exits", [])
    ]
    return job["state"], last.get("cause"), ends, system.run(["logs", number]).stdout


def both_ends(system, name: str, image: Path) -> tuple[tuple, tuple]:
    """The outcome outside and inside."""
    text = f"name: {name}\n" + SLOT + ENDS[name].replace("{folder}", str(system.folder))
    return outcome(system, text, name), outcome(system, text + f"image: {image}\n", f"{name}-in")


def from_directory(system, name: str, program: str, fields: str) -> int:
    """A job whose program comes along."""
    place = system.folder / f"{name}-project"
    place.mkdir()
    (place / f"{name}.py").write_text(program)
    (place / "job.yaml").write_text(
        f"name: {name}\nworkdir: .\n{fields}run: [python3, {name}.py]\n"
    )
    return system.submit(place / "job.yaml")["number"]


def meet(system, image: Path) -> tuple[dict, str]:
    """The job of four ranks over two hosts, and who came."""
    number = from_directory(system, "meet", MEET, f"workers: 4\nimage: {image}\n{SLOT}")
    job = wait_ended(system, number)
    came = Path(job["directory"]) / "came"
    return job, came.read_text() if came.exists() else system.run(["logs", number]).stdout


def count_and_kill(system, image: Path) -> tuple[dict, str]:
    """The job, and what it printed."""
    fields = f"image: {image}\n" + SLOT.replace("max_restarts: 0", "max_restarts: 2")
    number = from_directory(system, "count", COUNT, fields)

    def fifth():
        return any(int(c["step"]) == 5 for c in task(system.job(number)).get("checkpoints", []))

    wait_for("its fifth checkpoint", fifth, 30)
    (rank,) = job_processes(system.folder)
    os.kill(rank, signal.SIGKILL)
    job = wait_ended(system, number)
    return job, system.run(["logs", number]).stdout
