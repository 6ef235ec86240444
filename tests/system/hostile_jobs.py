"""A host that two users share, ann and mallory, and mallory's attacks on it (attacks/): whatever one of them gains counts.

Everything lies in one folder outside of /tmp, of which each job has its own. The users are uids without accounts, but for a private
/etc/passwd that the agent alone sees. The agent is started by somebody careless: with a group, a descriptor, a key and a secret in its
environment, in a directory of root's, with umask 0. `control`: the same attacks where everything runs as root, which shows that they can succeed.
"""

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

from local_system import Failed, LocalSystem, kill_all, system_folder, wait_for
from small_system import configure

ANN, MALLORY, AGENTS_GROUP = 61001, 61003, 61900
MOST_PROCESSES, MEMORY, LOG_BYTES, SHM_KEY = 60, 64 << 20, 1 << 20, 31337
ATTACKS = Path(__file__).parent / "attacks"
# In a namespace of mounts: accounts, and a /run of its own with the sessions of users in it.
SHARED = """\
mount --bind "$1/etc/passwd" /etc/passwd && mount --bind "$1/etc/group" /etc/group && mount -t tmpfs none /run &&
mkdir -p -m 755 /run/user/61003 && shift && exec "$@"
"""
JOB = """\
name: {name}
queue: research
resources: {{gpus: 1, gpu_types: [cpu-slot]{memory}}}
grace: 1s
max_restarts: {restarts}
env: {{{env}}}
{workdir}run: {run}
"""
# These need root's hand while they run, or the host for themselves.
ALONE = (
    "fills_its_storage",
    "names_on_its_storage",
    "name_of_a_shim",
    "descriptors_into_the_shim",
    "hostile_lines",
)
# Not in the control: what would change the system for the attacks after them.
NOT_IN_CONTROL = ("drains_a_host", "replaces_the_state_directory", *ALONE)
# Beside those that are programs: what root does while mallory's processes want to stay.
SCENARIOS = ("shim_killed", "agent_and_shim_killed", "cancelled", "shim_killed_while_it_starts")
SURVIVOR = """\
import ctypes, os, signal, time
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
for _ in range(4):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
            os.environ.clear()
            while True: time.sleep(1)
        os._exit(0)
open(os.environ["MUSTER_JOB_DIR"] + "/up", "w").close()
while True: time.sleep(1)
"""


def attack_names() -> list[str]:
    """As the files say them: their programs run as mallory alone."""
    names = []
    for path in (ATTACKS / "rights.py", ATTACKS / "others.py", ATTACKS / "files.py"):
        lines = path.read_text().splitlines()
        names += [
            after[4 : after.index("(")]
            for line, after in zip(lines, lines[1:])
            if line == "@attack"
        ]
    return names


def processes_of(uid: int) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            status = (process / "status").read_text()
        except OSError:
            continue
        if f"\nUid:\t{uid}\t" in status and "\nState:\tZ" not in status:
            found.append(int(process.name))
    return found


def plants_for_the_next(name: str) -> bool:
    """A first attempt that fails, after it has planted something for the second."""
    return "instead_of" in name or "next_attempt" in name


def own(path: Path, uid: int, mode: int, text: str | None = None) -> Path:
    if text is None:
        path.mkdir(exist_ok=True)
    else:
        path.write_text(text)
    os.chown(path, uid, uid)
    path.chmod(mode)
    return path


