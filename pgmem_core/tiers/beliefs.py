"""Semantic memory, read: what we believe, believed and rejected. Operations; nothing here writes a fact."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

from pgmem_core.database.connection import Connection
from pgmem_core.encoding import decode_json, decode_text, encode_text
from pgmem_core.errors import NotFound
from pgmem_core.facts import Decision, Evidence, Fact, Tombstone, subject_key
from pgmem_core.types import Authority, SubjectRef

__all__ = ["decisions", "facts_of", "fetch", "history", "lock_tombstones", "select", "subject_id"]


def subject_id(subject: SubjectRef, owner: str = "") -> uuid.UUID:
    """Return the subject's id: the same wherever it is named, by whoever owns it ("": the whole tenant).

    What was learnt from a user's talk about others is that user's own: two users' "Max" are two.
    """
    key = subject_key(subject)
    if owner:
        key = blake2b(key + encode_text(owner).encode(), digest_size=16, person=b"pgmem.private.1").digest()
    return uuid.UUID(bytes=key[:16])


def _ids(subject: SubjectRef, user_id: str | None) -> list[uuid.UUID]:
    """Return the ids under which a user's memory may hold the subject; without a user the tenant's alone."""
    return [subject_id(subject), *([subject_id(subject, user_id)] if user_id else [])]


_COLUMNS = """f.fact_id, f.tenant_id, s.kind, s.identifier, f.predicate, f.value, f.authority, f.confidence, f.status,
    f.single_valued, nullif(f.valid_from, '-infinity'), nullif(f.valid_to, 'infinity'), f.recorded_at,
    nullif(f.superseded_at, 'infinity'), f.last_confirmed_at, f.superseded_by,
    (SELECT coalesce(jsonb_agg(jsonb_build_array(e.turn_id, e.source, e.quote) ORDER BY e.recorded_at, e.evidence_id),
                     '[]') FROM {schema}.evidence e WHERE e.tenant_id = f.tenant_id AND e.fact_id = f.fact_id)"""


def select(conn: Connection, tenant: str, condition: str, parameters: dict[str, Any]) -> list[Fact]:
    """Return the rows of facts `f` of subjects `s` that meet an SQL condition of ours, by predicate and time."""
    rows = conn.query(
        f"""SELECT {_COLUMNS.format(schema=conn.schema)} FROM {conn.schema}.facts f
            JOIN {conn.schema}.subjects s ON s.tenant_id = f.tenant_id AND s.subject_id = f.subject_id
            WHERE f.tenant_id = %(tenant)s AND {condition}
            ORDER BY f.predicate, f.recorded_at, f.fact_id""",
        {"tenant": tenant, **parameters},
    )
    return [_fact(row) for row in rows]


def _utc(value: datetime | None) -> datetime | None:
    return None if value is None else value.astimezone(UTC)


def _fact(row: Sequence[Any]) -> Fact:
    (fact_id, tenant, kind, identifier, predicate, value, authority, confidence, status, single, valid_from, valid_to,
     recorded_at, superseded_at, confirmed_at, superseded_by, evidence) = row  # fmt: skip
    return Fact(
        id=str(fact_id), group_id=tenant, subject=SubjectRef(kind, identifier), predicate=predicate,
        value=decode_json(value), authority=Authority(authority), confidence=round(float(confidence), 6), status=status,
        single_valued=single, valid_from=_utc(valid_from), valid_to=_utc(valid_to),
        recorded_at=recorded_at.astimezone(UTC), superseded_at=_utc(superseded_at),
        last_confirmed_at=confirmed_at.astimezone(UTC),
        superseded_by=None if superseded_by is None else str(superseded_by),
        evidence=tuple(
            Evidence(turn, source and decode_text(source), quote and decode_text(quote))
            for turn, source, quote in evidence
        ),
    )  # fmt: skip


def lock_tombstones(conn: Connection, tenant: str, subjects: dict[uuid.UUID, SubjectRef]) -> list[Tombstone]:
    """Lock and return the tombstones of subjects whose rows are locked already, lifted ones too."""
    rows = conn.query(
        f"""SELECT subject_id, predicate, value_key, authority, created_at, fact_id, lifted_at
            FROM {conn.schema}.tombstones
            WHERE tenant_id = %(tenant)s AND subject_id = ANY (%(ids)s) FOR UPDATE""",
        {"tenant": tenant, "ids": list(subjects)},
    )
    return [
        Tombstone(
            subjects[subject], predicate, bytes(key), Authority(authority), created_at.astimezone(UTC),
            None if fact is None else str(fact), _utc(lifted_at),
        )
        for subject, predicate, key, authority, created_at, fact, lifted_at in rows
    ]  # fmt: skip


def facts_of(
    conn: Connection,
    tenant: str,
    *,
    subject: SubjectRef | None = None,
    user_id: str | None = None,
    predicate: str | None = None,
    valid_at: datetime | None = None,
    known_at: datetime | None = None,
    statuses: Sequence[str] = ("accepted",),
) -> list[Fact]:
    """Return what we believe (at known_at: believed then) to hold now (valid_at: then), by predicate."""
    conditions = ["f.status = ANY (%(statuses)s)"]
    conditions.append(
        "f.superseded_at = 'infinity'"
        if known_at is None
        else "f.recorded_at <= %(known)s AND f.superseded_at > %(known)s"
    )
    moment = "coalesce(%(valid)s::timestamptz, %(known)s::timestamptz, clock_timestamp())"
    conditions.append(f"f.valid_from <= {moment} AND f.valid_to > {moment}")
    conditions.append(f"(f.expires_at IS NULL OR f.expires_at > {moment})")
    if subject is not None:
        conditions.append("f.subject_id = ANY (%(subjects)s)")
    if user_id is not None:
        conditions.append("f.user_id = %(user)s")
    if predicate is not None:
        conditions.append("f.predicate = %(predicate)s")
    return select(
        conn, tenant, " AND ".join(conditions),
        {
            "subjects": None if subject is None else _ids(subject, user_id), "user": user_id, "predicate": predicate,
            "known": known_at, "valid": valid_at, "statuses": list(statuses),
        },
    )  # fmt: skip


def history(
    conn: Connection, tenant: str, subject: SubjectRef, predicate: str | None, *, user_id: str | None = None
) -> list[Fact]:
    """Return every row about a subject, also superseded ones, in the order in which they were recorded.

    With user_id that user's rows alone, and also those of subjects that are the user's own.
    """
    found = select(
        conn, tenant,
        "f.subject_id = ANY (%(subjects)s) AND (%(predicate)s::text IS NULL OR f.predicate = %(predicate)s)"
        " AND (%(user)s::text IS NULL OR f.user_id = %(user)s)",
        {"subjects": _ids(subject, user_id), "predicate": predicate, "user": user_id},
    )  # fmt: skip
    decided = decisions(conn, tenant, [fact.id for fact in found])
    found = [replace(fact, decisions=decided.get(fact.id, ())) for fact in found] if decided else found
    return sorted(found, key=lambda fact: (fact.recorded_at, fact.id))


def decisions(conn: Connection, tenant: str, ids: Iterable[str]) -> dict[str, tuple[Decision, ...]]:
    """Return what was decided about each of these ids, oldest first."""
    rows = conn.query(
        f"""SELECT fact_id, decision, decided_by, decided_at, note FROM {conn.schema}.decisions
            WHERE tenant_id = %(tenant)s AND fact_id = ANY (%(ids)s) ORDER BY decided_at, decision_id""",
        {"tenant": tenant, "ids": [uuid.UUID(one) for one in ids]},
    )
    found: dict[str, tuple[Decision, ...]] = {}
    for fact_id, decision, by, at, note in rows:
        made = Decision(decision, by, at.astimezone(UTC), note and decode_text(note))
        found[str(fact_id)] = (*found.get(str(fact_id), ()), made)
    return found


def by_ids(conn: Connection, tenant: str, ids: Sequence[str]) -> dict[str, Fact]:
    """Return the facts of these ids that there are, by id, with their evidence."""
    found = select(conn, tenant, "f.fact_id = ANY (%(ids)s)", {"ids": [uuid.UUID(one) for one in ids]})
    return {fact.id: fact for fact in found}


def fetch(conn: Connection, tenant: str, fact_id: str) -> Fact:
    """Return one row. Raises: NotFound."""
    found = select(conn, tenant, "f.fact_id = %(id)s", {"id": uuid.UUID(fact_id)})
    if not found:
        raise NotFound(f"no fact {fact_id} in group {tenant!r}")
    return found[0]
