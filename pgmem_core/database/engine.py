"""Engines from one DSN: a sync one, and an async one for each event loop.

A process that forks gets engines of its own (the parent's are set aside unclosed: their sockets are the
parent's). A loop that has closed takes its engine with it. Reads and one-statement writes run in autocommit:
SQLAlchemy's BEGIN, SELECT, ROLLBACK would be three round trips instead of one.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy import Connection as SAConnection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection as SAAsyncConnection
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session as ORMSession
from sqlalchemy.util import greenlet_spawn

from pgmem_core.database.connection import (
    AsyncPsycopgConnection,
    Connection,
    PooledConnection,
    PsycopgConnection,
    VectorType,
)
from pgmem_core.database.faults import translate
from pgmem_core.errors import ConfigurationError, InvalidArgument, StoreUnavailable
from pgmem_core.settings import Settings

__all__ = ["Database", "parse_dsn"]

T = TypeVar("T")
E = TypeVar("E", Engine, AsyncEngine)
Operation = Callable[[Connection], T]

# Engines of a parent process, kept so that no destructor of the child speaks on the parent's sockets.
_inherited: list[object] = []
# Autocommit forms that are kept: the sync engine's and those of the last loops.
_MOST_ENGINES = 4
# A loop keeps no reference to its tasks.
_unfinished: set[asyncio.Future[None]] = set()


def parse_dsn(dsn: str) -> dict[str, Any]:
    """Return libpq's parameters of a URL or keyword DSN. SQLAlchemy's `postgresql+driver://` is taken too.

    Raises: ConfigurationError, without echoing the password.
    """
    if not isinstance(dsn, str) or not dsn.strip():
        met = "an empty one" if isinstance(dsn, str) else f"{type(dsn).__module__}.{type(dsn).__name__}"
        raise ConfigurationError(
            "dsn must be a string such as 'postgresql://user@host/dbname' or a SQLAlchemy engine (psycopg driver),"
            f" got {met}; pgmem keeps a pool of its own (pool_size=...)"
        )
    scheme, found, rest = dsn.partition("://")
    if found:
        base = scheme.partition("+")[0]
        if base not in ("postgresql", "postgres"):
            raise ConfigurationError(f"dsn scheme {base!r} is not Postgres; use postgresql://user@host/dbname")
        dsn = f"postgresql://{rest}"
    try:
        return dict(conninfo_to_dict(dsn))
    except psycopg.ProgrammingError:
        # libpq's message quotes the string it could not read, and with it the password.
        raise ConfigurationError(
            "dsn could not be read; write postgresql://user:password@host:5432/dbname, with special characters in"
            " the password percent-encoded"
        ) from None


def _address(parameters: dict[str, Any]) -> str:
    host = parameters.get("host") or parameters.get("hostaddr") or "localhost"
    place = str(host) if str(host).startswith("/") else f"{host}:{parameters.get('port') or 5432}"
    return f"{place}/{parameters.get('dbname') or parameters.get('user') or ''}"


class Database:
    """Where pgmem's tables live, and every connection to them."""

    def __init__(self, dsn: str | Engine | AsyncEngine, settings: Settings) -> None:
        self.settings = settings
        self.schema = settings.schema_name
        self.vector: VectorType | None = None
        # Brings an embedded server back that was killed under us; 2 ms where it is healthy.
        self.revive: Callable[[], object] | None = None
        self._given_sync: Engine | None = None
        self._given_async: AsyncEngine | None = None
        self._parameters: dict[str, Any] = {}
        if isinstance(dsn, Engine):
            self._given_sync = _check_driver(dsn)
            self.address = _address(dict(dsn.url.translate_connect_args()))
        elif isinstance(dsn, AsyncEngine):
            self._given_async = dsn
            _check_driver(dsn.sync_engine)
            self.address = _address(dict(dsn.url.translate_connect_args()))
        else:
            self._parameters = parse_dsn(dsn)
            self.address = _address(self._parameters)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._sync: Engine | None = None
        self._by_loop: dict[asyncio.AbstractEventLoop, _LoopEngine] = {}
        self._autocommit: dict[int, tuple[Any, Any]] = {}  # by id of the engine: that engine, and it in autocommit

    def __repr__(self) -> str:
        return f"Database({self.address}, schema={self.schema})"

    # -- engines ---------------------------------------------------------------------------------------------

    def _arguments(self) -> dict[str, Any]:
        s = self.settings
        connect: dict[str, Any] = {"connect_timeout": s.connect_timeout_seconds, **self._parameters}
        connect.setdefault("application_name", "pgmem")
        connect["client_encoding"] = "UTF8"  # PGCLIENTENCODING or the DSN may say one that cannot hold every text
        # Else text from a SQL_ASCII database arrives as bytes, and setup could not even say that it will not do.
        connect["client_encoding"] = "utf8"
        if s.pooler == "pgbouncer":
            # Behind transaction pooling 61 of 480 calls failed with prepared statements, none without.
            connect["prepare_threshold"] = None
        return {
            "connect_args": connect,
            "pool_size": s.pool_size,
            "max_overflow": s.max_overflow,
            "pool_timeout": s.pool_timeout_seconds,
            "use_native_hstore": False,
            "hide_parameters": True,  # memory content stays out of error texts and logs
        }

    def _check_fork(self) -> None:
        if self._pid != os.getpid():
            _inherited.append((self._sync, self._by_loop))
            self._lock = threading.Lock()
            self._pid, self._sync, self._by_loop, self._autocommit = os.getpid(), None, {}, {}

    def sync_engine(self) -> Engine:
        """The sync engine of this process."""
        self._check_fork()
        if self._given_sync is not None:
            return self._given_sync
        url = make_url("postgresql+psycopg://")
        if self._given_async is not None:  # the thread beside the turn and the worker need one of the same database
            url = self._given_async.url.set(drivername="postgresql+psycopg")
            if url.host is None and url.database is None and not url.query:
                raise ConfigurationError(
                    "the AsyncEngine has no URL to build a sync side from (it connects by creator= or connect_args=);"
                    " build the client on a DSN"
                )
        with self._lock:
            if self._sync is None:
                engine = create_engine(url, **self._arguments())
                event.listen(engine, "connect", self._on_connect)
                self._sync = engine
            return self._sync

    def async_engine(self) -> AsyncEngine:
        """The async engine of the running loop. Raises: ConfigurationError on Windows' Proactor loop."""
        self._check_fork()
        if self._given_async is not None:
            return self._given_async
        if self._given_sync is not None:
            raise ConfigurationError(
                "this client was built on a sync Engine and has no async side; build AsyncPgMem on a DSN"
            )
        loop = asyncio.get_running_loop()
        if any(kind.__name__ == "ProactorEventLoop" for kind in type(loop).__mro__):
            raise ConfigurationError(
                "psycopg cannot work on Windows' ProactorEventLoop; run your coroutine with"
                " asyncio.Runner(loop_factory=asyncio.SelectorEventLoop), or use PgMem (sync)"
            )
        with self._lock:
            for other in [known for known in self._by_loop if known.is_closed()]:
                self._by_loop.pop(other).abandon()
            if loop not in self._by_loop:
                self._by_loop[loop] = _LoopEngine(self._arguments(), self._on_connect)
            return self._by_loop[loop].engine

    def url_and_arguments(self) -> tuple[URL, dict[str, Any]]:
        """Return what `create_async_engine` takes to reach the same database, for an engine of somebody else's."""
        given = self._given_sync or (self._given_async and self._given_async.sync_engine)
        if given is not None:
            return given.url.set(drivername="postgresql+psycopg"), {}
        return make_url("postgresql+psycopg://"), self._arguments()

    def _on_connect(self, dbapi_connection: Any, record: Any) -> None:
        if self.vector is not None:
            self.vector.register(_driver(dbapi_connection))
            record.info["pgmem_vector"] = True

    def close(self, *, every_loop: bool = False) -> None:
        """Close the sync engine's connections, and those of loops that are closed; with `every_loop` those of running
        ones too, which nothing may be waiting on any more."""
        self._check_fork()
        with self._lock:
            if self._sync is not None:
                self._sync.dispose()
                self._sync = None
            for loop in [known for known in self._by_loop if every_loop or known.is_closed()]:
                self._by_loop.pop(loop).abandon()
            self._autocommit = {}

    async def aclose(self) -> None:
        """Close the running loop's engine, then what `close` closes."""
        self._check_fork()
        own = self._by_loop.pop(asyncio.get_running_loop(), None)
        if own is not None:
            await own.engine.dispose()
        self.close()

    # -- connections -----------------------------------------------------------------------------------------

    def _pooled(self, connection: SAConnection) -> PooledConnection:
        info = connection.connection.info
        if self.vector is not None and not info.get("pgmem_vector"):
            self.vector.register(connection.connection.driver_connection)
            info["pgmem_vector"] = True
        return PooledConnection(connection, self.schema, self.vector)

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as exc:
            raise translate(exc.orig, self.address, lost=exc.connection_invalidated) from exc
        except psycopg.Error as exc:
            raise translate(exc, self.address) from exc
        except PoolTimeout as exc:
            s = self.settings
            fault = StoreUnavailable(
                f"all connections to Postgres at {self.address} were busy for {s.pool_timeout_seconds} s"
                f" (pool_size {s.pool_size}, max_overflow {s.max_overflow}); raise pool_size, or do less at once"
            )
            fault.retry = False  # type: ignore[attr-defined]
            raise fault from exc

    def run(self, operation: Operation[T], *, single: bool, given: Any = None) -> T:
        """Run operation on a connection: autocommit if it is a single statement, else in a transaction of its
        own; on the caller's connection if one is given, in the caller's transaction (in one of its own where the
        caller's connection is in autocommit: all or nothing there too). Retried if lost, but for a given one."""
        if given is not None:
            with self._faults():
                joined, driver = self._join(given)
                with nullcontext() if single or not driver.autocommit else driver.transaction():
                    return operation(joined)
        engine = self.sync_engine()
        if single:
            engine = self._in_autocommit(engine)
        for attempt in (1, 2, 3):
            try:
                with self._faults(), engine.connect() if single else engine.begin() as connection:
                    return operation(self._pooled(connection))
            except StoreUnavailable as exc:
                if attempt == 3 or not self._worth_retrying(exc):
                    raise
        raise AssertionError("unreachable")

    async def arun(self, operation: Operation[T], *, single: bool, given: Any = None) -> T:
        """The same, awaited."""
        if given is not None:
            with self._faults():
                joined, driver = await self._ajoin(given)
                async with nullcontext() if single or not driver.autocommit else driver.transaction():
                    return await joined(operation)
        engine = self.async_engine()
        if single:
            engine = self._in_autocommit(engine)
        for attempt in (1, 2, 3):
            try:
                with self._faults():
                    async with _checked_out(engine) as connection, nullcontext() if single else connection.begin():
                        return await connection.run_sync(lambda inner: operation(self._pooled(inner)))
            except StoreUnavailable as exc:
                if attempt == 3 or not await asyncio.to_thread(self._worth_retrying, exc):
                    raise
        raise AssertionError("unreachable")

    def _in_autocommit(self, engine: E) -> E:
        """Return the engine in autocommit; made once, because making it takes 0.1 ms."""
        known = self._autocommit.get(id(engine))
        if known is None or known[0] is not engine:
            known = self._autocommit[id(engine)] = engine, engine.execution_options(isolation_level="AUTOCOMMIT")
            while len(self._autocommit) > _MOST_ENGINES:  # loops come and go
                self._autocommit.pop(next(iter(self._autocommit)), None)
        return known[1]

    def _worth_retrying(self, fault: StoreUnavailable) -> bool:
        retry: bool | None = getattr(fault, "retry", None)
        if self.revive is not None and retry is not False:
            self.revive()
            return True
        return bool(retry)

    def _join(self, given: Any) -> tuple[Connection, Any]:
        """Return the caller's connection as operations see it, and the driver's own under it."""
        if isinstance(given, ORMSession):
            given = given.connection()
        if isinstance(given, SAConnection):
            _check_driver(given.engine)
            driver = given.connection.driver_connection
            return PooledConnection(given, self.schema, self.vector, foreign=True), driver
        if isinstance(given, psycopg.Connection):
            return PsycopgConnection(given, self.schema, self.vector), given
        raise InvalidArgument(
            f"connection= got {type(given).__module__}.{type(given).__name__}; the sync client joins a SQLAlchemy"
            " Connection or Session (psycopg driver) or a psycopg.Connection"
        )

    async def _ajoin(self, given: Any) -> tuple[Callable[[Operation[T]], Awaitable[T]], Any]:
        """Return what runs an operation on the caller's connection, and the driver's own under it."""
        if isinstance(given, AsyncSession):
            given = await given.connection()
        if isinstance(given, SAAsyncConnection):
            _check_driver(given.engine.sync_engine)
            alchemy: SAAsyncConnection = given

            def join(operation: Operation[T]) -> Awaitable[T]:
                return alchemy.run_sync(
                    lambda inner: operation(PooledConnection(inner, self.schema, self.vector, foreign=True))
                )

            return join, (await alchemy.get_raw_connection()).driver_connection
        if isinstance(given, psycopg.AsyncConnection):
            joined: Connection = AsyncPsycopgConnection(given, self.schema, self.vector)
            return lambda operation: greenlet_spawn(operation, joined), given
        raise InvalidArgument(
            f"connection= got {type(given).__module__}.{type(given).__name__}; the async client joins a SQLAlchemy"
            " AsyncConnection or AsyncSession (psycopg driver) or a psycopg.AsyncConnection"
        )


