"""Turns to facts: what is to be read, asking the extractor, and writing what follows from its answer.

The answer is written in one transaction with the watermark (`sessions.formed_through`), by whoever still holds the
lease: a worker killed anywhere leaves either nothing or all of it, and no session is read twice.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass, replace
from datetime import datetime

from pgmem_core import screening
from pgmem_core.changes import Reconciled
from pgmem_core.database.connection import Connection
from pgmem_core.effects import Flow, consult, pause, transact
from pgmem_core.errors import Busy, ExtractionError, PgmemError
from pgmem_core.facts import Extractor, Fact, FactDraft, Tombstone
from pgmem_core.formation import leases
from pgmem_core.formation.claims import Limits, about
from pgmem_core.formation.evidence import authority_of
from pgmem_core.formation.leases import Lease
from pgmem_core.formation.reconcile import reconcile
from pgmem_core.retrieval import lexical
from pgmem_core.runtime import Runtime
from pgmem_core.tiers import beliefs, semantic
from pgmem_core.tiers.semantic import Place
from pgmem_core.tiers.sessions import user_subject
from pgmem_core.tiers.working import TURN_COLUMNS, turn_of_row
from pgmem_core.turns import is_blank
from pgmem_core.types import Scope, Turn

__all__ = ["Batch", "extract_session"]

log = logging.getLogger(__name__)

# Turns read at a time. A model's answer about more is worse, and more is lost where it cannot be read.
_BATCH_TURNS = 40
# Read again before them: "yes, that one" says nothing alone. What they state is known by then, and stays as it is.
_LEAD_TURNS = 2
_KNOWN_FACTS = 100
# How often an answer is written where a lock is held for long, and the pause between.
_TRIES = 5
_PAUSE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Batch:
    """The turns to read next, the two before them first, and what is known of the user."""

    turns: list[Turn]
    known: list[Fact]
    start: int  # formed_through as it was
    through: int  # what it becomes
    more: bool


def extract_session(rt: Runtime, extractor: Extractor, held: Lease) -> Flow[int]:
    """Read all that is unread in a session; return how many facts were added or changed.

    Raises: ExtractionError; what was read before it stays.
    """
    count = 0
    while True:
        batch = yield from transact(_load, held)
        if batch is None:
            return count  # the lease has ended: another worker's now
        drafts: list[object] = []
        if _worth_reading(batch):
            drafts = yield from _ask(extractor, batch)
            drafts = yield from screening.screen_drafts(rt, held.tenant_id, drafts)
        reconciled = yield from _write(rt, held, batch, drafts)
        if reconciled is None:
            return count
        if reconciled.rejected:
            for one in reconciled.rejected:
                log.warning("session %r: a proposed fact was refused (%s): %s", held.session_id, one.code, one.reason)
        counts = reconciled.counts()
        count += sum(counts.get(name, 0) for name in ("Add", "Supersede", "Contest", "End", "Retract"))
        if not batch.more:
            return count


def _write(rt: Runtime, held: Lease, batch: Batch, drafts: list[object]) -> Flow[Reconciled | None]:
    """Write what follows, again where somebody held a lock for long: the model's answer is not asked for twice."""
    for left in reversed(range(_TRIES)):
        try:
            return (yield from transact(_store, held, batch, drafts, rt.settings.language))
        except Busy:
            if not left:
                raise
            yield from pause(_PAUSE_SECONDS)
    raise AssertionError("unreachable")


def _worth_reading(batch: Batch) -> bool:
    """True if any of the new turns says something: greetings and thanks cost no request."""
    return any(
        turn.seq > batch.start
        and authority_of(turn) is not None
        and not is_blank(turn.text)
        and not lexical.is_pleasantry(turn.text)
        for turn in batch.turns
    )


def _ask(extractor: Extractor, batch: Batch) -> Flow[list[object]]:
    try:
        drafts = yield from consult(
            lambda: extractor.extract(batch.turns, batch.known), lambda: extractor.aextract(batch.turns, batch.known)
        )
        return list(drafts)
    except PgmemError:
        raise
    except Exception as exc:
        raise ExtractionError(
            f"extractor {type(extractor).__name__} failed on {len(batch.turns)} turns: {type(exc).__name__}: {exc}"
        ) from exc


