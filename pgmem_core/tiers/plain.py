"""The plain store: records of any kind, found by vector, filtered in SQL. Operations."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pgmem_core.database.connection import Connection, VectorParameter, jsonb
from pgmem_core.database.migrate import Model
from pgmem_core.encoding import decode_json, decode_text, encode_text
from pgmem_core.errors import Conflict
from pgmem_core.filters import CompiledFilter
from pgmem_core.ids import user_key
from pgmem_core.protocols import Vectors
from pgmem_core.tiers.sessions import ANONYMOUS
from pgmem_core.types import MemoryText, Scope

__all__ = [
    "NewRecord",
    "Where",
    "add",
    "add_many",
    "count",
    "delete",
    "delete_where",
    "insert",
    "listing",
    "replace",
    "similar",
    "vectors",
]

# From how many records on COPY beats the statement that adds one (which also sees repeated ids).
_COPY_FROM = 8


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record of the plain store, checked and ready."""

    id: uuid.UUID
    session_id: str
    kind: str
    text: str
    metadata: dict[str, Any]
    token_count: int
    created_at: datetime | None
    terms: tuple[int, ...]
    term_counts: tuple[int, ...]
    term_total: int
    given_id: bool = False  # the caller's own: it may be stored already


@dataclass(frozen=True, slots=True)
class Where:
    """Which records: every field that is set must hold. Times are half-open: after <= created_at < before."""

    user_id: str | None = None
    session_id: str | None = None
    agent_id: str | None = None
    kinds: Sequence[str] | None = None
    after: datetime | None = None
    before: datetime | None = None
    metadata: CompiledFilter | None = None
    ids: Sequence[uuid.UUID] | None = field(default=None)

    def parameters(self) -> dict[str, Any]:
        """Return the values of `conditions`, which are also the filter arguments of the read functions."""
        return {
            "user": self.user_id,
            "session": self.session_id,
            "agent": self.agent_id,
            "kinds": None if self.kinds is None else list(self.kinds),
            "after": self.after,
            "before": self.before,
            "path": None if self.metadata is None else self.metadata.path,
            "variables": jsonb({} if self.metadata is None else self.metadata.variables),
            "ids": None if self.ids is None else list(self.ids),
        }

    def conditions(self) -> str:
        """Return the SQL that follows `tenant_id = …`: constants of this module, never a caller's text."""
        parts = {
            " AND r.user_id = %(user)s": self.user_id,
            " AND r.session_id = %(session)s": self.session_id,
            " AND r.agent_id = %(agent)s": self.agent_id,
            " AND r.kind = ANY (%(kinds)s)": self.kinds,
            " AND r.created_at >= %(after)s": self.after,
            " AND r.created_at < %(before)s": self.before,
            " AND jsonb_path_match(r.metadata, %(path)s::jsonpath, %(variables)s, true)": self.metadata,
            " AND r.id = ANY (%(ids)s)": self.ids,
        }
        return "".join(sql for sql, value in parts.items() if value is not None)


_COLUMNS = "r.id, r.content, r.kind, r.session_id, r.user_id, r.seq, r.role, r.created_at, r.metadata"


def _text(row: Sequence[Any], score: float | None) -> MemoryText:
    record_id, content, kind, session_id, user_id, seq, role, created_at, metadata = row
    shown = None if user_id == "" or user_id.startswith(ANONYMOUS) else user_id
    return MemoryText.of(
        decode_text(content), id=str(record_id), kind=kind, session_id=session_id, user_id=shown, seq=seq,
        role=role, created_at=created_at.astimezone(UTC), metadata=decode_json(metadata), score=score,
    )  # fmt: skip


def add(conn: Connection, scope: Scope, records: Sequence[NewRecord], *, model: Model, vectors: Vectors) -> list[str]:
    """Add records of other kinds than turns, each once per id, and return their ids. COPY for more than a few."""
    _check_owner(conn, scope, records)
    if len(records) >= _COPY_FROM:
        return add_many(conn, scope, records, model=model, vectors=vectors)
    for record, vector in _in_order(zip(records, vectors, strict=True)):
        insert(conn, scope, record, model=model, vector=vector)
    return [str(record.id) for record in records]


def _in_order(rows: Iterable[tuple[NewRecord, Any]]) -> list[tuple[NewRecord, Any]]:
    # Two batches of the same ids wait for each other's: in one order they cannot do so in a circle.
    return sorted(rows, key=lambda row: row[0].id)


