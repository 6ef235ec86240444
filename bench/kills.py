#!/usr/bin/env python3
"""Rows `kill-scheduler`, `kill-agent`, `kill-shim`: SIGKILL to the real programs, at moments drawn from a seed.

    kills.py scheduler|agent|shim [--quick] [--unix | --tls]

scheduler: a host with 32 declared slots, submissions and ends in flight all the time, and 10,000 jobs stored that wait behind their queue's
limit; from each start of musterd to the first attempt that it places. agent: processes that wait while both agents of a small system are
killed. shim: one host's shim of a gang over two.

Twice: one user over a Unix socket; and over mutual TLS, with agents that have joined on machines of their own (network namespaces) and three
users of two teams, whose jobs run as they (tests/system/teams_over_tls.py). With musterd further hosts join there all the time, by a line each.
--unix, --tls: one of both.
"""

import bisect
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "deploy" / "local"), str(ROOT / "tests" / "system")]

import small_system
from figures import BIN, at_most, figure, forms, none, of_form, quantile, say_failed
from local_system import (
    CommandFailed,
    Failed,
    LocalSystem,
    job_processes,
    processes_of,
    system_folder,
    wait_for,
)
from small_system import let_go, marks, submit_waiting, task, wait_ended, wait_started
from teams_over_tls import FORM, TeamsOverTls, teams_over_tls

NOT_THERE_NOW = 6  # exit code of `muster` without a daemon
STORED = 10_000
WAITING = 16  # jobs that nothing but room is missing for: what a start can place
LONGEST_S = 8  # of a job: much shorter ones end faster than two busy cores submit others
QUEUES32 = """\
queues:
  - {name: default, submit: ['*']}
  - {name: stored, quota: {cpu-slot: {limit: 1}}, submit: ['*']}
"""


def kill(process: subprocess.Popen) -> None:
    process.kill()
    process.wait(10)


class Submissions:
    """Four lanes that submit short jobs, as many as keep WAITING of them waiting, whoever is there to take them."""

    def __init__(self, system: LocalSystem) -> None:
        self.system = system
        self.acknowledged, self.refused, self.stop = [], [], threading.Event()
        self.lines_file = system.folder / "lines"
        self.lines_file.touch()
        self.lines_file.chmod(0o666)
        self.lanes = [threading.Thread(target=self._submit, args=(lane,)) for lane in range(4)]

    def __enter__(self) -> "Submissions":
        for lane in self.lanes:
            lane.start()
        return self

    def __exit__(self, *_) -> None:
        self.stop.set()
        for lane in self.lanes:
            lane.join(60)

    def lines(self) -> list[str]:
        """One for each process that began: job, attempt and rank."""
        return self.lines_file.read_text().splitlines()

    def backlog(self) -> bool:
        return len(self.acknowledged) - len({line.split()[0] for line in self.lines()}) >= WAITING

    def something_to_place(self) -> bool:
        if self.refused:
            raise Failed(f"a submission was refused: {self.refused[0]}")
        return self.backlog()

    def _submit(self, lane: int) -> None:
        try:
            self._submit_all(lane)
        # A command that hangs, say: the run is not one with submissions in flight.
        except Exception as error:
            self.refused.append(str(error))
            self.stop.set()

    def _submit_all(self, lane: int) -> None:
        for index in range(1_000_000):
            name, rng = f"job{lane}-{index}", random.Random(lane * 1_000_003 + index)
            path = self.system.folder / f"{name}.yaml"
            path.write_text(
                f"name: {name}\nqueue: default\nworkers: {rng.randint(1, 4)}\nresources: {{gpus: 1, gpu_types: [cpu-slot]}}\n"
                f'run: |\n  echo "$MUSTER_JOB $MUSTER_ATTEMPT ${{RANK-0}}" >> {self.lines_file}\n  sleep {rng.uniform(0, LONGEST_S):.2f}\n'
            )
            while True:
                while self.backlog() and not self.stop.is_set():
                    time.sleep(0.05)
                if self.stop.is_set():
                    return
                done = self.system.run(
                    ["submit", path, "-y", "--detach", "-o", "name", "--idempotency-key", name],
                    check=False,
                )
                if done.returncode == 0:
                    self.acknowledged.append(done.stdout.strip())
                    path.unlink()
                    break
                if done.returncode != NOT_THERE_NOW:
                    self.refused.append(done.stderr)
                    self.stop.set()


