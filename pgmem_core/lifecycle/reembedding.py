"""From one embedder to another, online: rows are moved over in batches while both are read and written.

Until the last row has moved, a client with the old embedder finds its rows by meaning and the moved ones by their
words, a client with the new one the other way round; turns said meanwhile are embedded by whichever writes them.
Then the old model is retired: nothing can be written as its any more, its index goes, its embedder is refused by name.

Batches are claimed by key. A process that is killed loses the batch it was at, which stays as it was; the walk starts
again from the first key until nothing is left, so any number of processes may move, and stop, and go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np

from pgmem_core import items
from pgmem_core.content import spoken
from pgmem_core.database import moving
from pgmem_core.database.connection import Connection
from pgmem_core.database.migrate import Model
from pgmem_core.effects import Flow, pause, transact
from pgmem_core.encoding import decode_text
from pgmem_core.errors import BadVector, InvalidArgument, StoreUnavailable
from pgmem_core.flows import create_schema, dimensions_of, embed_all
from pgmem_core.formation import embedding
from pgmem_core.formation.embedding import Pending
from pgmem_core.models.adapters import as_embedder
from pgmem_core.protocols import Vectors
from pgmem_core.runtime import Runtime
from pgmem_core.tiers import imports
from pgmem_core.types import SILENT_ROLES

__all__ = ["ReembedProgress", "ReembedReport", "reembed"]

# Looks for a moment in which no write holds the table, a second each and half of one between them.
_CLOSING_ATTEMPTS = 60
_CLOSING_PAUSE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class ReembedProgress:
    """How far it has come. `total`: rows of other models when this call began; turns said since may exceed it."""

    model: str
    moved: int
    total: int


@dataclass(frozen=True, slots=True)
class ReembedReport:
    """What a call did. `unusable`: rows for which the new embedder gave no usable vector, found by words only since.
    `retired`: the models that nothing is left of."""

    model: str
    dimensions: int
    moved: int
    unusable: int
    retired: tuple[str, ...]
    seconds: float


def reembed(
    rt: Runtime, to: Any, *, batch: int, on_progress: Callable[[ReembedProgress], None] | None
) -> Flow[ReembedReport]:
    """Move every row that an embedder made over to another one's vectors, and let this client go on with that one.

    Raises: PermissionDenied (not the tables' owner), EmbeddingError (what has been moved stays so; call it again),
    DimensionMismatch, StoreUnavailable.
    """
    if not isinstance(batch, int) or isinstance(batch, bool) or not 1 <= batch <= 10_000:
        raise InvalidArgument(f"batch must be a whole number from 1 to 10,000, got {batch!r}")
    started = time.perf_counter()
    new = Runtime(rt.database, rt.settings, as_embedder(to))
    # Not `ready`: the client may have been opened with an embedder that is no longer, or not yet, the store's.
    yield from create_schema(rt)
    dimensions = yield from dimensions_of(new)
    model = yield from transact(moving.make_target, new.embedder.model, dimensions)
    yield from transact(moving.build_online, model, single=True)
    others = yield from transact(_others, model, single=True)
    total = yield from transact(_count, others, single=True)
    moved = unusable = 0

    def tell() -> None:
        if on_progress is not None:
            on_progress(ReembedProgress(model.name, moved, max(total, moved)))

    tell()
    retired: list[str] = []
    while True:
        pending = yield from transact(_claim, model, others, limit=batch)
        if pending:
            stored, lost = yield from _move(new, model, pending)
            moved, unusable = moved + stored + lost, unusable + lost
            tell()
            continue
        # The end of a walk. Another process may be at what it claimed, or have been killed over it.
        others = yield from transact(_others, model, single=True)
        if (yield from transact(_left, others, single=True)):
            yield from transact(_rewind, model, single=True)
        elif open_ones := (yield from transact(_others, model, open_only=True, single=True)):
            yield from _close(open_ones)
            retired += [one.name for one in open_ones]
            # What was written up to the lock is seen in the next look, and it is the last.
        else:
            break
    moved += yield from items.reembed(new, model, batch=batch)
    for other in others:
        yield from transact(moving.drop_online, other, single=True)
    yield from transact(_finish, model, single=True)
    yield from transact(imports.analyze, single=True)
    rt.adopt(new.embedder)
    return ReembedReport(
        model.name, model.dimensions, moved, unusable, tuple(retired),
        round(time.perf_counter() - started, 3),
    )  # fmt: skip


def _close(others: Sequence[Model]) -> Flow[None]:
    for _ in range(_CLOSING_ATTEMPTS):
        if (yield from transact(moving.close_models, others)):
            return
        yield from pause(_CLOSING_PAUSE_SECONDS)
    raise StoreUnavailable(
        "every row is moved, but a transaction that has written to the table of records stays open, and the old model"
        " cannot be retired while it does; end it and call reembed again"
    )


def _move(new: Runtime, model: Model, pending: Sequence[tuple[str, Pending]]) -> Flow[tuple[int, int]]:
    """Embed a batch and store it; return how many rows have their vector, and how many lost the one they had."""
    stored = lost = 0
    for tenant in sorted({tenant for tenant, _ in pending}):
        mine = [one for owner, one in pending if owner == tenant]
        good, vectors = yield from _vectors(new, model, mine)
        if good:
            stored += yield from transact(embedding.store_vectors, tenant, good, vectors, model=model, single=True)
        if bad := [one for one in mine if one not in good]:
            lost += yield from transact(_drop_vectors, tenant, bad, single=True)
    return stored, lost


def _vectors(new: Runtime, model: Model, pending: Sequence[Pending]) -> Flow[tuple[list[Pending], Vectors]]:
    """Return the rows that could be embedded and their vectors. A bad vector refuses its whole batch, so that is
    halved until only the texts it came from are left out."""
    try:
        return list(pending), embedding.combine((yield from embed_all(new, model, embedding.texts_of(pending))))
    except BadVector:
        if len(pending) == 1:
            return [], np.empty((0, model.dimensions), dtype=np.float32)
    half = len(pending) // 2
    first, left = yield from _vectors(new, model, pending[:half])
    second, right = yield from _vectors(new, model, pending[half:])
    return first + second, np.concatenate([left, right])


# -- operations ------------------------------------------------------------------------------------------------


def _others(conn: Connection, model: Model, *, open_only: bool = False) -> list[Model]:
    """Return the embedders' models to move away from. Not open_only: also retired ones, whose last rows and whose
    index a process that was killed may have left."""
    rows = conn.query(
        f"""SELECT id, name, dimensions FROM {conn.schema}.embedding_models
            WHERE source = 'embedder' AND id <> %(id)s AND (status <> 'retired' OR NOT %(open)s) ORDER BY created_at""",
        {"id": model.id, "open": open_only},
    )
    return [Model(*row) for row in rows]


def _count(conn: Connection, models: Sequence[Model]) -> int:
    [(number,)] = conn.query(
        f"SELECT count(*) FROM {conn.schema}.records WHERE model = ANY (%(models)s)",
        {"models": [model.id for model in models]},
    )
    return int(number)


def _left(conn: Connection, models: Sequence[Model]) -> bool:
    [(found,)] = conn.query(
        f"SELECT EXISTS (SELECT FROM {conn.schema}.records WHERE model = ANY (%(models)s))",
        {"models": [model.id for model in models]},
    )
    return bool(found)


def _claim(conn: Connection, model: Model, others: Sequence[Model], *, limit: int) -> list[tuple[str, Pending]]:
    """Take the next rows by key, with their tenants; nobody else takes them in this walk. In a transaction.

    A turn comes with what was said before it, as when it was embedded first. Plan: records_pkey; records_turns
    backwards for the turn before. 40 µs a row.
    """
    [(tenant, record_id)] = conn.query(
        f"SELECT claimed_tenant, claimed_id FROM {conn.schema}.embedding_models WHERE id = %(id)s FOR UPDATE",
        {"id": model.id},
    )
    rows = conn.query(
        f"""SELECT r.tenant_id, r.id, coalesce(r.seq, 0), r.content, r.message->>'name', b.content, b.name
            FROM (SELECT * FROM {conn.schema}.records
                  WHERE (tenant_id, id) > (%(tenant)s, %(after)s::uuid) AND model = ANY (%(models)s)
                  ORDER BY tenant_id, id LIMIT %(limit)s) r
            LEFT JOIN LATERAL (
              SELECT p.content, p.message->>'name' AS name FROM {conn.schema}.records p
              WHERE p.tenant_id = r.tenant_id AND p.session_id = r.session_id AND p.seq IS NOT NULL AND p.seq < r.seq
                AND p.role <> ALL (%(silent)s) AND p.content ~ '\\S'
              ORDER BY p.seq DESC LIMIT 1) b ON r.seq IS NOT NULL
            ORDER BY r.tenant_id, r.id""",
        {
            "tenant": tenant, "after": record_id, "models": [other.id for other in others], "limit": limit,
            "silent": sorted(SILENT_ROLES),
        },
    )  # fmt: skip
    if rows:
        conn.query(
            f"""UPDATE {conn.schema}.embedding_models SET claimed_tenant = %(tenant)s, claimed_id = %(last)s
                WHERE id = %(id)s""",
            {"id": model.id, "tenant": rows[-1][0], "last": rows[-1][1]},
        )
    return [
        (
            owner,
            Pending(
                found, seq, _said(content, name), "" if before is None else _said(before, before_name),
                sha256(content.encode()).digest(),
            ),
        )
        for owner, found, seq, content, name, before, before_name in rows
    ]  # fmt: skip


def _said(content: str, name: str | None) -> str:
    return spoken(decode_text(content), name and decode_text(name))


def _rewind(conn: Connection, model: Model) -> None:
    conn.query(
        f"""UPDATE {conn.schema}.embedding_models SET claimed_tenant = DEFAULT, claimed_id = DEFAULT
            WHERE id = %(id)s""",
        {"id": model.id},
    )


def _drop_vectors(conn: Connection, tenant_id: str, rows: Sequence[Pending]) -> int:
    """Take from rows the vectors that nothing could be made of, where their text is still the same."""
    dropped = conn.query(
        f"""UPDATE {conn.schema}.records r SET model = NULL, embedding = NULL
            FROM unnest(%(ids)s::uuid[], %(digests)s::bytea[]) AS v (id, digest)
            WHERE r.tenant_id = %(tenant)s AND r.id = v.id AND sha256(convert_to(r.content, 'UTF8')) = v.digest
            RETURNING true""",
        {"tenant": tenant_id, "ids": [row.id for row in rows], "digests": [row.digest for row in rows]},
    )
    return len(dropped)


def _finish(conn: Connection, model: Model) -> None:
    """The target is the store's model; no other embedder's is left. In a store that had none before, too."""
    conn.query(
        f"UPDATE {conn.schema}.embedding_models SET status = 'active' WHERE id = %(id)s AND status = 'target'",
        {"id": model.id},
    )
