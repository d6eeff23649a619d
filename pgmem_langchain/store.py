"""`PgMemStore`: LangGraph's long-term store, in the memory's own Postgres.

    store = PgMemStore(mem)                                  # or PgMemStore(dsn="postgresql://localhost/app")
    store.put(("users", "u_1"), "food", {"text": "Ada is vegetarian"})
    store.search(("users", "u_1"), query="what does she eat?")
    graph = builder.compile(store=store)                     # sync and async nodes alike

One class for both worlds: `put` and `aput`, `search` and `asearch` and so on work on the same object, the blocking
ones also where an event loop runs (they block it). `PgMemStore.from_conn_string(...)` takes the arguments of
`PostgresStore` and `AsyncPostgresStore` and stands in for either, in `with` and in `async with`.

What differs from LangGraph's own stores, on purpose:

- A search is **hybrid** unless `ranking="dense"` is asked for: words (BM25) and meaning together. Its score, 0..1,
  falls with the rank and compares within one search only; dense scores are the metric (cosine, -1..1).
- Items are indexed without any configuration, by the embedder of the memory; `index=False` here indexes nothing.
- The field `"$"`, the whole item, is embedded as text (`food: vegetarian`), not as JSON with its braces.
- What has **expired** is never returned, listed, counted or revived by a read, swept or not.
- A **new value replaces all** that was indexed of the old one.
- **Filters** are those of pgmem: `$eq $ne $gt $gte $lt $lte $in $nin $exists`, `and`, `or`, `not`; numbers compare as
  numbers, aware datetimes as times, `a.b` looks into nested objects; what is not known raises.
- Values are kept by the rules of `pgmem_core.encoding`: aware datetimes, UUIDs, decimals, sets and NUL characters have
  a documented form, bytes and other objects are refused before anything is written.

Items are a memory of their own: none becomes a turn, a fact, or a part of a compiled context.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal, Self

from langgraph.store.base import (
    BaseStore,
    GetOp,
    IndexConfig,
    Item,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    validate_op_namespace,
)

from pgmem_core import AsyncPgMem, PgMem, items
from pgmem_core.effects import arun, run
from pgmem_core.errors import InvalidArgument
from pgmem_core.ids import check_id
from pgmem_core.tiers.items import StoredItem
from pgmem_langchain.clients import runtime_of
from pgmem_langchain.store_config import Texts, pool_options, read_fields, read_index, read_ttl

__all__ = ["AsyncPgMemStore", "PgMemStore"]

log = logging.getLogger(__name__)

Ranking = Literal["hybrid", "dense"]
_SWEEP_MINUTES = 5.0


class PgMemStore(BaseStore):
    """A LangGraph store over pgmem, sync and async.

    `mem`: a PgMem or AsyncPgMem, or `dsn=` (default: the environment's `PGMEM_DSN`), for a client that the process
    shares; neither is closed by the store. `group_id`: the tenant, fixed here; nothing crosses it. `index`: LangGraph's
    config (`dims`, `embed`, `fields`; of PostgresStore's also `distance_type` and, of `ann_index_config`, the kind
    "flat" for exact searches); without `embed` the memory's embedder is used; False indexes nothing, and a query then
    lists. `ttl`: LangGraph's config, in minutes. `ranking`: "hybrid" or "dense".

    Raises: InvalidArgument, naming an unknown key. LangGraph's methods raise InvalidArgument and InvalidFilter (both
    ValueErrors), WriteRefused, EmbeddingError, StoreUnavailable; of a batch all or nothing is written.
    """

    supports_ttl = True

    def __init__(
        self,
        mem: PgMem | AsyncPgMem | None = None,
        *,
        dsn: str | None = None,
        group_id: str = "default",
        index: IndexConfig | Mapping[str, Any] | Literal[False] | None = None,
        ttl: TTLConfig | None = None,
        ranking: Ranking = "hybrid",
    ) -> None:
        super().__init__()
        if ranking not in ("hybrid", "dense"):
            raise InvalidArgument(f"ranking is 'hybrid' or 'dense', got {ranking!r}")
        self._shelf, self._fields = read_index(index)
        self._shelf = replace(self._shelf, tenant_id=check_id(group_id, "group_id"), hybrid=ranking == "hybrid")
        self.index_config: dict[str, Any] | None = dict(index) if index else None
        self.embeddings = index.get("embed") if index else None
        self.ttl_config = read_ttl(ttl)
        self._rt = runtime_of(mem, dsn)
        self._own: PgMem | None = None  # the client that from_conn_string made, to be closed
        self._stop = threading.Event()
        self._sweeper: threading.Thread | None = None
        self._gates: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            weakref.WeakKeyDictionary()
        )

    @classmethod
    def from_conn_string(
        cls,
        conn_string: str,
        *,
        pipeline: bool = False,
        pool_config: Mapping[str, Any] | None = None,
        index: IndexConfig | Mapping[str, Any] | Literal[False] | None = None,
        ttl: TTLConfig | None = None,
        group_id: str = "default",
        ranking: Ranking = "hybrid",
    ) -> _Opening:
        """Return what `with` and `async with` open: a store of its own connections, closed at the end.

        `with` gives a PgMemStore, `async with` an AsyncPgMemStore. `pool_config`: `max_size`, and `kwargs` that are
        libpq's parameters. `pipeline` is accepted and not needed: every operation is one round trip.
        """
        return _Opening(
            conn_string,
            pool_options(pool_config),
            {"index": index, "ttl": ttl, "group_id": group_id, "ranking": ranking},
        )

    # -- LangGraph's two methods, which carry all others -------------------------------------------------------------

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Do several operations; reads see the state before the batch, of two puts of a key the last counts."""
        asked = list(ops)
        found = run(items.batch(self._rt, self._shelf, self._translated(asked)), self._rt.database)
        return _results(asked, found)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """The same, awaited."""
        asked = list(ops)
        wanted = self._translated(asked)
        # Ten thousand at once wait here, where nobody's patience ends, and not for a connection, which has 30 s.
        async with self._gate():
            found = await arun(items.batch(self._rt, self._shelf, wanted), self._rt.database)
        return _results(asked, found)

    def _gate(self) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        gate = self._gates.get(loop)
        if gate is None:
            gate = self._gates[loop] = asyncio.Semaphore(self._rt.settings.pool_size)
        return gate

    def _translated(self, ops: Sequence[Op]) -> list[items.Op]:
        return [self._one(op) for op in ops]

    def _one(self, op: Op) -> items.Op:
        validate_op_namespace(op)
        match op:
            case GetOp():
                return items.Get(tuple(op.namespace), str(op.key), op.refresh_ttl)
            case PutOp():
                return items.Put(
                    tuple(op.namespace),
                    str(op.key),
                    op.value,
                    self._texts(op.index),
                    None if op.value is None else op.ttl,
                )
            case SearchOp():
                return items.Find(tuple(op.namespace_prefix), op.query, op.filter, op.limit, op.offset, op.refresh_ttl)
            case ListNamespacesOp():
                return items.ListNamespaces(
                    tuple(_match(each.match_type, each.path) for each in op.match_conditions or () if each.path),
                    op.max_depth, op.limit, op.offset,
                )  # fmt: skip
        raise InvalidArgument(f"an operation is a GetOp, PutOp, SearchOp or ListNamespacesOp, got {type(op).__name__}")

    def _texts(self, index: Literal[False] | Sequence[str] | None) -> Texts | None:
        if index is False:
            return None
        if index is None:
            return Texts(self._fields)
        return Texts(read_fields(index))

    # -- setting up, and what expires --------------------------------------------------------------------------------

    def setup(self) -> None:
        """Create or upgrade the schema. Every operation does it at first use; call it to have it done early."""
        run(items.setup(self._rt, self._shelf), self._rt.database)

    async def asetup(self) -> None:
        """The same, awaited."""
        await arun(items.setup(self._rt, self._shelf), self._rt.database)

    def sweep_ttl(self) -> int:
        """Delete what has expired, which no read returns anyway; return how many items that were."""
        return run(items.sweep(self._rt, self._shelf), self._rt.database)

    async def asweep_ttl(self) -> int:
        """The same, awaited."""
        return await arun(items.sweep(self._rt, self._shelf), self._rt.database)

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> Future[None]:
        """Sweep in a thread of its own, every so many minutes (default: the config's, else 5), until stopped.

        Returns a future that ends with the sweeper; cancelling it stops the sweeper. Without a `ttl` config nothing
        is started, as in PostgresStore.
        """
        future: Future[None] = Future()
        if not self.ttl_config:
            future.set_result(None)
            return future
        if self._sweeper is None or not self._sweeper.is_alive():
            minutes = sweep_interval_minutes or self.ttl_config.get("sweep_interval_minutes") or _SWEEP_MINUTES
            stop = self._stop = threading.Event()
            self._sweeper = threading.Thread(
                target=_sweep_loop, args=(weakref.ref(self), stop, float(minutes) * 60, future), name="pgmem-items-ttl",
                daemon=True,
            )  # fmt: skip
            self._sweeper.start()
        stop = self._stop
        future.add_done_callback(lambda ended: stop.set() if ended.cancelled() else None)
        return future

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Stop the sweeper; False if it had not ended after `timeout` seconds."""
        self._stop.set()
        if self._sweeper is not None and self._sweeper is not threading.current_thread():
            self._sweeper.join(timeout)
            if self._sweeper.is_alive():
                return False
        self._sweeper = None
        return True

    # -- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop the sweeper, and close the connections that `from_conn_string` opened."""
        self.stop_ttl_sweeper()
        if self._own is not None:
            self._own.close()

    async def aclose(self) -> None:
        """The same, awaited: it closes the running loop's connections too."""
        await asyncio.to_thread(self.stop_ttl_sweeper)
        if self._own is not None:
            await self._rt.database.aclose()
            self._own.close()

    def __enter__(self) -> Self:
        self.setup()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await self.asetup()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._rt.database.address}, group_id={self._shelf.tenant_id!r})"