class Joins:
    """Hosts that join all the time. Each has one line, which is to buy a certificate however often musterd dies meanwhile."""

    def __init__(self, system: TeamsOverTls) -> None:
        self.system, self.joined, self.wrong, self.stop = system, 0, [], threading.Event()
        self.thread = threading.Thread(target=self._join_all)

    def __enter__(self) -> "Joins":
        self.thread.start()
        return self

    def __exit__(self, *_) -> None:
        self.stop.set()
        self.thread.join(60)

    def _join_all(self) -> None:
        try:
            while not self.stop.wait(1):
                self._join(f"j{self.joined:04}")
                self.joined += 1
        except Exception as error:  # said with the figure
            self.wrong.append(str(error))

    def _join(self, host: str) -> None:
        net = self.system.net
        words = wait_for(f"a line for {host}", lambda: self._line(host), 60)
        command = net.machines.on("h01", net.agent_words(host, [*words, "--only"]))

        def joined() -> bool:
            done = subprocess.run(
                [str(word) for word in command], capture_output=True, text=True, timeout=60
            )
            if "Ask for a new one" in done.stderr:
                raise Failed(f"{host}: its line was spent for nothing: {done.stderr}")
            return done.returncode == 0

        wait_for(f"{host} to join", joined, 60, 0.2)

    def _line(self, host: str) -> list[str]:
        try:
            return self.system.net.line(host)
        except CommandFailed as error:
            if error.code != NOT_THERE_NOW:
                raise
            return []


