"""The flows of review: what a person should look at, and what follows from the decision.

A decision takes the same way as any other statement: `confirm` states the value with the authority of a person or of
a system of record, `reject` retracts it (its value stays dead), `reopen` lifts a rejection, so that the value may be
believed when it is stated again. Each is recorded in the transaction that does it.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime

from pgmem_core import screening
from pgmem_core.changes import Add, Confirm, Contest, HitTombstone, Ignore, Reconciled, Supersede
from pgmem_core.database.connection import Connection
from pgmem_core.effects import Flow, transact
from pgmem_core.errors import InvalidArgument
from pgmem_core.facts import (
    REVIEW_STATUSES,
    VERDICTS,
    Evidence,
    Fact,
    ReviewItem,
    ReviewStatus,
    Tombstone,
    Verdict,
    strength,
)
from pgmem_core.flows import ready
from pgmem_core.formation.claims import Claim
from pgmem_core.formation.reconcile import settle
from pgmem_core.ids import check_id
from pgmem_core.runtime import Runtime
from pgmem_core.storing import check_limit, record_uuid
from pgmem_core.tiers import beliefs, refusals, semantic
from pgmem_core.tiers import review as tier
from pgmem_core.tiers.review import Target
from pgmem_core.tiers.semantic import Place
from pgmem_core.types import Authority, RefusedWrite, Scope

__all__ = ["decide", "refused_writes", "review"]


def review(
    rt: Runtime, group_id: str, *, user_id: str | None, status: ReviewStatus | None, limit: int
) -> Flow[list[ReviewItem]]:
    """Return what waits for a person: contested facts, then doubtful ones, then rejected values; newest first."""
    tenant = check_id(group_id, "group_id")
    user = None if user_id is None else check_id(user_id)
    if status is not None and status not in REVIEW_STATUSES:
        raise InvalidArgument(f"status {status!r} is unknown; use one of {', '.join(REVIEW_STATUSES)}")
    limit = check_limit(limit)
    yield from ready(rt)
    return (yield from transact(_list, tenant, user, status, limit, rt.settings.review_confidence))


def _list(
    conn: Connection, tenant: str, user_id: str | None, status: ReviewStatus | None, limit: int, below: float
) -> list[ReviewItem]:
    found: list[ReviewItem] = []
    if status != "rejected":
        found = tier.uncertain(
            conn, tenant, user_id=user_id, contested=status != "low_confidence",
            below=None if status == "contested" else below, limit=limit,
        )  # fmt: skip
    if status in (None, "rejected") and len(found) < limit:
        found += tier.rejected(conn, tenant, user_id=user_id, limit=limit - len(found))
    return found


def refused_writes(rt: Runtime, group_id: str, limit: int) -> Flow[list[RefusedWrite]]:
    """Return what the write policy refused in a group, newest first."""
    tenant, limit = check_id(group_id, "group_id"), check_limit(limit)
    yield from ready(rt)
    return (yield from transact(refusals.listing, tenant, limit=limit, single=True))


# -- deciding ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Decision:
    verdict: Verdict
    decided_by: str
    note: str | None
    authority: Authority

    @property
    def evidence(self) -> Evidence:
        return Evidence(source=f"review by {self.decided_by}", quote=self.note)


def decide(
    rt: Runtime,
    group_id: str,
    target: str | uuid.UUID | ReviewItem | Fact,
    decision: Verdict,
    *,
    decided_by: str,
    note: str | None,
    authority: Authority | str,
    given: object = None,
) -> Flow[Fact | None]:
    """Do what was decided and record it; return the fact as it is afterwards, if there is one."""
    tenant = check_id(group_id, "group_id")
    target_id = record_uuid(target.id if isinstance(target, ReviewItem | Fact) else target)
    if decision not in VERDICTS:
        raise InvalidArgument(f"decision {decision!r} is unknown; use one of {', '.join(VERDICTS)}")
    if authority not in (Authority.user, Authority.system):
        raise InvalidArgument(
            f"authority {authority!r} cannot review: a person's word is 'user', that of a system of record 'system'"
        )
    if note is not None and not isinstance(note, str):
        raise InvalidArgument(f"note must be a str, got {type(note).__name__}")
    note = yield from screening.screen_value(rt, tenant, note, "review")
    made = _Decision(decision, check_id(decided_by, "decided_by"), note, Authority(authority))
    yield from ready(rt)
    fact = yield from transact(_decide, tenant, target_id, made, rt.settings.language, given=given)
    rt.wake()
    return fact


def _decide(conn: Connection, tenant: str, target_id: uuid.UUID, made: _Decision, language: str) -> Fact | None:
    about = tier.target(conn, tenant, target_id)
    place = Place(Scope(tenant, about.owner or about.user_id), None, language, private=bool(about.owner))
    match made.verdict:
        case "confirm":
            fact_id = _confirm(conn, place, about, made)
        case "reject":
            fact_id = _reject(conn, place, about, made)
        case "reopen":
            fact_id = _reopen(conn, place, about, made)
    tier.record(conn, tenant, about.id, made.verdict, decided_by=made.decided_by, note=made.note)
    return None if fact_id is None else beliefs.fetch(conn, tenant, fact_id)


def _confirm(conn: Connection, place: Place, about: Target, made: _Decision) -> str | None:
    fact = about.fact
    if fact is None:
        raise InvalidArgument(
            f"rejected value {about.id} was never claimed, only its key is known; state the value with observe(...,"
            " explicit=True)"
        )

    def judge(current: list[Fact], dead: list[Tombstone], now: datetime) -> Reconciled:
        standing = [one for one in current if one.predicate == fact.predicate and one.status == "accepted"]
        if fact.superseded_at is not None and _tombstone(dead, about) is None:
            raise InvalidArgument(
                f"fact {fact.id} is no longer believed (superseded by {fact.superseded_by or 'nothing'}); decide about"
                " what stands, or state the value anew"
            )
        # It holds since it was said to, unless another value has begun later: then it holds from now on.
        start = fact.valid_from if fact.superseded_at is None else None
        if start is not None and any(
            one.value_key != fact.value_key and (one.valid_from is None or one.valid_from >= start) for one in standing
        ):
            start = None
        claim = Claim.observed(
            fact.subject, fact.predicate, fact.value, authority=made.authority, said_at=now, evidence=[made.evidence],
            single_valued=fact.single_valued, confidence=1.0, valid_from=start, valid_to=_ahead(fact.valid_to, now),
            explicit=True,
        )  # fmt: skip
        found = settle([claim], current, tombstones=dead)
        _must_stand(found, {one.id for one in current if one.status == "contested"}, made)
        return found

    settled = semantic.settle(conn, place, [fact.subject], judge)
    return settled.fact_ids[0]


def _ahead(moment: datetime | None, now: datetime) -> datetime | None:
    return moment if moment is not None and moment > now else None


def _must_stand(found: Reconciled, contested: set[str], made: _Decision) -> None:
    """Refuse, before anything is written, what would not make the value stand."""
    stands = False
    match found.changes[0] if found.changes else None:
        case Add() | Supersede():
            stands = True
        case Confirm(fact_id=fact_id) | Ignore(fact_id=str() as fact_id):
            stands = fact_id not in contested
        case Contest() | HitTombstone() | Ignore() | None:
            pass
        case _:
            pass
    if not stands:
        why = found.rejected[0].reason if found.rejected else "a stronger authority says otherwise"
        raise InvalidArgument(f"authority {made.authority} cannot confirm this: {why}; decide with a stronger one")


def _reject(conn: Connection, place: Place, about: Target, made: _Decision) -> str | None:
    fact = about.fact
    if fact is None:  # a value that nobody had claimed: rejected again, if it had been reopened
        _hold(conn, place, about, made)
        tier.lift(conn, place.scope.tenant_id, about, None)
        return None

    def judge(current: list[Fact], dead: list[Tombstone], now: datetime) -> Reconciled:
        claim = Claim.observed(
            fact.subject, fact.predicate, fact.value, authority=made.authority, said_at=now, evidence=[made.evidence],
            action="retract", single_valued=fact.single_valued,
        )  # fmt: skip
        found = settle([claim], current, tombstones=dead)
        if found.rejected:
            raise InvalidArgument(f"{found.rejected[0].reason}; decide with a stronger authority")
        return found

    semantic.settle(conn, place, [fact.subject], judge)
    return fact.id


def _reopen(conn: Connection, place: Place, about: Target, made: _Decision) -> str | None:
    dead, now = _hold(conn, place, about, made)
    if dead.lifted_at is None:
        tier.lift(conn, place.scope.tenant_id, about, now)
    return None if about.fact is None else about.fact.id


def _hold(conn: Connection, place: Place, about: Target, made: _Decision) -> tuple[Tombstone, datetime]:
    """Lock the subject and return the target's tombstone and the time. Raises: InvalidArgument."""
    held: list[tuple[Tombstone, datetime]] = []

    def look(current: list[Fact], dead: list[Tombstone], now: datetime) -> Reconciled:
        found = _tombstone(dead, about)
        if found is None:
            raise InvalidArgument(f"{about.predicate} {about.id} is not rejected; there is nothing to reopen")
        if strength(made.authority) < strength(found.authority):
            raise InvalidArgument(
                f"it was rejected with the authority {found.authority}; authority {made.authority} cannot reopen it"
            )
        held.append((found, now))
        return Reconciled((), ())

    semantic.settle(conn, place, [about.subject], look)
    return held[0]


def _tombstone(dead: list[Tombstone], about: Target) -> Tombstone | None:
    return next((one for one in dead if one.predicate == about.predicate and one.value_key == about.value_key), None)
