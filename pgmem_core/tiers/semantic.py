"""Semantic memory: bi-temporal facts, their evidence and tombstones. Operations; what to do is decided in
`formation.reconcile`, here it is written.

Everything about a subject happens under the lock of its row, and times are taken there: `recorded_at` and
`superseded_at` never go back. Lock order: session, turns, subject, tombstone, facts; several subjects by id.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pgmem_core.changes import (
    Add,
    Change,
    Confirm,
    Contest,
    End,
    HitTombstone,
    NewFact,
    Reconciled,
    Retract,
    Supersede,
)
from pgmem_core.database.connection import Connection, jsonb
from pgmem_core.encoding import decode_json, decode_text, encode_json, encode_text
from pgmem_core.errors import NotFound
from pgmem_core.facts import Evidence, Fact, Tombstone, fact_text, subject_key
from pgmem_core.ids import new_id
from pgmem_core.retrieval import lexical
from pgmem_core.tiers import plain
from pgmem_core.tiers.plain import NewRecord
from pgmem_core.tokens import count_message
from pgmem_core.types import Authority, Scope, SubjectRef

__all__ = ["Place", "Settled", "facts_of", "fetch", "history", "settle", "subject_id"]

_TICK = timedelta(microseconds=1)
Decide = Callable[[list[Fact], list[Tombstone], datetime], Reconciled]


@dataclass(frozen=True, slots=True)
class Place:
    """Where facts are written: whose memory, and the session they were learnt in, if in one."""

    scope: Scope
    session_id: str | None
    language: str


@dataclass(frozen=True, slots=True)
class Settled:
    """What was decided and written. fact_ids[i] is the row that change i made or touched, if any."""

    reconciled: Reconciled
    fact_ids: tuple[str | None, ...]


def subject_id(subject: SubjectRef) -> uuid.UUID:
    """Return the subject's id: the same wherever it is named."""
    return uuid.UUID(bytes=subject_key(subject)[:16])


def settle(conn: Connection, place: Place, subjects: Iterable[SubjectRef], decide: Decide) -> Settled:
    """Lock the subjects, let decide(current facts, tombstones, now) say what to do, and do it. In a transaction."""
    tenant = place.scope.tenant_id
    by_id = {subject_id(subject): subject for subject in subjects}
    now = _lock(conn, tenant, by_id)
    ids = list(by_id)
    current = _select(conn, tenant, "f.subject_id = ANY (%(ids)s) AND f.superseded_at = 'infinity'", {"ids": ids})
    dead = _tombstones(conn, tenant, by_id)
    reconciled = decide(current, dead, now)
    writer = _Writer(conn, place, now, by_id)
    done = tuple(writer.write(change) for change in reconciled.changes)
    return Settled(reconciled, done)


def _lock(conn: Connection, tenant: str, subjects: dict[uuid.UUID, SubjectRef]) -> datetime:
    """Make and lock the subjects' rows, lowest id first, and return a time later than any they have seen."""
    for one in sorted(subjects):
        conn.query(
            f"""INSERT INTO {conn.schema}.subjects (tenant_id, subject_id, kind, identifier)
                VALUES (%(tenant)s, %(id)s, %(kind)s, %(identifier)s) ON CONFLICT DO NOTHING""",
            {"tenant": tenant, "id": one, "kind": subjects[one].kind, "identifier": subjects[one].identifier},
        )
        conn.query(
            f"SELECT FROM {conn.schema}.subjects WHERE tenant_id = %(tenant)s AND subject_id = %(id)s FOR UPDATE",
            {"tenant": tenant, "id": one},
        )
    rows = conn.query(
        f"""SELECT greatest(clock_timestamp(), max(last_change) + interval '1 microsecond')
            FROM {conn.schema}.subjects WHERE tenant_id = %(tenant)s AND subject_id = ANY (%(ids)s)""",
        {"tenant": tenant, "ids": list(subjects)},
    )
    now: datetime = rows[0][0]
    return now.astimezone(UTC)


