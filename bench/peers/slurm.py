"""Slurm as a peer: Debian's slurm-wlm in a private folder, on loopback ports of its own. Nothing is installed on the machine.

The packages are downloaded by apt-get into the cache folder and unpacked there, once. munged, slurmctld and slurmd run from
there as the calling user, with their configuration, state and sockets in a folder that goes when they are stopped. Settings
favour throughput: no accounting, no cgroups, no fair share, no backfill, no delays between scheduling cycles. Submissions and
completions are measured apart, each with the machine for itself: sbatch of held jobs, and one array.
"""

import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")

CONFIG = """\
ClusterName=peer
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CryptoType=crypto/munge
PluginDir={plugins}
SlurmctldPort={ctld_port}
SlurmdPort={d_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/completed
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0,default_queue_depth=100000,max_rpc_cnt=0
PriorityType=priority/basic
MaxJobCount=100000
MaxArraySize=100001
CompleteWait=0
MinJobAge=2
ReturnToService=2
SlurmdParameters=config_overrides
SlurmctldDebug=error
SlurmdDebug=error
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


class Unavailable(Exception):
    """Slurm can't run here; the text says why."""


def cache_folder() -> Path:
    base = os.environ.get("MUSTER_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "muster"
    )
    return Path(base) / "peers"


