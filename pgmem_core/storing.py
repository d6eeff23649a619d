"""The flows of `MemoryStore`."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np

from pgmem_core import screening
from pgmem_core.content import read_content, searchable_text
from pgmem_core.database import migrate
from pgmem_core.database.connection import Connection
from pgmem_core.database.migrate import Model
from pgmem_core.effects import Flow, embed, transact
from pgmem_core.encoding import encode_json
from pgmem_core.errors import InvalidArgument
from pgmem_core.filters import compile_filter
from pgmem_core.flows import create_schema, embed_all, ready, store_model
from pgmem_core.ids import check_id, new_id, turn_uuid
from pgmem_core.models.vectors import check_vectors
from pgmem_core.protocols import Vectors
from pgmem_core.retrieval import lexical
from pgmem_core.runtime import Runtime
from pgmem_core.tiers import plain, working
from pgmem_core.tiers.plain import NewRecord, Where
from pgmem_core.tokens import count_message
from pgmem_core.turns import check_time, is_blank, new_turn
from pgmem_core.types import MemoryText, NewTurn, Scope

__all__ = [
    "VectorLike",
    "add",
    "check_limit",
    "count",
    "count_scope",
    "delete",
    "new_record",
    "prepare",
    "recent_turns",
    "record_uuid",
    "setup",
    "similar",
    "where_of",
]

VectorLike = Sequence[float] | np.ndarray[Any, Any]

_ROW_KEYS = {"session_id", "content", "embedding", "kind", "role", "metadata", "created_at", "id", "name"}
_GIVEN = "given"
# Counting a scope costs 1 µs a record; the count only guards a choice of plans, so single adds count rarely.
_STATS_EVERY = 64
# Larger limits ("all of them": sys.maxsize) mean this one: eight times it must still be an integer of the server's.
_MOST = 100_000_000


def setup(rt: Runtime) -> Flow[None]:
    """Create or upgrade the schema; an embedder that was passed is registered, or refused, now."""
    if rt.has_own_embedder:
        yield from ready(rt)
        return
    yield from create_schema(rt)
    rt.ready = True


def prepare(rt: Runtime) -> Flow[None]:
    """Make sure the schema is there."""
    if not rt.ready:
        yield from setup(rt)


def _given_model(rt: Runtime, name: str | None, dimensions: int) -> Flow[Model]:
    """The model of vectors that calls pass: the embedder's, else one of their own name."""
    if rt.has_own_embedder and name is None:
        return (yield from store_model(rt))
    name = check_id(name or _GIVEN, "model")
    if name not in rt.models:
        rt.models[name] = yield from transact(migrate.register_model, name, dimensions, source="given")
    return rt.models[name]


def add(
    rt: Runtime,
    model_name: str | None,
    tenant_id: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    user_id: str | None,
    given: Any,
) -> Flow[list[str]]:
    """Store rows, all or nothing, and return their ids in order."""
    if not rows:
        return []
    scope = Scope(check_id(tenant_id, "tenant_id"), "" if user_id is None else check_id(user_id))
    rows = yield from screening.screen_rows(rt, scope.tenant_id, rows, "memory")
    made = [
        new_record(rt, scope, row, f"row {i + 1} of {len(rows)}: " if len(rows) > 1 else "")
        for i, row in enumerate(rows)
    ]
    yield from prepare(rt)
    passed = [row.get("embedding") for row in rows]
    missing = [i for i, vector in enumerate(passed) if vector is None]
    if missing and len(missing) < len(rows):
        raise InvalidArgument(
            f"row {missing[0] + 1} of {len(rows)} has no embedding and others have one; pass all of them or none:"
            " vectors of different models cannot be compared"
        )
    if missing:
        model = yield from store_model(rt)
        vectors = yield from embed_all(rt, model, [new.text for _, new in made])
    else:
        model = yield from _given_model(rt, model_name, _length(passed[0]))
        vectors = passed  # type: ignore[assignment]
    checked = check_vectors(vectors, count=len(rows), dimensions=model.dimensions, model=model.name)
    ids = yield from transact(_store, scope, made, checked, model, given=given)
    if given is None:
        yield from count_scope(rt, scope, len(rows))
    return ids


