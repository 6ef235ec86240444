"""The agent's side of the progress socket, for a test that plays the agent; and an object store."""

import json
import socket
import sys
import urllib.request
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


@pytest.fixture(scope="module")
def endpoint():
    pytest.importorskip("boto3", reason="s3:// needs boto3, which isn't here")
    pytest.importorskip("moto.server", reason="the S3 server of these tests, moto[s3], isn't here")
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture
def store(endpoint, monkeypatch):
    """A client of an empty bucket, rows. This process, and what it starts, finds the server by its environment."""
    from muster_score import objects

    urllib.request.urlopen(f"{endpoint}/moto-api/reset", data=b"").close()
    for name in ("AWS_PROFILE", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ENDPOINT_URL": endpoint,
    }.items():
        monkeypatch.setenv(name, value)
    objects.client.cache_clear()
    client = objects.client()
    client.create_bucket(Bucket="rows")
    yield client
    objects.client.cache_clear()
