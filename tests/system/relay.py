"""A relay between two sockets whose bytes its owner can hold, delay or cut off: a network that fails as it is told to."""

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

UP, DOWN = "up", "down"  # from the client to the server, and back
CLIENT, SERVER = "client", "server"


class Relay:
    """Hands every connection of `listener` on to one that `connect` makes. Held bytes arrive once they are let go, as TCP's would."""

    def __init__(self, listener: socket.socket, connect: Callable[[], socket.socket]):
        self._listener, self._connect = listener, connect
        self._changed = threading.Condition()
        self._held: set[str] = set()
        self._ended = False
        self._delay_s = 0.0
        self._open: dict[str, set[socket.socket]] = {CLIENT: set(), SERVER: set()}
        threading.Thread(target=self._accept, daemon=True).start()

    # ---- what its owner does ----

    def hold(self, *ways: str) -> None:
        """Nothing that goes these ways arrives any more, and nobody is told. New connections say nothing either."""
        with self._changed:
            self._held |= set(ways)

    def break_off(self, side: str) -> None:
        """As hold(UP, DOWN), and this side sees its connections break."""
        self.hold(UP, DOWN)
        with self._changed:
            ends = list(self._open[side])
        for end in ends:
            hang_up(end)

    def slow(self, delay_s: float) -> None:
        """Each piece of data takes that long, each way."""
        with self._changed:
            self._delay_s = delay_s

    def heal(self) -> None:
        with self._changed:
            self._held.clear()
            self._delay_s = 0.0
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._ended = True
            ends = [self._listener, *self._open[CLIENT], *self._open[SERVER]]
            self._changed.notify_all()
        for end in ends:
            hang_up(end)

    # ---- its threads ----

    def _passes(self, *ways: str) -> bool:
        """Waits until nothing of these ways is held; False once the relay has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or not self._held & set(ways))
            return not self._ended

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._join, args=(client,), daemon=True).start()

    def _join(self, client: socket.socket) -> None:
        try:
            if not self._passes(
                UP, DOWN
            ):  # a connection is made once its first packets can go both ways
                raise OSError
            server = self._connect()
        except OSError:
            hang_up(client)
            return
        with self._changed:
            self._open[CLIENT].add(client)
            self._open[SERVER].add(server)
        for way, source, sink in ((UP, client, server), (DOWN, server, client)):
            threading.Thread(target=self._pump, args=(way, source, sink), daemon=True).start()

    def _pump(self, way: str, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                with self._changed:
                    delay_s = self._delay_s
                if delay_s > 0:
                    time.sleep(delay_s)  # this is what is slow, not a wait for something
                if not self._passes(way):
                    break
                sink.sendall(data)
        except OSError:
            pass
        self._passes(way)  # an end is heard of no sooner than data
        with self._changed:
            for ends in self._open.values():
                ends -= {source, sink}
        hang_up(source)
        hang_up(sink)


def unix_relay(path: Path, target: Path) -> Relay:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(64)

    def connect() -> socket.socket:
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            server.connect(str(target))
        except OSError:
            server.close()
            raise
        return server

    return Relay(listener, connect)


def hang_up(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    end.close()
