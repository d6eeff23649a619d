"""A proxy that counts round trips to Postgres: how often the client spoke and then waited for the server."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

__all__ = ["RoundTrips", "counting"]


class RoundTrips:
    """Forwards TCP to a server and counts, over all connections, each change from hearing to speaking."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._lock = threading.Lock()
        self._count = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def take(self) -> int:
        """Return the round trips since the last call."""
        with self._lock:
            count, self._count = self._count, 0
            return count

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open += [client, server]
            state = {"speaking": False}
            threading.Thread(target=self._pump, args=(client, server, state, True), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, state, False), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, state: dict[str, bool], client: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                with self._lock:
                    if client and not state["speaking"]:
                        self._count += 1
                    state["speaking"] = client
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        for end in self._open:
            end.close()


@contextlib.contextmanager
def counting(host: str, port: int) -> Iterator[RoundTrips]:
    """Yield a running proxy to host:port."""
    proxy = RoundTrips(host, port)
    try:
        yield proxy
    finally:
        proxy.close()
