"""A musterd on loopback whose users log in by identity providers, and their commands."""

import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

from local_system import LocalSystem, wait_for
from small_system import configure

NETWORK = """\
metrics_listen: 127.0.0.1:{metrics}
tls:
  listen: 127.0.0.1:{listen}
  join: 127.0.0.1:{join}
  addresses: ["127.0.0.1:{listen}"]
  master_key: {folder}/etc/master.key
"""
# Follows where it is sent, as a browser does whose user is logged in already.
BROWSER = """\
#!{python}
import ssl, sys, urllib.request
context = ssl.create_default_context(cafile="{ca}")
urllib.request.urlopen(sys.argv[1], context=context, timeout=20).read()
"""


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


class LoginSystem:
    def __init__(self, system: LocalSystem):
        self.system = system
        self.listen, self.join, self.metrics_port = free_ports(3)

    def start(self, issuers: list[dict]) -> None:
        """Each as its keys of musterd.yaml."""
        configure(self.system)
        path = self.system.folder / "etc" / "musterd.yaml"
        text = path.read_text().replace("single_user: true", "single_user: false")
        text += NETWORK.format(
            metrics=self.metrics_port, listen=self.listen, join=self.join, folder=self.system.folder
        )
        path.write_text(text + (f"oidc: {json.dumps(issuers)}\n" if issuers else ""))
        self.begin()

    def begin(self) -> None:
        path = self.system.folder / "etc" / "musterd.yaml"
        self.system.spawn("musterd", [self.system.bin_dir / "musterd", "--config", path])
        wait_for(
            "musterd's first answer",
            lambda: self.system.run(["ping"], check=False).returncode == 0,
            20,
        )

    def restart(self) -> None:
        self.system.processes["musterd"].terminate()
        self.system.processes["musterd"].wait(20)
        self.begin()

    def change(self, was: str, now: str) -> None:
        """Of musterd.yaml."""
        path = self.system.folder / "etc" / "musterd.yaml"
        assert was in path.read_text()
        path.write_text(path.read_text().replace(was, now))
        self.restart()

    def fingerprint(self) -> str:
        shown = json.loads(self.system.run(["ca", "show", "-o", "json"]).stdout)
        return shown["authorities"][0]["fingerprint"]

    def home(self, user: str) -> Path:
        folder = self.system.folder / "homes" / user
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def muster(self, user: str, *words, given: str = "", timeout_s: float = 60, **environment):
        """A command of somebody's who knows no more than where to log in."""
        kept = {key: os.environ[key] for key in ("LD_LIBRARY_PATH",) if key in os.environ}
        return subprocess.run(
            [str(self.system.bin_dir / "muster"), *(str(word) for word in words)],
            env={"PATH": "/usr/bin:/bin", "HOME": str(self.home(user))} | kept | environment,
            input=given,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def log_in(self, user: str, *words, **more):
        where = ["login", f"127.0.0.1:{self.join}", "--ca", self.fingerprint()]
        return self.muster(user, *where, *words, **more)

    def by_browser(self, user: str, ca: Path, *words, browser: str = ""):
        """`browser`: a program of the test's instead of the plain one."""
        path = self.home(user) / "browser"
        path.write_text(browser or BROWSER.format(python=sys.executable, ca=ca))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return self.log_in(user, "--oidc", *words, "--provider-ca", ca, BROWSER=str(path))

    def by_token(self, user: str, token: str):
        return self.log_in(user, "--id-token-file", "-", given=token)

    def audit(self) -> list[dict]:
        return json.loads(self.system.run(["audit", "list", "-o", "json"]).stdout)["records"]

    def users(self) -> set[str]:
        listed = json.loads(self.system.run(["user", "list", "-o", "json"]).stdout)
        return {row["name"] for row in listed.get("holders", [])}
