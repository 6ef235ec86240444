"""Hosts that are machines of their own (network, mounts, processes, hostname), in several clusters, with users of several teams.

The agents run jobs as their owners: the users are accounts of a private /etc/passwd that the hosts see.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

from local_system import Failed, LocalSystem, wait_for
from namespaces import Machines
from network_system import NetworkSystem
from small_system import ENDED, configure, task

TEAMS = {"ann": "nlp", "bob": "nlp", "cid": "vision"}
UIDS = {"ann": 61002, "bob": 61003, "cid": 61004}
QUEUES = "queues: [{name: nlp, submit: [nlp]}, {name: vision, submit: [vision]}]\n"
DEVICES = "flavour: cpu-slot, gpus: 1, cpus: 1, memory: 2GiB, disk: 10GiB"
TLS = """\
tls:
  listen: 0.0.0.0:7420
  join: 0.0.0.0:7421
  addresses: ["{m}:7420", "{m2}:7420"]
  master_key: {folder}/etc/master.key
"""
# In a namespace of mounts. $1: the folder.
ACCOUNTS = 'mount --bind "$1/etc/passwd" /etc/passwd && mount --bind "$1/etc/group" /etc/group'
# The machine's first process, which everything else there ends with. $2: the host's name.
MACHINE = f"""\
hostname "$2" && {ACCOUNTS} &&
mount -t tmpfs none /run && shift 2 && "$@"
exit $?
"""
JOB = """\
name: {name}
queue: {queue}
workers: {workers}
resources: {{gpus: 1, gpu_types: [cpu-slot]}}
{more}run: |
{run}
"""
# Rank 0 waits for all others at the address that they are told, and for each one's own number; each says where it is.
MEET = """\
import os, socket, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
at = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
print("at", socket.gethostname(), os.readlink("/proc/self/ns/net"), os.getuid(), flush=True)
if rank == 0:
    seen = set()
    with socket.create_server(at) as door:
        while len(seen) < size - 1:
            with door.accept()[0] as other:
                seen.add(int(other.recv(10)))
    print("met", sorted(seen), flush=True)
else:
    for _ in range(400):
        try:
            with socket.create_connection(at) as other:
                other.sendall(str(rank).encode())
            break
        except OSError:
            time.sleep(0.05)
    else:
        raise SystemExit("nobody answers at %s:%d" % at)
"""

# As a gang that trains: who loses another fails. The second attempt ends well once all have met.
HOLD = """\
import os, select, socket, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
at = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    with socket.create_server(at) as door:
        others = [door.accept()[0] for _ in range(size - 1)]
    print("met", flush=True)
    if int(os.environ["MUSTER_ATTEMPT"]) < 2:
        select.select(others, [], [])
        raise SystemExit("one of us is gone")
    for other in others:
        other.sendall(b"enough")
else:
    for _ in range(400):
        try:
            other = socket.create_connection(at)
            break
        except OSError:
            time.sleep(0.05)
    assert other.recv(10) == b"enough", "rank 0 is gone"
"""

# Data-parallel training over Gloo: all ranks end with the same weights, which are those of one process with all the data.
DDP = """\
import os, socket, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
data = torch.arange(size * 8, dtype=torch.float64).reshape(size, 8) / 80
def train(model, rows):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        ((model(rows) - 1) ** 2).mean().backward()
        optimizer.step()
def fresh():
    torch.manual_seed(1)
    return torch.nn.Linear(8, 1).double()
model, alone = fresh(), fresh()
train(DistributedDataParallel(model), data[rank : rank + 1])
train(alone, data)
far = max((a - b).abs().max().item() for a, b in zip(model.parameters(), alone.parameters()))
hosts = [None] * size
dist.all_gather_object(hosts, socket.gethostname())
assert far < 1e-9, far
if rank == 0:
    print("trained on", *sorted(hosts), flush=True)
