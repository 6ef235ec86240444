"""SIGKILL of the true programs before and after each commit, each claim and each sync: tests/faults/fault_points.cc.

Which points there are is found by going through them: the n-th call of a kind, n from 1, until two runs in a row get to their end without an
n-th. Runs differ by a call or two.
"""

import itertools
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch

from fault_points import FaultySystem, Point, faulty_system
from local_system import processes_of, wait_for
from small_system import ENDED, marks, task

SCHEDULING = "grow_interval: 1s, starve_after: 30s, min_runtime: 0s, spill_cost: 1s, lease: 4s, heartbeat: 500ms, restart_backoff: 20ms"
QUEUES = "queues: [{name: default, submit: ['*']}]\n"
WAYS = ("before", "after")
TWICE = 99  # exit code of a process that met one of another attempt
# Points have names by what they are of, and each of these has to be met.
COMMITS = {"commit": "muster.db-wal", "checkpoint of the log": "muster.db"}
RECORDS = {
    "attempt's record": "*/attempts/*/.prepared.*",
    "outcome": "*/attempts/*/.outcome.*",
    "names": "*/attempts",
}
EXITS = {
    "exit before the last": "*/attempts/*/events",
    "exit record": "*/attempts/*/.exits.*",
    "names": "*/attempts",
}


class Points:
    """The numbers of points, and what was reached at them, as `CALL PATH`."""

    def __init__(self):
        self.reached: list[str] = []
        self._missed = 0  # in a row

    def __iter__(self):
        return itertools.takewhile(lambda _: self._missed < 2, itertools.count(1))

    def tell(self, point: Point, number: int) -> None:
        if point.reached():
            self.reached.append(point.calls()[number - 1])
        self._missed = 0 if point.reached() else self._missed + 1


def short_job(
    system: FaultySystem, name: str, workers: int = 1, exit_code: int = 0, more: str = ""
) -> str:
    """Its processes add a line `rank attempt world-size` to marks(NAME), make sure that they are alone, and end."""
    return f"""\
name: {name}
queue: default
workers: {workers}
resources: {{gpus: 1, gpu_types: [cpu-slot]}}
grace: 1s
{more}run: |
  echo "${{RANK-0}} $MUSTER_ATTEMPT ${{WORLD_SIZE-1}}" >> {system.folder}/{name}.marks
  exec 9>> {system.folder}/{name}.${{RANK-0}}.lock
  flock -n 9 || exit {TWICE}
  if [ -n "${{LD_PRELOAD-}}" ] || grep -q fault_points /proc/self/maps; then exit 98; fi
  sleep 0.05
  exit {exit_code}
"""


def ended(
    system: FaultySystem, name: str, number: str, hosts: tuple[str, ...], starts: bool = True
) -> dict:
    """The job that was acknowledged, once it has ended and its hosts have forgotten it; nothing else has its name."""

    def idle():
        system.revive()
        return (marks(system, name) or not starts) and not any(
            system.attempts_kept(host) for host in hosts
        )

    def job():
        answer = system.ask("jobs", "--all", "--limit", "1000")
        found = [job for job in answer["jobs"] if job["spec"]["name"] == name] if answer else []
        stored = [str(job["number"]) for job in found]
        assert answer is None or stored == [number], (
            f"{name} was acknowledged as {number} and stored as {stored}"
        )
        return found and found[0]["state"] in ENDED and idle() and found[0]

    wait_for(
        f"{name} to run and to be forgotten", idle, 40, 0.01
    )  # nobody has to be asked for that
    return wait_for(f"{name} to end", job, 40)


def check(
    system: FaultySystem, name: str, job: dict, exit_code: int, workers: int, attempts_max: int
) -> None:
    """Ended as it should, and no process of an attempt ran twice."""
    attempts = task(job)["attempts"]
    assert len(attempts) <= attempts_max, attempts
    started = Counter((rank, attempt) for rank, attempt, _ in marks(system, name))
    assert max(started.values()) == 1, f"started twice: {started}"
    newest = max(attempt for _, attempt in started)
    ranks = {rank for rank, attempt in started if attempt == newest}
    if exit_code == 0:
        assert job["state"] == "SUCCEEDED" and ranks == set(range(workers)), (job, started)
    else:  # the first to fail stops those of its gang that have not started yet
        assert ranks <= set(range(workers)), started
        assert job["state"] == "FAILED" and f"exit {exit_code}" in attempts[-1]["detail"], job


