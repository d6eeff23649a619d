"""The read: one statement for a whole context, and the same recall alone for a search. Operations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pgmem_core.database.connection import Connection, VectorParameter
from pgmem_core.database.migrate import Model
from pgmem_core.encoding import decode_json, decode_text
from pgmem_core.facts import fact_text
from pgmem_core.ids import user_key
from pgmem_core.protocols import Vectors
from pgmem_core.tiers.plain import Where
from pgmem_core.tiers.working import turn_of_row
from pgmem_core.types import Scope, ScoredMemory, ScoreParts, Standing, SubjectRef, Turn

__all__ = ["Found", "Query", "read", "search"]

# Each arm's best: 100 gave the same recall on LoCoMo for more work, 25 cost 0.01.
CANDIDATES = 50


@dataclass(frozen=True, slots=True)
class Query:
    """What to look for: terms and a vector (either may be missing), and how to weigh what is found."""

    terms: Sequence[int]
    vector: Vectors | None
    model: Model | None
    limit: int
    half_life_days: float
    recency_share: float
    floor: float | None
    floor_grows: bool = False  # the floor is a default for 300 memories and more; a smaller store asks for less
    as_of: datetime | None = None

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
            "as_of": self.as_of,
        }


@dataclass(frozen=True, slots=True)
class Found:
    """What one read brought back. last_seq: the session's last turn as this read saw it, 0 for a new one."""

    exists: bool
    user_id: str | None
    last_seq: int
    window: list[Turn]
    pinned: list[Turn]
    recalled: list[ScoredMemory]
    facts: list[Standing]
    execution: list[Standing]
    prefix_at: datetime | None = None


_ARGUMENTS = """%(user)s, %(user_key)s, %(terms)s::bigint[], %(vector)s, %(model)s, %(dimensions)s,
    %(kinds)s::text[], %(session)s, %(agent)s, %(after)s::timestamptz, %(before)s::timestamptz,
    %(path)s::jsonpath, %(variables)s"""
# Now by the database's clock, which dated what is read.
_WEIGHTS = """%(limit)s, %(candidates)s, coalesce(%(as_of)s::timestamptz, statement_timestamp()), %(half_life)s,
    %(recency)s, %(floor)s, %(floor_grows)s"""


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
) -> Found:
    """Return the session's window and the memories relevant to the query. One statement, one round trip.

    The window starts at a multiple of half its size (in tokens, and in turns), so its first turn stays the same
    for many turns and so does the prompt's beginning. Turns in the window are not recalled.
    Plans: sessions_pkey, records_turns, records_instructions; then those of recall.
    """
    rows = conn.query(
        f"""SELECT * FROM {conn.schema}.read_context(
              %(tenant)s, %(this_session)s, %(tokens)s, %(turns)s, {_ARGUMENTS}, {_WEIGHTS})""",
        {
            "tenant": scope.tenant_id, "user_key": user_key(scope.user_id), "this_session": session_id,
            "tokens": window_tokens, "turns": window_turns, **query.parameters(), **where.parameters(),
            "user": scope.user_id,
        },
    )  # fmt: skip
    window, pinned, recalled, facts, doing = [], [], [], [], []
    exists, user_id, last_seq, prefix_at = False, None, 0, None
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
                text = f"{row[6]}: {json.dumps(decode_json(row[7]), ensure_ascii=False, default=str)}"
                doing.append(Standing(f"execution:{row[6]}", text, row[10].astimezone(UTC), session_id=session_id))
    window.sort(key=lambda turn: turn.seq)
    pinned.sort(key=lambda turn: turn.seq)
    return Found(exists, user_id, last_seq, window, pinned, recalled, facts, doing, prefix_at)


def _standing_fact(row: Sequence[Any], user_id: str) -> Standing:
    _, fact_id, kind, session_id, _, authority, predicate, value, metadata, _, recorded_at, confidence = row[:12]
    text = fact_text(SubjectRef(kind, metadata["subject"]), predicate, decode_json(value), user_id)
    return Standing(str(fact_id), text, recorded_at.astimezone(UTC), authority, confidence, session_id)


def _turn(row: Sequence[Any]) -> Turn:
    _, record_id, _, session_id, seq, role, content, message, metadata, tokens, created_at = row[:11]
    return turn_of_row((record_id, session_id, seq, role, content, message, metadata, tokens, created_at))


def _scored(row: Sequence[Any]) -> ScoredMemory:
    record_id, kind, session_id, seq, role, content, message, metadata, tokens, created_at = row[:10]
    score, lexical, dense, neighbour, episode, decay, bm25, cosine = row[10:]
    name = (message or {}).get("name")
    return ScoredMemory(
        id=str(record_id),
        kind=kind,
        content=decode_text(content),
        score=score,
        parts=ScoreParts(lexical, dense, neighbour, episode, decay, bm25, cosine),
        session_id=session_id,
        seq=seq,
        role=role,
        name=name and decode_text(name),
        created_at=created_at.astimezone(UTC),
        token_count=tokens,
        metadata=decode_json(metadata),
    )
