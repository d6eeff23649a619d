"""The stories, each told once: they ask for effects and hold no connection while a model runs."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pgmem_core import context, tokens
from pgmem_core.content import Content, read_content, searchable_text
from pgmem_core.database import migrate
from pgmem_core.database.migrate import Model
from pgmem_core.effects import EmbedTimeout, Flow, blocking, embed, run, transact
from pgmem_core.errors import (
    Conflict,
    DimensionMismatch,
    EmbeddingError,
    InvalidArgument,
    MissingExtra,
    NotFound,
    SchemaError,
)
from pgmem_core.models.vectors import check_vector, check_vectors
from pgmem_core.protocols import Vectors
from pgmem_core.retrieval import hybrid, lexical
from pgmem_core.runtime import PendingQuery, Runtime
from pgmem_core.tiers import working
from pgmem_core.tiers.plain import Where
from pgmem_core.turns import is_blank, new_turn
from pgmem_core.types import CompiledContext, NewTurn, Scope, ScoredMemory, Turn

__all__ = [
    "SessionKey",
    "add_turns",
    "compile_context",
    "ready",
    "search",
    "setup",
    "store_model",
    "write_queries",
    "write_query",
]

log = logging.getLogger(__name__)

# Of the best score. On LoCoMo it keeps 7.3 of 8 items and costs 0.006 of recall@8 (0.5: 0.020); in a small store,
# where everything is a candidate, it is what leaves the chit-chat out.
_LEAST_SHARE = 0.45


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
    embedder = rt.embedder
    name = embedder.model
    if name not in rt.models:
        if embedder.local:
            dimensions = embedder.dimensions
        else:  # a remote one is asked as an effect, so that it blocks no event loop
            probe = yield from embed(embedder, ["How many dimensions?"])
            dimensions = int(probe.shape[1])
        others = yield from transact(migrate.other_models, name, single=True)
        if others:
            raise DimensionMismatch(
                f"embedder {name!r} gives {dimensions} dimensions, the store was filled by"
                f" {others[0].name!r} with {others[0].dimensions}; open it with that embedder, or give the new one a"
                " schema of its own (schema_name=...)"
            )
        rt.models[name] = yield from transact(migrate.register_model, name, dimensions)
    return rt.models[name]


def _known_model(rt: Runtime) -> Flow[Model | None]:
    """Return the embedder's model if the store has it; never asks a remote embedder anything."""
    name = rt.embedder.model
    if name not in rt.models:
        found = yield from transact(migrate.find_model, name, single=True)
        if found is None:
            return None
        rt.models[name] = found
    return rt.models[name]


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


