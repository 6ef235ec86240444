"""A whole Muster on this machine, in one folder of its own: musterd, agents, and the `muster` command to talk to it.

The demo, the system tests and the benchmarks use it. Standard library only. Nothing started here outlives stop() or
kill_all(): what belongs to a folder is found by the folder's name in the processes' own command line or environment,
so it works after any crash, from any process.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = ("musterd", "muster-agent", "muster-shim", "muster-trainer", "muster")


class Failed(Exception):
    """Something did not come about; the text says what was waited for or tried, and what was found."""


class CommandFailed(Failed):
    def __init__(self, arguments: list[str], code: int, out: str, err: str):
        super().__init__(f"muster {' '.join(arguments)}: exit {code}\n{err.strip()}")
        self.code, self.out, self.err = code, out, err


def wait_for(what: str, condition, timeout_s: float, interval_s: float = 0.05):
    """condition()'s first true value; Failed, naming `what`, if there is none in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Failed(f"waited {timeout_s:g} s for {what}")
        time.sleep(interval_s)


class LocalSystem:
    """`folder` holds everything: configuration, store, agents' state, storage, logs. Its path must be short (sockets)."""

    def __init__(self, folder: Path, bin_dir: Path):
        self.folder, self.bin_dir = Path(folder), Path(bin_dir)
        self.socket = self.folder / "musterd.sock"
        self.storage = self.folder / "storage"
        self.server = f"unix://{self.socket}"
        self.processes: dict[str, subprocess.Popen] = {}
        for name in ("", "etc", "logs", "storage", "agents"):
            (self.folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (self.folder / "etc" / "config.yaml").exists():
            self.configure(
                {"config.yaml": "contexts: {}\n"}
            )  # of the `muster` command: not the user's own

    # ---- starting ----

    def configure(self, files: dict[str, str]) -> None:
        """Writes etc/NAME for each; musterd.yaml is what start_musterd gives to musterd."""
        for name, text in files.items():
            (self.folder / "etc" / name).write_text(text)

    def environment(self) -> dict[str, str]:
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("MUSTER_", "TORCHELASTIC_"))
            and key not in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        }
        return kept | {
            "PATH": f"{self.bin_dir}:{os.environ.get('PATH', '/usr/bin:/bin')}",
            "MUSTER_SERVER": self.server,
            "MUSTER_CONFIG": str(self.folder / "etc" / "config.yaml"),
        }

    def spawn(self, name: str, command: list) -> subprocess.Popen:
        """In a session of its own, so that a terminal's Ctrl+C reaches the caller alone; output to logs/NAME.log."""
        with open(self.folder / "logs" / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment(),
                cwd=self.folder,
                start_new_session=True,
            )
        self.processes[name] = process
        return process

    def start_musterd(self, timeout_s: float = 20) -> float:
        """Seconds from its start to its first answer."""
        began = time.monotonic()
        process = self.spawn("musterd", self.musterd_command())

        def answers():
            if process.poll() is not None:
                raise Failed(
                    f"musterd ended with {process.returncode}:\n{self.log_tail('musterd')}"
                )
            return self.socket.exists() and self.ping()

        wait_for(
            f"musterd's first answer (log: {self.folder}/logs/musterd.log)",
            answers,
            timeout_s,
            0.01,
        )
        return time.monotonic() - began

    def musterd_command(self) -> list:
        return [self.bin_dir / "musterd", "--config", self.folder / "etc" / "musterd.yaml"]

    def start_agent(
        self, cluster: str, host: str, inventory: str = "host.yaml", port_range: str = "20000-29999"
    ) -> subprocess.Popen:
        """With inventory "" it looks for devices itself."""
        declared = ["--inventory", self.folder / "etc" / inventory] if inventory else []
        return self.spawn(
            f"agent-{cluster}-{host}",
            [
                self.bin_dir / "muster-agent",
                "--server",
                self.server,
                "--cluster",
                cluster,
                "--host",
                host,
                "--state-dir",
                self.folder / "agents" / f"{cluster}-{host}",
                *declared,
                "--address",
                "127.0.0.1",
                "--port-range",
                port_range,
                "--single-user",
            ],
        )

    def wait_hosts_up(self, hosts: set[str], timeout_s: float = 30) -> None:
        def up():
            for name, process in self.processes.items():
                if process.poll() is not None:
                    raise Failed(f"{name} ended with {process.returncode}:\n{self.log_tail(name)}")
            return {host["name"] for host in self.hosts() if host["state"] == "HOST_UP"} >= hosts

        wait_for(f"hosts {', '.join(sorted(hosts))} to be up", up, timeout_s)

    # ---- asking ----

    def run(
        self, arguments: list, *, check: bool = True, timeout_s: float = 60, text: str | None = None
    ) -> subprocess.CompletedProcess:
        """One `muster` command."""
        arguments = [str(argument) for argument in arguments]
        try:
            done = subprocess.run(
                [str(self.bin_dir / "muster"), *arguments],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s,
                input=text,
                stdin=subprocess.DEVNULL if text is None else None,
                env=self.environment(),
                cwd=self.folder,
            )
        except subprocess.TimeoutExpired as error:
            raise Failed(
                f"muster {' '.join(arguments)} had not ended after {timeout_s:g} s"
            ) from error
        if check and done.returncode != 0:
            raise CommandFailed(arguments, done.returncode, done.stdout, done.stderr)
        return done

    def json(self, *arguments) -> dict:
        return json.loads(self.run([*arguments, "-o", "json"]).stdout)

    def ping(self) -> bool:
        return self.run(["ping"], check=False).returncode == 0

    def submit(self, file: Path | str, *more: str) -> dict:
        return self.json("submit", file, "-y", "--detach", *more)

    def job(self, number) -> dict:
        return self.json("show", number)

    def jobs(self) -> list[dict]:
        return self.json("jobs", "--all")["jobs"]

    def hosts(self) -> list[dict]:
        return self.json("host", "list")["hosts"]

    def log_tail(self, name: str, lines: int = 15) -> str:
        path = self.folder / "logs" / f"{name}.log"
        return (
            "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
            if path.exists()
            else "(no log)"
        )

    # ---- ending ----

    def stop(self, timeout_s: float = 15) -> None:
        """By the system's own means: jobs cancelled, agents and musterd told to end. Then whatever is left is killed."""
        try:
            if (
                self.processes.get("musterd")
                and self.processes["musterd"].poll() is None
                and self.socket.exists()
            ):
                unfinished = [job["number"] for job in self.json("jobs")["jobs"]]
                if unfinished:
                    self.run(["cancel", *unfinished], check=False, timeout_s=5)
                    wait_for(
                        "the jobs' processes to end",
                        lambda: not job_processes(self.folder),
                        timeout_s / 3,
                    )
        except (Failed, OSError, ValueError):
            pass  # what the system can't end any more is killed below
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + timeout_s / 3
        for process in self.processes.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
        kill_all(self.folder)
        for process in self.processes.values():
            try:
                process.wait(5)
            except subprocess.TimeoutExpired as error:
                raise Failed(f"process {process.pid} did not end after SIGKILL") from error


