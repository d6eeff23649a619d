"""The client behind an adapter: the one it is given, or one for its DSN that the whole process shares."""

from __future__ import annotations

import atexit
import threading
from typing import Any

from pgmem_core.client import PgMem, dsn_of
from pgmem_core.errors import InvalidArgument
from pgmem_core.runtime import Runtime

__all__ = ["close_clients", "runtime_of", "shared_client"]

_clients: dict[str, PgMem] = {}
_lock = threading.Lock()


def runtime_of(mem: Any, dsn: str | None) -> Runtime:
    """Return what the flows of an adapter run on.

    `mem`: a PgMem or an AsyncPgMem; sync and async methods of an adapter work on either, natively. `dsn`: see
    `shared_client`; where both are left out, the environment's `PGMEM_DSN`. Raises: InvalidArgument.
    """
    if mem is None:
        return _runtime(shared_client(str(dsn_of(dsn))))
    if dsn is not None:
        raise InvalidArgument("mem and dsn were both given; pass the client, or the dsn to have one made")
    return _runtime(mem)


def _runtime(mem: Any) -> Runtime:
    rt = getattr(mem, "_rt", None)
    if not isinstance(rt, Runtime):
        raise InvalidArgument(f"mem must be a PgMem or an AsyncPgMem, got {type(mem).__name__}; a DSN goes into dsn=")
    return rt


def shared_client(dsn: str) -> PgMem:
    """Return the process's client for a DSN, making it and starting its worker the first time.

    It sets up at first use and lives until the process ends or `close_clients` is called, so that an object made for
    each request (a session's history) costs no connection.
    """
    with _lock:
        client = _clients.get(dsn)
        if client is None:
            client = _clients[dsn] = PgMem(dsn)
    client.start()  # also after a fork; a second call changes nothing
    return client


def close_clients() -> None:
    """Close every client that was made for a DSN. The adapters that used them must not be used again."""
    with _lock:
        clients = list(_clients.values())
        _clients.clear()
    for client in clients:
        client.close()


atexit.register(close_clients)
