"""`muster dev` from outside: environments that are opened, and asked as a browser would. The tests and the row `dev` use it."""

import http.client
import subprocess
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

from local_system import LocalSystem


class Way:
    """To an environment's server, while `muster dev open` runs."""

    def __init__(self, url: str):
        self.url = url
        self.port = urlsplit(url).port
        self.token = parse_qs(urlsplit(url).query)["token"][0]

    def ask(
        self, path: str, token: str | None = None, method: str = "GET", body: str | None = None
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        headers = {} if token is None else {"Authorization": f"token {token}"}
        try:
            connection.request(method, path, body=body, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


@contextmanager
def opened(system: LocalSystem, *words: str):
    process = subprocess.Popen(
        [system.bin_dir / "muster", "dev", "open", "--no-browser", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=system.environment(),
    )
    try:
        url = process.stdout.readline().strip()
        assert url, process.stderr.read()
        yield Way(url)
    finally:
        process.terminate()
        process.communicate(timeout=30)
