"""The read: one statement for a whole context, now or as it was then, and the same recall alone for a search.
Operations."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pgmem_core.database.connection import Connection, VectorParameter
from pgmem_core.database.migrate import Model
from pgmem_core.encoding import decode_json, decode_text
from pgmem_core.facts import fact_text
from pgmem_core.ids import user_key
from pgmem_core.protocols import Vectors
from pgmem_core.tiers.injections import Shown
from pgmem_core.tiers.plain import Where
from pgmem_core.tiers.working import turn_of_row
from pgmem_core.types import Scope, ScoredMemory, ScoreParts, Standing, Story, SubjectRef, Turn

__all__ = ["Found", "Query", "read", "search"]

# Each arm's best: 100 gave the same recall on LoCoMo for more work, 25 cost 0.01.
CANDIDATES = 50
# What read_context brings of execution memory, the newest keys.
_MOST_KEYS = 50
_NOTHING = ScoreParts(0.0, 0.0, 0.0, 0.0, 1.0, 0.0, None)


@dataclass(frozen=True, slots=True)
class Query:
    """What to look for: terms and a vector (either may be missing), and how to weigh what is found. `valid_at`: facts
    that hold then; `known_at`: all as it was known then; None: now."""

    terms: Sequence[int]
    vector: Vectors | None
    model: Model | None
    limit: int
    half_life_days: float
    recency_share: float
    floor: float | None
    floor_grows: bool = False  # the floor is a default for 300 memories and more; a smaller store asks for less
    fact_half_life_days: float = 180.0
    valid_at: datetime | None = None
    known_at: datetime | None = None

    def parameters(self) -> dict[str, Any]:
        return {
            "terms": list(self.terms),
            "vector": None if self.vector is None or self.model is None else VectorParameter(self.vector),
            "model": self.model.id if self.model else "m0",
            "dimensions": self.model.dimensions if self.model else 1,
            "limit": self.limit,
            "candidates": max(CANDIDATES, self.limit),
            "half_life": self.half_life_days,
            "recency": self.recency_share,
            "floor": self.floor,
            "floor_grows": self.floor_grows,
            "fact_half_life": self.fact_half_life_days,
            "valid_at": self.valid_at,
            "known_at": self.known_at,
        }


@dataclass(frozen=True, slots=True)
class Found:
    """What one read brought back. last_seq: the session's last turn as this read saw it, 0 for a new one; known_at: the
    moment of the read, by the database's clock."""

    exists: bool
    user_id: str | None
    last_seq: int
    window: list[Turn]
    pinned: list[Turn]
    recalled: list[ScoredMemory]
    facts: list[Standing]
    execution: list[Standing]
    known_at: datetime
    prefix_at: datetime | None
    narrative: Story | None
    summary: Story | None
    notes: list[str]


_ARGUMENTS = """%(user)s, %(user_key)s, %(terms)s::bigint[], %(vector)s, %(model)s, %(dimensions)s,
    %(kinds)s::text[], %(session)s, %(agent)s, %(after)s::timestamptz, %(before)s::timestamptz,
    %(path)s::jsonpath, %(variables)s"""
# Now by the database's clock, which dated what is read.
_WEIGHTS = """%(limit)s, %(candidates)s, coalesce(%(known_at)s::timestamptz, statement_timestamp()), %(half_life)s,
    %(recency)s, %(floor)s, %(floor_grows)s, %(fact_half_life)s, %(valid_at)s::timestamptz, %(known_at)s::timestamptz"""
_SHOWN = """%(from)s, %(through)s, %(prefix_at)s::timestamptz, %(standing)s::uuid[], %(recalled)s::uuid[],
    %(narrative)s, %(summary)s, %(held)s::uuid[]"""


def search(conn: Connection, scope: Scope, query: Query, where: Where) -> list[ScoredMemory]:
    """Return the best memories of a user, best first. One statement."""
    rows = conn.query(
        f"SELECT * FROM {conn.schema}.recall(%(tenant)s, {_ARGUMENTS}, NULL, NULL, {_WEIGHTS})",
        {
            "tenant": scope.tenant_id, "user_key": user_key(scope.user_id), **query.parameters(),
            **where.parameters(), "user": scope.user_id,
        },
    )  # fmt: skip
    return [_scored(row) for row in rows]


