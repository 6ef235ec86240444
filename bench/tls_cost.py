#!/usr/bin/env python3
"""Row `tls-cost`: what mutual TLS costs: a submission's latency and the rate of durable submissions, against the Unix socket in the same run.

    tls_cost.py [--quick]

Two systems at once for the latency: agent and user over TLS from machines of their own (network namespaces), and both over the Unix socket;
jobs go to either in turn, each by a `muster` command that is started the same way. Rates: one musterd that several users submit to, each on a
connection of its own over TLS; and as many connections over its Unix socket; in turn, TLS, Unix, Unix, TLS, so that what is stored meanwhile counts
for both. The users are as many as their rates allow (200 submissions a second and user, and a burst).

Agents: 5,000 of them, each with a certificate, a connection and heartbeats of its own, sixty behind an address; what musterd needs for them.
"""

import json
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "deploy" / "local"), str(ROOT / "tests" / "system")]

from figures import BIN, at_most, figure, quantile, say_failed
from local_system import Failed, LocalSystem, kill_all, system_folder, wait_for
from namespaces import machines, why_not
from network_system import QUEUES, NetworkSystem
from small_system import start
from submit_latency import JOB

MOST_LATENCY, LEAST_RATE = 1.25, 0.8
MOST_GIB, MOST_CORES = 1.5, 1.0
AGENTS_AN_ADDRESS = 60