dist.destroy_process_group()
"""


class TenHosts(NetworkSystem):
    """`clusters`: their hosts. Machines m and m2 are for musterd. `single_user`: all jobs are root's."""

    def __init__(
        self,
        system: LocalSystem,
        machines: Machines,
        clusters: dict[str, list[str]],
        single_user: bool = False,
    ):
        super().__init__(system, machines)
        self.clusters, self.single_user = clusters, single_user
        self.hosts = [host for hosts in clusters.values() for host in hosts]

    def full(self, host: str) -> str:
        return next(f"{name}/{host}" for name, hosts in self.clusters.items() if host in hosts)

    def start(self) -> None:
        folder = self.system.folder
        configure(self.system, QUEUES)
        etc = folder / "etc"
        whose = "" if self.single_user else "/{user}"
        listed = "".join(
            f"  - {{name: {name}, sku: slots, job_storage: shared, topology: {{b1: {{r1: [{', '.join(hosts)}]}}}}}}\n"
            for name, hosts in self.clusters.items()
        )
        (etc / "clusters.yaml").write_text(
            f"skus: {{slots: {{{DEVICES}, declared: true}}}}\n"
            f'storages: {{shared: {{path: "{folder}/storage{whose}", clusters: [{", ".join(self.clusters)}]}}}}\n'
            f"clusters:\n{listed}"
        )
        (etc / "host.yaml").write_text(f"{{{DEVICES}}}\n")
        addresses = {name: self.machines.addresses[name] for name in ("m", "m2")}
        config = (etc / "musterd.yaml").read_text()
        if not self.single_user:
            config = config.replace("single_user: true\n", "")
        (etc / "musterd.yaml").write_text(config + TLS.format(folder=folder, **addresses))
        self.make_accounts()
        self.begin_musterd()

    def make_accounts(self) -> None:
        folder, lines = self.system.folder, {"passwd": "", "group": ""}
        for path in (folder, folder / "etc", folder / "storage"):
            path.chmod(0o755)
        for user, uid in UIDS.items():
            lines["passwd"] += f"{user}:x:{uid}:{uid}::/nonexistent:/bin/sh\n"
            lines["group"] += f"{user}:x:{uid}:\n"
            home = folder / "storage" / user
            home.mkdir(mode=0o700)
            os.chown(home, uid, uid)
        for name, more in lines.items():
            path = folder / "etc" / name
            path.write_text(Path("/etc", name).read_text() + more)
            path.chmod(0o644)

    def agent_command(self, host: str, words: list[str], *more: str) -> list:
        # fmt: off
        return self.machines.on(host, [
            "unshare", "--mount", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc",
            "sh", "-c", MACHINE, "sh", self.system.folder, host, *self.agent_words(host, words, *more),
        ])
        # fmt: on

    def kill_machine(self, host: str) -> None:
        """All of its processes at once, as when the power goes."""
        process = self.system.processes.pop(f"agent-lab-{host}")
        process.kill()  # and by --kill-child its first process, with whom the kernel ends the rest
        process.wait(10)

    # ---- as users ----

    def submit_as(
        self, user: str, name: str, run: str, *, workers: int = 1, queue="", more="", at="h01"
    ) -> int:
        path = self.system.folder / f"{name}.yaml"
        body = "".join(f"  {line}\n" for line in run.splitlines())
        path.write_text(
            JOB.format(name=name, queue=queue or TEAMS[user], workers=workers, more=more, run=body)
        )
        path.chmod(0o644)
        done = self.muster(user, at, "submit", path, "-y", "--detach", "-o", "json")
        if done.returncode != 0:
            raise Failed(f"{user} may not submit {name}: {done.stderr}")
        return json.loads(done.stdout)["number"]

    def meeting(self) -> str:
        return f"python3 -c '{MEET}'"

    def ended(self, number: int, timeout_s: float = 60) -> dict:
        try:
            return wait_for(
                f"job {number} to end",
                lambda: (job := self.system.job(number))["state"] in ENDED and job,
                timeout_s,
            )
        except Failed as error:
            raise Failed(f"{error}: {self.system.run(['show', number]).stdout}") from error

    def placed(self, job: dict, attempt: int = -1) -> set[str]:
        return {part["host"] for part in task(job)["attempts"][attempt]["placements"]}

    # ---- scenes: each raises Failed or asserts ----

    def gang_meets(self, user: str, workers: int) -> None:
        number = self.submit_as(user, f"meet-{workers}", self.meeting(), workers=workers)
        job = self.ended(number)
        log = self.muster(user, "h01", "logs", number).stdout
        assert job["state"] == "SUCCEEDED", log
        said = [line.split(" at ")[-1].split() for line in log.splitlines() if " at " in f" {line}"]
        places = {tuple(words[-3:-1]) for words in said}
        assert len(places) == workers, log  # as many hostnames and networks
        assert {words[-1] for words in said} == {str(UIDS[user])}, log
        assert len(self.placed(job)) == workers

    def gang_trains(self, python: str, workers: int) -> None:
        """As root, who may read whatever environment Python has."""
        path = self.system.folder / "ddp.yaml"
        program = self.system.folder / "ddp.py"
        program.write_text(DDP)
        more = "env: {GLOO_SOCKET_IFNAME: eth0, OMP_NUM_THREADS: '1'}\n"
        path.write_text(
            JOB.format(
                name="ddp",
                queue="nlp",
                workers=workers,
                more=more,
                run=f"  exec {python} {program}",
            )
        )
        number = self.system.submit(path)["number"]
        job = self.ended(number, 240)
        log = self.system.run(["logs", str(number)]).stdout
        assert job["state"] == "SUCCEEDED", log
        assert " ".join(sorted(self.hosts)) in log, log

    def teams_are_apart(self) -> None:
        number = self.submit_as("ann", "anns", "sleep 300")
        try:
            self.submit_as("cid", "cids-in-nlp", "true", queue="nlp")
        except Failed:
            pass
        else:
            raise Failed("cid may submit to ann's team's queue")
        assert self.muster("cid", "h02", "show", number).returncode != 0
        assert self.muster("bob", "h02", "cancel", number).returncode != 0
        assert self.muster("ann", "h01", "cancel", number).returncode == 0

    def dying_host(self, workers: int = 4) -> None:
        """A gang over several hosts of which one dies goes on without it; the host comes back by itself."""
        number = self.submit_as("bob", "survives", f"python3 -c '{HOLD}'", workers=workers)
        wait_for(
            "all to meet", lambda: "met" in self.muster("bob", "h01", "logs", number).stdout, 30
        )
        host = sorted(self.placed(self.system.job(number)))[-1].split("/")[-1]
        self.kill_machine(host)
        job = self.ended(number, 40)
        assert job["state"] == "SUCCEEDED", job
        assert len(task(job)["attempts"]) == 2, job
        assert host not in {name.split("/")[-1] for name in self.placed(job)}
        self.start_agent(host, [])
        self.wait_state(host, "HOST_UP", 30)

    def cut_host(self, host: str) -> None:
        self.machines.cut(host)
        self.wait_state(host, "HOST_SILENT", 40)
        self.machines.cut(host, False)
        self.wait_state(host, "HOST_UP", 40)

    def runs_on(self, what: Callable[[], None]) -> None:
        """A job that runs meanwhile notices nothing of it, and nor does the login of whoever asks about it."""
        number = self.submit_as("cid", "steady", "sleep 1000")
        wait_for("it to run", lambda: self.system.job(number)["state"] == "RUNNING", 30)
        what()
        for host in self.hosts:
            self.wait_state(host, "HOST_UP", 40)
        assert self.muster("cid", "h03", "show", number).returncode == 0
        job = self.system.job(number)
        assert job["state"] == "RUNNING" and len(task(job)["attempts"]) == 1, job
        assert self.muster("cid", "h03", "cancel", number).returncode == 0
        self.ended(number)

    def rotates(self) -> None:
        before = self.authorities()[0]["fingerprint"]
        self.rotate()
        assert before not in [row["fingerprint"] for row in self.authorities()]

    def moves(self) -> None:
        """musterd goes to its other address."""
        process = self.system.processes.pop("musterd")
        process.terminate()
        process.wait(30)
        self.begin_musterd("m2")

    def rotate(self) -> None:
        for step in ("prepare", "sign", "drop"):

            def done(step=step):
                self.touch_logins()
                return self.system.run(["ca", "rotate", step], check=False).returncode == 0

            wait_for(f"rotation: {step}", done, 60, 0.3)

    def touch_logins(self) -> None:
        """Logins ask whether to renew with their next call, not in ten minutes."""
        for user in TEAMS:
            for identity in (self.system.folder / "homes" / user).rglob("*.identity"):
                os.utime(identity, (0, 0))
                self.muster(user, "h01", "ping")