class AsyncPgMemStore(PgMemStore):
    """PgMemStore where `setup` and the methods of the sweeper are awaited too, as AsyncPostgresStore has them.

    What `async with PgMemStore.from_conn_string(...)` gives. `get` and `put` still block, `aget` and `aput` are
    awaited.
    """

    async def setup(self) -> None:  # type: ignore[override]
        await self.asetup()

    async def sweep_ttl(self) -> int:  # type: ignore[override]
        return await self.asweep_ttl()

    async def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> asyncio.Future[None]:  # type: ignore[override]
        return asyncio.wrap_future(super().start_ttl_sweeper(sweep_interval_minutes))

    async def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:  # type: ignore[override]  # noqa: ASYNC109
        return await asyncio.to_thread(super().stop_ttl_sweeper, timeout)

    def close(self) -> None:
        super().stop_ttl_sweeper()
        if self._own is not None:
            self._own.close()

    async def aclose(self) -> None:
        await self.stop_ttl_sweeper()
        if self._own is not None:
            await self._rt.database.aclose()
            self._own.close()

    def __enter__(self) -> Self:
        raise TypeError("an AsyncPgMemStore is opened by 'async with'; use PgMemStore in 'with'")


class _Opening:
    """What `from_conn_string` returns."""

    def __init__(self, conn_string: str, pool: dict[str, Any], options: dict[str, Any]) -> None:
        self._conn_string, self._pool, self._options = conn_string, pool, options
        self._store: PgMemStore | None = None

    def _open(self, kind: type[PgMemStore]) -> PgMemStore:
        mem = PgMem(self._conn_string, **self._pool)
        self._store = kind(mem, **self._options)
        self._store._own = mem
        return self._store

    def __enter__(self) -> PgMemStore:
        store = self._open(PgMemStore)
        try:
            store.setup()
        except BaseException:
            store.close()
            raise
        return store

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._store is not None
        self._store.close()

    async def __aenter__(self) -> AsyncPgMemStore:
        store = self._open(AsyncPgMemStore)
        assert isinstance(store, AsyncPgMemStore)
        try:
            await store.asetup()
        except BaseException:
            await store.aclose()
            raise
        return store

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._store is not None
        await self._store.aclose()


