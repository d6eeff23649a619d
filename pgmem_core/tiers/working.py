"""Working memory: the turns of a session. Operations."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from pgmem_core.database.connection import Connection, VectorParameter, jsonb
from pgmem_core.encoding import decode_json, decode_text
from pgmem_core.ids import user_key
from pgmem_core.protocols import Vectors
from pgmem_core.types import NewTurn, Scope, Turn

__all__ = ["TURN_COLUMNS", "Stored", "append", "by_ids", "recent", "turn_of_row"]

Stored = tuple[str, int, datetime, bool]  # id, seq, created_at, newly stored

TURN_COLUMNS = "id, session_id, seq, role, content, message, metadata, token_count, created_at"


def turn_of_row(row: Sequence[Any]) -> Turn:
    """Return the turn of a row of TURN_COLUMNS."""
    record_id, session_id, seq, role, content, message, metadata, tokens, created_at = row
    text = decode_text(content)
    held = decode_json(message) if message else {}
    return Turn(
        id=str(record_id),
        session_id=session_id,
        seq=seq,
        role=role,
        content=held.pop("content", text),
        text=text,
        created_at=created_at.astimezone(UTC),
        token_count=tokens,
        name=held.pop("name", None),
        tool_calls=held.pop("tool_calls", []),
        tool_call_id=held.pop("tool_call_id", None),
        metadata=decode_json(metadata),
        utc_offset=held.pop("utc_offset", None),
        extra=held,
    )


def append(
    conn: Connection,
    scope: Scope,
    session_id: str,
    turns: Sequence[NewTurn],
    *,
    create: bool,
    aligned: bool = False,
    model: str | None = None,
    vectors: Sequence[Vectors | None] | Vectors | None = None,
) -> list[Stored]:
    """Append turns in order, each once per id; one statement. `vectors`: one a turn, None for what is embedded
    later. `aligned`: a batch that begins with the whole stored session adds the rest of itself only, and what was
    withdrawn may come again. Raises: NotFound, Conflict."""
    function = "append_aligned" if aligned else "append_turns"
    ends, total = [], 0
    for turn in turns:
        total += len(turn.terms)
        ends.append(total)
    rows = conn.query(
        f"""SELECT turn_id, turn_seq, turn_created_at, stored FROM {conn.schema}.{function}(
              %(tenant)s, %(session)s, %(user)s, %(user_key)s, %(agent)s, %(create)s, %(turns)s,
              %(terms)s::bigint[], %(counts)s::smallint[], %(ends)s::integer[], %(model)s, %(vectors)b)""",
        {
            "tenant": scope.tenant_id,
            "session": session_id,
            "user": scope.user_id,
            "user_key": user_key(scope.user_id),
            "agent": scope.agent_id,
            "create": create,
            "turns": jsonb([_as_json(turn) for turn in turns]),
            "terms": [term for turn in turns for term in turn.terms],
            "counts": [count for turn in turns for count in turn.term_counts],
            "ends": ends,
            "model": model,
            "vectors": None
            if vectors is None
            else [None if vector is None else VectorParameter(vector) for vector in vectors],
        },
    )
    return [(str(turn_id), seq, at.astimezone(UTC), stored) for turn_id, seq, at, stored in rows]


def _as_json(turn: NewTurn) -> dict[str, Any]:
    return {
        "id": str(turn.id),
        "given": turn.given_id,
        "role": turn.role,
        "content": turn.text,
        "message": turn.message,
        "metadata": turn.metadata,
        "token_count": turn.token_count,
        "created_at": None if turn.created_at is None else turn.created_at.isoformat(),
        "term_total": min(turn.term_total, 32767),
        "provisional": turn.provisional,
        "after_seq": turn.after_seq,
    }


def by_ids(conn: Connection, tenant_id: str, ids: Sequence[uuid.UUID]) -> dict[str, Turn]:
    """Return the stored turns of these ids, by id."""
    rows = conn.query(
        f"""SELECT {TURN_COLUMNS} FROM {conn.schema}.records
            WHERE tenant_id = %(tenant)s AND id = ANY (%(ids)s) AND seq IS NOT NULL""",
        {"tenant": tenant_id, "ids": list(ids)},
    )
    return {str(row[0]): turn_of_row(row) for row in rows}


def recent(
    conn: Connection,
    tenant_id: str,
    session_id: str,
    *,
    limit: int | None,
    before_seq: int | None = None,
    user_id: str | None = None,
    archived: bool = True,
) -> list[Turn]:
    """Return the last turns of a session (all if limit is None), oldest first; [] where user_id is given and the
    session is another user's. Withdrawn turns are left out, archived ones too unless wanted. Plan: records_turns,
    backwards."""
    rows = conn.query(
        f"""SELECT {TURN_COLUMNS} FROM {conn.schema}.records
            WHERE tenant_id = %(tenant)s AND session_id = %(session)s AND seq IS NOT NULL
              AND (%(before)s::bigint IS NULL OR seq < %(before)s)
              AND (%(user)s::text IS NULL OR user_id = %(user)s)
              AND (archived_at IS NULL OR (%(archived)s AND invalidated_at IS NULL))
            ORDER BY seq DESC LIMIT %(limit)s""",
        {
            "tenant": tenant_id, "session": session_id, "limit": limit, "before": before_seq, "user": user_id,
            "archived": archived,
        },
    )  # fmt: skip
    return [turn_of_row(row) for row in reversed(rows)]
