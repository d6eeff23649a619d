"""Semantic memory, written: bi-temporal facts, their evidence and tombstones. Operations; what to do is decided in
`formation.reconcile`, here it is written; `tiers.beliefs` reads.

Everything about a subject happens under the lock of its row, and times are taken there: `recorded_at` and
`superseded_at` never go back. Lock order: session, turns, subject, tombstone, facts; several subjects by id.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
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
from pgmem_core.encoding import decode_json, encode_json, encode_text
from pgmem_core.facts import Evidence, Fact, Tombstone, fact_text
from pgmem_core.ids import new_id
from pgmem_core.retrieval import lexical
from pgmem_core.tiers import beliefs, erasures, plain
from pgmem_core.tiers.beliefs import subject_id
from pgmem_core.tiers.erasures import Key, subject_name
from pgmem_core.tiers.plain import NewRecord
from pgmem_core.tokens import count_message
from pgmem_core.types import Scope, SubjectRef

__all__ = ["Place", "Settled", "expire", "limit", "settle"]

_TICK = timedelta(microseconds=1)
Decide = Callable[[list[Fact], list[Tombstone], datetime], Reconciled]


@dataclass(frozen=True, slots=True)
class Place:
    """Where facts are written: whose memory, and the session they were learnt in, if in one.

    `private`: others than the user are the user's own subjects, not the tenant's.
    """

    scope: Scope
    session_id: str | None
    language: str
    private: bool = False

    def owner_of(self, subject: SubjectRef) -> str:
        """Return whose subject it is, "" for the tenant's."""
        return self.scope.user_id if self.private and subject.kind not in ("user", "session") else ""

    def subject_id(self, subject: SubjectRef) -> uuid.UUID:
        return subject_id(subject, self.owner_of(subject))


@dataclass(frozen=True, slots=True)
class Settled:
    """What was decided and written. fact_ids[i] is the row that change i made or touched, if any."""

    reconciled: Reconciled
    fact_ids: tuple[str | None, ...]


def settle(conn: Connection, place: Place, subjects: Iterable[SubjectRef], decide: Decide) -> Settled:
    """Lock the subjects, let decide(current facts, tombstones, now) say what to do, and do it. In a transaction."""
    tenant = place.scope.tenant_id
    by_id = {place.subject_id(subject): subject for subject in subjects}
    now = _lock(conn, place, by_id)
    ids = list(by_id)
    writer = _Writer(conn, place, now, by_id)
    writer.expire()  # said again, it is news: what is over takes no confirmation
    current = beliefs.select(
        conn, tenant, "f.subject_id = ANY (%(ids)s) AND f.superseded_at = 'infinity'", {"ids": ids}
    )
    dead = beliefs.lock_tombstones(conn, tenant, by_id)
    reconciled = decide(current, dead, now)
    allowed = erasures.without(reconciled.changes, _erased(conn, place, by_id.values()))
    reconciled = replace(reconciled, changes=allowed)
    done = tuple(writer.write(change) for change in reconciled.changes)
    return Settled(reconciled, done)


def _erased(conn: Connection, place: Place, subjects: Iterable[SubjectRef]) -> dict[SubjectRef, datetime]:
    """Return since when what was said of these subjects counts, for those that were forgotten, or whose user or
    session was."""
    here: list[Key] = [("user", place.scope.user_id)]
    if place.session_id is not None:
        here.append(("session", place.session_id))
    keys: dict[SubjectRef, list[Key]] = {one: [*here, ("subject", subject_name(one))] for one in subjects}
    found = erasures.erased_at(conn, place.scope.tenant_id, (key for of in keys.values() for key in of))
    times = {one: [found[key] for key in of if key in found] for one, of in keys.items()}
    return {one: max(at) for one, at in times.items() if at}


def limit(conn: Connection, tenant_id: str, fact_id: str, ttl_seconds: float, *, new: bool) -> None:
    """Let a fact hold for that long from now: a new one, or one that has an end already."""
    conn.query(
        f"""UPDATE {conn.schema}.facts SET expires_at = clock_timestamp() + %(ttl)s::float8 * interval '1 second'
            WHERE tenant_id = %(tenant)s AND fact_id = %(id)s AND (%(new)s OR expires_at IS NOT NULL)""",
        {"tenant": tenant_id, "id": uuid.UUID(fact_id), "ttl": ttl_seconds, "new": new},
    )


