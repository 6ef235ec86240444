"""The small Muster over a network: its agents have joined by a line each, on machines of their own, and its jobs are users'.

Three users in two teams have logged in and submit over mutual TLS; each job runs as its owner. `run` and what is built on it asks as the
administrator, over the Unix socket, but submits as a user: the same again for the same file, into the team's part of the queue that it names.
"""

import re
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path

from cuts import Fleet
from local_system import CommandFailed, Failed, LocalSystem, system_folder, wait_for
from namespaces import Machines, machines, why_not
from relay import Relay
from ten_hosts import ACCOUNTS, TEAMS, UIDS, TenHosts

TLS = """\
tls:
  listen: 0.0.0.0:7420
  join: 0.0.0.0:7421
  addresses: ["{address}:7420"]
  join_address: {m}:7421
  master_key: {folder}/etc/master.key
"""
# Whoever may submit to a queue of these is a team with a part of its own: one by the file, one by a binding.
SHARED = re.compile(r"(name: (?:default|research)\b.*?)submit: \[['\"]\*['\"]\]")
PARTS = r"\1queues: [{name: nlp, submit: [nlp]}, {name: vision}]"
BOUND = "vision"
USERS = list(TEAMS)
REVOKED = "dan"
FORM = "three users in two teams over TLS"  # of a row's figures


class LoneAgents(TenHosts):
    """Agents that die alone: what they started is no part of them."""

    def full(self, host: str) -> str:
        return f"lab/{host}"

    def agent_command(self, host: str, words: list[str], *more: str) -> list:
        return self.with_accounts(host, self.agent_words(host, words, *more))

    def with_accounts(self, machine: str, command: list) -> list:
        start = ["sh", "-c", f'{ACCOUNTS} && shift && exec "$@"', "sh", self.system.folder]
        return self.machines.on(machine, [*start, *command])


