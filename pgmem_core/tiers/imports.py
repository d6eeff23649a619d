"""Operations of bulk writing: what is there already, sessions with the time they began, and what follows a load."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pgmem_core.database.connection import Connection, jsonb

__all__ = ["NewSession", "analyze", "create_sessions", "known_turns", "mark_embedded", "stored_sessions"]

# Read by the planner at every search; what a load changes most.
_TABLES = ("sessions", "records", "postings", "scope_stats")


@dataclass(frozen=True, slots=True)
class NewSession:
    """A session to make if it is missing. `created_at`: when it began, None for now."""

    session_id: str
    user_id: str
    created_at: datetime | None
    metadata: Mapping[str, Any]


def stored_sessions(conn: Connection, tenant_id: str, session_ids: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Return whose each of these sessions is and how many turns it has, of those that exist."""
    rows = conn.query(
        f"""SELECT session_id, user_id, last_seq FROM {conn.schema}.sessions
            WHERE tenant_id = %(tenant)s AND session_id = ANY (%(sessions)s)""",
        {"tenant": tenant_id, "sessions": list(session_ids)},
    )
    return {session_id: (user_id, int(last_seq)) for session_id, user_id, last_seq in rows}


def known_turns(conn: Connection, tenant_id: str, ids: Sequence[uuid.UUID]) -> set[tuple[str, uuid.UUID]]:
    """Return (session id, turn id) of those of these turns that are stored."""
    rows = conn.query(
        f"SELECT session_id, id FROM {conn.schema}.records WHERE tenant_id = %(tenant)s AND id = ANY (%(ids)s)",
        {"tenant": tenant_id, "ids": list(ids)},
    )
    return {(session_id, turn_id) for session_id, turn_id in rows}


def create_sessions(conn: Connection, tenant_id: str, sessions: Sequence[NewSession]) -> int:
    """Make the sessions that are missing; return how many were. Whose it is, append checks."""
    made = conn.query(
        f"""INSERT INTO {conn.schema}.sessions (tenant_id, session_id, user_id, metadata, created_at)
            SELECT %(tenant)s, s.session_id, s.user_id, s.metadata, coalesce(s.created_at, clock_timestamp())
            FROM unnest(%(ids)s::text[], %(users)s::text[], %(metadata)s::jsonb[], %(times)s::timestamptz[])
                 AS s (session_id, user_id, metadata, created_at)
            ORDER BY s.session_id
            ON CONFLICT (tenant_id, session_id) DO NOTHING RETURNING true""",
        {
            "tenant": tenant_id, "ids": [one.session_id for one in sessions],
            "users": [one.user_id for one in sessions], "metadata": [jsonb(dict(one.metadata)) for one in sessions],
            "times": [one.created_at for one in sessions],
        },
    )  # fmt: skip
    return len(made)


def mark_embedded(conn: Connection, tenant_id: str, session_ids: Sequence[str]) -> None:
    """Move the watermark of sessions all of whose turns came with their vectors. In the transaction that wrote
    them, which holds the sessions' rows."""
    conn.query(
        f"""UPDATE {conn.schema}.sessions SET embedded_through = last_seq
            WHERE tenant_id = %(tenant)s AND session_id = ANY (%(sessions)s) AND NOT dirty
              AND embedded_through < last_seq""",
        {"tenant": tenant_id, "sessions": sorted(session_ids)},
    )


def analyze(conn: Connection) -> None:
    """Count the tables anew for the planner: the read functions plan by these numbers. A role that does not own
    the tables gets a warning from the server, no error."""
    conn.query("ANALYZE " + ", ".join(f"{conn.schema}.{table}" for table in _TABLES))
