"""What reconciliation decides: changes to apply in order, and what was refused. Frozen values, no ids minted.

A row that a change creates has a `ref` ("new:0"); a later change of the same batch names it by that ref wherever a
`fact_id` stands. `by` is the position of the draft in the list that was given.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from pgmem_core.facts import Evidence, Status, Tombstone
from pgmem_core.types import Authority, SubjectRef

__all__ = [
    "Add",
    "Change",
    "Confirm",
    "Contest",
    "End",
    "HitTombstone",
    "Ignore",
    "NewFact",
    "Reconciled",
    "Refusal",
    "Rejected",
    "Retract",
    "Supersede",
]

Refusal = Literal[
    "not_a_draft",
    "too_many",
    "action",
    "predicate",
    "value",
    "confidence",
    "time",
    "subject",
    "id",
    "evidence",
    "authority",
    "ambiguous",
]


@dataclass(frozen=True, slots=True)
class NewFact:
    """A row to insert. `valid_from` None: since nobody knows when. `last_confirmed_at` is when it was said."""

    ref: str
    subject: SubjectRef
    predicate: str
    value: Any
    value_key: bytes
    authority: Authority
    confidence: float
    status: Status
    single_valued: bool
    valid_from: datetime | None
    valid_to: datetime | None
    last_confirmed_at: datetime
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True, slots=True)
class Add:
    """Insert a row. `settles` are contested or weaker rows whose transaction time closes, superseded by it.

    `lifts` is the tombstone of its value as it is afterwards, with `lifted_at`.
    """

    by: int
    new: NewFact
    settles: tuple[str, ...] = ()
    lifts: Tombstone | None = None


@dataclass(frozen=True, slots=True)
class Supersede:
    """Close `fact_id` and insert a row in its place.

    "changed": it was true until `closes_at` (its valid time closes). "wrong": it never was (its transaction time
    closes, and `tombstone` keeps its value dead).
    """

    by: int
    fact_id: str
    mode: Literal["changed", "wrong"]
    new: NewFact
    closes_at: datetime | None = None
    tombstone: Tombstone | None = None
    settles: tuple[str, ...] = ()
    lifts: Tombstone | None = None


@dataclass(frozen=True, slots=True)
class Confirm:
    """Said again: raise the row's confidence, authority and `last_confirmed_at` to these, add the evidence."""

    by: int
    fact_id: str
    confidence: float
    last_confirmed_at: datetime
    authority: Authority
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True, slots=True)
class Contest:
    """Insert a row of status contested beside `against`, which stays as it is: one of a stronger authority, or one of
    the same whose time it would cut in two."""

    by: int
    new: NewFact
    against: str


@dataclass(frozen=True, slots=True)
class End:
    """It was true and is no longer: close the row's valid time."""

    by: int
    fact_id: str
    valid_to: datetime
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True, slots=True)
class Retract:
    """It never was true: close the row's transaction time (if there is a row) and keep its value dead."""

    by: int
    fact_id: str | None
    tombstone: Tombstone
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True, slots=True)
class HitTombstone:
    """A dead value was stated again: count it on the tombstone, insert nothing."""

    by: int
    tombstone: Tombstone


@dataclass(frozen=True, slots=True)
class Ignore:
    """Nothing to do, and why."""

    by: int
    reason: str
    fact_id: str | None = None


Change = Add | Supersede | Confirm | Contest | End | Retract | HitTombstone | Ignore


@dataclass(frozen=True, slots=True)
class Rejected:
    """A draft that was refused. `draft` is what was given, whatever it was; `reason` is for the log."""

    by: int
    draft: Any
    code: Refusal
    reason: str


@dataclass(frozen=True, slots=True)
class Reconciled:
    """Changes to apply in this order, in one transaction, and the drafts refused."""

    changes: tuple[Change, ...]
    rejected: tuple[Rejected, ...]

    def counts(self) -> dict[str, int]:
        """Return how many of each kind, for logs: {"Add": 2, "Confirm": 1, "Rejected": 3}."""
        found = Counter(type(change).__name__ for change in self.changes)
        if self.rejected:
            found["Rejected"] = len(self.rejected)
        return dict(found)