class TeamsOverTls(LocalSystem):
    """`address`: where agents and users reach musterd, which serves on machine m."""

    def __init__(self, folder: Path, bin_dir: Path, made: Machines, address: str = ""):
        hosts = [name for name in made.addresses if name != "m"]
        self.net = LoneAgents(self, made, {"lab": hosts})
        self.address = address or made.addresses["m"]
        self.owners: dict[str, str] = {}  # by the name of a job's file
        self.identities: dict[Path, str] = {}
        super().__init__(folder, bin_dir)

    # ---- starting ----

    def configure(self, files: dict[str, str]) -> None:
        if "musterd.yaml" in files:
            m, folder = self.net.machines.addresses["m"], self.folder
            tls = TLS.format(address=self.address, m=m, folder=folder)
            shared = f"path: {folder}/storage,"
            queues = SHARED.sub(PARTS, files["queues.yaml"])
            assert "vision" in queues, queues
            files = files | {
                "musterd.yaml": files["musterd.yaml"].replace("single_user: true\n", tls),
                "clusters.yaml": files["clusters.yaml"].replace(
                    shared, f'path: "{folder}/storage/{{user}}",'
                ),
                "queues.yaml": queues,
            }
        super().configure(files)

    def musterd_command(self) -> list:
        return self.net.machines.on("m", super().musterd_command())

    def start_musterd(self, timeout_s: float = 20) -> float:
        if self.identities:
            return super().start_musterd(timeout_s)
        self.net.make_accounts()
        self.folder.chmod(0o777)  # jobs tell here how they fare, whoever's they are
        took = super().start_musterd(timeout_s)
        self._let_in()
        return took

    def _let_in(self) -> None:
        for user in (*USERS, REVOKED):
            self.net.log_in(user, "m", *TEAMS.get(user, "").split())
        for queue in self.json("queue", "list")["queues"]:
            if queue["path"].endswith(f"/{BOUND}"):
                self.run(["access", "grant", f"group:{BOUND}", "submitter", queue["path"]])
        self.run(["user", "revoke", REVOKED])
        for user in USERS:
            self._keep(*(self.folder / "homes" / user).rglob("*.identity"))

    def _keep(self, *files: Path) -> None:
        self.identities |= {path: path.read_text() for path in files}

    def ping(self) -> bool:
        if not self.identities:
            return super().ping()
        return self.net.muster(USERS[0], "m", "ping").returncode == 0

    def start_agent(self, cluster: str, host: str, *_, **__) -> subprocess.Popen:
        """The first time by its line."""
        identity = self.folder / "agents" / f"{cluster}-{host}" / "identity"
        if identity.exists():
            self.net.start_agent(host, [])
        else:
            self.net.join(host)
            self._keep(identity)
        return self.processes[f"agent-{cluster}-{host}"]

    # ---- asking ----

    def run(self, arguments: list, *, check: bool = True, **how) -> subprocess.CompletedProcess:
        if arguments[0] != "submit":
            return super().run(arguments, check=check, **how)
        path = Path(arguments[1])
        user = self.owners.setdefault(path.name, USERS[len(self.owners) % len(USERS)])
        part = rf"\1/{TEAMS[user]}"
        path.write_text(re.sub(r"(?m)^(queue: (?:default|research))$", part, path.read_text()))
        done = self.net.muster(user, "m", *arguments)
        if check and done.returncode != 0:
            raise CommandFailed(
                list(map(str, arguments)), done.returncode, done.stdout, done.stderr
            )
        return done

    def lost(self) -> list[str]:
        """What of who they are did not last through all that happened; each part of it is to be empty."""
        wrong = [
            f"{path.relative_to(self.folder)} is another one"
            for path, text in self.identities.items()
            if path.read_text() != text
        ]
        for user in USERS:
            if self.net.muster(user, "m", "jobs").returncode != 0:
                wrong.append(f"{user} is out")
            jobs = list((self.folder / "storage" / user / "jobs").iterdir())
            if not jobs or {path.stat().st_uid for path in jobs} != {UIDS[user]}:
                wrong.append(f"{user}'s jobs are not {user}'s: {jobs}")
        revoked = self.net.muster(REVOKED, "m", "ping")
        if "your certificate was revoked" not in revoked.stderr:
            wrong.append(f"{REVOKED} is told another thing: {revoked.stderr}")
        wrong += self._unseen()
        denied = self.json("audit", "list", "--denied").get("records", [])
        # One who is killed, or cut off, amid a handshake leaves a connection without a name.
        wrong += [
            f"denied: {record}"
            for record in denied
            if record["user"] != REVOKED and not record["user"].startswith("address ")
        ]
        if (audit := self.run(["audit", "verify"], check=False)).returncode != 0:
            wrong.append(f"the audit: {audit.stderr}")
        return wrong

    def _unseen(self) -> list[str]:
        """Hosts that can't show the present epoch with its MAC."""
        proof = re.compile(rf" epoch={self.json('ping')['epoch']} commit=\d+ mac=[0-9a-f]{{32}}\b")
        files = [self.folder / "agents" / f"lab-{host}" / "seen" for host in self.net.hosts]

        def left() -> list[str]:
            texts = {path: path.read_text() for path in files if path.exists()}
            return [f"{path}: {text}" for path, text in texts.items() if not proof.search(text)]

        try:
            wait_for("hosts to keep what they are told", lambda: not left(), 10)
        except Failed:
            return left()
        return []


class FleetOverTls(Fleet):
    """Of a system whose musterd is reached at loopback: on each host a relay of its own serves there."""

    def begin(self, host: str) -> Relay:
        made = self.system.net.machines
        door = made.addresses["m"], 7420
        relay = Relay(
            made.within(host, lambda: socket.create_server(("127.0.0.1", 7420))),
            lambda: made.within(host, lambda: socket.create_connection(door)),
        )
        self.system.start_agent("lab", host)
        return relay


@contextmanager
def teams_over_tls(bin_dir: Path, hosts: list[str], address: str = ""):
    if why_not():
        raise Failed(why_not())
    # Not below /tmp: agents of several users want their state elsewhere.
    with system_folder("/srv") as folder, machines(["m", *hosts]) as made:
        yield TeamsOverTls(folder, bin_dir, made, address)
