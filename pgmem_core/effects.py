"""The effects a flow may ask for, and the two executors that perform them.

A flow is a generator: it yields an effect and is sent its result (or has its error thrown in). It holds no
connection and knows no `await`, so one source serves `PgMem` and `AsyncPgMem`. This file alone knows both.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from pgmem_core.database.connection import Connection
from pgmem_core.database.engine import Database
from pgmem_core.errors import EmbeddingError, PgmemError
from pgmem_core.protocols import Embedder, Vectors
from pgmem_core.threads import embedding_pool

__all__ = ["Effect", "EmbedTimeout", "Flow", "arun", "blocking", "consult", "embed", "pause", "run", "transact"]

T = TypeVar("T")
Flow = Generator["Effect", Any, T]


class EmbedTimeout(EmbeddingError):
    """The embedder took longer than it was given; its work goes on and lands in the query cache."""


class Effect(Protocol):
    """Something a flow needs done in the world."""

    def perform(self, database: Database) -> Any: ...

    async def aperform(self, database: Database) -> Any: ...


@dataclass(frozen=True, slots=True)
class Transact:
    """Run one operation on a connection."""

    operation: Callable[[Connection], Any]
    single: bool
    given: Any

    def perform(self, database: Database) -> Any:
        return database.run(self.operation, single=self.single, given=self.given)

    async def aperform(self, database: Database) -> Any:
        return await database.arun(self.operation, single=self.single, given=self.given)


@dataclass(frozen=True, slots=True)
class Embed:
    """Turn texts into vectors, within timeout_seconds if one is given."""

    embedder: Embedder
    texts: Sequence[str]
    timeout_seconds: float | None
    on_late: Callable[[Vectors], None] | None = field(default=None)

    def perform(self, database: Database) -> Vectors:
        if self.embedder.local or self.timeout_seconds is None:
            return self.embedder.embed(self.texts)
        future = embedding_pool().submit(self.embedder.embed, self.texts)
        try:
            return future.result(self.timeout_seconds)
        except FutureTimeout:
            # What has not begun is dropped; what has begun is too late for this read, not for the cache.
            if not future.cancel() and self.on_late is not None:
                late = self.on_late
                future.add_done_callback(lambda f: None if f.exception() else late(f.result()))
            raise EmbedTimeout(self._slow()) from None

    async def aperform(self, database: Database) -> Vectors:
        if self.embedder.local:
            return self.embedder.embed(self.texts)
        if self.timeout_seconds is None:
            return await self.embedder.aembed(self.texts)
        task = asyncio.ensure_future(self.embedder.aembed(self.texts))
        try:
            done, _ = await asyncio.wait({task}, timeout=self.timeout_seconds)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if done:
            return task.result()
        task.add_done_callback(self._finish_late)
        raise EmbedTimeout(self._slow())

    def _finish_late(self, task: asyncio.Task[Vectors]) -> None:
        # Asking for the exception also marks it as seen: a late failure is nobody's news.
        if not task.cancelled() and task.exception() is None and self.on_late is not None:
            self.on_late(task.result())

    def _slow(self) -> str:
        return f"embedder {self.embedder.model!r} took longer than {self.timeout_seconds} s"


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait."""

    seconds: float

    def perform(self, database: Database) -> None:
        time.sleep(self.seconds)

    async def aperform(self, database: Database) -> None:
        await asyncio.sleep(self.seconds)


def transact(
    operation: Callable[..., T], *arguments: Any, single: bool = False, given: Any = None, **keywords: Any
) -> Flow[T]:
    """Ask for operation(connection, *arguments, **keywords): in a transaction of its own, in autocommit if it
    is a single statement, or on the caller's connection (`given`)."""
    done: T = yield Transact(lambda conn: operation(conn, *arguments, **keywords), single, given)
    return done


def embed(
    embedder: Embedder,
    texts: Sequence[str],
    *,
    timeout_seconds: float | None = None,
    on_late: Callable[[Vectors], None] | None = None,
) -> Flow[Vectors]:
    """Ask for vectors. Raises: EmbedTimeout, EmbeddingError (whatever the embedder raised, named)."""
    try:
        vectors: Vectors = yield Embed(embedder, texts, timeout_seconds, on_late)
        return vectors
    except PgmemError:
        raise
    except Exception as exc:
        raise EmbeddingError(
            f"embedder {embedder.model!r} failed on {len(texts)} text(s): {type(exc).__name__}: {exc}"
        ) from exc


@dataclass(frozen=True, slots=True)
class Blocking:
    """Do something that takes CPU or waits, without stopping an event loop."""

    work: Callable[[], Any]

    def perform(self, database: Database) -> Any:
        return self.work()

    async def aperform(self, database: Database) -> Any:
        return await asyncio.to_thread(self.work)


def blocking(work: Callable[[], T]) -> Flow[T]:
    """Ask for work(), in a thread where awaiting."""
    done: T = yield Blocking(work)
    return done


@dataclass(frozen=True, slots=True)
class Consult:
    """Ask something that has a blocking form and one to await, such as a model."""

    call: Callable[[], Any]
    acall: Callable[[], Awaitable[Any]]

    def perform(self, database: Database) -> Any:
        try:
            return self.call()
        except asyncio.CancelledError as exc:  # of a loop of the model's own: nothing here was cancelled
            raise RuntimeError("it was cancelled from within") from exc

    async def aperform(self, database: Database) -> Any:
        return await self.acall()


def consult(call: Callable[[], T], acall: Callable[[], Awaitable[T]]) -> Flow[T]:
    """Ask for call(), or for what acall() gives where awaiting. Raises what they raise."""
    done: T = yield Consult(call, acall)
    return done


def pause(seconds: float) -> Flow[None]:
    """Ask to wait."""
    yield Pause(seconds)


def run(flow: Flow[T], database: Database) -> T:
    """Drive a flow to its end, blocking."""
    try:
        effect = next(flow)
        while True:
            try:
                result = effect.perform(database)
            except Exception as exc:
                effect = flow.throw(exc)
            else:
                effect = flow.send(result)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        flow.close()


async def arun(flow: Flow[T], database: Database) -> T:
    """Drive a flow to its end, awaiting. A cancelled caller cancels the effect under way and closes the flow."""
    try:
        effect = next(flow)
        while True:
            try:
                result = await effect.aperform(database)
            except Exception as exc:
                effect = flow.throw(exc)
            else:
                effect = flow.send(result)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        flow.close()