def expire(conn: Connection, tenant_id: str, *, most: int, language: str) -> int:
    """End up to `most` facts whose time to live is over, as of when it was; return how many. In a transaction."""
    due = conn.query(
        f"""SELECT DISTINCT subject_id FROM (
              SELECT subject_id FROM {conn.schema}.facts
              WHERE tenant_id = %(tenant)s AND expires_at <= clock_timestamp() AND superseded_at = 'infinity'
              ORDER BY expires_at LIMIT %(most)s) due ORDER BY subject_id""",
        {"tenant": tenant_id, "most": most},
    )
    place = Place(Scope(tenant_id, ""), None, language)
    ended = 0
    for (subject,) in due:
        rows = conn.query(
            f"""SELECT kind, identifier, greatest(clock_timestamp(), last_change + interval '1 microsecond')
                FROM {conn.schema}.subjects WHERE tenant_id = %(tenant)s AND subject_id = %(id)s FOR UPDATE""",
            {"tenant": tenant_id, "id": subject},
        )
        for kind, identifier, now in rows:
            of = {subject: SubjectRef(kind, identifier)}
            ended += _Writer(conn, place, now.astimezone(UTC), of).expire()
    return ended


def _lock(conn: Connection, place: Place, subjects: dict[uuid.UUID, SubjectRef]) -> datetime:
    """Make and lock the subjects' rows, lowest id first, and return a time later than any they have seen."""
    tenant = place.scope.tenant_id
    for one in sorted(subjects):
        row = {
            "tenant": tenant, "id": one, "kind": subjects[one].kind, "identifier": subjects[one].identifier,
            "owner": place.owner_of(subjects[one]),
        }  # fmt: skip
        held = False
        while not held:  # forgotten between the two statements: it is made anew
            conn.query(
                f"""INSERT INTO {conn.schema}.subjects (tenant_id, subject_id, kind, identifier, owner)
                    VALUES (%(tenant)s, %(id)s, %(kind)s, %(identifier)s, %(owner)s) ON CONFLICT DO NOTHING""",
                row,
            )
            found = conn.query(
                f"SELECT 1 FROM {conn.schema}.subjects WHERE tenant_id = %(tenant)s AND subject_id = %(id)s FOR UPDATE",
                row,
            )
            held = bool(found)
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

    def expire(self) -> int:
        """End the facts about the subjects whose time to live is over; return how many. A value called wrong was
        closed before, and stays dead."""
        due = self._conn.query(
            f"""SELECT fact_id, least(valid_to, expires_at) FROM {self._conn.schema}.facts
                WHERE tenant_id = %(tenant)s AND subject_id = ANY (%(ids)s) AND superseded_at = 'infinity'
                  AND expires_at <= %(now)s ORDER BY expires_at, fact_id""",
            {"tenant": self._tenant, "ids": list(self._subjects), "now": self._now},
        )
        for fact_id, expires_at in due:
            self._now += _TICK
            self._bound(fact_id, expires_at, "ended", None)
        return len(due)

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
        self._touch(self._place.subject_id(new.subject))
        self._conn.query(
            f"""INSERT INTO {self._conn.schema}.facts (tenant_id, fact_id, subject_id, user_id, session_id, predicate,
                  value, value_key, single_valued, authority, confidence, status, valid_from, valid_to, recorded_at,
                  last_confirmed_at)
                VALUES (%(tenant)s, %(id)s, %(subject)s, %(user)s, %(session)s, %(predicate)s, %(value)s, %(key)s,
                  %(single)s, %(authority)s, %(confidence)s, %(status)s, coalesce(%(from)s::timestamptz, '-infinity'),
                  coalesce(%(to)s::timestamptz, 'infinity'), %(at)s, %(said)s)""",
            {
                "tenant": self._tenant, "id": made, "subject": self._place.subject_id(new.subject),
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
                  last_confirmed_at, confirmations, expires_at)
                SELECT tenant_id, %(copy)s, subject_id, user_id, session_id, predicate, value, value_key, single_valued,
                  authority, confidence, status, valid_from, %(to)s::timestamptz, %(at)s, last_confirmed_at,
                  confirmations, CASE WHEN expires_at < %(to)s::timestamptz THEN expires_at END
                FROM {self._conn.schema}.facts
                WHERE tenant_id = %(tenant)s AND fact_id = %(id)s AND valid_from < %(to)s::timestamptz
                RETURNING user_id, session_id, subject_id, predicate, value, status, valid_to, last_confirmed_at""",
            {"tenant": self._tenant, "id": fact, "copy": copy, "to": valid_to or self._now, "at": self._now},
        )
        if not rows:  # it would have ended before it began
            return str(fact)
        self._conn.query(
            f"""INSERT INTO {self._conn.schema}.evidence (tenant_id, evidence_id, fact_id, turn_id, source, quote,
                  recorded_at, gone_turn, gone_session)
                SELECT tenant_id, gen_random_uuid(), %(copy)s, turn_id, source, quote, recorded_at, gone_turn,
                  gone_session
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
            "tenant": self._tenant, "subject": self._place.subject_id(tombstone.subject),
            "predicate": tombstone.predicate, "key": tombstone.value_key,
        }  # fmt: skip

    def _bury(self, tombstone: Tombstone | None) -> None:
        if tombstone is None:
            return
        self._touch(self._place.subject_id(tombstone.subject))
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
