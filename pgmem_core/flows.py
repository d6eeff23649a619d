"""The stories, each told once: they ask for effects and hold no connection while a model runs."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pgmem_core import screening, tokens
from pgmem_core.database import migrate
from pgmem_core.database.migrate import Model
from pgmem_core.effects import Flow, blocking, embed, transact
from pgmem_core.errors import (
    Conflict,
    EmbeddingError,
    InvalidArgument,
    MissingExtra,
    NotFound,
    SchemaError,
)
from pgmem_core.models.vectors import check_vectors
from pgmem_core.protocols import Vectors
from pgmem_core.runtime import PendingQuery, Runtime
from pgmem_core.tiers import working
from pgmem_core.turns import new_turn
from pgmem_core.types import NewTurn, Scope, Turn

__all__ = [
    "SessionKey",
    "add_turns",
    "ready",
    "setup",
    "store_model",
    "write_queries",
    "write_query",
]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SessionKey:
    """Which session, and whether writing to it may create it."""

    scope: Scope
    session_id: str
    create: bool


# -- setting up ------------------------------------------------------------------------------------------------


def create_schema(rt: Runtime) -> Flow[None]:
    """Create or upgrade the schema, if it is not there as this version knows it."""
    state = yield from transact(migrate.inspect, single=True)
    if state.version != migrate.migrations()[-1][0] or state.vector is None:
        state = yield from transact(migrate.setup)
    rt.database.vector = state.vector


def setup(rt: Runtime) -> Flow[None]:
    """Create or upgrade the schema and register the embedder, if it is at hand. Raises: SchemaError,
    PermissionDenied, DimensionMismatch."""
    yield from create_schema(rt)
    try:
        yield from store_model(rt)
    except (EmbeddingError, MissingExtra) as exc:
        # A memory without its embedder still stores and finds by words; the worker will say so again.
        log.warning("the embedder is not at hand yet: %s", exc)
    rt.ready = True  # not before: an embedder that does not fit is refused by every call, not by the first alone
    yield from blocking(lambda: _warm(rt))


def check(rt: Runtime) -> Flow[None]:
    """Read what is set up, and set up nothing. Raises: SchemaError."""
    state = yield from transact(migrate.inspect, single=True)
    if state.version != migrate.migrations()[-1][0] or state.vector is None:
        schema, newest = rt.settings.schema_name, migrate.migrations()[-1][0]
        met = f"schema {schema!r} is at version {state.version}" if state.version else f"there is no schema {schema!r}"
        raise SchemaError(
            f"{met} in the database at {rt.database.address}, this pgmem needs version {newest}; run 'pgmem init'"
        )
    rt.database.vector = state.vector
    rt.ready = True


def _warm(rt: Runtime) -> None:
    """Load what the first turn would load: the tokenizer (0.3 s) and a local embedder (0.2 s)."""
    tokens.warm()
    if rt.embedder_known and rt.embedder.local:
        rt.embedder.embed(["warm"])


def ready(rt: Runtime) -> Flow[None]:
    """Make sure the schema is there: two statements the first time in a process, none after."""
    if not rt.ready:
        yield from setup(rt)


def store_model(rt: Runtime) -> Flow[Model]:
    """Return the registered model of the store's embedder, registering it the first time.

    Raises: DimensionMismatch if the store was filled by another embedder.
    """
    name = rt.embedder.model
    if name not in rt.models:
        dimensions = yield from dimensions_of(rt)
        yield from transact(migrate.admit, name, dimensions, single=True)
        rt.models[name] = yield from transact(migrate.register_model, name, dimensions)
    return rt.models[name]


def dimensions_of(rt: Runtime) -> Flow[int]:
    """Return the size of the embedder's vectors."""
    if rt.embedder.local:
        return rt.embedder.dimensions
    # A remote one is asked as an effect, so that it blocks no event loop.
    probe = yield from embed(rt.embedder, ["How many dimensions?"])
    return int(probe.shape[1])


def embed_all(rt: Runtime, model: Model, texts: Sequence[str]) -> Flow[Vectors]:
    """Embed any number of texts, `embed_batch_size` at a time. Raises: EmbeddingError, BadVector, DimensionMismatch."""
    size = rt.settings.embed_batch_size
    parts = []
    for at in range(0, len(texts), size):
        batch = texts[at : at + size]
        vectors = yield from embed(rt.embedder, batch)
        parts.append(check_vectors(vectors, count=len(batch), dimensions=model.dimensions, model=model.name))
    return np.concatenate(parts)


