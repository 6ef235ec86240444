"""HTTP: a limit for all of it, whatever the server does with the time."""

import socket
import threading
import time
from contextlib import contextmanager

import pytest
from muster_exporter import http_client


@contextmanager
def server(*pieces, pause_s=0.05, more=b"", host="127.0.0.1"):
    """Says that, then goes on with `more` for ever."""
    listening = socket.create_server(
        (host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET
    )

    def serve():
        try:
            caller, _ = listening.accept()
            caller.recv(65536)
            for piece in pieces:
                caller.sendall(piece)
            while more:
                caller.sendall(more)
                time.sleep(pause_s)
        except OSError:
            return
        caller.close()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listening.getsockname()[1]
    finally:
        listening.close()


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [OK, b"X: "],
        [OK + b"\r\n"],
        [OK + b"Content-Length: 99999\r\n\r\n"],
        [OK + b"Transfer-Encoding: chunked\r\n\r\n"],
        [b"\x16\x03\x03\x40\x00"],  # a record of TLS
    ],
)
def test_a_server_that_dribbles_is_given_no_more_time_than_one_that_hangs(scheme, pieces):
    with server(*pieces, more=b"0") as port:
        began_s = time.monotonic()
        with pytest.raises((OSError, http_client.http.client.HTTPException)):
            http_client.request("GET", f"{scheme}://127.0.0.1:{port}/", limit_s=0.3)
        assert time.monotonic() - began_s < 1.5


def test_an_answer_is_read_to_its_end_and_no_further_than_the_limit(monkeypatch):
    with server(OK + b"Content-Length: 3\r\n\r\nabc") as port:
        assert http_client.request("GET", f"http://127.0.0.1:{port}/", limit_s=5) == b"abc"
    with server(OK + b"\r\nabc") as port:
        assert http_client.request("GET", f"http://127.0.0.1:{port}/", limit_s=5) == b"abc"
    with server(OK + b"Content-Length: 9\r\n\r\nabc") as port:
        with pytest.raises(http_client.http.client.HTTPException):
            http_client.request("GET", f"http://127.0.0.1:{port}/", limit_s=5)
    monkeypatch.setattr(http_client, "ANSWER_BYTES", 2)
    with server(OK + b"Content-Length: 3\r\n\r\nabc") as port:
        with pytest.raises(http_client.http.client.HTTPException, match="too long"):
            http_client.request("GET", f"http://127.0.0.1:{port}/", limit_s=5)


def has_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_an_address_of_ipv6_is_no_host_with_a_port():
    with server(OK + b"Content-Length: 3\r\n\r\nabc", host="::1") as port:
        assert http_client.request("GET", f"http://[::1]:{port}/", limit_s=5) == b"abc"
    with pytest.raises(OSError):
        http_client.request("GET", "http://[::1]/", limit_s=1)
    with pytest.raises(ValueError):
        http_client.request("GET", "http:///x", limit_s=1)
