"""HTTP as the exporter speaks it: a time limit for all of it, no redirects, no proxies of the environment, short answers only."""

import http.client
import socket
import ssl
import threading
from contextlib import suppress
from urllib.parse import urlsplit

LIMIT_S = 10.0
ANSWER_BYTES = 16 << 20


class Refused(Exception):
    """An answer that isn't success."""

    def __init__(self, status: int, text: str):
        super().__init__(f"HTTP {status}: {text[:200]}")
        self.status, self.text = status, text


class _Connection(http.client.HTTPConnection):
    """Plain or with TLS; `shut` ends whatever it is doing, from another thread."""

    def __init__(self, host: str, port: int, secure: bool, limit_s: float):
        if secure:
            self.default_port = 443
        super().__init__(host, port, timeout=limit_s)
        self._secure, self._same, self.late = secure, None, False

    def connect(self) -> None:
        made = socket.create_connection((self.host, self.port), self.timeout)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._same = made.dup()  # TLS takes the socket itself away, for its handshake
        self.sock = made
        if self.late:
            raise TimeoutError
        if self._secure:
            context = ssl.create_default_context()
            self.sock = context.wrap_socket(made, server_hostname=self.host)

    def shut(self) -> None:
        self.late = True
        if self._same is not None:
            with suppress(OSError):
                self._same.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Not `close`, which http.client calls while an answer is still to be read."""
        self.close()
        if self._same is not None:
            self._same.close()


def request(
    method: str,
    url: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
    limit_s: float = LIMIT_S,
) -> bytes:
    """The body of a 2xx answer. OSError, HTTPException: nobody answered in time, or not in HTTP. A redirect is refused as any other status."""
    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not parts.hostname:
        raise ValueError("no URL of a host")
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    connection = _Connection(parts.hostname, port, secure, limit_s)
    watchdog = threading.Timer(limit_s, connection.shut)
    watchdog.daemon = True
    watchdog.start()
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        data = answer.read(ANSWER_BYTES + 1)
    except (OSError, ValueError, http.client.HTTPException) as error:
        if connection.late:
            raise TimeoutError(f"no whole answer within {limit_s:g} s") from error
        raise
    finally:
        watchdog.cancel()
        connection.end()
    if connection.late:  # what it was shut in looks like the answer's end
        raise TimeoutError(f"no whole answer within {limit_s:g} s")
    if len(data) > ANSWER_BYTES:
        raise http.client.HTTPException("the answer is too long")
    if answer.length:  # bytes that were promised and never came
        raise http.client.IncompleteRead(data, answer.length)
    if not 200 <= answer.status < 300:
        raise Refused(answer.status, data.decode(errors="replace"))
    return data
