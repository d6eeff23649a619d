"""What a person is to decide, and the record of what was decided. Operations; `reviewing` decides with them.

A rejected value goes by the id of the fact it was; where nobody had claimed it, by a hash of its tombstone's key.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pgmem_core.database.connection import Connection
from pgmem_core.encoding import encode_text
from pgmem_core.errors import NotFound
from pgmem_core.facts import Fact, ReviewItem, Verdict
from pgmem_core.ids import new_id
from pgmem_core.predicates import opposites
from pgmem_core.tiers import beliefs
from pgmem_core.types import Authority, SubjectRef

__all__ = ["Target", "forget", "lift", "record", "rejected", "target", "uncertain"]

_HANDLE = "md5(t.subject_id::text || t.predicate || encode(t.value_key, 'hex'))::uuid"


@dataclass(frozen=True, slots=True)
class Target:
    """What a decision is about. `owner`: whose subject it is, "" for the group's. `fact` is None for a rejected value
    that nobody had claimed."""

    id: str
    subject_id: uuid.UUID
    subject: SubjectRef
    owner: str
    user_id: str
    predicate: str
    value_key: bytes
    fact: Fact | None


def target(conn: Connection, tenant: str, target_id: uuid.UUID) -> Target:
    """Return what an id of a fact, or of a rejected value, is about. Raises: NotFound."""
    rows = conn.query(
        f"""SELECT f.fact_id, f.subject_id, s.kind, s.identifier, s.owner, f.user_id, f.predicate, f.value_key, true
            FROM {conn.schema}.facts f
            JOIN {conn.schema}.subjects s ON s.tenant_id = f.tenant_id AND s.subject_id = f.subject_id
            WHERE f.tenant_id = %(tenant)s AND f.fact_id = %(id)s
            UNION ALL
            SELECT {_HANDLE}, t.subject_id, s.kind, s.identifier, s.owner,
                   CASE WHEN s.owner = '' AND s.kind = 'user' THEN s.identifier ELSE s.owner END,
                   t.predicate, t.value_key, false
            FROM {conn.schema}.tombstones t
            JOIN {conn.schema}.subjects s ON s.tenant_id = t.tenant_id AND s.subject_id = t.subject_id
            WHERE t.tenant_id = %(tenant)s AND {_HANDLE} = %(id)s""",
        {"tenant": tenant, "id": target_id},
    )
    if not rows:
        raise NotFound(f"no fact or rejected value {target_id} in group {tenant!r}; review() lists what there is")
    one, subject_id, kind, identifier, owner, user_id, predicate, key, is_fact = rows[0]
    return Target(
        str(one), subject_id, SubjectRef(kind, identifier), owner, user_id, predicate, bytes(key),
        beliefs.fetch(conn, tenant, str(one)) if is_fact else None,
    )  # fmt: skip


def lift(conn: Connection, tenant: str, about: Target, lifted_at: datetime | None) -> None:
    """Mark a tombstone as lifted, or with None as standing again, under the lock of its subject."""
    conn.query(
        f"""UPDATE {conn.schema}.tombstones SET lifted_at = %(at)s
            WHERE tenant_id = %(tenant)s AND subject_id = %(subject)s AND predicate = %(predicate)s
              AND value_key = %(key)s""",
        {
            "tenant": tenant, "subject": about.subject_id, "predicate": about.predicate, "key": about.value_key,
            "at": lifted_at,
        },
    )  # fmt: skip
    conn.query(
        f"""UPDATE {conn.schema}.subjects SET last_change = greatest(last_change, %(at)s)
            WHERE tenant_id = %(tenant)s AND subject_id = %(subject)s""",
        {"tenant": tenant, "subject": about.subject_id, "at": lifted_at},
    )


def record(
    conn: Connection, tenant: str, target_id: str, decision: Verdict, *, decided_by: str, note: str | None
) -> None:
    """Record what was decided, in the transaction that does it."""
    conn.query(
        f"""INSERT INTO {conn.schema}.decisions (tenant_id, decision_id, fact_id, decision, decided_by, note)
            VALUES (%(tenant)s, %(id)s, %(fact)s, %(decision)s, %(by)s, %(note)s)""",
        {
            "tenant": tenant, "id": new_id(), "fact": uuid.UUID(target_id), "decision": decision, "by": decided_by,
            "note": None if note is None else encode_text(note),
        },
    )  # fmt: skip


def forget(conn: Connection, tenant: str, subjects: Sequence[uuid.UUID]) -> int:
    """Delete what was decided about rejected values that nobody had claimed, before their tombstones go; return how
    many decisions those were. Those about facts go with the facts."""
    [(count,)] = conn.query(
        f"""WITH gone AS (
              DELETE FROM {conn.schema}.decisions d USING {conn.schema}.tombstones t
              WHERE d.tenant_id = %(tenant)s AND t.tenant_id = %(tenant)s AND t.subject_id = ANY (%(subjects)s)
                AND d.fact_id = {_HANDLE} RETURNING 1)
            SELECT count(*) FROM gone""",
        {"tenant": tenant, "subjects": list(subjects)},
    )
    return int(count)


# -- what there is to decide -------------------------------------------------------------------------------------


def uncertain(
    conn: Connection, tenant: str, *, user_id: str | None, contested: bool, below: float | None, limit: int
) -> list[ReviewItem]:
    """Return contested facts, then (below: a confidence) standing ones less sure than that which nobody has confirmed
    in review; newest first."""
    rows = conn.query(
        f"""SELECT f.fact_id, f.subject_id FROM {conn.schema}.facts f
            WHERE f.tenant_id = %(tenant)s AND f.superseded_at = 'infinity' AND f.valid_to > clock_timestamp()
              AND (%(user)s::text IS NULL OR f.user_id = %(user)s)
              AND ((%(contested)s AND f.status = 'contested')
                   OR (f.status = 'accepted' AND f.confidence < %(below)s::real AND NOT EXISTS (
                         SELECT FROM {conn.schema}.decisions d WHERE d.tenant_id = f.tenant_id
                           AND d.fact_id = f.fact_id AND d.decision = 'confirm')))
            ORDER BY f.status DESC, f.recorded_at DESC, f.fact_id LIMIT %(limit)s""",
        {"tenant": tenant, "user": user_id, "contested": contested, "below": below, "limit": limit},
    )
    facts = {fact.id: fact for fact in _by_ids(conn, tenant, [row[0] for row in rows])}
    standing = _standing(conn, tenant, {row[1] for row in rows})
    decided = beliefs.decisions(conn, tenant, facts)
    items = []
    for fact_id, subject_id in rows:
        fact = facts.get(str(fact_id))
        if fact is None:  # deleted between two statements
            continue
        items.append(
            ReviewItem(
                id=fact.id,
                status="contested" if fact.status == "contested" else "low_confidence",
                subject=fact.subject,
                predicate=fact.predicate,
                value=fact.value,
                authority=fact.authority,
                at=fact.last_confirmed_at,
                confidence=fact.confidence,
                evidence=fact.evidence,
                conflicts=_conflicts(fact, standing.get(subject_id, ())),
                decisions=decided.get(fact.id, ()),
            )
        )
    return items


def rejected(conn: Connection, tenant: str, *, user_id: str | None, limit: int) -> list[ReviewItem]:
    """Return rejected values, latest first, with what stands in their place."""
    rows = conn.query(
        f"""SELECT {_HANDLE}, t.subject_id, s.kind, s.identifier, t.predicate, t.authority, t.created_at, t.hits,
                   f.fact_id
            FROM {conn.schema}.tombstones t
            JOIN {conn.schema}.subjects s ON s.tenant_id = t.tenant_id AND s.subject_id = t.subject_id
            LEFT JOIN {conn.schema}.facts f ON f.tenant_id = t.tenant_id AND f.fact_id = t.fact_id
            WHERE t.tenant_id = %(tenant)s AND t.lifted_at IS NULL
              AND (%(user)s::text IS NULL OR %(user)s IN (f.user_id, s.owner)
                   OR (s.kind = 'user' AND s.identifier = %(user)s))
            ORDER BY t.created_at DESC, 1 LIMIT %(limit)s""",
        {"tenant": tenant, "user": user_id, "limit": limit},
    )
    facts = {fact.id: fact for fact in _by_ids(conn, tenant, [row[-1] for row in rows if row[-1] is not None])}
    standing = _standing(conn, tenant, {row[1] for row in rows})
    decided = beliefs.decisions(conn, tenant, [str(row[-1] or row[0]) for row in rows])
    items = []
    for handle, subject_id, kind, identifier, predicate, authority, at, hits, fact_id in rows:
        fact = facts.get(str(fact_id))
        known = str(fact_id or handle)
        items.append(
            ReviewItem(
                id=known,
                status="rejected",
                subject=SubjectRef(kind, identifier),
                predicate=predicate,
                value=None if fact is None else fact.value,
                authority=Authority(authority),
                at=at.astimezone(UTC),
                confidence=None if fact is None else fact.confidence,
                evidence=() if fact is None else fact.evidence,
                conflicts=() if fact is None else _conflicts(fact, standing.get(subject_id, ())),
                hits=hits,
                decisions=decided.get(known, ()),
            )
        )
    return items


def _by_ids(conn: Connection, tenant: str, ids: Sequence[uuid.UUID]) -> list[Fact]:
    return beliefs.select(conn, tenant, "f.fact_id = ANY (%(ids)s)", {"ids": list(ids)}) if ids else []


def _standing(conn: Connection, tenant: str, subjects: set[uuid.UUID]) -> dict[uuid.UUID, list[Fact]]:
    """Return what stands of each subject now."""
    rows: list[tuple[Any, ...]] = conn.query(
        f"""SELECT fact_id, subject_id FROM {conn.schema}.facts
            WHERE tenant_id = %(tenant)s AND subject_id = ANY (%(subjects)s) AND superseded_at = 'infinity'
              AND status = 'accepted' AND valid_to > clock_timestamp()""",
        {"tenant": tenant, "subjects": sorted(subjects)},
    )
    where = {str(fact_id): subject_id for fact_id, subject_id in rows}
    found: dict[uuid.UUID, list[Fact]] = {}
    for fact in _by_ids(conn, tenant, [row[0] for row in rows]):
        found.setdefault(where[fact.id], []).append(fact)
    return found


def _conflicts(fact: Fact, standing: Iterable[Fact]) -> tuple[Fact, ...]:
    """Return the standing facts that cannot hold beside one, or took its place."""
    key, others = fact.value_key, opposites(fact.predicate)
    # Of several values only a contested or rejected one has something against it: the rest stand side by side.
    rivals = fact.single_valued or fact.status == "contested" or fact.superseded_at is not None
    return tuple(
        one
        for one in standing
        if (one.predicate == fact.predicate and rivals and one.value_key != key)
        or (one.predicate in others and one.value_key == key)
    )
