"""langchain-postgres' own `PGVectorStore` on a read-only view of a user's memories."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

from langchain_postgres import PGEngine, PGVectorStore

from pgmem_core import asking
from pgmem_core.database import views
from pgmem_core.effects import Flow, arun, run, transact
from pgmem_core.errors import ConfigurationError, InvalidArgument
from pgmem_core.flows import store_model
from pgmem_core.runtime import Runtime
from pgmem_core.storing import prepare
from pgmem_core.types import Scope
from pgmem_langchain.clients import runtime_of
from pgmem_langchain.vectorstore import PgMemEmbeddings

__all__ = ["aas_vectorstore", "as_vectorstore"]


def as_vectorstore(
    mem: Any,
    scope: Scope | None = None,
    *,
    user_id: str | None = None,
    group_id: str = "default",
    engine: PGEngine | None = None,
    **options: Any,
) -> PGVectorStore:
    """Return a `PGVectorStore` that reads one user's memories: similarity, MMR and filters, by the model's own index.

    `scope`, or `user_id` and `group_id`: whose memories. Every transaction of the store names that scope; a statement
    that does not comes back empty. The view refuses to be written to. `engine`: a PGEngine to run on (its pool is
    shared, its other stores are left as they are); by default one of its own, closed with the store. `options`: those
    of `PGVectorStore.create_sync`, such as `k`, `fetch_k`, `lambda_mult`.

    Filters are PGVectorStore's, on the memory's metadata and on kind, session_id, role, seq and created_at. Scores
    are its distances: 0 for the same direction, 2 for the opposite. Texts are as Postgres holds them (see
    `pgmem_core.encoding` for what it cannot hold). The first call for an embedder makes its view, which takes the
    owner of the schema.

    Raises: ConfigurationError for a PGEngine without a sync side, PermissionDenied, InvalidArgument.
    """
    checked = _checked(scope, group_id, user_id)
    if engine is not None and engine._loop is None:
        raise ConfigurationError(
            "this PGEngine was made by from_engine without loop=..., so it has no sync side; await aas_vectorstore"
            " instead, or make the engine by PGEngine.from_connection_string"
        )
    rt = runtime_of(mem, None)
    view = run(_view(rt), rt.database)
    store = PGVectorStore.create_sync(
        _engine(rt, engine, checked), PgMemEmbeddings(rt.embedder), view, **_of(rt, options)
    )
    return _closing(store, engine)


async def aas_vectorstore(
    mem: Any,
    scope: Scope | None = None,
    *,
    user_id: str | None = None,
    group_id: str = "default",
    engine: PGEngine | None = None,
    **options: Any,
) -> PGVectorStore:
    """The same, awaited; on a PGEngine without a sync side the store has none either."""
    checked = _checked(scope, group_id, user_id)
    rt = runtime_of(mem, None)
    view = await arun(_view(rt), rt.database)
    store = await PGVectorStore.create(
        _engine(rt, engine, checked), PgMemEmbeddings(rt.embedder), view, **_of(rt, options)
    )
    return _closing(store, engine)


def _checked(scope: Scope | None, group_id: str, user_id: str | None) -> Scope:
    if scope is None:
        return asking.scope_of(group_id, user_id, None, None)
    if user_id is not None:
        raise InvalidArgument("scope and user_id were both given; the scope names the user")
    if not isinstance(scope, Scope):
        raise InvalidArgument(f"scope must be a pgmem_core.Scope, got {type(scope).__name__}")
    return asking.scope_of(scope.tenant_id, scope.user_id, scope.agent_id, None)


def _view(rt: Runtime) -> Flow[str]:
    yield from prepare(rt)
    model = yield from store_model(rt)
    return (yield from transact(views.ensure_view, model))


def _engine(rt: Runtime, given: PGEngine | None, scope: Scope) -> PGEngine:
    """Return a PGEngine that names the scope in every transaction. What PGEngine is made of it shows nobody: these
    are the three attributes that langchain-postgres' own stores use."""
    if given is None:
        url, arguments = rt.database.url_and_arguments()
        given = PGEngine.from_connection_string(url, **arguments)
    pool = views.scoped(
        given._pool, rt.database, tenant_id=scope.tenant_id, user_id=scope.user_id, agent_id=scope.agent_id
    )
    made = PGEngine.from_engine(pool, given._loop)
    made._thread = given._thread
    return made


def _of(rt: Runtime, options: dict[str, Any]) -> dict[str, Any]:
    return {
        "schema_name": rt.settings.schema_name,
        "metadata_columns": list(views.COLUMNS),
        **options,
    }


def _closing(store: PGVectorStore, given: PGEngine | None) -> PGVectorStore:
    if given is None:
        engine = store._engine
        weakref.finalize(store, _dispose, engine)
    return store


def _dispose(engine: PGEngine) -> None:
    # Not waited for: the collector may run on the very loop that has to do it.
    loop = engine._loop
    if loop is not None and loop.is_running():
        asyncio.run_coroutine_threadsafe(engine._pool.dispose(), loop)
