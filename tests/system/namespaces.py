"""Machines of a test: network namespaces on one bridge, each with an address of its own and a way to the others only."""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

NETWORK = "10.77.31"
CLONE_NEWNET = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)


def why_not() -> str:
    """Empty if namespaces can be made here."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need ip (iproute2)"
    probe = f"mst-probe-{os.getpid()}"
    done = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "delete", probe], capture_output=True)
    return "" if done.returncode == 0 else f"network namespaces: {done.stderr.strip()}"


def _ip(*words: str, within: str = "") -> None:
    subprocess.run(["ip", *(["-n", within] if within else []), *words], check=True)


class Machines:
    """`switch` is the namespace that the bridge lies in; names are "m" and those of hosts."""

    def __init__(self, names: list[str]):
        self.prefix = f"mst{os.getpid()}"
        self.switch = f"{self.prefix}-switch"
        self.addresses = {name: f"{NETWORK}.{i}" for i, name in enumerate(names, 1)}
        self.made: list[str] = []

    def make(self) -> None:
        self._add(self.switch)
        _ip("link", "add", "br0", "type", "bridge", within=self.switch)
        _ip("link", "set", "br0", "up", within=self.switch)
        for i, (name, address) in enumerate(self.addresses.items()):
            namespace = self.namespace(name)
            self._add(namespace)
            # fmt: off
            _ip("link", "add", f"p{i}", "type", "veth", "peer", "name", "eth0", "netns", namespace, within=self.switch)
            # fmt: on
            _ip("link", "set", f"p{i}", "master", "br0", "up", within=self.switch)
            _ip("address", "add", f"{address}/24", "dev", "eth0", within=namespace)
            _ip("link", "set", "eth0", "up", within=namespace)
            _ip("link", "set", "lo", "up", within=namespace)

    def _add(self, namespace: str) -> None:
        _ip("netns", "add", namespace)
        self.made.append(namespace)

    def namespace(self, name: str) -> str:
        return f"{self.prefix}-{name}"

    def on(self, name: str, command: list) -> list:
        """The command, run on that machine."""
        return ["ip", "netns", "exec", self.namespace(name), *command]

    def within(self, name: str, make: Callable):
        """What make() returns to a thread on that machine: a socket stays where it was made."""

        def there():
            with open(f"/run/netns/{self.namespace(name)}") as place:
                if LIBC.setns(place.fileno(), CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), f"setns to {name}")
            return make()

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(there).result()

    def cut(self, name: str, cut: bool = True) -> None:
        i = list(self.addresses).index(name)
        _ip("link", "set", f"p{i}", "down" if cut else "up", within=self.switch)

    def more_addresses(self, name: str, count: int) -> list[str]:
        """Of that machine, beside its own."""
        more = [f"{NETWORK}.{i}" for i in range(100, 100 + count)]
        for address in more:
            _ip("address", "add", f"{address}/24", "dev", "eth0", within=self.namespace(name))
        return more

    def speak_from(self, name: str, address: str) -> None:
        """What that machine connects from now on comes from this address of its."""
        network = f"{NETWORK}.0/24"
        # fmt: off
        _ip("route", "replace", network, "dev", "eth0", "proto", "kernel", "scope", "link", "src", address, within=self.namespace(name))
        # fmt: on

    def remove(self) -> None:
        for namespace in self.made:
            subprocess.run(["ip", "netns", "delete", namespace], check=False)


@contextmanager
def machines(names: list[str]):
    made = Machines(names)
    try:
        made.make()
        yield made
    finally:
        made.remove()