def _check_owner(conn: Connection, scope: Scope, records: Sequence[NewRecord]) -> None:
    """Raise Conflict if a caller's id is something else's already: what was given would be lost without a word."""
    given = {record.id: record for record in records if record.given_id}
    if not given:
        return
    for record_id, user_id, session_id, kind in conn.query(
        f"""SELECT id, user_id, session_id, kind FROM {conn.schema}.records
            WHERE tenant_id = %(tenant)s AND id = ANY (%(ids)s)""",
        {"tenant": scope.tenant_id, "ids": list(given)},
    ):
        record = given[record_id]
        if (user_id, session_id, kind) != (scope.user_id, record.session_id, record.kind):
            raise Conflict(f"id {record_id} is in use for something else; ids are unique within a tenant")


def insert(conn: Connection, scope: Scope, record: NewRecord, *, model: Model | None, vector: Vectors | None) -> None:
    """Add one record with its terms, once per id; without a vector it is found by its words until it has one."""
    conn.query(
        f"""WITH added AS (
              INSERT INTO {conn.schema}.records (tenant_id, id, user_id, user_key, session_id, agent_id, kind,
                content, metadata, token_count, created_at, terms, term_total, model, embedding)
              VALUES (%(tenant)s, %(id)s, %(user)s, %(key)s, %(session)s, %(agent)s, %(kind)s, %(content)s,
                %(metadata)s, %(tokens)s, coalesce(%(at)s, clock_timestamp()), %(terms)s::bigint[], %(total)s,
                %(model)s, %(vector)s)
              ON CONFLICT (tenant_id, id) DO NOTHING RETURNING id)
            INSERT INTO {conn.schema}.postings (tenant_id, user_key, term, record_id, tf, len)
            SELECT %(tenant)s, %(key)s, u.term, added.id, u.tf, least(%(total)s, 32767)
            FROM added, unnest(%(terms)s::bigint[], %(counts)s::smallint[]) AS u (term, tf)""",
        {
            "tenant": scope.tenant_id, "id": record.id, "user": scope.user_id, "key": user_key(scope.user_id),
            "session": record.session_id, "agent": scope.agent_id, "kind": record.kind,
            "content": encode_text(record.text), "metadata": jsonb(record.metadata),
            "tokens": record.token_count, "at": record.created_at, "terms": list(record.terms),
            "counts": list(record.term_counts), "total": record.term_total,
            "model": None if model is None else model.id,
            "vector": None if vector is None else VectorParameter(vector),
        },
    )  # fmt: skip


def add_many(
    conn: Connection, scope: Scope, records: Sequence[NewRecord], *, model: Model, vectors: Vectors
) -> list[str]:
    """Add records by COPY and return their ids. Ids that exist already are left as they are."""
    known = {
        row[0]
        for row in conn.query(
            f"SELECT id FROM {conn.schema}.records WHERE tenant_id = %(tenant)s AND id = ANY (%(ids)s)",
            {"tenant": scope.tenant_id, "ids": [record.id for record in records]},
        )
    }
    new, seen = [], set(known)
    for record, vector in zip(records, vectors, strict=True):
        if record.id not in seen:
            seen.add(record.id)
            new.append((record, vector))
    key, now = user_key(scope.user_id), datetime.now(UTC)
    conn.copy(
        f"""COPY {conn.schema}.records (tenant_id, id, user_id, user_key, session_id, agent_id, kind, content,
            metadata, token_count, created_at, terms, term_total, model, embedding) FROM STDIN (FORMAT BINARY)""",
        [
            "text", "uuid", "text", "int8", "text", "text", "text", "text", "jsonb", "int4", "timestamptz", "int8[]",
            "int4", "text", conn.vector_type().oid,
        ],
        (
            (
                scope.tenant_id, record.id, scope.user_id, key, record.session_id, scope.agent_id, record.kind,
                encode_text(record.text), jsonb(record.metadata), record.token_count, record.created_at or now,
                list(record.terms), record.term_total, model.id, VectorParameter(vector),
            )
            for record, vector in _in_order(new)
        ),
    )  # fmt: skip
    conn.copy(
        f"COPY {conn.schema}.postings (tenant_id, user_key, term, record_id, tf, len) FROM STDIN (FORMAT BINARY)",
        ["text", "int8", "int8", "uuid", "int2", "int2"],
        (
            (scope.tenant_id, key, term, record.id, count_, min(record.term_total, 32767))
            for record, _ in new
            for term, count_ in zip(record.terms, record.term_counts, strict=True)
        ),
    )
    return [str(record.id) for record in records]


