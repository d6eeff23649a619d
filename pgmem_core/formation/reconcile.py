"""Drafts and current facts to changes. The model proposes, this decides: pure, deterministic, no model, no clock.

**Same value again** (same turn: nothing; same or higher authority: Confirm) adds no row. A weaker authority that
repeats what a stronger one said adds nothing: it may only be echoing it. Confidence rises by
`c + (1 - c) × 0.5 × d`, d the new statement's own confidence: towards 1, and less with each.

**Another value, one value at a time.** Intervals of accepted values never overlap. "assert" of equal or higher
authority closes the standing value at the new one's `valid_from`, else at the time it was said ("changed").
"correct" takes the place and the valid time of the value it names, else of the standing one, and lays a tombstone
on it ("wrong"). A statement older than a value that began later is history: it ends where that one begins. A
statement older than the last confirmation of the standing value is ignored. A lower authority is Contested.

**Several values**: each is added beside the others; like and dislike of one thing end each other.

**How many**: what the standing fact says, else the claim (see `claims`).

**Tombstones**: a dead value is lifted only by an explicit claim ("correct", or `explicit`) of the rejecting
authority or a higher one, said after the rejection; else it is a HitTombstone. A correction by contrast ("not X, I'm
Y") rejects X only where X is held when it is said.

**Order.** Claims are taken by the time they were said, then by turn; within a turn denials first, then as listed. So
the order of drafts from different turns does not matter, and what a turn denies it does not also state. The same
drafts again give only Confirm, Ignore and HitTombstone, as long as no weaker voice was contested and then corrected
in between: what an echo said of a standing value is not recorded, so it counts as news once that value has gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from pgmem_core.changes import Reconciled
from pgmem_core.facts import Fact, Tombstone
from pgmem_core.formation.board import Board
from pgmem_core.formation.claims import Claim, Limits, examine
from pgmem_core.types import SubjectRef, Turn

__all__ = ["reconcile", "settle"]

# Within a turn what is denied comes first: a model that reads "I no longer eat meat" may well list meat too.
_FIRST = ("retract", "end", "correct", "assert")


def reconcile(
    drafts: Iterable[object],
    current: Sequence[Fact],
    *,
    tombstones: Iterable[Tombstone] = (),
    turns: Sequence[Turn],
    user_subject: SubjectRef,
    now: datetime,
    limits: Limits | None = None,
) -> Reconciled:
    """Return what to do about an extractor's drafts, and which were refused and why.

    current: every row not superseded (accepted and contested, also those whose valid time is over) of the subjects
    and predicates that the drafts are about, and of `predicates.related`. tombstones: theirs. now: aware, bounds
    what turns may claim about when they were said. Garbage in a draft never raises.
    """
    drafts = list(drafts)
    claims, rejected = examine(drafts, current, turns=turns, user_subject=user_subject, now=now, limits=limits)
    settled = settle(claims, current, tombstones=tombstones)
    refused = [replace(one, draft=drafts[one.by]) for one in settled.rejected]
    return Reconciled(settled.changes, tuple(sorted((*rejected, *refused), key=lambda one: one.by)))


def settle(claims: Iterable[Claim], current: Sequence[Fact], *, tombstones: Iterable[Tombstone] = ()) -> Reconciled:
    """Return what to do about checked claims: an extractor's, or a program's own (`Claim.observed`)."""
    board = Board(current, tombstones)
    for claim in sorted(claims, key=lambda one: (one.said_at, one.position, _FIRST.index(one.action), one.by)):
        board.take(claim)
    return Reconciled(tuple(board.changes), tuple(board.rejected))
