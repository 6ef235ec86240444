"""HTTP as the exporter speaks it: a time limit for all of it, no redirects, no proxies of the environment, short answers only."""

import http.client
import ssl
import time
from urllib.parse import urlsplit

LIMIT_S = 10.0
ANSWER_BYTES = 16 << 20


class Refused(Exception):
    """An answer that isn't success."""

    def __init__(self, status: int, text: str):
        super().__init__(f"HTTP {status}: {text[:200]}")
        self.status, self.text = status, text


def request(
    method: str,
    url: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
    limit_s: float = LIMIT_S,
) -> bytes:
    """The body of a 2xx answer. OSError, HTTPException: nobody answered in time, or not in HTTP. A redirect is refused as any other status."""
    parts = urlsplit(url)
    until = time.monotonic() + limit_s
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=limit_s, context=ssl.create_default_context()
        )
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=limit_s)
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        data = _read(answer, connection, until)
    finally:
        connection.close()
    if not 200 <= answer.status < 300:
        raise Refused(answer.status, data.decode(errors="replace"))
    return data


def _read(answer, connection, until: float) -> bytes:
    """All of it: one that dribbles is given no more time than one that hangs."""
    pieces, size = [], 0
    while True:
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the answer took too long")
        if connection.sock is not None:
            connection.sock.settimeout(left_s)
        piece = answer.read1(65536)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
        size += len(piece)
        if size > ANSWER_BYTES:
            raise http.client.HTTPException("the answer is too long")
