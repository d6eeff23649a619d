"""A store of facts in memory, on which the changes of reconciliation are applied as the database applies them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, assert_never

from pgmem_core.changes import (
    Add,
    Confirm,
    Contest,
    End,
    HitTombstone,
    Ignore,
    NewFact,
    Reconciled,
    Retract,
    Supersede,
)
from pgmem_core.facts import Fact, FactDraft, Tombstone
from pgmem_core.formation.claims import Claim
from pgmem_core.formation.reconcile import reconcile, settle
from pgmem_core.types import SubjectRef, Turn

USER = SubjectRef("user", "u1")
START = datetime(2026, 3, 1, 12, tzinfo=UTC)


def at(day: float) -> datetime:
    """Return noon of that day, counted from 1 March 2026."""
    return START + timedelta(days=day)


def turn(day: float, text: str, role: str = "user", **changes: Any) -> Turn:
    made = Turn(
        id=f"t{day}-{role}", session_id="s", seq=1, role=role, content=text, text=text, created_at=at(day),
        token_count=1,
    )  # fmt: skip
    return replace(made, **changes)


def draft(predicate: str, value: Any = None, *, quote: str | None = None, **fields: Any) -> FactDraft:
    """Return a draft whose quote is its value, unless given."""
    return FactDraft(predicate=predicate, value=value, quote=str(value) if quote is None else quote, **fields)


class Facts:
    """Rows, tombstones and the tombstones' counts of one tenant."""

    def __init__(self) -> None:
        self.rows: dict[str, Fact] = {}
        self.tombstones: dict[tuple[SubjectRef, str, bytes], Tombstone] = {}
        self.hits = 0
        self.now = at(1000)

    @property
    def believed(self) -> list[Fact]:
        return [row for row in self.rows.values() if row.superseded_at is None]

    def values(self, predicate: str, day: float = 999, status: str = "accepted") -> list[Any]:
        """Return the values valid on that day, as believed now."""
        return [
            row.value
            for row in self.believed
            if row.predicate == predicate and replace(row, status="accepted").holds_at(at(day)) and row.status == status
        ]

    def read(self, turns: Sequence[Turn], *drafts: object) -> Reconciled:
        """Reconcile the drafts and apply what comes of it."""
        done = reconcile(
            drafts, self.believed, tombstones=self.tombstones.values(), turns=turns, user_subject=USER, now=self.now
        )
        self.apply(done)
        return done

    def say(self, day: float, text: str, *drafts: object, role: str = "user") -> Reconciled:
        """Read one turn."""
        return self.read([turn(day, text, role)], *drafts)

    def observe(self, *claims: Claim) -> Reconciled:
        done = settle(claims, self.believed, tombstones=self.tombstones.values())
        self.apply(done)
        return done

    def apply(self, done: Reconciled) -> None:
        ids: dict[str, str] = {}
        for number, change in enumerate(done.changes):
            match change:
                case Add():
                    self._settle(change.settles, ids, self._insert(change.new, ids))
                    self._lift(change.lifts)
                case Supersede():
                    old = self._current(ids.get(change.fact_id, change.fact_id))
                    self._lift(change.lifts)
                    if change.mode == "wrong":
                        self._close(old)
                        new = self._insert(change.new, ids)
                        assert change.tombstone is not None
                        self._bury(change.tombstone)
                    else:
                        assert change.closes_at is not None
                        self._end(old, change.closes_at)
                        new = self._insert(change.new, ids)
                    self._settle(change.settles, ids, new)
                case Contest():
                    self._current(ids.get(change.against, change.against))
                    self._insert(change.new, ids)
                case Confirm():
                    row = self._current(ids.get(change.fact_id, change.fact_id))
                    assert row.confidence <= change.confidence <= 1
                    assert row.last_confirmed_at <= change.last_confirmed_at
                    self.rows[row.id] = replace(
                        row, confidence=change.confidence, last_confirmed_at=change.last_confirmed_at,
                        authority=change.authority, evidence=row.evidence + change.evidence,
                    )  # fmt: skip
                case End():
                    row = self._current(ids.get(change.fact_id, change.fact_id))
                    self._end(row, change.valid_to)
                    self.rows[row.id] = replace(self.rows[row.id], evidence=row.evidence + change.evidence)
                case Retract():
                    if change.fact_id is not None:
                        self._close(self._current(ids.get(change.fact_id, change.fact_id)))
                    self._bury(change.tombstone)
                case HitTombstone():
                    assert self._key(change.tombstone) in self.tombstones
                    self.hits += 1
                case Ignore():
                    assert change.reason
                case _:
                    assert_never(change)
            if number + 1 == len(done.changes) or done.changes[number + 1].by != change.by:
                self.check()

    def check(self) -> None:
        """What must hold after the changes of each draft."""
        accepted = [row for row in self.believed if row.status == "accepted"]
        for row in self.believed:
            stone = self.tombstones.get((row.subject, row.predicate, row.value_key))
            assert stone is None or stone.lifted_at is not None, f"{row.text} rose from the dead"
            assert row.valid_from is None or row.valid_to is None or row.valid_from < row.valid_to
        for one in accepted:
            for other in accepted:
                if one.id >= other.id or (one.subject, one.predicate) != (other.subject, other.predicate):
                    continue
                if one.single_valued or other.single_valued or one.value_key == other.value_key:
                    assert not _overlap(one, other), f"{one} and {other} hold at once"

    def _insert(self, new: NewFact, ids: dict[str, str]) -> str:
        row = Fact(
            id=f"f{len(self.rows)}", group_id="g", subject=new.subject, predicate=new.predicate, value=new.value,
            authority=new.authority, confidence=new.confidence, status=new.status, single_valued=new.single_valued,
            valid_from=new.valid_from, valid_to=new.valid_to, recorded_at=self.now, superseded_at=None,
            last_confirmed_at=new.last_confirmed_at, evidence=new.evidence,
        )  # fmt: skip
        assert row.value_key == new.value_key
        assert 0 <= row.confidence <= 1
        ids[new.ref] = row.id
        self.rows[row.id] = row
        return row.id

    def _current(self, row_id: str) -> Fact:
        row = self.rows[row_id]
        assert row.superseded_at is None
        return row

    def _close(self, row: Fact, by: str | None = None) -> None:
        self.rows[row.id] = replace(row, superseded_at=self.now, superseded_by=by)

    def _end(self, row: Fact, moment: datetime) -> None:
        assert row.valid_to is None or moment < row.valid_to
        self.rows[row.id] = replace(row, valid_to=moment)

    def _settle(self, settles: Iterable[str], ids: dict[str, str], by: str) -> None:
        for row_id in settles:
            self._close(self._current(ids.get(row_id, row_id)), by)

    def _bury(self, tombstone: Tombstone) -> None:
        self.tombstones[self._key(tombstone)] = tombstone

    def _lift(self, tombstone: Tombstone | None) -> None:
        if tombstone is not None:
            assert tombstone.lifted_at is not None
            assert self.tombstones[self._key(tombstone)].lifted_at is None
            self.tombstones[self._key(tombstone)] = tombstone

    @staticmethod
    def _key(tombstone: Tombstone) -> tuple[SubjectRef, str, bytes]:
        return tombstone.subject, tombstone.predicate, tombstone.value_key


def _overlap(one: Fact, other: Fact) -> bool:
    first, second = sorted((one, other), key=lambda row: row.valid_from or datetime.min.replace(tzinfo=UTC))
    start = second.valid_from or datetime.min.replace(tzinfo=UTC)
    return first.valid_to is None or start < first.valid_to


def kinds(done: Reconciled) -> list[str]:
    return [type(change).__name__ for change in done.changes]
