"""A musterd that serves a network, and agents that join it from machines of their own (namespaces)."""

import json
import shlex
import subprocess
import time

from local_system import LocalSystem, wait_for
from namespaces import Machines
from small_system import configure

QUEUES = 'queues: [{name: research, submit: ["*"]}]\n'
TLS = """\
tls:
  listen: {address}:7420
  join: {address}:7421
  addresses: ["{address}:7420"]
  master_key: {folder}/etc/master.key
  host_life: {host_life}
  user_life: {user_life}
"""


class NetworkSystem:
    def __init__(self, system: LocalSystem, machines: Machines):
        self.system, self.machines = system, machines
        self.single_user = True

    def start_musterd(
        self,
        hosts: list[str],
        *,
        slots: int = 1,
        host_life: str = "7d",
        user_life: str = "12h",
        single_user: bool = True,
    ) -> None:
        self.single_user = single_user
        configure(self.system, QUEUES, hosts=hosts, slots=slots)
        path = self.system.folder / "etc" / "musterd.yaml"
        path.write_text(
            path.read_text().replace(
                "single_user: true", f"single_user: {str(single_user).lower()}"
            )
            + TLS.format(
                address=self.machines.addresses["m"],
                folder=self.system.folder,
                host_life=host_life,
                user_life=user_life,
            )
        )
        self.begin_musterd()

    def begin_musterd(self, machine: str = "m") -> None:
        command = ["musterd", "--config", self.system.folder / "etc" / "musterd.yaml"]
        command[0] = self.system.bin_dir / "musterd"
        self.system.spawn("musterd", self.machines.on(machine, command))
        wait_for(
            "musterd's first answer",
            lambda: self.system.run(["ping"], check=False).returncode == 0,
            20,
        )

    def line(self, host: str) -> list[str]:
        """The words that join this host, after `muster-agent`, without the state directory."""
        words = shlex.split(self.system.run(["host", "token", "new", self.full(host)]).stdout)
        assert words[:2] == ["muster-agent", "join"], words
        return words[1 : words.index("--state-dir")]

    def agent_words(self, host: str, words: list[str], *more: str) -> list:
        folder = self.system.folder
        # fmt: off
        return [
            self.system.bin_dir / "muster-agent", *words, "--state-dir", folder / "agents" / f"lab-{host}",
            "--inventory", folder / "etc" / "host.yaml", *(["--single-user"] if self.single_user and words else []), *more,
        ]
        # fmt: on

    def agent_command(self, host: str, words: list[str], *more: str) -> list:
        return self.machines.on(host, self.agent_words(host, words, *more))

    def start_agent(self, host: str, words: list[str]) -> None:
        """By a join line, as one user's; or, without words, as any later start."""
        self.system.spawn(f"agent-lab-{host}", self.agent_command(host, words))

    def stop_agent(self, host: str) -> None:
        self.system.processes[f"agent-lab-{host}"].terminate()
        self.system.processes[f"agent-lab-{host}"].wait(10)

    def join(self, host: str) -> float:
        """Seconds until it is up."""
        words = self.line(host)
        began = time.monotonic()
        self.start_agent(host, words)
        self.wait_state(host, "HOST_UP")
        return time.monotonic() - began

    def identity_of_host(self, host: str) -> None:
        """It joins, and runs no agent."""
        # fmt: off
        subprocess.run(
            [str(word) for word in self.agent_command(host, [*self.line(host), "--only"])],
            check=True, capture_output=True, timeout=30,
        )
        # fmt: on

    def home(self, user: str) -> dict:
        """The environment of the user's commands."""
        folder = self.system.folder / "homes" / user
        folder.mkdir(parents=True, exist_ok=True)
        return {"PATH": "/usr/bin:/bin", "HOME": str(folder)}

    def log_in(self, user: str, machine: str, *groups: str) -> None:
        asked = [word for group in groups for word in ("--group", group)]
        line = self.system.run(["user", "invite", user, *asked]).stdout.split()[1:]
        done = self.muster(user, machine, *line)
        assert done.returncode == 0, done.stderr

    def muster(self, user: str, machine: str, *words) -> subprocess.CompletedProcess:
        """A command of that user's, on that machine."""
        command = self.machines.on(machine, [self.system.bin_dir / "muster", *words])
        return subprocess.run(
            [str(word) for word in command],
            env=self.home(user),
            capture_output=True,
            text=True,
            timeout=60,
        )

    def begin(self, user: str, machine: str, name: str, *words) -> subprocess.Popen:
        """One that lasts; what it says is in NAME.out and NAME.err."""
        command = self.machines.on(machine, [self.system.bin_dir / "muster", *words])
        folder = self.system.folder
        with open(folder / f"{name}.out", "w") as out, open(folder / f"{name}.err", "w") as err:
            return subprocess.Popen(
                [str(word) for word in command],
                env=self.home(user),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    def full(self, host: str) -> str:
        return f"lab/{host}"

    def state(self, host: str) -> str:
        return next(
            (h["state"] for h in self.system.hosts() if h["name"] == self.full(host)), "unknown"
        )

    def wait_state(self, host: str, state: str, timeout_s: float = 20) -> float:
        began = time.monotonic()
        wait_for(
            f"lab/{host} to be {state}: {self.system.log_tail(f'agent-lab-{host}')}",
            lambda: self.state(host) == state,
            timeout_s,
        )
        return time.monotonic() - began

    def identity(self, host: str) -> str:
        return (self.system.folder / "agents" / f"lab-{host}" / "identity").read_text()

    def rotate(self) -> None:
        """All three steps, each once nobody is behind."""
        for step in ("prepare", "sign", "drop"):
            wait_for(
                f"rotation: {step}",
                lambda step=step: (
                    self.system.run(["ca", "rotate", step], check=False).returncode == 0
                ),
                40,
                0.2,
            )

    def authorities(self) -> list[dict]:
        return json.loads(self.system.run(["ca", "show", "-o", "json"]).stdout)["authorities"]
