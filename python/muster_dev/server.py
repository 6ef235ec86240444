"""The JupyterLab that an environment runs: started on loopback with a token of its own, asked, and ended."""

import http.client
import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from muster_dev.session import Session, clear, new_token, write_private

_START_S = 120.0
_ANSWER_S = 20.0
_GRACE_S = 20.0
_TRIES = 5  # of ports: another process may take one before the server does
_PAUSE_S = 0.1


class ServerError(Exception):
    """Why there is no server, and what to do."""


def check_installed() -> None:
    if importlib.util.find_spec("jupyterlab") is None:
        raise ServerError(
            f"{sys.executable} has no jupyterlab: {sys.executable} -m pip install jupyterlab, or name"
            " another Python with muster dev up --python"
        )


def free_port() -> int:
    with socket.socket() as drawn:
        drawn.bind(("127.0.0.1", 0))
        return drawn.getsockname()[1]


class Server:
    def __init__(self, place: Path, root: Path, attempt: str):
        """Once it is there, it answers those who have its token and nobody else."""
        self._root, self._place = root, place
        for _ in range(_TRIES):
            clear(place)
            self.session = Session(attempt, free_port(), new_token())
            self.process = self._start()
            try:
                if self._await_answer():
                    return
            except BaseException:
                self.end()
                raise
        raise ServerError("JupyterLab ended before it answered; what it said is above")

    def _start(self) -> subprocess.Popen:
        token = self._place / "token"
        write_private(token, self.session.token)
        words = [sys.executable, "-m", "jupyterlab", "--no-browser"]
        words += ["--ServerApp.ip=127.0.0.1", f"--ServerApp.port={self.session.port}"]
        words += ["--ServerApp.port_retries=0", f"--ServerApp.root_dir={self._root}"]
        # With a password of the user's own configuration there would be no token.
        words += ["--PasswordIdentityProvider.hashed_password="]
        if os.geteuid() == 0:
            words.append("--allow-root")
        environment = {k: v for k, v in os.environ.items() if k != "JUPYTER_TOKEN"}
        environment["JUPYTER_TOKEN_FILE"] = str(token)
        environment["JUPYTER_RUNTIME_DIR"] = str(self._place / "runtime")  # it has the token, too
        return subprocess.Popen(words, env=environment, cwd=self._root)

    def _await_answer(self) -> bool:
        until = time.monotonic() + _START_S
        while self.process.poll() is None:
            try:
                status = self._get("/api/status", "")[0]
            except OSError:
                status = 0
            if status == 200:
                raise ServerError(
                    "JupyterLab answers without a token: its configuration turns tokens off"
                    " (jupyter --paths; IdentityProvider.token)"
                )
            if status == 403:
                break
            if time.monotonic() > until:
                raise ServerError(f"JupyterLab has not answered within {_START_S:g} s")
            time.sleep(_PAUSE_S)
        if self.process.poll() is not None:
            return False
        if self._get("/api/status", self.session.token)[0] != 200:
            raise ServerError(
                "JupyterLab doesn't take its token: its configuration has another one"
                " (jupyter --paths; IdentityProvider.token)"
            )
        return True

    def _get(self, path: str, token: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.session.port, timeout=_ANSWER_S)
        try:
            headers = {"Authorization": f"token {token}"} if token else {}
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except http.client.HTTPException as error:
            raise OSError(str(error)) from error
        finally:
            connection.close()

    def kernels(self) -> list[dict] | None:
        """None: it doesn't answer."""
        try:
            status, body = self._get("/api/kernels?no_track_activity=1", self.session.token)
            return json.loads(body) if status == 200 else None
        except (OSError, ValueError):
            return None

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