def replace(
    conn: Connection, scope: Scope, records: Sequence[NewRecord], *, model: Model, vectors: Vectors
) -> list[str]:
    """Add records in place of those of the same ids, where these are the same user's, session's and kind. In a
    transaction. Raises: Conflict where an id is something else's."""
    mine = {(record.session_id, record.kind) for record in records}
    known = conn.query(
        f"""SELECT id, session_id, kind FROM {conn.schema}.records
            WHERE tenant_id = %(tenant)s AND id = ANY (%(ids)s) AND user_id = %(user)s ORDER BY id FOR UPDATE""",
        {"tenant": scope.tenant_id, "ids": [record.id for record in records], "user": scope.user_id},
    )
    ids = [record_id for record_id, *owner in known if tuple(owner) in mine]
    if ids:
        delete(conn, scope.tenant_id, ids)
    return add(conn, scope, records, model=model, vectors=vectors)


def vectors(conn: Connection, tenant_id: str, ids: Sequence[uuid.UUID]) -> dict[str, list[float]]:
    """Return the vectors of records, by id; without those that have none yet."""
    rows = conn.query(
        f"""SELECT id, embedding::text FROM {conn.schema}.records
            WHERE tenant_id = %(tenant)s AND id = ANY (%(ids)s) AND embedding IS NOT NULL""",
        {"tenant": tenant_id, "ids": list(ids)},
    )
    return {str(record_id): json.loads(vector) for record_id, vector in rows}


def similar(
    conn: Connection, tenant_id: str, where: Where, *, model: Model, vector: Vectors, limit: int
) -> list[MemoryText]:
    """Return the records nearest to vector, best first, scored by cosine similarity (-1..1). One statement.

    Plan: records_scope and a sort up to 5,000 records in the scope, records_hnsw_<model> above.
    """
    rows = conn.query(
        f"""SELECT n.cosine, {_COLUMNS} FROM {conn.schema}.nearest(
              %(tenant)s, %(user)s, %(vector)s, %(model)s, %(dimensions)s, %(kinds)s::text[], %(session)s,
              %(agent)s, %(after)s::timestamptz, %(before)s::timestamptz, %(path)s::jsonpath, %(variables)s,
              NULL, NULL, %(limit)s) n
            JOIN {conn.schema}.records r ON r.tenant_id = %(tenant)s AND r.id = n.id
            ORDER BY n.cosine DESC, r.id""",
        {
            "tenant": tenant_id, "vector": VectorParameter(vector), "model": model.id,
            "dimensions": model.dimensions, "limit": limit, **where.parameters(),
        },
    )  # fmt: skip
    return [_text(row[1:], float(row[0])) for row in rows]


def listing(conn: Connection, tenant_id: str, where: Where, *, limit: int, offset: int = 0) -> list[MemoryText]:
    """Return records, newest first; turns of the same moment in the order in which they were written."""
    rows = conn.query(
        f"""SELECT {_COLUMNS} FROM {conn.schema}.records r
            WHERE r.tenant_id = %(tenant)s AND r.invalidated_at IS NULL{where.conditions()}
            ORDER BY r.created_at DESC, r.seq DESC NULLS LAST, r.id DESC LIMIT %(limit)s OFFSET %(offset)s""",
        {"tenant": tenant_id, "limit": limit, "offset": offset, **where.parameters()},
    )
    return [_text(row, None) for row in rows]


def count(conn: Connection, tenant_id: str, where: Where) -> int:
    """Return how many records match."""
    [(number,)] = conn.query(
        f"""SELECT count(*) FROM {conn.schema}.records r
            WHERE r.tenant_id = %(tenant)s AND r.invalidated_at IS NULL{where.conditions()}""",
        {"tenant": tenant_id, **where.parameters()},
    )
    return int(number)


def delete(conn: Connection, tenant_id: str, ids: Sequence[uuid.UUID], *, user_id: str | None = None) -> int:
    """Delete records with their vectors and terms; return how many there were."""
    [(number,)] = conn.query(
        f"SELECT {conn.schema}.delete_records(%(tenant)s, %(user)s, %(ids)s)",
        {"tenant": tenant_id, "user": user_id, "ids": list(ids)},
    )
    return int(number)


def delete_where(conn: Connection, tenant_id: str, where: Where) -> int:
    """Delete every record that matches; return how many there were."""
    [(number,)] = conn.query(
        f"""SELECT {conn.schema}.delete_records(%(tenant)s, NULL, coalesce(array_agg(r.id), '{{}}'))
            FROM {conn.schema}.records r WHERE r.tenant_id = %(tenant)s{where.conditions()}""",
        {"tenant": tenant_id, **where.parameters()},
    )
    return int(number)


def refresh_stats(conn: Connection, tenant_id: str, user_id: str | None, added: int) -> None:
    """Count a scope anew, if its count is old or much was added. Off the turn."""
    conn.query(
        f"SELECT {conn.schema}.refresh_scope_stats(%(tenant)s, %(user)s, %(added)s)",
        {"tenant": tenant_id, "user": user_id, "added": added},
    )
