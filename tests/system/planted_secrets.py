"""Secrets that are given to jobs in every way there is, and everything that others may read, searched for them.

A musterd of several users with one agent that runs jobs as their owners: ann sets secrets, by the socket, at a terminal and over TLS, and runs
jobs with them, mallory looks around. While the jobs run and afterwards, every file of Muster's, a backup, what each command and the terminal tell,
the metrics page, the command lines and environments of all processes but the jobs' own are searched. `unsealed` plants a breach: the same value in the job's `env`.
"""

import hashlib
import os
import pty
import re
import resource
import select
import signal
import subprocess
import urllib.request
from contextlib import contextmanager
from pathlib import Path

from hostile_jobs import ANN, MALLORY, Host, own
from local_system import system_folder, wait_for
from login_system import free_ports

METRICS = 19464
TLS = """\
master_key: {key}
metrics_listen: 127.0.0.1:{metrics}
tls: {{listen: "127.0.0.1:{main}", join: "127.0.0.1:{join}", addresses: ["127.0.0.1:{main}"]}}
"""
# It proves that it has the value without showing it.
PROVE = """\
import hashlib, os, time
value = os.environ[os.environ["WHICH"]]
print("proof", hashlib.sha256(value.encode()).hexdigest(), flush=True)
while not os.path.exists(os.environ["GO"]): time.sleep(0.05)
"""
JOB = """\
name: {name}
queue: research
{fields}env: {{WHICH: {variable}, GO: {go}{env}}}
{setup}run: exec python3 {program}
"""


