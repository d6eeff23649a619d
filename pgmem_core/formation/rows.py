"""A fact as reconciliation moves it about: a row with its key, its interval and its voices. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pgmem_core.facts import Evidence, Fact, Status, Tombstone, check_subject, strength
from pgmem_core.folding import value_key
from pgmem_core.formation.claims import Claim
from pgmem_core.types import Authority, SubjectRef

__all__ = ["EVER", "MAY_DENY", "NEVER", "TICK", "Row", "may_lift", "risen", "row_of", "span", "told_by", "turns_of"]

EVER = datetime.min.replace(tzinfo=UTC)
NEVER = datetime.max.replace(tzinfo=UTC)
# What is said later in the same instant (one turn, two statements) comes after it.
TICK = timedelta(microseconds=1)
# Who may bury a value that nobody has claimed yet ("I have no sister"). A model's denial of nothing is noise.
MAY_DENY = (Authority.user, Authority.system)


def risen(confidence: float, new: float) -> float:
    """Return the confidence after one more statement: `c + (1 - c) × 0.5 × d`."""
    return min(1.0, confidence + (1 - confidence) * 0.5 * new)


@dataclass(slots=True, eq=False)
class Row:
    id: str
    subject: SubjectRef
    predicate: str
    value: Any
    key: bytes
    authority: Authority
    confidence: float
    status: Status
    single: bool
    start: datetime
    stop: datetime
    confirmed: datetime
    evidence: tuple[Evidence, ...]

    def overlaps(self, start: datetime, stop: datetime) -> bool:
        return self.start < stop and start < self.stop


def span(claim: Claim) -> tuple[datetime, datetime]:
    start, stop = claim.interval
    return start or EVER, stop or NEVER


def may_lift(claim: Claim, dead: Tombstone) -> bool:
    explicit = claim.explicit or claim.action == "correct"
    # A lifted one that is still in the way was not yet lifted when the claim was said.
    return (
        explicit
        and dead.lifted_at is None
        and strength(claim.authority) >= strength(dead.authority)
        and claim.said_at > dead.rejected_at
    )


def turns_of(evidence: Sequence[Evidence]) -> set[str]:
    return {one.turn_id for one in evidence if one.turn_id is not None}


def told_by(row: Row, claim: Claim) -> bool:
    """True if every turn behind the claim already stands behind the row."""
    mine = turns_of(claim.evidence)
    return bool(mine) and mine <= turns_of(row.evidence)


def row_of(fact: Fact) -> Row:
    return Row(
        id=fact.id,
        subject=check_subject(fact.subject),
        predicate=fact.predicate,
        value=fact.value,
        key=value_key(fact.value),
        authority=fact.authority,
        confidence=fact.confidence,
        status=fact.status,
        single=fact.single_valued,
        start=fact.valid_from or EVER,
        stop=fact.valid_to or NEVER,
        confirmed=fact.last_confirmed_at,
        evidence=fact.evidence,
    )