def at_once(*runs) -> list:
    """What each of these returns; systems wait for disks and for each other most of the time."""
    with ThreadPoolExecutor(len(runs)) as pool:
        return [future.result() for future in [pool.submit(run) for run in runs]]


def not_met(reached: list[str], names: dict[str, str]) -> list[str]:
    return [
        name
        for name, pattern in names.items()
        if not any(fnmatch(path, pattern) for path in reached)
    ]


# ---- musterd ----


def each_commit(bin_dir, call: str, when: str) -> dict[str, list[str]]:
    reached = {}
    with faulty_system(bin_dir, queues=QUEUES, hosts=("h01",), scheduling=SCHEDULING) as system:
        system.start_musterd()
        system.start_agent("lab", "h01")
        system.wait_hosts_up({"lab/h01"})
        log = system.folder / "store" / "muster.db-wal"
        for of, file in COMMITS.items():
            points = Points()
            for number in points:
                system.end("musterd")
                system.point.set(call, when, number, f"{system.folder}/store/{file}")
                system.faulty("musterd")
                system.spawn_musterd()
                name, exit_code = (
                    f"{file.rpartition('-')[2]}{number}".replace(".", "-"),
                    7 * (number % 2),
                )
                job = system.submit_through(
                    name, short_job(system, name, exit_code=exit_code, more="max_restarts: 0\n")
                )
                check(
                    system,
                    name,
                    ended(system, name, job, ("h01",)),
                    exit_code,
                    workers=1,
                    attempts_max=1,
                )
                wait_for(
                    "the log to be emptied",
                    lambda: system.revive() or system.point.reached() or log.stat().st_size == 0,
                    20,
                )
                ended(system, name, job, ("h01",))  # once more, after that
                points.tell(system.point, number)
            reached[of] = points.reached
    return reached


def test_musterd_killed_before_and_after_each_commit_of_a_jobs_life(bin_dir):
    for reached in at_once(
        *(
            lambda call=call, when=when: each_commit(bin_dir, call, when)
            for call in ("write", "sync")
            for when in WAYS
        )
    ):
        assert len(reached["commit"]) >= 5, f"fewer commits than a job's life has: {reached}"
        assert len(reached["checkpoint of the log"]) >= 1, reached


def each_of_a_new_store(bin_dir, call: str, when: str) -> list[str]:
    points = Points()
    with faulty_system(bin_dir, queues=QUEUES, hosts=("h01",), scheduling=SCHEDULING) as system:
        for number in points:
            shutil.rmtree(system.folder / "store", ignore_errors=True)
            system.point.set(call, when, number, f"{system.folder}/store*")
            system.faulty("musterd")
            system.spawn_musterd()
            name = f"n{number}"
            job = system.submit_through(name, short_job(system, name))
            assert job == "1", f"its number is {job}"
            system.end("musterd")
            points.tell(system.point, number)
    return points.reached


def test_musterd_killed_before_and_after_each_sync_while_it_makes_its_store(bin_dir):
    ways = (("write", "before"), ("sync", "before"), ("sync", "after"))
    for reached in at_once(
        *(
            lambda call=call, when=when: each_of_a_new_store(bin_dir, call, when)
            for call, when in ways
        )
    ):
        assert len(reached) >= 4, reached


# ---- muster-agent ----


def each_sync_of_an_agent(bin_dir, call: str, when: str, pattern: str) -> list[str]:
    """A gang over this agent's host and another one, and a gang that both hosts refuse."""
    hosts, points = ("h01", "h02"), Points()
    with faulty_system(bin_dir, queues=QUEUES, hosts=hosts, scheduling=SCHEDULING) as system:
        system.start_musterd()
        for host in hosts:
            system.start_agent("lab", host)
        system.wait_hosts_up({f"lab/{host}" for host in hosts})
        for number in points:
            system.end("agent-lab-h01")
            system.point.set(call, when, number, f"{system.folder}/agents/lab-h01/{pattern}")
            system.faulty("agent-lab-h01")
            system.start_agent("lab", "h01")
            name, exit_code = f"n{number}", 7 * (number % 2)
            job = system.submit_through(
                name,
                short_job(system, name, workers=3, exit_code=exit_code, more="max_restarts: 0\n"),
            )
            # One that was cut off while it was prepared costs another.
            check(
                system, name, ended(system, name, job, hosts), exit_code, workers=3, attempts_max=2
            )
            refused = system.submit_through(
                f"r{number}",
                short_job(
                    system, f"r{number}", workers=3, more="max_restarts: 0\nworkdir: /not-there\n"
                ),
            )
            said = ended(system, f"r{number}", refused, hosts, starts=False)
            assert (
                said["state"] == "FAILED"
                and said["cause"] == "PROGRAM_ERROR"
                and not marks(system, f"r{number}")
            ), said
            points.tell(system.point, number)
    return points.reached