def _scope(held: Lease) -> Scope:
    return Scope(held.tenant_id, held.user_id, held.agent_id)


def _load(conn: Connection, held: Lease) -> Batch | None:
    rows = conn.query(
        f"""SELECT s.formed_through, s.last_seq FROM {conn.schema}.sessions s
            WHERE s.tenant_id = %(tenant)s AND s.session_id = %(session)s AND s.forming_until = %(lease)s""",
        {"tenant": held.tenant_id, "session": held.session_id, "lease": held.lease},
    )
    if not rows:
        return None
    [(start, last)] = rows
    turns = conn.query(
        f"""SELECT {TURN_COLUMNS} FROM {conn.schema}.records
            WHERE tenant_id = %(tenant)s AND session_id = %(session)s AND seq IS NOT NULL AND seq > %(after)s
              AND seq <= %(last)s AND invalidated_at IS NULL ORDER BY seq LIMIT %(limit)s""",
        {
            "tenant": held.tenant_id, "session": held.session_id, "after": max(0, start - _LEAD_TURNS), "last": last,
            "limit": _BATCH_TURNS + _LEAD_TURNS,
        },
    )  # fmt: skip
    read = [turn_of_row(row) for row in turns]
    more = len(read) == _BATCH_TURNS + _LEAD_TURNS and read[-1].seq < last
    known = beliefs.facts_of(conn, held.tenant_id, user_id=held.user_id)
    known.sort(key=lambda fact: fact.last_confirmed_at, reverse=True)
    return Batch(read, known[:_KNOWN_FACTS], start, read[-1].seq if more else last, more)


def _store(conn: Connection, held: Lease, batch: Batch, drafts: list[object], language: str) -> Reconciled | None:
    """Write what follows from the drafts and move the watermark; None, and nothing written, where the lease has
    ended or the session was read meanwhile."""
    marks = leases.hold(conn, held)
    if marks is None or marks[0] != batch.start:
        return None
    reconciled = Reconciled((), ())
    if drafts:
        there = _still_there(conn, held.tenant_id, batch.turns)
        turns = [turn for turn in batch.turns if turn.id in there]
        user = user_subject(_scope(held))
        # Who is meant is said by what was shown, so that the subjects that are written about are those locked here.
        meant, subjects = about(drafts, batch.known, user)

        def decide(current: list[Fact], dead: list[Tombstone], now: datetime) -> Reconciled:
            return reconcile(
                _ours(meant, batch.known, current), current, tombstones=dead, turns=turns, user_subject=user, now=now,
                limits=Limits(max_drafts=max(50, 2 * len(turns))),
            )  # fmt: skip

        # What users tell of others is their own knowledge: two users' "Max" are two people.
        place = Place(_scope(held), held.session_id, language, private=True)
        reconciled = semantic.settle(conn, place, subjects, decide).reconciled
    conn.query(
        f"""UPDATE {conn.schema}.sessions SET formed_through = %(through)s
            WHERE tenant_id = %(tenant)s AND session_id = %(session)s""",
        {"through": batch.through, "tenant": held.tenant_id, "session": held.session_id},
    )
    return reconciled


def _ours(drafts: list[object], shown: list[Fact], current: list[Fact]) -> list[object]:
    """Return the drafts without the ids of shown facts that are not the user's to change (those about the group's own
    subjects) or that are not believed any more: each then stands by itself."""
    foreign = {fact.id for fact in shown} - {fact.id for fact in current}
    return [
        replace(draft, id=None)
        if isinstance(draft, FactDraft) and isinstance(draft.id, str | uuid.UUID) and str(draft.id) in foreign
        else draft
        for draft in drafts
    ]


def _still_there(conn: Connection, tenant_id: str, turns: list[Turn]) -> set[str]:
    """Return the ids of the turns that were not deleted meanwhile, and keep them until the transaction ends."""
    rows = conn.query(
        f"""SELECT id FROM {conn.schema}.records WHERE tenant_id = %(tenant)s AND id = ANY (%(ids)s)
              AND invalidated_at IS NULL ORDER BY id FOR KEY SHARE""",
        {"tenant": tenant_id, "ids": [uuid.UUID(turn.id) for turn in turns]},
    )
    return {str(row[0]) for row in rows}
