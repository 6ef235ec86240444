"""A stand-in for the program `ray`, for tests of what starts it: `ray start` that listens on the ports it is given, lets nodes in by the token, and logs.

Whoever connects to the head's port sends two lines, the token and a word: `join`, and is a node as long as the connection lasts, or `count`, and is told how many
there are. A head that finds a file `fall` in its temporary directory dies.
"""

import os
import signal
import socket
import socketserver
import sys
import threading
import time
from pathlib import Path

VERSION = os.environ.get("STAND_IN_VERSION", "2.60.0")


def install(folder: Path) -> Path:
    """A directory for PATH with `ray` in it."""
    program = folder / "bin" / "ray"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" "$@"\n')
    program.chmod(0o755)
    return program.parent


def nodes(address: str, token: str) -> int:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 5) as one, one.makefile("rw") as lines:
        lines.write(f"{token}\ncount\n")
        lines.flush()
        return int(lines.readline())


def token_of(environment) -> str:
    return Path(environment["RAY_AUTH_TOKEN_PATH"]).read_text()


class Head(socketserver.ThreadingTCPServer):
    allow_reuse_address, daemon_threads = True, True

    def __init__(self, port: int):
        self.token, self.joined, self.lock = token_of(os.environ), 1, threading.Lock()
        super().__init__(("", port), Caller)


class Caller(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        head = self.server
        token, word = (self.rfile.readline().decode().strip() for _ in range(2))
        if token != head.token:
            return
        if word == "count":
            self.wfile.write(f"{head.joined}\n".encode())
            return
        with head.lock:
            head.joined += 1
        self.rfile.read()  # until the node is gone
        with head.lock:
            head.joined -= 1


def start(words: list[str]) -> None:
    options = dict(word.removeprefix("--").partition("=")[::2] for word in words)
    assert os.environ["RAY_AUTH_MODE"] == "token" and "RAY_ADDRESS" not in os.environ, "unsafe"
    assert "block" in options and options["min-worker-port"] == options["max-worker-port"] == "0"
    logs = Path(options["temp-dir"]) / f"session_2026_{os.getpid()}" / "logs"
    logs.mkdir(parents=True)
    (logs / "raylet.out").write_text(f"a node of {options.get('address', 'its own')}\n")
    listening = [
        socket.create_server(("", int(value)))  # sets SO_REUSEADDR, as Ray does
        for name, value in options.items()
        if name.endswith("-port") and int(value) > 0
    ]
    if "head" in options:
        threading.Thread(target=Head(int(options["port"])).serve_forever, daemon=True).start()
    else:
        host, _, port = options["address"].rpartition(":")
        head = socket.create_connection((host, int(port)))
        head.sendall(f"{token_of(os.environ)}\njoin\n".encode())
        listening.append(head)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    print("Ray runtime started.", flush=True)
    while not (Path(options["temp-dir"]) / "fall").exists():
        time.sleep(0.02)
    print("Some Ray subprocesses exited unexpectedly:\n  gcs_server [exit code=-9]", flush=True)
    sys.exit(1)


if __name__ == "__main__":
    if sys.argv[1:] == ["--version"]:
        print(f"ray, version {VERSION}")
    else:
        start(sys.argv[2:])
