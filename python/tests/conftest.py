"""The agent's side of the progress socket, for a test that plays the agent."""

import json
import socket
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


class Listener:
    def __init__(self, path: Path):
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.setblocking(False)

    def lines(self) -> list[dict]:
        """What came since the last call."""
        lines = []
        while True:
            try:
                lines.append(json.loads(self.socket.recv(65536)))
            except BlockingIOError:
                return lines


@pytest.fixture
def agent(tmp_path):
    listener = Listener(tmp_path / "progress")
    yield listener
    listener.socket.close()
