"""Logs and following: what a user sees while a job runs, and that looking away changes nothing."""

import re
import signal
import subprocess

from local_system import wait_for
from small_system import let_go, submit, submit_waiting, wait_ended, wait_started

TALKER = """\
name: talker
queue: research
resources: {{gpus: 1, gpu_types: [cpu-slot]}}
run: |
  echo first line
  while [ ! -e {folder}/talker.go ]; do sleep 0.05; done
  echo last line
"""


def follow(
    system, *arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
) -> subprocess.Popen:
    return subprocess.Popen(
        [system.bin_dir / "muster", *map(str, arguments)],
        stdout=stdout,
        stderr=stderr,
        stdin=subprocess.DEVNULL,
        text=True,
        env=system.environment(),
        cwd=system.folder,
    )


def test_logs_follow_until_the_job_ends(system):
    number = submit(system, TALKER.format(folder=system.folder))
    wait_for(
        "the job to run", lambda: system.job(number)["tasks"][0]["state"] == "TASK_RUNNING", 20
    )
    with follow(system, "logs", "-f", number) as reader:
        try:
            assert "first line" in reader.stdout.readline()
            let_go(system, "talker")
            rest, _ = reader.communicate(timeout=20)
            assert "last line" in rest and reader.returncode == 0
        finally:
            reader.kill()
    whole = system.run(["logs", number]).stdout
    assert re.search(r"first line\n.*last line\n", whole, re.S)
    assert system.run(["logs", number, "--tail", "1"]).stdout.strip().endswith("last line")


COUNTER = """\
name: counter
queue: research
workers: 2
resources: {{gpus: 2, gpu_types: [cpu-slot], cpus: 0.5}}
run: |
{count}
"""
COUNT = "i=0; while [ ! -e {folder}/counter.go ]; do echo line $((i += 1)) of ${{RANK-0}}; sleep 0.02; done; echo end $i of ${{RANK-0}}"


def test_followed_output_outlives_agents_and_musterd_with_every_line_once(system):
    """Agents are killed and start again, then musterd: `logs -f` and `run` give every line once, and exit 0."""
    count = COUNT.format(folder=system.folder)
    number = submit(system, COUNTER.format(count=f"  {count}"))
    wait_for(
        "the job to run", lambda: system.job(number)["tasks"][0]["state"] == "TASK_RUNNING", 20
    )
    commands = {
        "logs": ["logs", "-f", number],
        "run": ["run", "--queue", "research", "--", "bash", "-c", count],
    }
    readers = {}
    for name, command in commands.items():
        with (
            open(system.folder / f"{name}.out", "w") as out,
            open(system.folder / f"{name}.err", "w") as err,
        ):
            readers[name] = follow(system, *command, stdout=out, stderr=err)
    whose = [("logs", 0), ("logs", 1), ("run", 0)]

    def lines(name: str, rank: int) -> list[str]:
        said = (system.folder / f"{name}.out").read_text().splitlines()
        return [re.sub(r"^\[\d\] ", "", line) for line in said if line.endswith(f" of {rank}")]

    def all_grow() -> None:
        had = {one: len(lines(*one)) for one in whose}
        wait_for(
            "more output of each rank",
            lambda: all(len(lines(*one)) > had[one] for one in whose),
            30,
        )

    try:
        all_grow()
        for process, start_again in (
            ("agent-lab-h01", lambda: system.start_agent("lab", "h01")),
            ("agent-lab-h02", lambda: system.start_agent("lab", "h02")),
            ("musterd", system.start_musterd),
        ):
            system.processes[process].kill()
            system.processes[process].wait(10)
            start_again()
            all_grow()
        let_go(system, "counter")
        for name, reader in readers.items():
            assert reader.wait(60) == 0, (system.folder / f"{name}.err").read_text()
    finally:
        for reader in readers.values():
            reader.kill()
            reader.wait(10)
    for one in whose:
        own = lines(*one)
        assert own == [f"line {i} of {one[1]}" for i in range(1, len(own))] + [
            f"end {len(own) - 1} of {one[1]}"
        ], one


def test_logs_of_several_ranks_say_whose_they_are(system):
    number = submit(
        system,
        "name: two\nqueue: research\nworkers: 2\nresources: {gpus: 1, gpu_types: [cpu-slot]}\nrun: echo I am $RANK\n",
    )
    assert wait_ended(system, number)["state"] == "SUCCEEDED"
    assert sorted(re.findall(r"I am (\d)", system.run(["logs", number]).stdout)) == ["0", "1"]
    assert re.findall(r"I am (\d)", system.run(["logs", number, "--rank", "1"]).stdout) == ["1"]


def test_run_keeps_the_streams_apart_and_logs_has_both(system):
    done = system.run(
        [
            "run",
            "--queue",
            "research",
            "--",
            "bash",
            "-c",
            "echo out 1; echo err 1 >&2; echo out 2; echo err 2 >&2",
        ]
    )
    assert done.stdout == "out 1\nout 2\n"
    assert (
        "err 1\n" in done.stderr
        and "err 2\n" in done.stderr
        and "out" not in done.stderr.replace("output", "")
    )
    assert sorted(system.run(["logs", system.jobs()[0]["number"]]).stdout.splitlines()) == [
        "err 1",
        "err 2",
        "out 1",
        "out 2",
    ]
    missing = system.run(["run", "--queue", "research", "--", "no-such-program"], check=False)
    assert missing.returncode == 1 and missing.stdout == "" and "no-such-program" in missing.stderr


def test_ctrl_c_stops_following_and_never_the_job(system):
    number = submit_waiting(system, "long")
    wait_started(system, "long", 1)
    with follow(system, "attach", number) as follower:
        try:
            wait_for("the follower to say something", lambda: follower.stdout.readline(), 20)
            follower.send_signal(signal.SIGINT)
            said, _ = follower.communicate(timeout=10)
        finally:
            follower.kill()
    assert follower.returncode == 130
    assert f"muster attach {number}" in said and f"muster cancel {number}" in said
    assert system.job(number)["state"] == "RUNNING"
    let_go(system, "long")
    assert system.run(["wait", number], timeout_s=30).returncode == 0


def test_exit_codes_tell_how_a_job_ended(system):
    number = submit(
        system,
        "name: bad\nqueue: research\nresources: {gpus: 1, gpu_types: [cpu-slot]}\nmax_restarts: 0\nrun: exit 5\n",
    )
    assert system.run(["wait", number], check=False, timeout_s=30).returncode == 1
    assert system.run(["show", "4711"], check=False).returncode == 3
    unknown = system.run(["jobs", "--queue", "nope"], check=False)
    assert unknown.returncode == 3 and "research" in unknown.stderr
    attempt = system.run(["logs", number, "--attempt", "9"], check=False)
    assert attempt.returncode == 3 and "no attempt 9; there is 1" in attempt.stderr
    assert (
        system.run(
            ["--server", f"unix://{system.folder}/nothing.sock", "jobs"], check=False
        ).returncode
        == 6
    )
    assert system.run(["jobs", "--nonsense"], check=False).returncode == 2