def fill(system: LocalSystem) -> None:
    """musterd, an agent, and STORED jobs that wait behind one that never ends."""
    small_system.start(system, QUEUES32, hosts=("h01",), slots=32, cluster="open: true")
    first = small_system.submit(
        system,
        "name: first\nqueue: stored\nresources: {gpus: 1, gpu_types: [cpu-slot]}\nrun: sleep 100000\n",
        "first",
    )
    wait_for(
        "the one that holds the limit to run", lambda: system.job(first)["state"] == "RUNNING", 20
    )
    subprocess.run(
        [BIN / "bench_submit_load", system.server, "--queue", "stored", "--jobs", str(STORED)],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def scheduler(system: LocalSystem, quick: bool) -> bool:
    kills = 10 if quick else 1000
    fill(system)
    starts_s, began_ns, rng = [], [], random.Random(1)
    jobs, placed = {}, set()  # by number: its state; when attempts were placed

    def ours(*more: str) -> list[dict]:
        return system.json("jobs", *more, "--queue", "default", "--limit", "100000")["jobs"]

    def collect() -> None:  # musterd keeps the newest 10,000 finished jobs
        for job in ours("--all"):
            jobs[str(job["number"])] = job["state"]
            placed.update(int(attempt["place_ns"]) for attempt in task(job)["attempts"])

    joins = Joins(system) if isinstance(system, TeamsOverTls) else None
    with Submissions(system) as submissions, joins or nullcontext():
        for index in range(kills):
            if index % 2 == 0:  # what this start is to place has to be there
                ready = submissions.something_to_place
                wait_for("more jobs than there is room for", ready, 180, 0.01)
            time.sleep(rng.uniform(0, 0.4))  # the moment is what is drawn
            kill(system.processes["musterd"])
            began_ns.append(time.time_ns())
            starts_s.append(system.start_musterd())
            if index % 2 == 0:  # the next kill comes after a placement; else it may come before one
                began = len(submissions.lines())
                wait_for(
                    "something to be placed", lambda: len(submissions.lines()) > began, 30, 0.01
                )
            if index % 200 == 0:
                collect()

    wait_for("all jobs to end", lambda: not ours(), 600, 0.5)
    collect()
    ok = figure(
        "SIGKILLs of musterd with 32 slots, submissions and ends in flight",
        kills,
        "",
        "≥ 1,000" if not quick else "-",
        True,
    )
    ok &= tell_scheduler(submissions, jobs)
    if joins:
        print(f"{joins.joined} hosts joined", *joins.wrong)
        ok &= none("lines of hosts that bought no certificate", len(joins.wrong))
        ok &= joins.joined > 0
    figure(
        "from its start to its first answer, p99",
        round(quantile(starts_s, 0.99), 3),
        "s",
        "-",
        True,
    )
    return ok & tell_first_placement(began_ns, sorted(placed))


def tell_scheduler(submissions: Submissions, jobs: dict[str, str]) -> bool:
    lines = Counter(submissions.lines())
    twice = [line for line, times in lines.items() if times > 1]
    lost = set(submissions.acknowledged) - set(jobs)
    not_done = [number for number, state in jobs.items() if state != "SUCCEEDED"]
    refused = submissions.refused
    print(
        f"{len(submissions.acknowledged)} acknowledged submissions, {sum(lines.values())} processes, refused for another reason than that nobody was there: {refused[:3]}"
    )
    ok = figure("acknowledged submissions lost", len(lost), "", "0", not lost and not refused)
    ok &= none("attempts started twice", len(twice))
    return ok & none("jobs that did not succeed", len(not_done))


def tell_first_placement(began_ns: list[int], placed_ns: list[int]) -> bool:
    # Of every second start, as the others' placements may have been cut off.
    first_s = [
        (placed_ns[min(bisect.bisect_left(placed_ns, start), len(placed_ns) - 1)] - start) / 1e9
        for start in began_ns[::2]
    ]
    print("first placements after", sorted(round(s, 2) for s in first_s))
    slow_s = quantile(first_s, 0.99)
    return at_most(
        f"from its start to its first placement with {STORED:,} jobs stored, p99 of {len(first_s)}",
        slow_s,
        "s",
        2,
        places=3,
    )


def agent(system: LocalSystem, quick: bool) -> bool:
    rounds = 10 if quick else 100  # two agents each
    small_system.start(system)
    rng, attach_s, moved, wrong, codes = random.Random(2), [], 0, 0, 0
    hosts = ("h01", "h02")

    def connections(host: str) -> int:
        return (
            (system.folder / "logs" / f"agent-lab-{host}.log")
            .read_text(errors="replace")
            .count(" connected ")
        )

    for batch in range(rounds // 5):
        wanted = {f"b{batch}j{i}": rng.choice([0, 1, 3, 7, 42]) for i in range(4)}
        numbers = {
            name: submit_waiting(system, name, exit_code=code, more="max_restarts: 0\n")
            for name, code in wanted.items()
        }
        for name in wanted:
            wait_started(system, name, 1)
        before = set(job_processes(system.folder))
        for kills in range(5):
            counts = {host: connections(host) for host in hosts}
            for host in hosts:
                kill(system.processes[f"agent-lab-{host}"])
            if kills == 4:  # the last of a batch: they end while nobody is there
                for name in wanted:
                    let_go(system, name)
                wait_for("the processes to end", lambda: not job_processes(system.folder), 20)
            for host in hosts:
                began = time.monotonic()
                system.start_agent("lab", host)
                wait_for(f"{host} to be back", lambda: connections(host) > counts[host], 20, 0.005)
                attach_s.append(time.monotonic() - began)
            moved += kills < 4 and set(job_processes(system.folder)) != before
        for name, code in wanted.items():
            job = wait_ended(system, numbers[name])
            codes += 1
            right = (
                job["state"] == "SUCCEEDED"
                if code == 0
                else job["state"] == "FAILED"
                and f"exit {code}" in task(job)["attempts"][-1]["detail"]
            )
            wrong += not right or len(marks(system, name)) != 1
    ok = figure("SIGKILLs of agents", 2 * rounds, "", "≥ 200" if not quick else "-", True)
    ok &= none("times that other processes ran afterwards", moved)
    ok &= figure("exit codes that were right", codes - wrong, f"of {codes}", codes, wrong == 0)
    slowest = max(attach_s)
    return ok & at_most("from its start to its session, slowest", slowest, "s", 3, places=2)


def shim(system: LocalSystem, quick: bool) -> bool:
    rounds = 5 if quick else 30
    small_system.start(system)
    rng, gone_s, wrong = random.Random(3), [], 0
    for index in range(rounds):
        name = f"gang{index}"
        number = submit_waiting(system, name, workers="4")
        wait_started(system, name, 4)
        shims = [
            pid for pid, program in processes_of(system.folder).items() if program == "muster-shim"
        ]
        # Not what a shim forked and has not become another program: that is a worker's.
        victim = rng.choice(
            [
                pid
                for pid in shims
                if parent_of(pid) not in shims
                and Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"muster-shim\0")
            ]
        )
        children = {
            int(p) for p in os.listdir("/proc") if p.isdigit() and parent_of(int(p)) == victim
        }
        workers = {
            pid
            for pid in job_processes(system.folder)
            if pid in children or parent_of(pid) in children
        }
        began = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        wait_for(
            "its workers to be gone",
            lambda: (
                not any(
                    Path(f"/proc/{pid}/environ").exists() and state_of(pid) not in "ZX"
                    for pid in workers
                )
            ),
            20,
            0.005,
        )
        gone_s.append(time.monotonic() - began)
        wait_started(system, name, 8)
        let_go(system, name)
        job = wait_ended(system, number)
        wrong += not (
            workers
            and job["state"] == "SUCCEEDED"
            and len(task(job)["attempts"]) == 2
            and len(marks(system, name)) == 8
        )
    ok = figure("SIGKILLs of a shim of a gang over two hosts", rounds, "", "-", True)
    slowest = max(gone_s)
    ok &= at_most("until its workers are gone, slowest", slowest, "s", 1, places=3)
    return ok & none("gangs that did not restart exactly once and succeed", wrong)


def stat_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return ["X", "0"]


def parent_of(pid: int) -> int:
    return int(stat_of(pid)[1])


def state_of(pid: int) -> str:
    return stat_of(pid)[0]


def measure(form: str, what: str, quick: bool) -> bool:
    row = {"scheduler": scheduler, "agent": agent, "shim": shim}[what]
    if form == "unix":
        with system_folder() as folder:
            system = LocalSystem(folder, BIN)
            ok = row(system, quick)
            system.stop()
            return ok
    hosts = ["h01"] if what == "scheduler" else ["h01", "h02"]
    with of_form(FORM), teams_over_tls(BIN, hosts) as system:
        ok = row(system, quick)
        lost = system.lost()
        print("\n".join(lost))
        ok &= none("hosts, users and proofs that did not last", len(lost))
        system.stop()
        return ok


def main() -> int:
    try:
        held = [measure(form, sys.argv[1], "--quick" in sys.argv) for form in forms()]
    except Failed as error:
        return say_failed(error)
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