def _sweep_loop(store: weakref.ref[PgMemStore], stop: threading.Event, seconds: float, future: Future[None]) -> None:
    # A weak reference: a store that nobody holds any more ends its sweeper.
    while not stop.wait(seconds):
        held = store()
        if held is None:
            break
        try:
            swept = PgMemStore.sweep_ttl(held)
        except Exception as exc:
            log.warning("expired items were not swept: %s: %s", type(exc).__name__, exc)
        else:
            if swept:
                log.info("%d expired items were swept", swept)
        del held
    if future.set_running_or_notify_cancel():
        future.set_result(None)


# -- results and operations ------------------------------------------------------------------------------------------


def _results(ops: Sequence[Op], found: Sequence[Any]) -> list[Result]:
    return [_result(op, each) for op, each in zip(ops, found, strict=True)]


def _result(op: Op, found: Any) -> Result:
    if isinstance(found, StoredItem):
        return Item(
            value=found.value, key=found.key, namespace=found.namespace, created_at=found.created_at,
            updated_at=found.updated_at,
        )  # fmt: skip
    if isinstance(op, SearchOp):
        return [
            SearchItem(each.namespace, each.key, each.value, each.created_at, each.updated_at, each.score)
            for each in found
        ]
    return found  # type: ignore[no-any-return]


def _match(kind: str, path: Sequence[str]) -> items.Match:
    if kind not in ("prefix", "suffix"):
        raise InvalidArgument(f"namespaces match by 'prefix' or 'suffix', got {kind!r}")
    labels = (path,) if isinstance(path, str) else path
    at: Literal["prefix", "suffix"] = "prefix" if kind == "prefix" else "suffix"
    return items.Match(at, tuple(None if label == "*" else label for label in labels))
