"""The state that a batch of claims is played on: rows and tombstones as they will be, change by change. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from pgmem_core.changes import (
    Add,
    Change,
    Confirm,
    Contest,
    End,
    HitTombstone,
    Ignore,
    NewFact,
    Refusal,
    Rejected,
    Retract,
    Supersede,
)
from pgmem_core.facts import Fact, Status, Tombstone, check_subject, outranks, strength
from pgmem_core.formation.claims import Claim
from pgmem_core.formation.rows import EVER, MAY_DENY, NEVER, TICK, Row, may_lift, risen, row_of, span, told_by, turns_of
from pgmem_core.predicates import opposites
from pgmem_core.types import SubjectRef

__all__ = ["Board"]

_Place = tuple[SubjectRef, str]


class Board:
    """Rows and tombstones, changed by each claim taken; `changes` and `rejected` say how."""

    def __init__(self, current: Sequence[Fact], tombstones: Iterable[Tombstone]) -> None:
        self.changes: list[Change] = []
        self.rejected: list[Rejected] = []
        self._rows: dict[_Place, list[Row]] = {}
        self._dead: dict[tuple[_Place, bytes], Tombstone] = {}
        self._minted = 0
        self._negated: set[tuple[SubjectRef, str, bytes | None, str]] = set()
        for fact in current:
            if fact.superseded_at is None and fact.status != "rejected":
                self._put(row_of(fact))
        for tombstone in tombstones:
            place = (check_subject(tombstone.subject), tombstone.predicate)
            self._dead[place, tombstone.value_key] = tombstone

    def take(self, claim: Claim) -> None:
        """Decide about one claim."""
        said = {(claim.subject, claim.predicate, claim.value_key, turn_id) for turn_id in turns_of(claim.evidence)}
        if claim.action in ("end", "retract"):
            self._negated |= said
            (self._end if claim.action == "end" else self._retract)(claim)
        elif said & self._negated:
            self._ignore(claim, "the same turn ends or retracts it")
        else:
            self._state(claim)

    # -- looking ------------------------------------------------------------------------------------------------

    def _at(self, claim: Claim, predicate: str | None = None) -> list[Row]:
        return self._rows.setdefault((claim.subject, predicate or claim.predicate), [])

    def _put(self, row: Row) -> None:
        self._rows.setdefault((row.subject, row.predicate), []).append(row)

    def _drop(self, row: Row) -> None:
        self._rows[row.subject, row.predicate].remove(row)

    def _find(self, row_id: str) -> Row | None:
        return next((row for rows in self._rows.values() for row in rows if row.id == row_id), None)

    def _single(self, claim: Claim) -> bool:
        standing = [row.single for row in self._at(claim) if row.status == "accepted"]
        return any(standing) if standing else claim.single_valued

    def _tombstone(self, claim: Claim) -> Tombstone | None:
        """Return the tombstone that the claim runs into: one that is not lifted, or was when it was said."""
        assert claim.value_key is not None
        found = self._dead.get(((claim.subject, claim.predicate), claim.value_key))
        if found is None or (found.lifted_at is not None and claim.said_at > found.lifted_at):
            return None
        return found

    # -- "assert" and "correct" ---------------------------------------------------------------------------------

    def _state(self, claim: Claim) -> None:
        same = [row for row in self._at(claim) if row.key == claim.value_key]
        if known := next((row for row in same if told_by(row, claim)), None):
            self._ignore(claim, "this turn has been read already", known)
            if known.status == "accepted":
                self._bury_replaced(claim)
            return
        dead = self._tombstone(claim)
        if dead is not None and not may_lift(claim, dead):
            self.changes.append(HitTombstone(claim.by, dead))
            return
        wrong = self._wrong(claim)
        if stronger := next((row for row in wrong if outranks(row.authority, claim.authority)), None):
            self._contest(claim, stronger, dead)
            return
        if standing := self._standing(claim, same):
            self._confirm(claim, standing)
            self._bury_replaced(claim)
            return
        self._insert(claim, wrong, dead)

    def _standing(self, claim: Claim, same: list[Row]) -> Row | None:
        """Return the accepted row that already says so for the time the claim is about."""
        start, stop = span(claim)
        others = [row for row in self._at(claim) if row.status == "accepted" and row.key != claim.value_key]
        for row in sorted(same, key=lambda row: row.start):
            if row.status != "accepted" or row.stop <= start or (claim.valid_to is not None and row.start >= stop):
                continue
            # With another value in between, the earlier statement is of an earlier time that it held.
            between = any(start < other.start < row.start for other in others) and row.single
            return None if between else row
        return None

    def _wrong(self, claim: Claim) -> list[Row]:
        """Return the rows that a correction calls wrong, the one whose place it takes first.

        Every row of a wrong value: that it never was true is said of its other times too.
        """
        if claim.action != "correct":
            return []
        rows = [row for row in self._at(claim) if row.key != claim.value_key]
        accepted = [row for row in rows if row.status == "accepted"]
        if claim.fact_id is not None:
            meant = [row for row in rows if row.id == claim.fact_id]
        elif claim.replaces_key is not None:
            meant = [row for row in rows if row.key == claim.replaces_key]
            if claim.contrast:  # "not X, I'm Y" says nothing of an X that was over by then
                meant = [row for row in meant if row.start <= claim.said_at < row.stop]
        elif self._single(claim):
            meant = [row for row in accepted if row.start <= claim.said_at < row.stop]
        else:
            still = [row for row in accepted if claim.said_at < row.stop]
            meant = still if len(still) == 1 else []
        named = {row.id for row in meant}
        wrong = [row for row in rows if any(row.key == one.key for one in meant)]
        if any(row.confirmed > claim.said_at for row in wrong):  # stated again since
            return []
        # A contested row has no place in time to take over.
        return sorted(
            wrong, key=lambda row: (row.status == "accepted", row.id in named, row.stop, row.start), reverse=True
        )

    def _insert(self, claim: Claim, wrong: list[Row], dead: Tombstone | None) -> None:
        start, stop = span(claim)
        primary = wrong[0] if wrong and wrong[0].status == "accepted" else None
        if primary is not None:
            start, stop = claim.valid_from or primary.start, claim.valid_to or primary.stop
            if stop <= start:
                start, stop = span(claim)
        others = [row for row in self._excluded(claim) if row not in wrong]
        while any(row.start == start != EVER for row in others):
            start += TICK
        closed: list[Row] = []
        settled: list[Row] = []
        for row in sorted(others, key=lambda row: row.start):
            if not row.overlaps(start, stop):
                continue
            if row.start > start:
                if outranks(claim.authority, row.authority):
                    settled.append(row)
                else:
                    stop = row.start
                continue
            stronger = outranks(row.authority, claim.authority)
            if row.confirmed > claim.said_at and (stronger or claim.valid_from is None):
                self._ignore(claim, "another value was confirmed after this was said", row)
                return
            inside = claim.valid_to is not None and claim.valid_to < row.stop
            if inside and outranks(claim.authority, row.authority):
                settled.append(row)
                continue
            if stronger or inside:
                self._contest(claim, row, dead)
                return
            closed.append(row)
        for row in self._at(claim):
            if row.key == claim.value_key and row.status == "accepted" and row.overlaps(start, stop):
                self._confirm(claim, row)
                for one in wrong:
                    self._bury(claim, one)
                return
        self._write(claim, start, stop, primary, closed, settled, dead)
        for row in wrong[1:] if primary is not None else wrong:
            self._bury(claim, row)
        self._deny(claim)

    def _excluded(self, claim: Claim) -> list[Row]:
        """Return the accepted rows that cannot hold at the same time as the claim."""
        rows = self._at(claim) if self._single(claim) else []
        found = [row for row in rows if row.status == "accepted" and row.key != claim.value_key]
        for other in opposites(claim.predicate):
            found += [row for row in self._at(claim, other) if row.status == "accepted" and row.key == claim.value_key]
        return found

    def _write(
        self,
        claim: Claim,
        start: datetime,
        stop: datetime,
        primary: Row | None,
        closed: list[Row],
        settled: list[Row],
        dead: Tombstone | None,
    ) -> None:
        contested = [
            row
            for row in self._at(claim)
            if row.status == "contested" and row.key == claim.value_key and row.overlaps(start, stop)
        ]
        settles = tuple(row.id for row in (*settled, *contested))
        for row in (*settled, *contested):
            self._drop(row)
        # Whoever said it before, and was not believed, supports it now.
        support = tuple(one for row in contested for one in row.evidence)
        new = self._new(replace(claim, evidence=claim.evidence + support), "accepted", start, stop)
        if dead is not None:
            dead = replace(dead, lifted_at=claim.said_at)
            self._dead[(claim.subject, claim.predicate), dead.value_key] = dead
        if primary is not None:
            tombstone = self._lay(claim, primary)
            self._drop(primary)
            self.changes.append(
                Supersede(claim.by, primary.id, "wrong", new, None, tombstone, settles=settles, lifts=dead)
            )
        else:
            mine = next((row for row in closed if row.predicate == claim.predicate), None)
            if mine is None:
                self.changes.append(Add(claim.by, new, settles=settles, lifts=dead))
            else:
                closed.remove(mine)
                mine.stop = start
                self.changes.append(Supersede(claim.by, mine.id, "changed", new, start, settles=settles, lifts=dead))
        for row in closed:
            row.stop = start
            self.changes.append(End(claim.by, row.id, start, claim.evidence))
        for row in settled:  # what a weaker authority said stays on record
            self.changes.append(Contest(claim.by, self._mint(replace(row, status="contested")), new.ref))

    def _contest(self, claim: Claim, against: Row, dead: Tombstone | None) -> None:
        if dead is not None:  # a dead value does not come back by the side door
            self.changes.append(HitTombstone(claim.by, dead))
            return
        for row in self._at(claim):
            if row.key == claim.value_key and row.status == "contested":
                self._confirm(claim, row)
                return
        new = self._new(claim, "contested", *span(claim))
        self.changes.append(Contest(claim.by, new, against.id))

    def _confirm(self, claim: Claim, row: Row) -> None:
        if outranks(row.authority, claim.authority):
            self._ignore(claim, "a weaker authority repeats it", row)
            return
        row.authority = max(row.authority, claim.authority, key=strength)
        row.confidence = risen(row.confidence, claim.confidence)
        row.confirmed = max(row.confirmed, claim.said_at)
        row.evidence += claim.evidence
        self.changes.append(Confirm(claim.by, row.id, row.confidence, row.confirmed, row.authority, claim.evidence))

    def _new(self, claim: Claim, status: Status, start: datetime, stop: datetime) -> NewFact:
        assert claim.value_key is not None
        row = Row(
            id="", subject=claim.subject, predicate=claim.predicate, value=claim.value, key=claim.value_key,
            authority=claim.authority, confidence=claim.confidence, status=status, single=self._single(claim),
            start=start, stop=stop, confirmed=claim.said_at, evidence=claim.evidence,
        )  # fmt: skip
        return self._mint(row)

    def _mint(self, row: Row) -> NewFact:
        row.id = f"new:{self._minted}"
        self._minted += 1
        self._put(row)
        return NewFact(
            ref=row.id,
            subject=row.subject,
            predicate=row.predicate,
            value=row.value,
            value_key=row.key,
            authority=row.authority,
            confidence=row.confidence,
            status=row.status,
            single_valued=row.single,
            valid_from=None if row.start == EVER else row.start,
            valid_to=None if row.stop == NEVER else row.stop,
            last_confirmed_at=row.confirmed,
            evidence=row.evidence,
        )

    # -- "end" and "retract" ------------------------------------------------------------------------------------

    def _end(self, claim: Claim) -> None:
        moment = claim.valid_to or claim.said_at
        rows = [row for row in self._named(claim) if row.status == "accepted" and moment < row.stop]
        if not rows:
            self._ignore(claim, "there is nothing current that it could end")
        elif self._unclear(claim, rows):
            return
        for row in rows:
            if outranks(row.authority, claim.authority):
                self._refuse(claim, "authority", f"{claim.authority} cannot end what {row.authority} said")
            elif row.start > moment or row.confirmed > claim.said_at:
                self._ignore(claim, "it was stated again after this was said", row)
            elif (stop := max(moment, row.start + TICK)) >= row.stop:
                self._ignore(claim, "it has ended already", row)
            else:
                row.stop = stop
                row.evidence += claim.evidence
                self.changes.append(End(claim.by, row.id, row.stop, claim.evidence))

    def _retract(self, claim: Claim) -> None:
        rows = self._named(claim)
        if self._unclear(claim, rows):
            return
        # Of each value every row, or the value would be dead and alive.
        rows = [row for row in self._at(claim) if any(row.key == one.key for one in rows)]
        if not rows:
            self._deny(claim)
        elif stronger := next((row for row in rows if outranks(row.authority, claim.authority)), None):
            self._refuse(claim, "authority", f"{claim.authority} cannot retract what {stronger.authority} said")
        elif later := next((row for row in rows if row.confirmed > claim.said_at), None):
            self._ignore(claim, "it was stated again after this was said", later)
        else:
            for row in rows:
                self._bury(claim, row)

    def _named(self, claim: Claim) -> list[Row]:
        """Return the rows that an end or a retraction is about: by id, by value, or what stood before it was said."""
        rows = self._at(claim)
        if claim.fact_id is not None:
            return [row for row in rows if row.id == claim.fact_id]
        if claim.value_key is not None:
            return [row for row in rows if row.key == claim.value_key]
        return [row for row in rows if row.status == "accepted" and row.start < claim.said_at < row.stop]

    def _unclear(self, claim: Claim, rows: list[Row]) -> bool:
        if claim.value_key is None and claim.fact_id is None and len(rows) > 1:
            self._refuse(claim, "ambiguous", f"{claim.predicate} has {len(rows)} values; which one is not said")
            return True
        return False

    # -- tombstones ---------------------------------------------------------------------------------------------

    def _bury_replaced(self, claim: Claim) -> None:
        """Bury what a correction calls wrong by name, where the right value stands already."""
        wrong = self._wrong(claim) if claim.replaces_key is not None or claim.fact_id is not None else []
        # What the same turn says besides came after this when it was first read.
        if not any(outranks(row.authority, claim.authority) or told_by(row, claim) for row in wrong):
            for row in wrong:
                self._bury(claim, row)
        self._deny(claim)

    def _bury(self, claim: Claim, row: Row) -> None:
        tombstone = self._lay(claim, row)
        self._drop(row)
        self.changes.append(Retract(claim.by, row.id, tombstone, claim.evidence))

    def _deny(self, claim: Claim) -> None:
        """Keep a value dead that has no row: the one retracted, or the one that a correction names."""
        if claim.action == "retract":
            key, why = claim.value_key, "there is nothing that it could retract"
        else:
            key, why = claim.replaces_key, None
        if claim.action not in ("retract", "correct") or claim.contrast or (why is None and key == claim.value_key):
            return
        if key is not None and claim.authority in MAY_DENY and not any(row.key == key for row in self._at(claim)):
            dead = self._dead.get(((claim.subject, claim.predicate), key))
            if dead is None or outranks(claim.authority, dead.authority) or dead.lifted_at is not None:
                tombstone = Tombstone(claim.subject, claim.predicate, key, claim.authority, claim.said_at)
                self._dead[(claim.subject, claim.predicate), key] = tombstone
                self.changes.append(Retract(claim.by, None, tombstone, claim.evidence))
                return
            why = why and "it is rejected already"
        if why is not None:
            self._ignore(claim, why)

    def _lay(self, claim: Claim, row: Row) -> Tombstone:
        """Return the tombstone of a row: the strongest authority that rejected it, and the latest time."""
        place = (row.subject, row.predicate), row.key
        tombstone = Tombstone(row.subject, row.predicate, row.key, claim.authority, claim.said_at, row.id)
        if (old := self._dead.get(place)) is not None and old.lifted_at is None:
            tombstone = replace(
                tombstone,
                authority=max(old.authority, claim.authority, key=strength),
                rejected_at=max(old.rejected_at, claim.said_at),
            )
        self._dead[place] = tombstone
        return tombstone

    # -- saying so ----------------------------------------------------------------------------------------------

    def _ignore(self, claim: Claim, reason: str, row: Row | None = None) -> None:
        self.changes.append(Ignore(claim.by, reason, None if row is None else row.id))

    def _refuse(self, claim: Claim, code: Refusal, reason: str) -> None:
        self.rejected.append(Rejected(claim.by, claim, code, reason))