class _Writer:
    """Writes changes in order, each a microsecond after the one before, and knows which row a ref became."""

    def __init__(self, conn: Connection, place: Place, now: datetime, subjects: dict[uuid.UUID, SubjectRef]) -> None:
        self._conn = conn
        self._place = place
        self._now = now
        self._refs: dict[str, uuid.UUID] = {}
        self._subjects = subjects

    def write(self, change: Change) -> str | None:
        """Write one change and return the id of the row it is about."""
        self._now += _TICK
        match change:
            case Add():
                return self._with(change.new, change.settles, change.lifts)
            case Supersede():
                old = self._row(change.fact_id)
                made = self._prepare(change.new)
                if change.mode == "changed":
                    self._bound(old, change.closes_at, "changed", made)
                else:
                    self._close(old, "wrong", made)
                    self._bury(change.tombstone)
                return self._with(change.new, change.settles, change.lifts)
            case Confirm():
                return self._confirm(change)
            case Contest():
                return self._with(change.new, (), None)
            case End():
                return self._bound(self._row(change.fact_id), change.valid_to, "ended", None, change.evidence)
            case Retract():
                row = None if change.fact_id is None else self._row(change.fact_id)
                if row is not None:
                    self._close(row, "retracted", None)
                self._bury(change.tombstone)
                return None if row is None else str(row)
            case HitTombstone():
                self._hit(change.tombstone)
                return None
            case _:
                return getattr(change, "fact_id", None)

    def _row(self, fact_id: str) -> uuid.UUID:
        known = self._refs.get(fact_id)
        found = known if known is not None else uuid.UUID(fact_id)
        while (copy := self._refs.get(str(found))) is not None:  # bounded meanwhile: the copy is the row now
            found = copy
        return found

    def _prepare(self, new: NewFact) -> uuid.UUID:
        made = self._refs.get(new.ref)
        if made is None:
            made = self._refs[new.ref] = new_id()
        return made

    def _with(self, new: NewFact, settles: Sequence[str], lifts: Tombstone | None) -> str:
        made = self._prepare(new)
        for fact_id in settles:
            self._close(self._row(fact_id), "settled", made)
        if lifts is not None:
            self._conn.query(
                f"""UPDATE {self._conn.schema}.tombstones SET lifted_at = %(lifted)s
                    WHERE tenant_id = %(tenant)s AND subject_id = %(subject)s AND predicate = %(predicate)s
                      AND value_key = %(key)s""",
                {**self._grave(lifts), "lifted": lifts.lifted_at or self._now},
            )
        self._touch(subject_id(new.subject))
        self._conn.query(
            f"""INSERT INTO {self._conn.schema}.facts (tenant_id, fact_id, subject_id, user_id, session_id, predicate,
                  value, value_key, single_valued, authority, confidence, status, valid_from, valid_to, recorded_at,
                  last_confirmed_at)
                VALUES (%(tenant)s, %(id)s, %(subject)s, %(user)s, %(session)s, %(predicate)s, %(value)s, %(key)s,
                  %(single)s, %(authority)s, %(confidence)s, %(status)s, coalesce(%(from)s::timestamptz, '-infinity'),
                  coalesce(%(to)s::timestamptz, 'infinity'), %(at)s, %(said)s)""",
            {
                "tenant": self._tenant, "id": made, "subject": subject_id(new.subject),
                "user": self._place.scope.user_id, "session": self._place.session_id, "predicate": new.predicate,
                "value": jsonb(encode_json(new.value, where="value")), "key": new.value_key,
                "single": new.single_valued, "authority": new.authority.value, "confidence": new.confidence,
                "status": new.status, "from": new.valid_from, "to": new.valid_to, "at": self._now,
                "said": new.last_confirmed_at,
            },
        )  # fmt: skip
        self._evidence(made, new.evidence)
        if new.status == "accepted" and (new.valid_to is None or new.valid_to > self._now):
            self._index(
                made, self._place.scope, self._place.session_id, new.subject, new.predicate, new.value,
                new.last_confirmed_at,
            )  # fmt: skip
        return str(made)

    @property
    def _tenant(self) -> str:
        return self._place.scope.tenant_id

    def _touch(self, subject: uuid.UUID) -> None:
        self._conn.query(
            f"""UPDATE {self._conn.schema}.subjects SET last_change = %(at)s
                WHERE tenant_id = %(tenant)s AND subject_id = %(id)s""",
            {"tenant": self._tenant, "id": subject, "at": self._now},
        )

    def _index(
        self,
        fact: uuid.UUID,
        scope: Scope,
        session_id: str | None,
        subject: SubjectRef,
        predicate: str,
        value: Any,
        at: datetime,
    ) -> None:
        """Make the fact findable: by its words now, by its meaning once the worker has been."""
        text = fact_text(subject, predicate, value, scope.user_id)
        terms = lexical.analyse(text, language=self._place.language)
        record = NewRecord(
            id=fact, session_id=session_id or "", kind="fact", text=text, metadata={},
            token_count=count_message(text), created_at=at, terms=terms.hashes, term_counts=terms.counts,
            term_total=terms.length,
        )  # fmt: skip
        plain.insert(self._conn, scope, record, model=None, vector=None)

    def _close(self, fact: uuid.UUID, ended_as: str, by: uuid.UUID | None) -> None:
        """Close a row's transaction time: from now on we no longer believe it."""
        self._conn.query(
            f"""WITH closed AS (
                  UPDATE {self._conn.schema}.facts
                  SET superseded_at = %(at)s, superseded_by = %(by)s, ended_as = %(as)s
                  WHERE tenant_id = %(tenant)s AND fact_id = %(id)s AND superseded_at = 'infinity'
                  RETURNING subject_id)
                UPDATE {self._conn.schema}.subjects s SET last_change = %(at)s FROM closed
                WHERE s.tenant_id = %(tenant)s AND s.subject_id = closed.subject_id""",
            {"tenant": self._tenant, "id": fact, "at": self._now, "by": by, "as": ended_as},
        )
        self._conn.query(
            f"""UPDATE {self._conn.schema}.records SET invalidated_at = %(at)s
                WHERE tenant_id = %(tenant)s AND id = %(id)s AND invalidated_at IS NULL""",
            {"tenant": self._tenant, "id": fact, "at": self._now},
        )

    def _bound(
        self,
        fact: uuid.UUID,
        valid_to: datetime | None,
        ended_as: str,
        by: uuid.UUID | None,
        evidence: Sequence[Evidence] = (),
    ) -> str | None:
        """Close a row's valid time: the row is superseded by a copy that ends. Nothing is updated in place."""
        copy = new_id()
        self._close(fact, ended_as, by or copy)
        rows = self._conn.query(
            f"""INSERT INTO {self._conn.schema}.facts (tenant_id, fact_id, subject_id, user_id, session_id, predicate,
                  value, value_key, single_valued, authority, confidence, status, valid_from, valid_to, recorded_at,
                  last_confirmed_at, confirmations)
                SELECT tenant_id, %(copy)s, subject_id, user_id, session_id, predicate, value, value_key, single_valued,
                  authority, confidence, status, valid_from, %(to)s::timestamptz, %(at)s, last_confirmed_at,
                  confirmations
                FROM {self._conn.schema}.facts
                WHERE tenant_id = %(tenant)s AND fact_id = %(id)s AND valid_from < %(to)s::timestamptz
                RETURNING user_id, session_id, subject_id, predicate, value, status, valid_to, last_confirmed_at""",
            {"tenant": self._tenant, "id": fact, "copy": copy, "to": valid_to or self._now, "at": self._now},
        )
        if not rows:  # it would have ended before it began
            return str(fact)
        self._conn.query(
            f"""INSERT INTO {self._conn.schema}.evidence (tenant_id, evidence_id, fact_id, turn_id, source, quote,
                  recorded_at)
                SELECT tenant_id, gen_random_uuid(), %(copy)s, turn_id, source, quote, recorded_at
                FROM {self._conn.schema}.evidence WHERE tenant_id = %(tenant)s AND fact_id = %(id)s""",
            {"tenant": self._tenant, "id": fact, "copy": copy},
        )
        self._evidence(copy, evidence)
        [(user, session, subject, predicate, value, status, ends, said)] = rows
        if status == "accepted" and ends > self._now:  # it holds until then, and is found until then
            scope = Scope(self._tenant, user)
            self._index(copy, scope, session, self._subjects[subject], predicate, decode_json(value), said)
        self._refs[str(fact)] = copy
        return str(copy)

    def _confirm(self, change: Confirm) -> str:
        fact = self._row(change.fact_id)
        self._conn.query(
            f"""UPDATE {self._conn.schema}.facts
                SET confidence = %(confidence)s, last_confirmed_at = %(said)s, authority = %(authority)s,
                    confirmations = confirmations + 1
                WHERE tenant_id = %(tenant)s AND fact_id = %(id)s""",
            {
                "tenant": self._tenant, "id": fact, "confidence": change.confidence, "said": change.last_confirmed_at,
                "authority": change.authority.value,
            },
        )  # fmt: skip
        self._evidence(fact, change.evidence)
        return str(fact)

    def _evidence(self, fact: uuid.UUID, evidence: Sequence[Evidence]) -> None:
        for one in evidence:
            self._conn.query(
                f"""INSERT INTO {self._conn.schema}.evidence
                      (tenant_id, evidence_id, fact_id, turn_id, source, quote, recorded_at)
                    VALUES (%(tenant)s, %(id)s, %(fact)s, %(turn)s, %(source)s, %(quote)s, %(at)s)""",
                {
                    "tenant": self._tenant, "id": new_id(), "fact": fact,
                    "turn": None if one.turn_id is None else uuid.UUID(one.turn_id),
                    "source": None if one.turn_id is not None or one.source is None else encode_text(one.source),
                    "quote": None if one.quote is None else encode_text(one.quote), "at": self._now,
                },
            )  # fmt: skip

    def _grave(self, tombstone: Tombstone) -> dict[str, Any]:
        return {
            "tenant": self._tenant, "subject": subject_id(tombstone.subject), "predicate": tombstone.predicate,
            "key": tombstone.value_key,
        }  # fmt: skip

    def _bury(self, tombstone: Tombstone | None) -> None:
        if tombstone is None:
            return
        self._touch(subject_id(tombstone.subject))
        self._conn.query(
            f"""INSERT INTO {self._conn.schema}.tombstones (tenant_id, subject_id, predicate, value_key, authority,
                  created_at, fact_id)
                VALUES (%(tenant)s, %(subject)s, %(predicate)s, %(key)s, %(authority)s, %(said)s, %(fact)s)
                ON CONFLICT (tenant_id, subject_id, predicate, value_key) DO UPDATE
                SET authority = excluded.authority, created_at = excluded.created_at, lifted_at = NULL""",
            {
                **self._grave(tombstone), "authority": tombstone.authority.value, "said": tombstone.rejected_at,
                "fact": None if tombstone.fact_id is None else self._row(tombstone.fact_id),
            },
        )  # fmt: skip

    def _hit(self, tombstone: Tombstone) -> None:
        self._conn.query(
            f"""UPDATE {self._conn.schema}.tombstones SET hits = hits + 1, last_hit_at = %(at)s
                WHERE tenant_id = %(tenant)s AND subject_id = %(subject)s AND predicate = %(predicate)s
                  AND value_key = %(key)s""",
            {**self._grave(tombstone), "at": self._now},
        )