class Host(LocalSystem):
    def __init__(self, folder: Path, bin_dir: Path, control: bool = False):
        super().__init__(folder, bin_dir)
        self.control, self.mallory = control, 0 if control else MALLORY
        self.storage = folder / "storage" / "mallory"
        self.mounted: list[Path] = []
        self.planted: list[Path] = []
        self.anns_shared: list[Path] = []

    # ---- setting up ----

    def make(self) -> None:
        for path in (self.folder, self.folder / "etc"):
            path.chmod(0o755)
        (self.folder / "storage").chmod(0o755)
        self.public = own(self.folder / "public", 0, 0o755)
        # Jobs have a /tmp of their own: what a checkout there has built isn't there for them.
        programs = own(self.public / "bin", 0, 0o755)
        for name in ("muster", "musterd", "muster-agent", "muster-shim"):
            shutil.copy2(self.bin_dir / name, programs)
        self.bin_dir = programs
        self.secrets = own(self.folder / "secrets", 0, 0o700)
        for whose in ("ann", "mallory"):
            own(self.folder / "storage" / whose, 0, 0o755)
        self.mount(self.storage, "size=64m,nr_inodes=30000")  # as a quota would
        for whose, uid in (("ann", ANN), ("mallory", self.mallory)):
            own(self.folder / "storage" / whose / "jobs", 0 if self.control else uid, 0o700)
        self.roots = own(self.storage / "roots", 0, 0o700)
        self.anns = own(self.storage / "anns", ANN, 0o700)
        for name in attack_names():
            for directory, uid in ((self.roots, 0), (self.anns, ANN)):
                own(own(directory / name, uid, 0o700) / "kept", uid, 0o600, name)
        self.make_programs()
        self.anns_shared = [
            Path(where, f"{self.folder.name}-anns") for where in ("/tmp", "/dev/shm")
        ]
        for where in ("/tmp", "/dev/shm", "/var/tmp"):
            self.planted.append(own(Path(where) / self.folder.name, 0, 0o666, "the host's"))

    def mount(self, place: Path, options: str) -> None:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"mode=0755,{options}", "none", place], check=True
        )
        self.mounted.append(place)

    def end(self, *made: Path) -> None:
        """Whatever runs, was mounted, or was put beside the folder is gone afterwards; `made`: what else was."""
        kill_all(self.folder)
        for process in self.processes.values():
            process.wait(10)
        for place in self.mounted:
            subprocess.run(["umount", "-l", place], check=False)
        for path in (*self.planted, *self.anns_shared, *made):
            path.unlink(missing_ok=True)

    def make_programs(self) -> None:
        shutil.copytree(
            ATTACKS, self.public / "attacks", ignore=shutil.ignore_patterns("__pycache__")
        )
        cat = Path(shutil.which("cat")).resolve()
        for name, mode in (("setuid-cat", 0o4755), ("setgid-cat", 0o2755), ("capable-cat", 0o755)):
            shutil.copy(cat, self.public / name)
            os.chown(self.public / name, 0, AGENTS_GROUP)
            (self.public / name).chmod(mode)
        subprocess.run(
            ["setcap", "cap_dac_read_search=ep", self.public / "capable-cat"], check=True
        )
        own(self.public / "propagates", 0, 0o777)
        own(self.public / "survivor.py", 0, 0o644, SURVIVOR)
        own(self.secrets / "root", 0, 0o600, "root's secret")
        own(self.public / "group", 0, 0o640, "the agent's group's secret")
        os.chown(self.public / "group", 0, AGENTS_GROUP)
        own(self.folder / "storage" / "ann" / "jobs" / "secret", ANN, 0o600, "ann's secret")

    def configure_all(self) -> None:
        configure(self, hosts=("h01", "h02"), slots=8)
        etc = self.folder / "etc"
        for line in ("passwd", "group"):
            more = {
                "passwd": f"ann:x:{ANN}:{ANN}::/nonexistent:/bin/sh\nmallory:x:{MALLORY}:{MALLORY}::/nonexistent:/bin/sh\n",
                "group": f"ann:x:{ANN}:\nmallory:x:{MALLORY}:\n",
            }[line]
            (etc / line).write_text(Path("/etc", line).read_text() + more)
        clusters = (etc / "clusters.yaml").read_text()
        shared = f"path: {self.folder}/storage"
        user = "mallory" if self.control else "{user}"
        (etc / "clusters.yaml").write_text(
            clusters.replace(shared, f'path: "{self.folder}/storage/{user}"')
        )
        if not self.control:
            users = f"users: {{ann: {{uid: {ANN}}}, mallory: {{uid: {MALLORY}}}}}\n"
            config = (etc / "musterd.yaml").read_text()
            (etc / "musterd.yaml").write_text(config.replace("single_user: true\n", users))
        shutil.copy(etc / "host.yaml", self.public / "host.yaml")

    def start_careless_agent(self) -> None:
        """With what its parent should have kept to itself."""
        held = os.open(self.secrets / "root", os.O_RDONLY)

        def careless() -> None:
            libc = ctypes.CDLL(None)
            libc.syscall(250, 1, None)  # keyctl: a session of its own
            libc.syscall(248, b"user", b"muster-agent", b"agent's key", 11, -3)  # add_key
            os.umask(0)

        command = [
            "unshare", "--mount", "sh", "-c", SHARED, "sh", self.folder, self.bin_dir / "muster-agent", "--server", self.server,
            "--cluster", "lab", "--host", "h01", "--state-dir", self.folder / "agents" / "lab-h01",
            "--inventory", self.folder / "etc" / "host.yaml", "--log-file-size", str(LOG_BYTES), "--log-files", "2",
            *(["--single-user", "--no-pid-namespace"] if self.control else ["--max-processes", str(MOST_PROCESSES)]),
        ]  # fmt: skip
        with open(self.folder / "logs" / "agent-lab-h01.log", "ab") as log:
            self.processes["agent-lab-h01"] = subprocess.Popen(
                [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=self.environment() | {"AGENT_SECRET": "agent's secret"}, cwd=self.secrets, start_new_session=True,
                pass_fds=(held,), extra_groups=[AGENTS_GROUP], preexec_fn=careless,
            )  # fmt: skip
        os.close(held)
        self.wait_hosts_up({"lab/h01"})

    def start(self) -> None:
        self.make()
        self.configure_all()
        self.start_musterd()
        self.start_careless_agent()
        self.start_ann()
        self.tell_targets()

    def start_ann(self) -> None:
        script = (
            "import os,time,ctypes\n"
            f"ctypes.CDLL(None).shmget({SHM_KEY}, 4096, 0o1666)\n"
            f"for p in {[str(path) for path in self.anns_shared]}:\n"
            "    open(p, 'w').write('anns'); os.chmod(p, 0o666)\n"
            "print('anns words', flush=True); open(os.environ['MUSTER_JOB_DIR'] + '/up', 'w')\n"
            "while not os.path.exists(os.environ['MUSTER_JOB_DIR'] + '/go'): time.sleep(0.1)\n"
        )
        program = own(self.public / "ann.py", 0, 0o644, script)
        run = f"exec python3 {program} anns-argument"
        self.ann_job = self.submit_as("ann", "victim", run, env="ANN_SECRET: sesame")
        self.ann_sacrifice = self.submit_as("ann", "sacrifice", "exec sleep 10000")
        wait_for("ann's job", lambda: (self.directory_of(self.ann_job, "ann") / "up").exists(), 20)
        bus = socket.socket(socket.AF_UNIX)
        bus.bind(f"/proc/{self.agent_pid()}/root/run/user/{MALLORY}/bus")
        os.chmod(f"/proc/{self.agent_pid()}/root/run/user/{MALLORY}/bus", 0o777)
        bus.listen(10)
        self.bus = bus

    def directory_of(self, number: int, user: str = "mallory") -> Path:
        jobs = self.folder / "storage" / ("mallory" if self.control else user) / "jobs"
        return next(iter(jobs.glob(f"{number}-*")), jobs / "none")

    def agent_pid(self) -> int:
        return self.processes["agent-lab-h01"].pid  # every program before it has called exec

    def attempt_of(self, number: int) -> Path:
        attempts = self.folder / "agents" / "lab-h01" / "attempts"
        return next(attempts.glob(f"*{self.job(number)['uid']}*"), attempts / "none")

    def shim_of(self, number: int) -> int:
        """0: there is none."""
        name = str(self.attempt_of(number)).encode()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if (process / "cmdline").read_bytes().split(b"\0")[1:2] == [name]:
                    return int(process.name)
            except OSError:
                pass
        return 0

    def rank_of(self, number: int) -> int:
        mark = f"\0MUSTER_JOB={number}\0".encode()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if mark in b"\0" + (process / "environ").read_bytes() and int(
                    process.name
                ) != self.shim_of(number):
                    return int(process.name)
            except OSError:
                pass
        return 0

    def tell_targets(self) -> None:
        """All that mallory could find out or guess, and what ann's job is called inside of Muster."""
        rank = self.rank_of(self.ann_job)
        environment = dict(
            word.partition("=")[::2]
            for word in Path(f"/proc/{rank}/environ").read_bytes().decode().split("\0")
            if "=" in word
        )
        state, attempt = self.folder / "agents" / "lab-h01", self.attempt_of(self.ann_job)
        root_disk = os.stat("/").st_dev
        targets = {
            "folder": self.folder, "public": self.public, "roots": self.roots, "anns": self.anns, "bin": self.bin_dir,
            "server": self.server, "state": state, "root_secret": self.secrets / "root", "group_secret": self.public / "group",
            "ann_secret": self.folder / "storage" / "ann" / "jobs" / "secret", "ann_uid": ANN, "group": AGENTS_GROUP,
            "tmp_file": self.planted[0], "host_shared_files": self.planted, "propagates": self.public / "propagates",
            "ann_shared_files": self.anns_shared, "shm_key": SHM_KEY, "bus": f"/run/user/{MALLORY}/bus",
            "agent_pid": self.agent_pid(), "musterd_pid": self.processes["musterd"].pid, "shim_pid": self.shim_of(self.ann_job),
            "ann_pid": rank, "ann_job": self.ann_job, "ann_sacrifice": self.ann_sacrifice,
            "ann_socket": environment["MUSTER_PROGRESS_SOCKET"], "ann_token": environment["MUSTER_SHIM_TOKEN"],
            "ann_logs": list(attempt.glob("logs/*")), "state_files": [path for path in state.rglob("*") if path.is_file()],
            "store_files": list((self.folder / "store").glob("*")), "most_processes": MOST_PROCESSES, "memory_bytes": MEMORY,
            "disks": [path for path in ("/dev/sda", "/dev/vda", "/dev/nvme0n1") if os.path.exists(path)],
            "disk_number": [os.major(root_disk), os.minor(root_disk)],
        }  # fmt: skip
        own(self.public / "attacks" / "targets.json", 0, 0o644, json.dumps(targets, default=str))

    # ---- attacks ----

    def submit_as(
        self, user: str, name: str, run: str, *, env="", memory="", workdir="", restarts=0
    ) -> int:
        text = JOB.format(
            name=name.replace("_", "-")[:60],
            run=json.dumps(run),
            env=env,
            memory=memory,
            workdir=workdir,
            restarts=restarts,
        )
        uid = 0 if self.control else {"ann": ANN, "mallory": MALLORY}[user]
        done = subprocess.run(
            [self.bin_dir / "muster", "submit", "-o", "json", "-y", "--detach", "-"],
            input=text, capture_output=True, text=True, timeout=60, user=uid, group=uid, extra_groups=[], cwd="/",
            env=self.environment() | {"HOME": "/"},
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"{name}: {done.stderr}")
        return json.loads(done.stdout)["number"]

    def attack(self, name: str) -> int:
        more = {}
        if "limit_of_memory" in name:
            more["memory"] = f", memory: {MEMORY >> 20}MiB"
        if plants_for_the_next(name):
            more["restarts"] = 1
        if name == "workdir_of_roots":
            more["workdir"] = f"workdir: {self.roots}/{name}\n"
        if name == "workdir_by_a_link":
            link = self.storage / "jobs" / "link"
            link.symlink_to(self.roots / name)
            more["workdir"] = f"workdir: {link}\n"
        return self.submit_as(
            "mallory", name, f"exec python3 {self.public}/attacks/run.py {name}", **more
        )

    def wait_end(self, number: int, timeout_s: float = 60) -> dict:
        ended = ("SUCCEEDED", "FAILED", "CANCELLED")
        return wait_for(
            f"job {number}'s end",
            lambda: (job := self.job(number))["state"] in ended and job,
            timeout_s,
        )

    def gained(self, name: str, number: int) -> str:
        """By its own word, or by what it changed; "" if nothing."""
        try:
            job = self.wait_end(number, 5 if self.control else 60)
        except Failed:
            return f"it never ends: {self.alive() or self.job(number)['state']}"
        ends_early = name.startswith(("workdir", "no_limit_of_memory")) and job["state"] == "FAILED"
        verdicts = self.verdicts(name, number, 0 if ends_early else 5)
        for verdict in verdicts:
            if verdict["gained"]:
                return verdict["gained"]
        for directory, uid in ((self.roots / name, 0), (self.anns / name, ANN)):
            names = os.listdir(directory) if directory.is_dir() else "nothing"
            if names != ["kept"] or os.stat(directory / "kept").st_uid != uid:
                return f"{directory} has {names}"
        if not verdicts and not ends_early:
            return f"nobody knows: it gave no verdict ({job['state']})"
        return ""

    def verdicts(self, name: str, number: int, timeout_s: float) -> list[dict]:
        """What it printed of its own; the agent may be away for a moment."""
        attempt = ["--attempt", "1"] if plants_for_the_next(name) else []

        def said():
            output = self.run(["logs", str(number), *attempt], check=False).stdout
            lines = [line for line in output.splitlines() if "VERDICT {" in line]
            return [json.loads(line.partition("VERDICT ")[2]) for line in lines]

        try:
            return wait_for(f"what attack {name} says", said, timeout_s)
        except Failed:
            return []

    def alive(self) -> str:
        """Why the host is not as it should be; ann's job, the agent and musterd live."""
        if self.processes["agent-lab-h01"].poll() is not None:
            return "the agent is dead"
        if self.processes["musterd"].poll() is not None:
            return "musterd is dead"
        (host,) = (host for host in self.hosts() if host["name"] == "lab/h01")
        if told := host["quarantines"] or host["blames"]:
            return f"the host is blamed, or serves nobody: {told}"
        victim = self.job(self.ann_job)
        if victim["state"] != "RUNNING" or not self.rank_of(self.ann_job):
            return f"ann's job is {victim['state']}"
        return "ann's job has a stranger's progress" if "31337" in json.dumps(victim) else ""


def log_bytes(host: Host, number: int) -> int:
    uid = host.job(number)["uid"]
    state = host.folder / "agents" / "lab-h01"
    return sum(
        path.stat().st_size for path in state.rglob("*") if uid in str(path) and path.is_file()
    )


def in_descriptors(host: Host, name: str) -> str:
    number = host.attack(name)
    wait_for("the descriptors", lambda: (host.directory_of(number) / "sent").exists(), 20)
    open_now = len(os.listdir(f"/proc/{host.shim_of(number)}/fd"))
    own(host.directory_of(number) / "looked-at", host.mallory, 0o644, "")
    return f"the shim holds {open_now} descriptors" if open_now > 40 else host.gained(name, number)


def after_a_fill(host: Host, name: str) -> str:
    """Others go on, and new ones start, while it fills its own storage."""
    number = host.attack(name)
    ann = host.submit_as("ann", "beside", "sleep 0.5")
    host.wait_end(number)
    ended = host.wait_end(ann)["state"]
    for path in (host.storage / "jobs").iterdir():
        shutil.rmtree(path, ignore_errors=True)
    return "" if ended == "SUCCEEDED" else f"ann's job beside it: {ended}"


def after_a_restart(host: Host, name: str) -> str:
    """A stranger that is called like a shim of ann's attempt, when the agent comes back."""
    script = f"exec -a muster-shim bash -c 'exec -a muster-shim sleep 1000' {host.attempt_of(host.ann_job)}"
    number = host.submit_as("mallory", name, f"exec bash -c {json.dumps(script)}")
    wait_for("mallory's process", lambda: processes_of(MALLORY), 20)
    os.kill(host.agent_pid(), signal.SIGKILL)
    host.processes["agent-lab-h01"].wait()
    host.start_careless_agent()
    wrong = host.alive()
    host.run(["cancel", str(number)])
    host.wait_end(number)
    return wrong


def survivors(host: Host, name: str) -> str:
    """What is left of mallory's processes after what root did to those that hold them."""
    number = host.submit_as("mallory", name, f"exec python3 {host.public}/survivor.py")
    if name != "shim_killed_while_it_starts":
        wait_for("survivors", lambda: (host.directory_of(number) / "up").exists(), 20)
        wait_for("all of them", lambda: len(processes_of(MALLORY)) >= 5, 5)
    wait_for("its shim", lambda: host.shim_of(number), 20)
    agent = host.processes["agent-lab-h01"]
    if name == "cancelled":
        host.run(["cancel", str(number)])
        host.wait_end(number)
    elif name == "agent_and_shim_killed":
        os.kill(agent.pid, signal.SIGKILL)
        os.kill(host.shim_of(number), signal.SIGKILL)
    else:
        os.kill(host.shim_of(number), signal.SIGKILL)
    deadline = time.monotonic() + 2
    while (left := processes_of(MALLORY)) and time.monotonic() < deadline:
        time.sleep(0.02)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    if name == "agent_and_shim_killed":
        agent.wait()
        host.start_careless_agent()
    host.run(["cancel", str(number)], check=False)
    host.wait_end(number)
    return f"{len(left)} processes of mallory's live" if left else ""


def attack_all(host: Host, names: list[str]) -> dict[str, str]:
    """{attack: what it gained} of those that gained anything."""
    together = [name for name in names if name not in ALONE and name not in SCENARIOS]
    if host.control:
        together = [name for name in together if name not in NOT_IN_CONTROL]
    numbers = {name: host.attack(name) for name in together}
    gained = {name: host.gained(name, number) for name, number in numbers.items()}
    if not host.control:
        if (
            "floods_its_log" in numbers
            and (size := log_bytes(host, numbers["floods_its_log"])) > 4 * LOG_BYTES
        ):
            gained["floods_its_log"] = f"its logs have {size} bytes"
        for name in [name for name in (*ALONE, *SCENARIOS) if name in names]:
            alone = {
                "descriptors_into_the_shim": in_descriptors, "fills_its_storage": after_a_fill,
                "names_on_its_storage": after_a_fill, "name_of_a_shim": after_a_restart,
            }  # fmt: skip
            if name in SCENARIOS:
                gained[name] = survivors(host, name)
            elif name in alone:
                gained[name] = alone[name](host, name)
            else:
                gained[name] = host.gained(name, host.attack(name))
            gained[name] = gained[name] or host.alive()
        gained["(together)"] = host.alive()
    return {name: what for name, what in gained.items() if what}


@contextmanager
def hostile_host(bin_dir: Path, control: bool = False):
    with system_folder("/var/lib") as folder:
        host = Host(folder, bin_dir, control)
        try:
            host.start()
            yield host
        finally:
            host.end()
            # Of the control, which has none of its own.
            subprocess.run(["ipcrm", "-M", str(SHM_KEY)], check=False, stderr=subprocess.DEVNULL)