def add_turns(rt: Runtime, key: SessionKey, turns: Sequence[dict[str, Any]], *, given: Any = None) -> Flow[list[Turn]]:
    """Append turns, each once per id, in one statement; the session's pending query goes before them.

    All or nothing: a bad turn is refused before the statement, by its position.
    """
    if not turns:
        return []
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
    yield from ready(rt)
    before = rt.pending(key.scope, key.session_id)
    create = key.create or any(query.create for query in before)
    try:
        stored = yield from transact(
            working.append, key.scope, key.session_id, [query.turn for query in before] + new, create=create,
            single=True, given=given,
        )  # fmt: skip
    except Conflict:
        if not before or given is not None:
            raise
        # Perhaps a query's id is in use elsewhere, which must not stand in the way of every write to come.
        yield from write_queries(rt, before)
        stored = yield from transact(
            working.append, key.scope, key.session_id, new, create=create, single=True, given=given
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


# -- the read --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ContextRequest:
    """What compile_context was asked."""

    key: SessionKey
    query: object
    query_id: str | uuid.UUID | None
    injected_context: Sequence[str]
    instructions: str | None
    budget_tokens: int
    recall_items: int
    recall_tokens: int
    where: Where
    store_query: bool
    floor: float | str | None


def compile_context(rt: Runtime, request: ContextRequest) -> Flow[CompiledContext]:
    """Read memory into a prompt. One query embedding, one round trip; writes nothing on the turn."""
    started = time.perf_counter()
    key, settings = request.key, rt.settings
    body: Content = "" if request.query is None else read_content(request.query)
    text = searchable_text(body)
    yield from ready(rt)
    # Asked again before the last query was written: it must be in this window, in its order.
    yield from write_queries(rt, [query for query in rt.pending(key.scope, key.session_id) if not query.handed])

    notes: list[str] = []
    timings: dict[str, float] = {}
    query = yield from _query(rt, text, notes, limit=2 * request.recall_items, floor=request.floor)
    timings["embed_ms"] = _ms(started)
    timings["words_only"] = float(query.vector is None and bool(query.terms))
    reading = time.perf_counter()
    found = yield from transact(
        hybrid.read, key.scope, key.session_id, query, request.where,
        window_tokens=_window_tokens(rt, request), window_turns=settings.window_turns, single=True,
    )  # fmt: skip
    timings["read_ms"] = _ms(reading)
    if not found.exists and not key.create:
        raise NotFound(f"no session {key.session_id!r} in group {key.scope.tenant_id!r}; create it with session.create")
    if found.exists and found.user_id != key.scope.user_id:
        raise Conflict(
            f"session {key.session_id!r} belongs to another user; open it with the user_id that created it, or use"
            " another session id"
        )

    compiling = time.perf_counter()
    asked = not is_blank(text) or (isinstance(body, list) and bool(body))
    last = found.window[-1] if found.window else None
    same = asked and last is not None and last.role == "user" and last.content == body
    query_id = None
    if same and last is not None:
        query_id = last.id  # written already, by the caller or by another process that compiled the same query
    elif asked and request.store_query:
        pending = _pending_query(rt, key, body, request.query_id, found.last_seq)
        query_id = str(pending.turn.id)
        rt.add_pending(pending)
        pending.written = rt.beside(lambda: run(write_query(rt, pending), rt.database))
    result = context.compile(
        context.ContextInput(
            session_id=key.session_id,
            query=body if asked and not same else None,
            query_id=query_id,
            window=found.window,
            pinned=found.pinned,
            recalled=found.recalled,
            injected=request.injected_context,
            instructions=request.instructions,
            budget_tokens=request.budget_tokens,
            recall_tokens=request.recall_tokens,
            recall_items=request.recall_items,
            least_share=0.0 if request.floor is None else _LEAST_SHARE,
            timings=timings,
            notes=notes,
            facts=found.facts,
            execution=found.execution,
            prefix_at=found.prefix_at,
            prefix_tokens=min(settings.prefix_tokens, request.budget_tokens // 8),
        )
    )
    timings["compile_ms"] = _ms(compiling)
    timings["total_ms"] = _ms(started)
    return result


def _ms(since: float) -> float:
    return round((time.perf_counter() - since) * 1000, 3)


def _window_tokens(rt: Runtime, request: ContextRequest) -> int:
    # Constant from turn to turn, whatever the query's length, so that the window starts at the same turn.
    budget = request.budget_tokens
    prefix = min(rt.settings.prefix_tokens, budget // 8)
    return max(1, budget // 4, budget - prefix - request.recall_tokens - budget // 8)


def _pending_query(
    rt: Runtime, key: SessionKey, body: Content, given_id: str | uuid.UUID | None, last_seq: int
) -> PendingQuery:
    turn = new_turn(
        tenant_id=key.scope.tenant_id, session_id=key.session_id, language=rt.settings.language, role="user",
        content=body, id=given_id, provisional=True, after_seq=last_seq,
    )  # fmt: skip
    return PendingQuery(key.scope, key.session_id, turn, key.create)


def _query(rt: Runtime, text: str, notes: list[str], *, limit: int, floor: float | str | None) -> Flow[hybrid.Query]:
    """Return what to look for: the words of text, and its vector if the embedder answers in time."""
    settings = rt.settings
    blank = is_blank(text)
    if not blank and floor is not None and lexical.is_small_talk(text, language=settings.language):
        notes.append("nothing recalled: the query is small talk")
        blank = True
    vector: Vectors | None = None
    model: Model | None = None
    if not blank and limit > 0:
        try:
            model = yield from _known_model(rt)
            if model is None:
                notes.append("found by words only: nothing has been embedded yet")
            else:
                vector = yield from _query_vector(rt, model, text)
        except EmbedTimeout as exc:
            notes.append(f"found by words only: {exc}")
        except (EmbeddingError, DimensionMismatch, MissingExtra) as exc:
            notes.append(f"found by words only: {exc}")
            log.warning("a query was read by words only: %s", exc)
    grows = False
    if floor == "default":
        floor = settings.relevance_floor
        if floor is None and model is not None:
            floor, grows = rt.embedder.min_relevance, True
    return hybrid.Query(
        terms=() if blank else lexical.query_terms(text, language=settings.language).hashes,
        vector=vector,
        model=model,
        limit=0 if blank else limit,
        half_life_days=settings.half_life_days,
        recency_share=settings.recency_share,
        floor=None if isinstance(floor, str) else floor,
        floor_grows=grows,
    )


def _query_vector(rt: Runtime, model: Model, text: str) -> Flow[Vectors]:
    cached = rt.cached_query(text)
    if cached is not None:
        return cached

    def keep(vectors: Vectors) -> None:
        rt.cache_query(text, check_vector(vectors[0], dimensions=model.dimensions, model=model.name))

    vectors = yield from embed(rt.embedder, [text], timeout_seconds=rt.settings.embed_timeout_ms / 1000, on_late=keep)
    keep(vectors)
    found = rt.cached_query(text)
    assert found is not None
    return found


def search(
    rt: Runtime, scope: Scope, query: object, where: Where, *, limit: int, floor: float | str | None
) -> Flow[list[ScoredMemory]]:
    """Return a user's best memories for a query, best first; [] for a blank one."""
    text = searchable_text(read_content(query))
    if is_blank(text) or limit < 1:
        return []
    yield from ready(rt)
    notes: list[str] = []
    wanted = yield from _query(rt, text, notes, limit=limit, floor=floor)
    return (yield from transact(hybrid.search, scope, wanted, where, single=True))