# -- reading ---------------------------------------------------------------------------------------------------

_COLUMNS = """f.fact_id, f.tenant_id, s.kind, s.identifier, f.predicate, f.value, f.authority, f.confidence, f.status,
    f.single_valued, nullif(f.valid_from, '-infinity'), nullif(f.valid_to, 'infinity'), f.recorded_at,
    nullif(f.superseded_at, 'infinity'), f.last_confirmed_at, f.superseded_by,
    (SELECT coalesce(jsonb_agg(jsonb_build_array(e.turn_id, e.source, e.quote) ORDER BY e.recorded_at, e.evidence_id),
                     '[]') FROM {schema}.evidence e WHERE e.tenant_id = f.tenant_id AND e.fact_id = f.fact_id)"""


def _select(conn: Connection, tenant: str, condition: str, parameters: dict[str, Any]) -> list[Fact]:
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


def _tombstones(conn: Connection, tenant: str, subjects: dict[uuid.UUID, SubjectRef]) -> list[Tombstone]:
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
    if subject is not None:
        conditions.append("f.subject_id = %(subject)s")
    if user_id is not None:
        conditions.append("f.user_id = %(user)s")
    if predicate is not None:
        conditions.append("f.predicate = %(predicate)s")
    return _select(
        conn, tenant, " AND ".join(conditions),
        {
            "subject": None if subject is None else subject_id(subject), "user": user_id, "predicate": predicate,
            "known": known_at, "valid": valid_at, "statuses": list(statuses),
        },
    )  # fmt: skip


def history(conn: Connection, tenant: str, subject: SubjectRef, predicate: str | None) -> list[Fact]:
    """Return every row about a subject, also superseded ones, in the order in which they were recorded."""
    found = _select(
        conn, tenant, "f.subject_id = %(subject)s AND (%(predicate)s::text IS NULL OR f.predicate = %(predicate)s)",
        {"subject": subject_id(subject), "predicate": predicate},
    )  # fmt: skip
    return sorted(found, key=lambda fact: (fact.recorded_at, fact.id))


def fetch(conn: Connection, tenant: str, fact_id: str) -> Fact:
    """Return one row. Raises: NotFound."""
    found = _select(conn, tenant, "f.fact_id = %(id)s", {"id": uuid.UUID(fact_id)})
    if not found:
        raise NotFound(f"no fact {fact_id} in group {tenant!r}")
    return found[0]
