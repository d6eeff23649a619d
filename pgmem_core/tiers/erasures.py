"""What was forgotten stays away: the audit of erasures, and the question whether something was erased. Operations.

Kept are hashes, no ids and no content: `erasures` has a row for each call of forget, `erased_keys` one for every
user, session, turn and subject that went with it. What an older export or a second reading of a turn brings is
compared with them: it stays away if it was said before the erasure; what was said since is a new conversation.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from pgmem_core.changes import Add, Change, Confirm, Contest, Ignore, NewFact, Retract, Supersede
from pgmem_core.database.connection import Connection, jsonb
from pgmem_core.ids import new_id
from pgmem_core.types import SubjectRef

__all__ = [
    "Key", "Said", "Target", "blocked", "erased_at", "mark", "mark_parts", "record", "serialise", "subject_name",
    "without",
]  # fmt: skip

Target = Literal["user", "session", "subject", "turn"]
Key = tuple[Target, str]
"""What may have been erased, with its id; of a subject, `subject_name`."""

_LOCK = "pgmem erasures "


def subject_name(subject: SubjectRef) -> str:
    """Return the id of a subject in a Key."""
    return f"{subject.kind}\x1f{subject.identifier}"  # a unit separator, which no id may hold


@dataclass(frozen=True, slots=True)
class Said:
    """Something that was said once and is to be stored now. `at`: when; None: nobody knows, so before any erasure."""

    user_id: str
    session_id: str
    at: datetime | None
    turn_id: uuid.UUID | None = None
    subject: SubjectRef | None = None

    def belongs_to(self) -> list[Key]:
        """Return what it goes with: its user, session, turn and subject."""
        found: list[Key] = [("user", self.user_id), ("session", self.session_id)]
        if self.turn_id is not None:
            found.append(("turn", str(self.turn_id)))
        if self.subject is not None:
            found.append(("subject", subject_name(self.subject)))
        return found


def serialise(conn: Connection, tenant_id: str, *, erasing: bool) -> None:
    """Let no import be between its look at the erasures and its commit while something is erased. First of all locks
    of a transaction; imports do not wait for each other."""
    shared = "" if erasing else "_shared"
    conn.query(f"SELECT pg_advisory_xact_lock{shared}(hashtextextended(%(name)s, 0))", {"name": _LOCK + tenant_id})


def erased_at(conn: Connection, tenant_id: str, keys: Iterable[Key]) -> dict[Key, datetime]:
    """Return which of these were erased, and when (last). One statement."""
    wanted = list(dict.fromkeys(keys))
    rows = conn.query(
        f"""SELECT w.target, w.id, k.erased_at
            FROM unnest(%(targets)s::text[], %(ids)s::text[]) AS w (target, id)
            JOIN {conn.schema}.erased_keys k
              ON k.tenant_id = %(tenant)s AND k.key_hash = {conn.schema}.erasure_key(%(tenant)s, w.target, w.id)""",
        {"tenant": tenant_id, "targets": [target for target, _ in wanted], "ids": [one for _, one in wanted]},
    )
    return {(target, one): at.astimezone(UTC) for target, one, at in rows}


def blocked(conn: Connection, tenant_id: str, said: Sequence[Said]) -> list[bool]:
    """Return, for each of these, whether it was erased: its turn ever, or its user, session or subject after it was
    said."""
    if not said:
        return []
    found = erased_at(conn, tenant_id, (key for one in said for key in one.belongs_to()))

    def is_blocked(one: Said) -> bool:
        return any(
            key in found and (key[0] == "turn" or one.at is None or one.at <= found[key]) for key in one.belongs_to()
        )

    return [is_blocked(one) for one in said]


def mark(conn: Connection, tenant_id: str, keys: Iterable[Key]) -> datetime:
    """Note that these are erased, as of now, and return that time. In the transaction that erases, under its locks."""
    wanted = sorted(set(keys))
    [(at,)] = conn.query("SELECT clock_timestamp()")
    conn.query(
        f"""INSERT INTO {conn.schema}.erased_keys (tenant_id, key_hash, erased_at)
            SELECT %(tenant)s, {conn.schema}.erasure_key(%(tenant)s, w.target, w.id), %(at)s
            FROM unnest(%(targets)s::text[], %(ids)s::text[]) AS w (target, id) ORDER BY 2
            ON CONFLICT (tenant_id, key_hash) DO UPDATE
            SET erased_at = greatest(erased_keys.erased_at, excluded.erased_at)""",
        {
            "tenant": tenant_id, "at": at, "targets": [target for target, _ in wanted],
            "ids": [one for _, one in wanted],
        },
    )  # fmt: skip
    found: datetime = at
    return found.astimezone(UTC)


def mark_parts(
    conn: Connection,
    tenant_id: str,
    *,
    user_id: str | None = None,
    session_id: str | None = None,
    record_id: uuid.UUID | None = None,
) -> None:
    """Note that the turns of a user or of a session, or this turn by each of its ids, are erased, and a user's
    sessions. Before they are."""
    schema = conn.schema
    conn.query(
        f"""INSERT INTO {schema}.erased_keys (tenant_id, key_hash, erased_at)
            SELECT %(tenant)s, w.key_hash, clock_timestamp() FROM (
              SELECT {schema}.erasure_key(%(tenant)s, 'turn', i.id::text) AS key_hash
              FROM {schema}.records r CROSS JOIN LATERAL (VALUES (r.id), (r.alias_id)) AS i (id)
              WHERE r.tenant_id = %(tenant)s AND r.seq IS NOT NULL AND i.id IS NOT NULL
                AND (r.user_id = %(user)s OR r.session_id = %(session)s OR r.id = %(id)s OR r.alias_id = %(id)s)
              UNION
              SELECT {schema}.erasure_key(%(tenant)s, 'session', s.session_id)
              FROM {schema}.sessions s WHERE s.tenant_id = %(tenant)s AND s.user_id = %(user)s) w
            ORDER BY w.key_hash
            ON CONFLICT (tenant_id, key_hash) DO UPDATE
            SET erased_at = greatest(erased_keys.erased_at, excluded.erased_at)""",
        {"tenant": tenant_id, "user": user_id, "session": session_id, "id": record_id},
    )


def record(conn: Connection, tenant_id: str, key: Key, counts: Mapping[str, int], at: datetime) -> str:
    """Write the audit row of an erasure, which holds no content, and return its id."""
    erasure_id = new_id()
    conn.query(
        f"""INSERT INTO {conn.schema}.erasures (tenant_id, erasure_id, target, key_hash, counts, erased_at)
            VALUES (%(tenant)s, %(id)s, %(target)s, {conn.schema}.erasure_key(%(tenant)s, %(target)s, %(key)s),
                    %(counts)s, %(at)s)""",
        {
            "tenant": tenant_id, "id": erasure_id, "target": key[0], "key": key[1], "counts": jsonb(dict(counts)),
            "at": at,
        },
    )  # fmt: skip
    return str(erasure_id)


# -- what is left of a decision: pure --------------------------------------------------------------------------


def without(changes: Sequence[Change], erased: Mapping[SubjectRef, datetime]) -> tuple[Change, ...]:
    """Return the changes without facts of erased subjects that were said before the erasure (`erased`: when).

    Each stays at its place: one that is left out becomes an Ignore. What was said since stands as if the rest had
    never been said: where it confirms, contests or replaces what is left out, it is a row of its own.
    """
    if not erased:
        return tuple(changes)
    left_out: dict[str, NewFact] = {}
    return tuple(_allowed(change, erased, left_out) for change in changes)


def _allowed(change: Change, erased: Mapping[SubjectRef, datetime], left_out: dict[str, NewFact]) -> Change:
    match change:
        case Confirm() if change.fact_id in left_out:
            new = replace(
                left_out[change.fact_id], last_confirmed_at=change.last_confirmed_at, authority=change.authority,
                evidence=change.evidence,
            )  # fmt: skip
            if not _is_erased(new, erased):
                del left_out[new.ref]
                return Add(change.by, new)
        case Add() | Supersede() | Contest() if _is_erased(change.new, erased):
            left_out[change.new.ref] = change.new
        case Supersede() if change.fact_id in left_out:
            return Add(change.by, change.new, _kept(change.settles, left_out), change.lifts)
        case Contest() if change.against in left_out:
            return Add(change.by, replace(change.new, status="accepted"))
        case Add() | Supersede():
            return replace(change, settles=_kept(change.settles, left_out))
        case Retract() if change.fact_id in left_out:
            return replace(change, fact_id=None, tombstone=replace(change.tombstone, fact_id=None))
        case _ if getattr(change, "fact_id", None) not in left_out:
            return change
    return Ignore(change.by, "said before its subject was forgotten")


def _kept(settles: tuple[str, ...], left_out: Mapping[str, NewFact]) -> tuple[str, ...]:
    return tuple(ref for ref in settles if ref not in left_out)


def _is_erased(new: NewFact, erased: Mapping[SubjectRef, datetime]) -> bool:
    at = erased.get(new.subject)
    return at is not None and new.last_confirmed_at <= at