class Planted:
    def __init__(self, host: Host):
        self.host = host
        self.values: dict[str, str] = {}  # by the way in which it was given
        self.argv: list[bytes] = []
        self.terminal = b""  # what it showed

    def start_as(self, uid: int, words: tuple, home: Path | None, **how) -> subprocess.Popen:
        """A command of that user's, by the socket, or as who is logged in there; its words are looked at while it runs."""
        by_socket = self.host.environment() | {"HOME": "/"}
        process = subprocess.Popen(
            [str(word) for word in (self.host.bin_dir / "muster", *words)],
            user=uid,
            group=uid,
            extra_groups=[],
            cwd="/",
            env={"PATH": "/usr/bin:/bin", "HOME": str(home)} if home else by_socket,
            **how,
        )
        self.argv.append(Path(f"/proc/{process.pid}/cmdline").read_bytes())
        return process

    def as_user(
        self, uid: int, *words, text: str | None = None, home: Path | None = None
    ) -> subprocess.CompletedProcess:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process = self.start_as(uid, words, home, text=True, **pipes)
        out, err = process.communicate(text, timeout=60)
        done = subprocess.CompletedProcess(words, process.returncode, out, err)
        assert done.returncode == 0, (words, err)
        return done

    def type_as_ann(self, *words, value: str) -> None:
        """A command at a terminal, where the value is typed once it is asked for."""
        ours, terminal = pty.openpty()
        ends = dict.fromkeys(("stdin", "stdout", "stderr"), terminal)
        process = self.start_as(ANN, words, None, start_new_session=True, **ends)
        os.close(terminal)
        shown, typed = b"", False
        while select.select([ours], [], [], 30)[0]:
            try:
                shown += os.read(ours, 4096)
            except OSError:  # its last holder has ended
                break
            if not typed and b"not shown" in shown:
                os.write(ours, value.encode() + b"\n")
                typed = True
        assert process.wait(30) == 0 and typed, shown
        os.close(ours)
        self.terminal += shown

    # ---- every way ----

    def set_all(self) -> None:
        for way in ("from_stdin", "from_file", "set_twice", "typed", "over_tls"):
            self.values[way] = f"s3cr3t-{way}-{os.urandom(8).hex()}"
        self.values["before"] = f"s3cr3t-before-{os.urandom(8).hex()}"
        self.values["deleted"] = f"s3cr3t-deleted-{os.urandom(8).hex()}"
        file = self.host.folder / "value"
        file.write_text(self.values["from_file"] + "\n")
        file.chmod(0o644)
        self.as_user(ANN, "secret", "set", "FROM_STDIN", text=self.values["from_stdin"] + "\n")
        self.as_user(ANN, "secret", "set", "FROM_FILE", "--file", file)
        file.unlink()
        self.as_user(ANN, "secret", "set", "SET_TWICE", text=self.values["before"])
        self.as_user(ANN, "secret", "set", "SET_TWICE", text=self.values["set_twice"])
        self.as_user(ANN, "secret", "set", "DELETED", text=self.values["deleted"])
        self.as_user(ANN, "secret", "delete", "DELETED")
        self.type_as_ann("secret", "set", "TYPED", value=self.values["typed"])
        home = own(self.host.folder / "home", ANN, 0o700)
        invited = self.host.run(["user", "invite", "ann"]).stdout.split()
        self.as_user(ANN, *invited[1:], home=home)
        self.as_user(ANN, "secret", "set", "OVER_TLS", text=self.values["over_tls"], home=home)

    def submit_all(self, unsealed: str = "") -> dict[int, str]:
        """Jobs that hold one each: by number, the way that it was given."""
        host = self.host
        program = host.public / "prove.py"
        program.write_text(PROVE)
        self.go = host.public / "go"
        given = {}

        def submit(way: str, variable: str, *more: str, fields="", env="", setup="") -> None:
            path = host.public / f"{variable.lower()}.yaml"
            path.write_text(
                JOB.format(
                    name=variable.lower().replace("_", "-"),
                    fields=fields,
                    variable=variable,
                    go=self.go,
                    env=env,
                    setup=setup,
                    program=program,
                )
            )
            done = self.as_user(ANN, "submit", "-d", "-y", "-o", "name", *more, path)
            given[int(done.stdout)] = way

        submit("from_stdin", "FROM_STDIN", fields="secrets: [FROM_STDIN]\n")
        submit("from_file", "RENAMED", fields="secrets: [FROM_FILE=RENAMED]\n")
        submit("set_twice", "SET_TWICE", "--secret", "SET_TWICE")
        submit(
            "typed",
            "IN_SETUP",
            "--secret",
            "TYPED=WHAT",
            setup='setup: export IN_SETUP="$WHAT"\n',
        )
        submit("over_tls", "IN_A_GANG", "--secret", "OVER_TLS=IN_A_GANG", fields="workers: 2\n")
        if unsealed:
            submit(unsealed, "UNSEALED", env=f", UNSEALED: {self.values[unsealed]}")
        return given

    def proofs(self, number: int) -> list[str]:
        out = self.host.run(["logs", number], check=False).stdout
        return re.findall(r"proof ([0-9a-f]{64})", out)  # of several ranks, each line has its rank

    # ---- who looks ----

    def found_in_files(self) -> list[str]:
        return [
            f"file {path.relative_to(self.host.folder)}: {way}"
            for path in self.host.folder.rglob("*")
            if path.is_file() and not path.is_symlink()
            for way in self.ways_in(path.read_bytes())
        ]

    def ways_in(self, content: bytes) -> list[str]:
        return [way for way, value in self.values.items() if value.encode() in content]

    def found_in_processes(self) -> list[str]:
        """As root sees them, but for the jobs' own; and all of them as mallory does."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            for name in ("cmdline", "environ"):
                try:
                    content = (process / name).read_bytes()
                except OSError:
                    continue
                own = b"MUSTER_JOB=" in content or process.stat().st_uid == ANN
                if name == "environ" and own:
                    continue
                found += [
                    f"{name} of process {process.name}: {way}" for way in self.ways_in(content)
                ]
        looks = (
            "import pathlib, sys\n"
            "for p in pathlib.Path('/proc').glob('[0-9]*/*'):\n"
            "    if p.name in ('environ', 'cmdline', 'status', 'stack', 'maps'):\n"
            "        try: sys.stdout.buffer.write(p.read_bytes())\n"
            "        except OSError: pass\n"
        )
        seen = subprocess.run(
            ["/usr/bin/python3", "-c", looks],
            capture_output=True,
            user=MALLORY,
            group=MALLORY,
            extra_groups=[],
        )
        found += [f"/proc of mallory: {way}" for way in self.ways_in(seen.stdout)]
        found += [
            f"command line of muster: {way}" for words in self.argv for way in self.ways_in(words)
        ]
        return found

    def found_in_answers(self, numbers: list[int]) -> list[str]:
        asked = [["jobs", "-a", "-o", "json"], ["secret", "list", "-o", "json"], ["audit", "list"]]
        asked += [["top", "-o", "json"], ["host", "list", "-o", "json"]]
        for number in numbers:
            asked += [["show", number, "-o", form] for form in ("json", "yaml", "wide")]
            asked += [["explain", number], ["logs", number]]
        found = []
        for words in asked:
            done = self.host.run(words, check=False)
            found += [
                f"muster {' '.join(map(str, words))}: {way}"
                for way in self.ways_in((done.stdout + done.stderr).encode())
            ]
        with urllib.request.urlopen(f"http://127.0.0.1:{METRICS}/metrics", timeout=10) as page:
            found += [f"metrics page: {way}" for way in self.ways_in(page.read())]
        return found + [f"terminal: {way}" for way in self.ways_in(self.terminal)]

    def found_in_backup(self) -> list[str]:
        backup = self.host.folder / "backup.db"
        backup.unlink(missing_ok=True)
        self.host.run(["admin", "backup", backup, "--data-dir", self.host.folder / "store"])
        return [f"backup: {way}" for way in self.ways_in(backup.read_bytes())]

    def found_in_cores(self) -> list[str]:
        """musterd and the agent are ended as by a fault of theirs: the kernel says of none that it left a core, and no file holds one."""
        found = []
        for name in ("agent-lab-h01", "musterd"):
            process = self.host.processes[name]
            process.send_signal(signal.SIGSEGV)
            ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            if ended.si_code == os.CLD_DUMPED:
                found.append(f"core of {name}")
            assert ended.si_status == signal.SIGSEGV, (name, ended)
        return found + self.found_in_files()

    def found_in_core_of_shim(self, number: int) -> list[str]:
        """The same of the shim that runs this job. It is the agent's child, so that its limit is asked, and where it works is looked through."""
        pid = self.host.shim_of(number)
        shim = Path(f"/proc/{pid}")
        limit = re.search(r"Max core file size +(\S+)", (shim / "limits").read_text())[1]
        found = [] if limit in ("0", "1") else [f"limit of the shim's core: {limit}"]
        place = os.open(shim / "cwd", os.O_RDONLY | os.O_DIRECTORY)
        before = set(os.listdir(place))
        os.kill(pid, signal.SIGSEGV)
        wait_for("the shim to end", lambda: self.host.shim_of(number) != pid, 20)
        new = set(os.listdir(place)) - before
        os.close(place)
        found += [f"core of the shim: {name}" for name in new if name.startswith("core")]
        return found + self.found_in_files()

    def look(self, numbers: list[int]) -> list[str]:
        return (
            self.found_in_files()
            + self.found_in_processes()
            + self.found_in_answers(numbers)
            + self.found_in_backup()
        )

    def all_ways(self, unsealed: str = "") -> tuple[int, list[str], list[str]]:
        """How many processes proved that they have a value; who should have one and hasn't; where one was found that it mustn't be."""
        self.set_all()
        given = self.submit_all(unsealed)
        wrong, proved = [], 0
        try:
            for number, way in given.items():
                wanted = hashlib.sha256(self.values[way].encode()).hexdigest()
                ranks = 2 if "in-a-gang" in self.host.job(number)["spec"]["name"] else 1
                wait_for(
                    f"the proofs of job {number}",
                    lambda number=number, ranks=ranks: len(self.proofs(number)) >= ranks,
                    30,
                )
                proved += self.proofs(number).count(wanted)
                wrong += [
                    f"job {number}: {way}" for proof in self.proofs(number) if proof != wanted
                ]
            found = self.look(list(given))
            # It takes its job's processes with it, and the job starts anew.
            found += self.found_in_core_of_shim(next(iter(given)))
        finally:
            self.go.touch()
        for number in given:
            self.host.wait_end(number)
        found += self.look(list(given))  # what was written as they ended
        found += self.found_in_cores()
        return proved, wrong, found


@contextmanager
def cores_allowed():
    """What is started meanwhile leaves a core unless it sees to that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


@contextmanager
def planted(bin_dir: Path):
    with system_folder("/var/lib") as folder, cores_allowed():
        host = Host(folder, bin_dir)
        key = Path("/var/lib") / f"{folder.name}.key"  # of the administrator: others can't read it
        try:
            host.make()
            host.configure_all()
            main, join = free_ports(2)
            with open(folder / "etc" / "musterd.yaml", "a") as config:
                config.write(TLS.format(key=key, metrics=METRICS, main=main, join=join))
            host.start_musterd()
            host.start_careless_agent()
            yield Planted(host)
        finally:
            host.end(key)
