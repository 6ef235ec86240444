"""Tasks that start together: all or none. They find each other, and end together."""

import os
import signal

from local_system import job_processes
from small_system import let_go, marks, submit, submit_waiting, wait_ended, wait_started

TASK = """\
  - name: {name}
    resources: {{gpus: {gpus}, gpu_types: [cpu-slot]}}
    grace: 5s
{more}    run: |
      trap 'exit 143' TERM
      env | grep ^MUSTER_TASK_ | sort > {folder}/{name}.finds
      echo "${{RANK-0}} $MUSTER_ATTEMPT ${{WORLD_SIZE-1}}" >> {folder}/{name}.marks
      while [ ! -e {folder}/{name}.go ]; do sleep 0.05; done
"""


def pair(system) -> str:
    """A trainer of two slots, which ends when it is let go, and a server of one, which doesn't."""
    trainer = TASK.format(name="trainer", gpus=2, folder=system.folder, more="")
    server = TASK.format(
        name="server",
        gpus=1,
        folder=system.folder,
        more="    with: [trainer]\n    until: [trainer]\n",
    )
    return f"name: pair\nqueue: research\ntasks:\n{trainer}{server}"


def task_rows(system, number: int) -> dict:
    return {task["name"]: task for task in system.json("show", str(number))["tasks"]}


def pid_of(system, number: int, task: str) -> int:
    return next(
        pid
        for pid, environment in job_processes(system.folder).items()
        if environment["MUSTER_JOB"] == str(number) and environment["MUSTER_TASK"] == task
    )


def test_a_trainer_and_its_server_start_together_and_end_together(system):
    # One slot of each host is taken: three are wanted, two are free.
    firsts = [submit_waiting(system, name) for name in ("one", "two")]
    for name in ("one", "two"):
        wait_started(system, name, 1)
    number = submit(system, pair(system), "pair")
    text = task_rows(system, number)["trainer"]["verdict"]["text"]
    assert text.startswith("starts together with server: "), text
    assert "1 more cpu-slot" in text, text
    explained = system.run(["explain", str(number)]).stdout
    assert "starts together with server: " in explained, explained
    assert marks(system, "server") == [], "its own slot is free, the trainer's two are not"

    let_go(system, "one")
    assert wait_ended(system, firsts[0])["state"] == "SUCCEEDED"
    wait_started(system, "trainer", 2)
    told = system.run(["logs", str(number)]).stderr
    assert "this is trainer, the newest that ran. Another: --task server" in told, told
    wait_started(system, "server", 1)
    finds = (system.folder / "trainer.finds").read_text()
    assert finds == "MUSTER_TASK_SERVER_ADDRESS=127.0.0.1\n", finds

    # A server that dies starts again beside the trainer, which goes on.
    os.kill(pid_of(system, number, "server"), signal.SIGKILL)
    wait_started(system, "server", 2)
    assert sorted(marks(system, "trainer")) == [(0, 1, 2), (1, 1, 2)], "its processes are the same"

    let_go(system, "trainer")
    ended = wait_ended(system, number)
    assert ended["state"] == "SUCCEEDED", ended
    server = task_rows(system, number)["server"]
    assert server["state"] == "TASK_SUCCEEDED", server
    assert server["attempts"][-1]["cause"] == "NOT_NEEDED", server
    assert not (system.folder / "server.go").exists(), "it was stopped, and would never have ended"


def test_what_can_t_start_together_is_refused_with_its_place(system):
    path = system.folder / "refused.yaml"
    for wrong, says in [
        ("    with: [trainr]\n", 'tasks[1].with[0]: no task "trainr" in this job'),
        ("    with: [trainer]\n    after: [trainer]\n", "take it out of with or of after"),
        ("    until: [trainer]\n", "add it to with"),
        ("    with: [trainer]\n    workers: 3\n", "trainer, server start together: 5 GPUs at once"),
    ]:
        trainer = TASK.format(name="trainer", gpus=2, folder=system.folder, more="")
        server = TASK.format(name="server", gpus=1, folder=system.folder, more=wrong)
        path.write_text(f"name: refused\nqueue: research\ntasks:\n{trainer}{server}")
        refused = system.run(["submit", path, "-y", "--detach"], check=False)
        assert refused.returncode == 2, refused
        assert says in refused.stderr, refused.stderr