# ---- processes of a folder ----


def processes_of(folder: Path) -> dict[int, str]:
    """{pid: program} of every live process that belongs to the folder: Muster's programs that name it in their command
    line, and the processes of jobs, which have it in their environment."""
    needle = f"{folder}/".encode()
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/stat") as file:
                if file.read().rsplit(")", 1)[1].split()[0] in "ZX":
                    continue
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
            with open(f"/proc/{entry}/environ", "rb") as file:
                environment = file.read().split(b"\0")
        except (OSError, IndexError):
            continue  # ended meanwhile, or somebody else's
        program = os.path.basename(words[0]).decode(errors="replace")
        of_ours = program in PROGRAMS and any(
            needle in word for word in words + environment if not word.startswith(b"PATH=")
        )
        of_a_job = any(
            word.startswith((b"MUSTER_CHECKPOINT_DIR=" + needle, b"MUSTER_JOB_DIR=" + needle))
            for word in environment
        )
        if of_ours or of_a_job:
            found[int(entry)] = program
    return found


def job_processes(folder: Path) -> dict[int, dict[str, str]]:
    """{pid: its environment} of the ranks that run there now, without the children of their own."""
    found, parents = {}, {}
    for pid in processes_of(folder):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                pairs = [
                    word.decode(errors="replace").partition("=")
                    for word in file.read().split(b"\0")
                    if b"=" in word
                ]
            with open(f"/proc/{pid}/stat") as file:
                parents[pid] = int(file.read().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        environment = {key: value for key, _, value in pairs}
        if "MUSTER_ATTEMPT" in environment and "CUDA_VISIBLE_DEVICES" in environment:
            found[pid] = environment
    return {pid: environment for pid, environment in found.items() if parents[pid] not in found}


@contextmanager
def system_folder(parent: str = "/tmp"):
    """A new folder for a LocalSystem, short because Unix sockets lie below it; at the end all that runs there is killed and it goes."""
    folder = Path(tempfile.mkdtemp(prefix="mst-", dir=parent))
    try:
        yield folder
    finally:
        kill_all(folder)
        shutil.rmtree(folder, ignore_errors=True)


def kill_all(folder: Path, timeout_s: float = 10) -> int:
    """Kills everything of the folder: those who could start something first. Returns how many there were."""
    killed = set()
    deadline = time.monotonic() + timeout_s
    while True:
        alive = processes_of(folder)
        if not alive:
            return len(killed)
        if time.monotonic() > deadline:
            raise Failed(f"processes of {folder} that don't end: {alive}")
        for pid in sorted(
            alive,
            key=lambda pid: (
                alive[pid] not in ("musterd", "muster-agent"),
                alive[pid] != "muster-shim",
                pid,
            ),
        ):
            try:
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
            except ProcessLookupError:
                pass
        time.sleep(0.05)


def now_ns() -> int:
    return time.time_ns()