def count_scope(rt: Runtime, scope: Scope, added: int) -> Flow[None]:
    """Keep the counts of the scope and of its tenant, at every batch and every 64th single add."""
    key = (scope.tenant_id, scope.user_id)
    total = rt.uncounted.pop(key, 0) + added
    if added == 1 and total < _STATS_EVERY:
        if len(rt.uncounted) > 10_000:
            rt.uncounted.clear()  # they only guard a choice of plans
        rt.uncounted[key] = total
        return
    yield from transact(plain.refresh_stats, scope.tenant_id, None, total, single=True)
    yield from transact(plain.refresh_stats, scope.tenant_id, scope.user_id, total, single=True)


def _length(vector: object) -> int:
    try:
        return len(vector)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidArgument(f"embedding must be a sequence of floats, got {type(vector).__name__}") from None


def new_record(rt: Runtime, scope: Scope, row: Mapping[str, Any], where: str) -> tuple[str, NewTurn | NewRecord]:
    unknown = sorted(set(row) - _ROW_KEYS)
    if unknown:
        raise InvalidArgument(f"{where}unknown key {', '.join(map(repr, unknown))}; a row takes {sorted(_ROW_KEYS)}")
    try:
        session_id = check_id(row.get("session_id"), "session_id")
        kind = check_id(row.get("kind", "turn"), "kind")
        if kind == "turn":
            return session_id, new_turn(
                tenant_id=scope.tenant_id, session_id=session_id, language=rt.settings.language,
                role=row.get("role") or "user", content=row.get("content"), id=row.get("id"), name=row.get("name"),
                metadata=row.get("metadata"), created_at=row.get("created_at"),
            )  # fmt: skip
        body = read_content(row.get("content"))
        text = searchable_text(body)
        if is_blank(text):
            raise InvalidArgument(f"the content of this {kind} is blank; a memory needs text")
        terms = lexical.analyse(text, language=rt.settings.language)
        given = row.get("id")
        return session_id, NewRecord(
            id=new_id() if given is None else turn_uuid(given, scope.tenant_id, session_id),
            session_id=session_id, kind=kind, text=text,
            metadata=encode_json(dict(row.get("metadata") or {}), where="metadata"),
            token_count=count_message(text), created_at=check_time(row.get("created_at")),
            terms=terms.hashes, term_counts=terms.counts, term_total=terms.length, given_id=given is not None,
        )  # fmt: skip
    except InvalidArgument as exc:
        raise type(exc)(f"{where}{exc}") from exc


def _store(
    conn: Connection,
    scope: Scope,
    made: Sequence[tuple[str, NewTurn | NewRecord]],
    vectors: Vectors,
    model: Model,
) -> list[str]:
    """Write turns session by session and the rest by COPY, and return the ids in the order of `made`."""
    ids: list[str] = [""] * len(made)
    turns: dict[str, list[int]] = {}
    others: list[int] = []
    for i, (session_id, new) in enumerate(made):
        if isinstance(new, NewTurn):
            turns.setdefault(session_id, []).append(i)
        else:
            others.append(i)
    for session_id in sorted(turns):  # sorted: two batches over the same sessions lock them in the same order
        places = turns[session_id]
        batch = [new for i in places if isinstance(new := made[i][1], NewTurn)]
        stored = working.append(conn, scope, session_id, batch, create=True, model=model.id, vectors=vectors[places])
        for i, (record_id, _, _, _) in zip(places, stored, strict=True):
            ids[i] = record_id
    if others:
        records = [new for i in others if isinstance(new := made[i][1], NewRecord)]
        for i, record_id in zip(
            others, plain.add(conn, scope, records, model=model, vectors=vectors[others]), strict=True
        ):
            ids[i] = record_id
    return ids


def recent_turns(rt: Runtime, tenant_id: str, session_id: str, limit: int) -> Flow[list[MemoryText]]:
    """Return the last turns of a session, oldest first."""
    limit = check_limit(limit)
    tenant, session = check_id(tenant_id, "tenant_id"), check_id(session_id, "session_id")
    yield from prepare(rt)
    turns = yield from transact(working.recent, tenant, session, limit=limit, single=True)
    return [
        MemoryText.of(
            turn.text, id=turn.id, kind="turn", session_id=turn.session_id, seq=turn.seq, role=turn.role,
            created_at=turn.created_at, metadata=turn.metadata,
        )
        for turn in turns
    ]  # fmt: skip