def test_an_agent_killed_before_and_after_each_sync_and_each_claim(bin_dir):
    points = at_once(
        *(
            lambda call=call, when=when, pattern=pattern: each_sync_of_an_agent(
                bin_dir, call, when, pattern
            )
            for call, pattern in (("sync", "*"), ("link", "*/claim"))
            for when in WAYS
        )
    )
    for when, reached in zip(WAYS, points[:2], strict=True):
        # Which host refuses before it is told to start is a matter of moments: another round, if this one never did.
        if not_met(reached, RECORDS):
            reached += each_sync_of_an_agent(bin_dir, "sync", when, "*")
        assert not not_met(reached, RECORDS), reached
    for reached in points[2:]:
        assert len(reached) >= 1, reached  # "stopped", of the gang that is refused


def each_sync_of_a_new_agent(bin_dir, when: str) -> list[str]:
    hosts, points = tuple(f"h{index:02}" for index in range(1, 31)), Points()
    with faulty_system(bin_dir, queues=QUEUES, hosts=hosts, scheduling=SCHEDULING) as system:
        system.start_musterd()
        for number, host in zip(points, hosts, strict=False):
            system.point.set("sync", when, number, f"{system.folder}/agents/*")
            system.faulty(f"agent-lab-{host}")
            system.start_agent("lab", host)

            def up():
                answer = system.ask("host", "list")
                return answer and any(
                    found["name"] == f"lab/{host}" and found["state"] == "HOST_UP"
                    for found in answer["hosts"]
                )

            wait_for(f"{host} to be up", up, 20, 0.02)
            system.end(f"agent-lab-{host}")
            points.tell(system.point, number)
    assert len(points.reached) + 2 < len(hosts), "more hosts are needed"
    return points.reached


def test_an_agent_killed_before_and_after_each_sync_while_it_makes_its_state_directory(bin_dir):
    for reached in at_once(
        *(lambda when=when: each_sync_of_a_new_agent(bin_dir, when) for when in WAYS)
    ):
        assert len(reached) >= 4, reached


# ---- muster-shim ----


def each_sync_of_a_shim(bin_dir, call: str, when: str, pattern: str) -> list[str]:
    points = Points()
    with faulty_system(bin_dir, queues=QUEUES, hosts=("h01",), scheduling=SCHEDULING) as system:
        system.faulty_shims("agent-lab-h01", system.folder / "bin")
        system.start_musterd()
        system.start_agent("lab", "h01")
        system.wait_hosts_up({"lab/h01"})
        for number in points:
            system.point.set(call, when, number, f"{system.folder}/agents/lab-h01/{pattern}")
            name = f"n{number}"
            job = system.submit_through(name, short_job(system, name, workers=2))
            said = ended(system, name, job, ("h01",))
            wait_for(
                "its shims to end",
                lambda: "muster-shim" not in processes_of(system.folder).values(),
                20,
            )
            check(system, name, said, 0, workers=2, attempts_max=2)
            points.tell(system.point, number)
    return points.reached


def test_a_shim_killed_before_and_after_each_sync_and_its_claim(bin_dir):
    points = at_once(
        *(
            lambda call=call, when=when, pattern=pattern: each_sync_of_a_shim(
                bin_dir, call, when, pattern
            )
            for call, pattern in (("sync", "*"), ("link", "*/claim"))
            for when in WAYS
        )
    )
    for reached in points[:2]:
        assert not not_met(reached, EXITS), reached
    for reached in points[2:]:
        assert len(reached) == 1, reached
