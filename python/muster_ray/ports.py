"""Ports that nobody else on the host is given.

A port that was only looked for may be another's by the time that Ray opens it: of two hundred processes that start together some always meet. So a port stays bound,
with SO_REUSEADDR and without listening, while Ray uses it. The kernel gives it to nobody who asks for any port, and lets Ray's servers, which set SO_REUSEADDR, too,
bind and listen on it.
"""

import socket


class Ports:
    """Held until close(), which is after Ray's end."""

    def __init__(self, names: tuple[str, ...]):
        self._sockets = {name: _bound() for name in names}

    def __getitem__(self, name: str) -> int:
        return self._sockets[name].getsockname()[1]

    def options(self) -> list[str]:
        """For `ray start`, whose options the names are."""
        return [f"--{name}={self[name]}" for name in self._sockets]

    def close(self) -> None:
        for one in self._sockets.values():
            one.close()


def _bound() -> socket.socket:
    one = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind(("", 0))
    return one


def own_address() -> str:
    """The address of this host that others reach. Nothing is sent: connecting a datagram socket only picks the route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.connect(("192.0.2.1", 9))  # RFC 5737: an address for documentation
            return one.getsockname()[0]
        except OSError:  # no route out of this host
            pass
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"


def answers(address: str) -> bool | None:
    """False: its host is there, and nothing listens at the port. None: nothing is heard of the host."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=2).close()
        return True
    except ConnectionRefusedError:
        return False
    except OSError:
        return None