@asynccontextmanager
async def _checked_out(engine: AsyncEngine) -> AsyncIterator[SAAsyncConnection]:
    """Yield a connection of the pool and give it back, also where the caller is cancelled while it is fetched.

    SQLAlchemy awaits between taking a connection and handing it over (it sets autocommit): cancelled there, it is
    left to the garbage collector, which throws it away and logs an error, one a cancelled call.
    """
    fetching = asyncio.ensure_future(_start(engine))
    try:
        connection = await asyncio.shield(fetching)
    except asyncio.CancelledError:
        _unfinished.add(giving_back := asyncio.ensure_future(_give_back(fetching)))
        giving_back.add_done_callback(_unfinished.discard)
        raise
    try:
        yield connection
    finally:
        await asyncio.shield(asyncio.ensure_future(connection.close()))


async def _start(engine: AsyncEngine) -> SAAsyncConnection:
    return await engine.connect()


async def _give_back(fetching: asyncio.Future[SAAsyncConnection]) -> None:
    with suppress(Exception):  # nobody waits for this connection any more, nor for why there is none
        await (await fetching).close()


class _LoopEngine:
    """An async engine and the driver connections it opened, so that they can be closed without its loop."""

    def __init__(self, arguments: dict[str, Any], on_connect: Callable[[Any, Any], None]) -> None:
        self.engine = create_async_engine("postgresql+psycopg://", **arguments)
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()
        event.listen(self.engine.sync_engine, "connect", on_connect)
        event.listen(self.engine.sync_engine, "connect", lambda c, _: self._open.add(_driver(c)))

    def abandon(self) -> None:
        """Close the sockets of an engine whose loop is gone: nothing can be awaited any more."""
        self.engine.sync_engine.dispose(close=False)
        for connection in list(self._open):
            connection.pgconn.finish()


def _driver(dbapi_connection: Any) -> Any:
    """psycopg's own connection; SQLAlchemy wraps the async one and passes the sync one as it is."""
    return getattr(dbapi_connection, "driver_connection", dbapi_connection)


def _check_driver(engine: Engine) -> Engine:
    if engine.dialect.name != "postgresql" or engine.dialect.driver not in ("psycopg", "psycopg_async"):
        raise ConfigurationError(
            f"the engine speaks {engine.dialect.name}+{engine.dialect.driver}; pgmem needs postgresql+psycopg"
        )
    return engine


@asynccontextmanager
async def closing(database: Database) -> AsyncIterator[Database]:
    """Yield database and close it at the end."""
    try:
        yield database
    finally:
        await database.aclose()