# -- writing turns ---------------------------------------------------------------------------------------------


def new_turns(rt: Runtime, key: SessionKey, turns: Sequence[Mapping[str, Any]]) -> Flow[list[NewTurn]]:
    """Return the turns screened and ready to store. Raises: InvalidArgument, naming the bad one by its position."""
    turns = yield from screening.screen_rows(rt, key.scope.tenant_id, turns, "turn")
    new = []
    for number, turn in enumerate(turns):
        try:
            new.append(
                new_turn(
                    tenant_id=key.scope.tenant_id,
                    session_id=key.session_id,
                    language=rt.settings.language,
                    **turn,
                )
            )
        except InvalidArgument as exc:
            raise InvalidArgument(f"turn {number + 1} of {len(turns)}: {exc}" if len(turns) > 1 else str(exc)) from exc
        except TypeError as exc:
            raise InvalidArgument(f"turn {number + 1} of {len(turns)}: {exc}") from exc
    return new


def add_turns(
    rt: Runtime, key: SessionKey, turns: Sequence[Mapping[str, Any]], *, given: Any = None, aligned: bool = False
) -> Flow[list[Turn]]:
    """Append turns, each once per id, in one statement; the session's pending query goes before them.

    All or nothing: a bad turn is refused before the statement, by its position. `aligned`: of a batch that begins with
    the whole stored session, the rest is stored.
    """
    if not turns:
        return []
    new = yield from new_turns(rt, key, turns)
    yield from ready(rt)
    before = rt.pending(key.scope, key.session_id)
    create = key.create or any(query.create for query in before)
    try:
        stored = yield from transact(
            working.append, key.scope, key.session_id, [query.turn for query in before] + new, create=create,
            aligned=aligned, single=True, given=given,
        )  # fmt: skip
    except Conflict:
        if not before or given is not None:
            raise
        # Perhaps a query's id is in use elsewhere, which must not stand in the way of every write to come.
        yield from write_queries(rt, before)
        stored = yield from transact(
            working.append, key.scope, key.session_id, new, create=create, aligned=aligned, single=True, given=given
        )
    if given is None:  # on the caller's transaction it may still roll back
        rt.settle(key.scope, key.session_id, before)
    else:
        for query in before:
            query.handed = True
    rt.wake()
    stored = stored[len(stored) - len(new) :]
    # An id given again returns the turn it was first given for, whatever is said this time.
    again = [uuid.UUID(one[0]) for turn, one in zip(new, stored, strict=True) if turn.given_id and not one[3]]
    first: dict[str, Turn] = {}
    if again:
        first = yield from transact(working.by_ids, key.scope.tenant_id, again, single=True, given=given)
    return [first.get(one[0]) or _as_turn(key.session_id, turn, one) for turn, one in zip(new, stored, strict=True)]


def _as_turn(session_id: str, turn: NewTurn, stored: working.Stored) -> Turn:
    record_id, seq, created_at, _ = stored
    return working.turn_of_row(
        (
            record_id, session_id, seq, turn.role, turn.text, None if turn.message is None else dict(turn.message),
            turn.metadata, turn.token_count, created_at,
        )
    )  # fmt: skip


def write_query(rt: Runtime, query: PendingQuery) -> Flow[None]:
    """Make a pending query durable, by its own id; nothing to do if another write was faster, or it was deleted."""
    yield from ready(rt)
    if not rt.is_pending(query):
        return
    while True:
        turn = query.turn
        try:
            yield from transact(working.append, query.scope, query.session_id, [turn], create=query.create, single=True)
            break
        except NotFound as exc:
            rt.settle(query.scope, query.session_id, [query])  # nothing will bring the session back
            log.warning("a query was not stored, its session is gone: %s", exc)
            return
        except Conflict as exc:
            if not turn.given_id:
                rt.settle(query.scope, query.session_id, [query])
                log.warning("a query was not stored: %s", exc)
                return
            # What was said is kept, the caller's id for it cannot be.
            if rt.rename(query, turn):
                log.warning("a query is stored under an id of its own: %s", exc)
    rt.wake()


def write_queries(rt: Runtime, queries: Sequence[PendingQuery]) -> Flow[None]:
    """Make pending queries durable, in order."""
    for query in queries:
        yield from write_query(rt, query)
        rt.settle(query.scope, query.session_id, [query])