def check_limit(limit: object, name: str = "limit") -> int:
    """Return a limit of at least 0, at most 100 million. Raises: InvalidArgument."""
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
        raise InvalidArgument(f"{name} must be a whole number of at least 0, got {limit!r}")
    return min(limit, _MOST)


def where_of(
    *,
    user_id: str | None = None,
    session_id: str | None = None,
    agent_id: str | None = None,
    kind: str | Sequence[str] | None = None,
    after: datetime | None = None,
    before: datetime | None = None,
    filter: Mapping[str, Any] | None = None,
    ids: Sequence[uuid.UUID] | None = None,
) -> Where:
    """Return the checked conditions. Raises: InvalidArgument, InvalidFilter; an empty id is never 'all'."""
    kinds = None
    if kind is not None:
        kinds = [check_id(one, "kind") for one in ([kind] if isinstance(kind, str) else kind)]
    return Where(
        user_id=None if user_id is None else check_id(user_id),
        session_id=None if session_id is None else check_id(session_id, "session_id"),
        agent_id=None if agent_id is None else check_id(agent_id, "agent_id"),
        kinds=kinds,
        after=check_time(after, "after"),
        before=check_time(before, "before"),
        metadata=compile_filter(filter),
        ids=ids,
    )


def similar(
    rt: Runtime,
    model_name: str | None,
    tenant_id: str,
    query: VectorLike | str,
    limit: int,
    kind: str | Sequence[str] | None,
    *,
    min_score: float | None,
    **conditions: Any,
) -> Flow[list[MemoryText]]:
    """Return the nearest records, best first; [] for a blank text, or where no vector was ever stored."""
    where = where_of(kind=kind, **conditions)
    tenant = check_id(tenant_id, "tenant_id")
    limit = check_limit(limit)
    yield from prepare(rt)
    if isinstance(query, str):
        if is_blank(query) or limit == 0:
            return []
        model = yield from store_model(rt)
        vectors = yield from embed(rt.embedder, [query])
        checked = check_vectors(vectors, count=1, dimensions=model.dimensions, model=model.name)
    else:
        length = _length(query)
        name = rt.embedder.model if rt.has_own_embedder and model_name is None else (model_name or _GIVEN)
        known = rt.models.get(name) or (yield from transact(migrate.find_model, name, single=True))
        if known is not None:
            rt.models[name] = known
        checked = check_vectors([query], count=1, dimensions=known.dimensions if known else length, model=name)
        if known is None or limit == 0:
            return []
        model = known
    found = yield from transact(plain.similar, tenant, where, model=model, vector=checked[0], limit=limit, single=True)
    return [text for text in found if min_score is None or (text.score or 0.0) >= min_score]


def delete(
    rt: Runtime,
    tenant_id: str,
    ids: str | uuid.UUID | Sequence[str | uuid.UUID] | None,
    *,
    given: Any = None,
    **conditions: Any,
) -> Flow[int]:
    """Delete what matches; refuses to run without a condition."""
    tenant = check_id(tenant_id, "tenant_id")
    if ids is None and all(value is None for value in conditions.values()):
        raise InvalidArgument(
            "delete needs ids, user_id, session_id, kind or filter; without one it would empty the whole tenant"
        )
    if conditions.get("filter") is not None and not conditions["filter"]:
        raise InvalidArgument("filter is empty and would match everything; leave it out or name a key")
    wanted = None if ids is None else [record_uuid(one) for one in ([ids] if isinstance(ids, str | uuid.UUID) else ids)]
    where = where_of(ids=wanted, **conditions)
    yield from prepare(rt)
    if wanted is not None and not wanted:
        return 0
    deleted = yield from transact(plain.delete_where, tenant, where, given=given)
    return deleted


def record_uuid(value: object) -> uuid.UUID:
    """Return the id of a stored memory. Raises: InvalidArgument."""
    if isinstance(value, uuid.UUID):
        return value
    try:
        return uuid.UUID(str(value))
    except ValueError:
        raise InvalidArgument(f"memory id {value!r} is not an id that the store returned (a UUID)") from None


def count(rt: Runtime, tenant_id: str, **conditions: Any) -> Flow[int]:
    """Return how many records match."""
    tenant = check_id(tenant_id, "tenant_id")
    where = where_of(**conditions)
    yield from prepare(rt)
    return (yield from transact(plain.count, tenant, where, single=True))