class Submitter:
    """Submits by the command, from machine h01, in this environment, and waits for the process."""

    def __init__(self, net: NetworkSystem, system: LocalSystem, environment: dict):
        self.net, self.system, self.environment = net, system, environment
        self.ms: list[float] = []

    def one(self, number: int) -> None:
        mark, path = self.system.folder / f"mark{number}", self.system.folder / "job.yaml"
        path.write_text(JOB.format(mark=mark))
        command = [BIN / "muster", "submit", path, "-y", "--detach", "-o", "json"]
        began_ns = time.time_ns()
        done = subprocess.run(
            [str(word) for word in self.net.machines.on("h01", command)],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        if done.returncode != 0:
            raise Failed(f"muster submit: {done.stderr}")
        wait_for(
            f"job {number} to run",
            lambda: mark.exists() and mark.read_text().endswith("\n"),
            20,
            0.002,
        )
        self.ms.append((int(mark.read_text()) - began_ns) / 1e6)
        job = json.loads(done.stdout)["number"]
        wait_for("its end", lambda: self.system.job(job)["state"] == "SUCCEEDED", 20, 0.01)


def latencies(jobs: int) -> tuple[list[float], list[float]]:
    with system_folder() as here, system_folder() as there, machines(["m", "h01"]) as made:
        try:
            plain, secured = LocalSystem(here, BIN), LocalSystem(there, BIN)
            net = NetworkSystem(secured, made)
            net.start_musterd(["h01"])
            net.join("h01")
            user = secured.json("access", "check", "/")["user"]
            net.log_in(user, "h01")
            start(plain, QUEUES, hosts=("h01",), slots=1)
            over_tls = Submitter(net, secured, net.home(user))
            over_socket = Submitter(net, plain, plain.environment())
            for number in range(jobs + 2):
                for submitter in (over_tls, over_socket):
                    submitter.one(number)
            return over_tls.ms[2:], over_socket.ms[2:]  # the first ones warm both up
        finally:
            kill_all(here)
            kill_all(there)


def load(server: str, jobs: int, connections: int, within: list) -> float:
    command = [BIN / "bench_submit_load", server, "--jobs", jobs, "--outstanding", 2048]
    command += ["--connections", connections]
    done = subprocess.run(
        [str(word) for word in [*within, *command]], stdout=subprocess.PIPE, text=True, check=True
    )
    print(done.stdout.strip(), flush=True)
    return json.loads(done.stdout)["submissions_per_s"]


def rates(jobs: int, users: int) -> tuple[float, float, float]:
    """Submissions a second over TLS and over the socket; musterd's GiB at the most."""
    with system_folder("/srv") as folder, machines(["m", "h01"]) as made:
        try:
            system = LocalSystem(folder, BIN)
            net = NetworkSystem(system, made)
            net.start_musterd(["h01"], single_user=False)
            names = [f"u{number:02}" for number in range(users)]
            for name in names:
                net.log_in(name, "h01")
            logins = ",".join(
                str(folder / "homes" / name / ".config" / "muster" / "default.identity")
                for name in names
            )
            pid = system.processes["musterd"].pid
            per_s: dict[str, list[float]] = {"tls": [], "unix": []}
            for way in ("tls", "unix", "unix", "tls"):
                server = logins if way == "tls" else system.server
                per_s[way].append(load(server, jobs, users, made.on("h01", [])))
            status = Path(f"/proc/{pid}/status").read_text()
            most_gib = int(re.search(r"VmHWM:\s*(\d+)", status).group(1)) / 2**20
            return sum(per_s["tls"]) / 2, sum(per_s["unix"]) / 2, most_gib
        finally:
            kill_all(folder)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def agents(count: int, seconds: int) -> tuple[dict, float, float]:
    """What they saw; the cores that musterd keeps busy for them, and its GiB at the most."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with system_folder() as folder, machines(["m", "h01"]) as made:
        try:
            system = LocalSystem(folder, BIN)
            net = NetworkSystem(system, made)
            net.start_musterd([f'"h[00001-{count:05}]"'])
            system.processes["musterd"].terminate()
            system.processes["musterd"].wait(20)
            identities = folder / "identities"
            identities.mkdir()
            address = f"{made.addresses['m']}:7420"
            words = ["issue", folder / "store", folder / "etc" / "master.key", address, count]
            subprocess.run([str(w) for w in [BIN / "tls_agents", *words, identities]], check=True)
            net.begin_musterd()
            pid = system.processes["musterd"].pid
            command = [BIN / "tls_agents", "run", identities, "--seconds", seconds]
            running = subprocess.Popen(
                [str(word) for word in made.on("h01", command)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            try:
                for source in made.more_addresses("h01", -(-count // AGENTS_AN_ADDRESS)):
                    made.speak_from("h01", source)
                    running.stdin.write(f"{AGENTS_AN_ADDRESS}\n")
                    running.stdin.flush()
                    if not (said := running.stdout.readline()).startswith("connected"):
                        raise Failed(f"tls_agents: {said}")
                running.stdin.close()
                running.stdout.readline()  # steady
                began, used_s = time.monotonic(), cpu_s(pid)
                seen = json.loads(running.stdout.readline())
                cores = (cpu_s(pid) - used_s) / (time.monotonic() - began)
            finally:
                running.kill()
                running.wait()
            status = Path(f"/proc/{pid}/status").read_text()
            return seen, cores, int(re.search(r"VmHWM:\s*(\d+)", status).group(1)) / 2**20
        finally:
            kill_all(folder)


def agents_hold(quick: bool) -> bool:
    count = 300 if quick else 5000
    seen, cores, most_gib = agents(count, 5 if quick else 60)
    print(json.dumps(seen), flush=True)
    lives = seen["streams"]
    return all(
        [
            figure(
                "agents over TLS whose streams live at the end", lives, "", count, lives == count
            ),
            figure("p99 of a heartbeat's acknowledgement", seen["p99_ms"], "ms"),
            at_most("musterd's cores", cores, "", MOST_CORES, places=2),
            at_most("musterd's memory with them", most_gib, "GiB", MOST_GIB, places=2),
        ]
    )


def latencies_hold(quick: bool) -> bool:
    tls_ms, unix_ms = latencies(15 if quick else 150)
    ok = True
    for label, share in (("p50", 0.5), ("p99", 0.99)):
        over_tls, over_socket = quantile(tls_ms, share), quantile(unix_ms, share)
        ok &= figure(f"submit-latency {label} over the Unix socket", round(over_socket, 1), "ms")
        ok &= figure(
            f"submit-latency {label} over TLS",
            round(over_tls, 1),
            "ms",
            f"<= {MOST_LATENCY} times",
            over_tls <= MOST_LATENCY * over_socket,
        )
    return ok


def rates_hold(quick: bool) -> bool:
    tls, unix, most_gib = rates(4000 if quick else 20_000, 12 if quick else 50)
    ok = figure("durable submissions over the Unix socket", round(unix), "1/s")
    ok &= figure(
        "durable submissions over TLS",
        round(tls),
        "1/s",
        f">= {LEAST_RATE} times",
        tls >= LEAST_RATE * unix,
    )
    return at_most("musterd's memory at the most", most_gib, "GiB", MOST_GIB, places=2) and ok


def main() -> int:
    if why_not():
        return say_failed(Failed(why_not()))
    quick = "--quick" in sys.argv
    try:
        held = [part(quick) for part in (latencies_hold, rates_hold, agents_hold)]
    except Failed as error:
        return say_failed(error)
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