def read(
    conn: Connection,
    scope: Scope,
    session_id: str,
    query: Query,
    where: Where,
    *,
    window_tokens: int,
    window_turns: int,
    shown: Shown | None = None,
    held: Sequence[uuid.UUID] | None = None,
) -> Found:
    """Return the session's window and the memories relevant to the query. One statement, one round trip.

    The window starts at a multiple of half its size (in tokens, and in turns), so its first turn stays the same
    for many turns and so does the prompt's beginning. Turns in the window are not recalled. `shown`: what the
    injection log says of a read at `query.known_at`; that is brought, whatever would be found. `held`: the caller shows
    the session's turns itself, from the first of these on; neither they nor execution memory are brought.
    Plans: sessions_pkey, records_turns, records_instructions; then those of recall.
    """
    rows = conn.query(
        f"""SELECT * FROM {conn.schema}.read_context(
              %(tenant)s, %(this_session)s, %(tokens)s, %(turns)s, {_ARGUMENTS}, {_WEIGHTS}, {_SHOWN})""",
        {
            "tenant": scope.tenant_id, "user_key": user_key(scope.user_id), "this_session": session_id,
            "tokens": window_tokens, "turns": window_turns, **query.parameters(), **where.parameters(),
            **Shown.parameters(shown), "held": None if held is None else list(held), "user": scope.user_id,
        },
    )  # fmt: skip
    window, pinned, recalled, facts, doing = [], [], [], [], []
    notes: list[str] = []
    exists, user_id, last_seq, prefix_at, known_at, narrative, summary = False, None, 0, None, None, None, None
    for row in rows:
        match row[0]:
            case 0:
                exists, user_id, last_seq, prefix_at = True, row[2], row[4], row[10]
            case 1:
                pinned.append(_turn(row))
            case 2:
                window.append(_turn(row))
            case 3:
                recalled.append(_scored(row[1:]))
            case 4:
                facts.append(_standing_fact(row, scope.user_id))
            case 5:
                doing.append(_doing(row, session_id))
                if row[4] > _MOST_KEYS and not notes:
                    notes.append(f"execution memory holds {row[4]} keys: only the {_MOST_KEYS} newest are looked at")
            case 6:
                narrative = _story(row)
            case 7:
                summary = _story(row)
            case 8:
                known_at = row[10].astimezone(UTC)
    assert known_at is not None
    window.sort(key=lambda turn: turn.seq)
    pinned.sort(key=lambda turn: turn.seq)
    if shown is not None:
        recalled = [replace(one, score=score, parts=parts) for one, (score, parts) in shown.scored(recalled)]
        facts = shown.in_order(facts)
    return Found(
        exists, user_id, last_seq, window, pinned, recalled, facts, doing, known_at, prefix_at, narrative, summary,
        notes,
    )  # fmt: skip


def _doing(row: Sequence[Any], session_id: str) -> Standing:
    key, value, length, at = row[6], row[7], row[9], row[10]
    text = (
        json.dumps(decode_json(value), ensure_ascii=False, default=str)
        if length is None
        else f"{decode_text(value)} […] ({length:,} characters in all)"
    )
    return Standing(f"execution:{key}", f"{key}: {text}", at.astimezone(UTC), session_id=session_id)


def _story(row: Sequence[Any]) -> Story:
    return Story(row[4], decode_text(row[6]), row[10].astimezone(UTC))


def _standing_fact(row: Sequence[Any], user_id: str) -> Standing:
    _, fact_id, kind, session_id, _, authority, predicate, value, metadata, _, recorded_at, confidence = row[:12]
    text = fact_text(SubjectRef(kind, metadata["subject"]), predicate, decode_json(value), user_id)
    return Standing(str(fact_id), text, recorded_at.astimezone(UTC), authority, confidence, session_id)


def _turn(row: Sequence[Any]) -> Turn:
    _, record_id, _, session_id, seq, role, content, message, metadata, tokens, created_at = row[:11]
    return turn_of_row((record_id, session_id, seq, role, content, message, metadata, tokens, created_at))


def _scored(row: Sequence[Any]) -> ScoredMemory:
    record_id, kind, session_id, seq, role, content, message, metadata, tokens, created_at = row[:10]
    score, *parts = row[10:]
    name = (message or {}).get("name")
    return ScoredMemory(
        id=str(record_id),
        kind=kind,
        content=decode_text(content),
        score=score,
        parts=_NOTHING if score is None else ScoreParts(*parts),
        session_id=session_id,
        seq=seq,
        role=role,
        name=name and decode_text(name),
        created_at=created_at.astimezone(UTC),
        token_count=tokens,
        metadata=decode_json(metadata),
    )
