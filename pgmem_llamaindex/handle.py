"""How an adapter holds a memory: a client it was given, or the name of a place where one is found again.

An adapter may be copied, pickled and written out with a workflow's context; a client (connections, threads, perhaps a
password) may not. So a `Handle` is written out as a *reference*, never a secret, and connects when first used:

=====================  ==============================================================================================
`{"handle": name}`     a client that the program gives a name with `register_memory(name, mem)`
`{"env": variable}`    the DSN in an environment variable: `dsn="env:DATABASE_URL"`, or by default `PGMEM_DSN`
`{"embedded": path}`   the Postgres that `PgMem.embedded(path)` keeps there
`{"address": place}`   any other client or DSN: found again while such a client lives in this process, or if
                       `PGMEM_DSN` leads to the same place; else an error that says what to do
=====================  ==============================================================================================

A schema of another name than the default goes with it. An embedder, a model or other settings do not: a program that
needs them names its client with `register_memory` before it reads a context back.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

from pgmem_core import AsyncPgMem, PgMem
from pgmem_core.effects import Flow, arun, run
from pgmem_core.errors import ConfigurationError, InvalidArgument
from pgmem_core.runtime import Runtime

__all__ = ["Handle", "Memory", "close_memories", "register_memory"]

P = ParamSpec("P")
T = TypeVar("T")
Memory = PgMem | AsyncPgMem

_DSN_VARIABLE = "PGMEM_DSN"
_SCHEMA = "pgmem"
_KINDS = ("handle", "env", "embedded", "address")

_lock = threading.Lock()
_named: dict[str, Memory] = {}
_known: weakref.WeakSet[Any] = weakref.WeakSet()  # every client an adapter was given
_opened: dict[tuple[str, str, str], PgMem] = {}  # one for all adapters of a place: pools and workers are not cheap


def register_memory(name: str, mem: Memory) -> None:
    """Give a client a name under which adapters that are read back find it. The same name again replaces it."""
    if not isinstance(name, str) or not name.strip():
        raise InvalidArgument(f"a handle's name is a visible string, got {name!r}")
    _check(mem)
    with _lock:
        _named[name] = mem


def close_memories() -> None:
    """Close the clients that adapters opened by themselves; happens by itself when the program ends."""
    with _lock:
        opened = list(_opened.values())
        _opened.clear()
    for mem in opened:
        mem.close()


atexit.register(close_memories)


class Handle:
    """A memory, or where it is. `mem`: a PgMem or AsyncPgMem, which stays the caller's to close. `dsn`: a Postgres URL,
    or `env:NAME` for the one in an environment variable; neither: `env:PGMEM_DSN`.

    Both forms of an adapter work over either client: the blocking ones run on plain blocking connections, also inside a
    running event loop, the awaited ones on those of their loop.

    Raises: InvalidArgument (both given, or something that is no client).
    """

    def __init__(self, mem: Memory | None = None, dsn: str | None = None) -> None:
        if mem is not None and dsn is not None:
            raise InvalidArgument("pass mem= or dsn=, not both")
        if dsn is not None and not isinstance(dsn, str):
            raise InvalidArgument(f"dsn must be a string, got {type(dsn).__name__}; a client is passed as mem=")
        self._mem = None if mem is None else _check(mem)
        self._dsn = dsn if dsn is not None and not dsn.startswith("env:") else None
        if mem is not None:
            with _lock:
                _known.add(mem)
            self._reference = _reference_of(mem)
        elif dsn is None or self._dsn is None:
            self._reference = {"env": (dsn or "").removeprefix("env:") or _DSN_VARIABLE}
        elif dsn == os.environ.get(_DSN_VARIABLE):
            self._reference = {"env": _DSN_VARIABLE}
        else:
            self._reference = _reference_of(_client("dsn", dsn, None))

    @classmethod
    def restored(cls, reference: Mapping[str, str]) -> Handle:
        """Return the handle that a reference was written from; connects to nothing. Raises: InvalidArgument."""
        if not isinstance(reference, Mapping) or not any(kind in reference for kind in _KINDS):
            raise InvalidArgument(f"a reference to a memory holds one of {', '.join(_KINDS)}, got {reference!r}")
        handle = cls.__new__(cls)
        handle._mem, handle._dsn, handle._reference = None, None, dict(reference)
        return handle

    @property
    def reference(self) -> dict[str, str]:
        """Where the memory is, without a secret: what is written out."""
        if self._mem is not None and "handle" not in self._reference:
            for name, mem in list(_named.items()):
                if mem is self._mem:
                    return {"handle": name}
        return dict(self._reference)

    @property
    def mem(self) -> Memory:
        """The client, found or opened at first use. Raises: ConfigurationError, saying what to set or register."""
        if self._mem is None:
            self._mem = self._found() if self._dsn is None else _open("dsn", self._dsn, None)
        return self._mem

    @property
    def rt(self) -> Runtime:
        """What the flows run on."""
        return self.mem._rt

    def run(self, flow: Callable[Concatenate[Runtime, P], Flow[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a flow, blocking."""
        rt = self.rt
        return run(flow(rt, *args, **kwargs), rt.database)

    async def arun(self, flow: Callable[Concatenate[Runtime, P], Flow[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a flow, awaiting."""
        rt = self.rt
        return await arun(flow(rt, *args, **kwargs), rt.database)

    def _found(self) -> Memory:
        reference = self._reference
        schema = reference.get("schema")
        if (name := reference.get("handle")) is not None:
            with _lock:
                named = _named.get(name)
            if named is None:
                raise ConfigurationError(
                    f"no memory is registered as {name!r} in this process; call register_memory({name!r}, mem) first"
                )
            return named
        if (variable := reference.get("env")) is not None:
            dsn = os.environ.get(variable)
            if not dsn:
                raise ConfigurationError(
                    f"the environment has no {variable}; set it to the DSN of the database, or pass mem= or dsn="
                )
            return _open("dsn", dsn, schema)
        if (path := reference.get("embedded")) is not None:
            return _open("embedded", path, schema)
        return self._by_address(reference["address"], schema)

    def _by_address(self, address: str, schema: str | None) -> Memory:
        with _lock:
            living: list[Memory] = [
                mem for mem in (*_known, *_opened.values()) if _place(mem) == (address, schema or _SCHEMA)
            ]
        if living:
            return living[0]
        dsn = os.environ.get(_DSN_VARIABLE)
        if dsn:
            mem = _client("dsn", dsn, schema)
            if mem.dsn == address:
                mem.start()
                return mem
        met = f"{_DSN_VARIABLE} leads elsewhere" if dsn else f"the environment has no {_DSN_VARIABLE}"
        raise ConfigurationError(
            f"this was written by a process with a memory at {address}, and {met}; set it to that database's DSN, or"
            " build with dsn='env:NAME' or a client named by register_memory"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return Handle.restored, (self.reference,)

    def __copy__(self) -> Handle:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Handle:
        return self

    def __repr__(self) -> str:
        return f"Handle({', '.join(f'{key}={value}' for key, value in self.reference.items())})"


def _check(mem: Memory) -> Memory:
    if not isinstance(mem, PgMem | AsyncPgMem):
        raise InvalidArgument(f"mem must be a PgMem or AsyncPgMem, got {type(mem).__name__}; a URL is passed as dsn=")
    return mem


def _place(mem: Memory) -> tuple[str, str]:
    return mem.dsn, mem.settings.schema_name


def _reference_of(mem: Memory) -> dict[str, str]:
    server = mem._server
    reference = {"address": mem.dsn} if server is None else {"embedded": str(server.path)}
    if mem.settings.schema_name != _SCHEMA:
        reference["schema"] = mem.settings.schema_name
    return reference


def _client(kind: str, place: str, schema: str | None) -> PgMem:
    """Return this process's client for a place; one to a database connects at its first call."""
    with _lock:
        mem = _opened.get((kind, place, schema or ""))
        if mem is None:
            options: dict[str, Any] = {} if schema is None else {"schema_name": schema}
            mem = PgMem(place, **options) if kind == "dsn" else PgMem.embedded(place, **options)
            _opened[kind, place, schema or ""] = mem
    return mem


def _open(kind: str, place: str, schema: str | None) -> PgMem:
    """Return the same with its worker running: what is written through an adapter is embedded and formed."""
    mem = _client(kind, place, schema)
    mem.start()  # also after a fork; a second call changes nothing
    return mem