def fetch() -> Path:
    """The folder into which the packages are unpacked; downloads them if it isn't there."""

    def run(command, **more):
        done = subprocess.run(command, capture_output=True, text=True, **more)
        if done.returncode != 0:
            raise Unavailable(
                f"{' '.join(map(str, command))}: {(done.stderr or done.stdout).strip().splitlines()[-1:]}"
            )
        return done.stdout

    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise Unavailable(f"{tool} is missing: the packages are Debian's")
    planned = run(
        [
            "apt-get",
            "-s",
            "-o",
            "Debug::NoLocking=1",
            "install",
            "--no-install-recommends",
            *PACKAGES,
        ]
    )
    wanted = sorted(set(re.findall(r"^Inst (\S+) ", planned, re.MULTILINE)) | set(PACKAGES))
    version = (
        run(["apt-cache", "show", "--no-all-versions", "slurmctld"])
        .split("Version: ", 1)[1]
        .split("\n", 1)[0]
    )
    root = cache_folder() / f"slurm-{version}"
    if root.exists():
        return root
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent) as name:
        scratch = Path(name)
        run(["apt-get", "download", *wanted], cwd=scratch)
        for package in sorted(scratch.glob("*.deb")):
            run(["dpkg-deb", "-x", package, scratch / "root"])
        os.rename(scratch / "root", root)
    return root


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Slurm:
    """One controller and one node that declares `cpus` CPUs. A context manager."""

    def __init__(self, cpus: int):
        self.cpus = cpus
        self.root = fetch()
        self.folder = Path(tempfile.mkdtemp(prefix="mst-slurm-", dir="/tmp"))
        os.chmod(self.folder, 0o755)
        self.daemons: list[subprocess.Popen] = []
        libraries = self.root / "usr/lib/x86_64-linux-gnu"
        self.environment = os.environ | {
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "LD_LIBRARY_PATH": f"{libraries}:{libraries}/slurm-wlm",
        }

    def program(self, name: str) -> Path:
        for path in (f"usr/sbin/{name}-wlm", f"usr/sbin/{name}", f"usr/bin/{name}"):
            if (self.root / path).exists():
                return self.root / path
        raise Unavailable(f"the packages hold no {name}")

    def version(self) -> str:
        return "slurm-wlm " + self.root.name.removeprefix("slurm-")

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for daemon in reversed(self.daemons):
            if daemon.poll() is None:
                daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(5)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        # What slurmd started and left behind has the folder in its environment or command line.
        needle = str(self.folder).encode()
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                text = (
                    Path(f"/proc/{entry}/cmdline").read_bytes()
                    + Path(f"/proc/{entry}/environ").read_bytes()
                )
                if int(entry) != os.getpid() and needle in text:
                    os.kill(int(entry), signal.SIGKILL)
            except OSError:
                continue
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        host = socket.gethostname().split(".")[0]
        user = pwd.getpwuid(os.geteuid()).pw_name
        for name in ("munge", "state", "spool"):
            (self.folder / name).mkdir(mode=0o755)
        key = self.folder / "munge" / "key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        (self.folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
        plugins = self.root / "usr/lib/x86_64-linux-gnu/slurm-wlm"
        (self.folder / "slurm.conf").write_text(
            CONFIG.format(
                host=host,
                user=user,
                folder=self.folder,
                plugins=plugins,
                cpus=self.cpus,
                ctld_port=free_port(),
                d_port=free_port(),
            )
        )
        munge = self.folder / "munge"
        self.daemon(
            "munged",
            "--foreground",
            "--force",
            "--num-threads=2",
            f"--key-file={key}",
            f"--socket={munge}/socket",
            f"--pid-file={munge}/pid",
            f"--log-file={munge}/log",
            f"--seed-file={munge}/seed",
        )
        self.wait(lambda: (munge / "socket").exists(), "munged")
        self.daemon("slurmctld", "-D", "-i")
        self.daemon("slurmd", "-D", "-N", host, "-d", self.program("slurmstepd"))
        self.wait(lambda: "idle" in self.run("sinfo", "-h", "-o", "%t").stdout, "an idle node")

    def daemon(self, name: str, *arguments) -> None:
        with open(self.folder / f"{name}.out", "wb") as out:
            self.daemons.append(
                subprocess.Popen(
                    [self.program(name), *arguments],
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    cwd=self.folder,
                    start_new_session=True,
                )
            )

    def wait(self, condition, what: str, timeout_s: float = 20) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            ended = [d.args[0] for d in self.daemons if d.poll() is not None]
            if ended or time.monotonic() > deadline:
                logs = "".join(
                    p.read_text(errors="replace")[-600:]
                    for p in (*self.folder.glob("*.log"), *self.folder.glob("*.out"))
                )
                raise Unavailable(
                    f"waited for {what}; ended: {[str(e) for e in ended]}; {logs.strip()}"
                )
            time.sleep(0.05)

    def run(self, name: str, *arguments) -> subprocess.CompletedProcess:
        return subprocess.run(
            [self.program(name), *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            cwd=self.folder,
        )

    def completed(self) -> int:
        """Jobs that have ended well, as slurmctld wrote them down."""
        path = self.folder / "completed"
        return path.read_text().count("JobState=COMPLETED") if path.exists() else 0

    def submissions_per_s(self, jobs: int, submitters: int = 8) -> float:
        """sbatch of a job of /bin/true from that many processes at a time. The jobs are held, so that nothing else runs meanwhile,
        and are cancelled afterwards."""
        command = [
            self.program("sbatch"),
            "--quiet",
            "--hold",
            "--ntasks=1",
            "--output=/dev/null",
            self.script(),
        ]
        left = threading.Semaphore(jobs)
        failed = []

        def submit():
            while left.acquire(blocking=False):
                if (
                    subprocess.run(
                        command,
                        env=self.environment,
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.PIPE,
                        cwd=self.folder,
                    ).returncode
                    != 0
                ):
                    failed.append(1)

        began = time.monotonic()
        threads = [threading.Thread(target=submit) for _ in range(submitters)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rate = (jobs - len(failed)) / (time.monotonic() - began)
        self.run("scancel", "--user", pwd.getpwuid(os.geteuid()).pw_name)
        self.wait(lambda: not self.run("squeue", "-h").stdout.strip(), "the held jobs to go", 60)
        return rate

    def jobs_per_s(
        self, jobs: int, timeout_s: float = 120, command: str = "exec /bin/true"
    ) -> float:
        """One array of the command to completion: no submission of each costs anything."""
        before = self.completed()
        began = time.monotonic()
        done = self.run(
            "sbatch",
            "--quiet",
            "--ntasks=1",
            "--output=/dev/null",
            f"--array=0-{jobs - 1}",
            str(self.script(command)),
        )
        if done.returncode != 0:
            raise Unavailable(f"sbatch: {done.stderr.strip()}")
        self.wait(lambda: self.completed() - before >= jobs, f"{jobs} jobs to end", timeout_s)
        return jobs / (time.monotonic() - began)

    def script(self, command: str = "exec /bin/true") -> Path:
        path = self.folder / "job.sh"
        path.write_text(f"#!/bin/sh\n{command}\n")
        return path

    def measure(self, jobs: int, times: int = 2) -> dict[str, float]:
        """The best of so many runs of each."""
        return {
            "submissions_per_s": max(self.submissions_per_s(jobs) for _ in range(times)),
            "jobs_per_s": max(self.jobs_per_s(jobs) for _ in range(times)),
        }
