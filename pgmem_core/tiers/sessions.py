"""Operations on sessions: open, read, list, end, delete."""

from __future__ import annotations

from datetime import UTC
from typing import Any

from pgmem_core.database.connection import Connection, jsonb
from pgmem_core.encoding import decode_json
from pgmem_core.errors import Conflict, NotFound
from pgmem_core.tiers import erasing
from pgmem_core.types import Scope, SessionInfo, SubjectRef

__all__ = ["ANONYMOUS", "delete", "end", "fetch", "listing", "open_", "scope_of_session", "user_subject"]

# A session without a user is a scope of its own: the mark is a control character, which no user id may hold.
ANONYMOUS = "\x01"


def user_subject(scope: Scope) -> SubjectRef:
    """Return the subject that a user's own facts are about; a session without a user is its own."""
    if scope.user_id.startswith(ANONYMOUS):
        return SubjectRef("session", scope.user_id.removeprefix(ANONYMOUS))
    return SubjectRef("user", scope.user_id)


_COLUMNS = (
    "session_id, tenant_id, user_id, agent_id, metadata, created_at, ended_at, last_seq, token_total, embedded_through"
)


def _info(row: tuple[Any, ...]) -> SessionInfo:
    session_id, tenant, user, agent, metadata, created_at, ended_at, last_seq, tokens, embedded = row
    return SessionInfo(
        session_id, tenant, None if user == "" or user.startswith(ANONYMOUS) else user, agent, decode_json(metadata),
        created_at.astimezone(UTC), None if ended_at is None else ended_at.astimezone(UTC), last_seq, tokens, embedded,
    )  # fmt: skip


def open_(
    conn: Connection, scope: Scope, session_id: str, *, metadata: dict[str, Any], create_only: bool = False
) -> SessionInfo:
    """Return the session, creating it if it is new. Raises: Conflict if it is another user's, or if it exists
    and create_only."""
    # Looked for first: an INSERT would wait for whoever has written a turn of the session and not committed yet,
    # for ever if that is the caller's own transaction.
    rows = conn.query(
        f"""WITH made AS (
              INSERT INTO {conn.schema}.sessions (tenant_id, session_id, user_id, agent_id, metadata)
              SELECT %(tenant)s, %(session)s, %(user)s, %(agent)s, %(metadata)s
              WHERE NOT EXISTS (SELECT FROM {conn.schema}.sessions
                                WHERE tenant_id = %(tenant)s AND session_id = %(session)s)
              ON CONFLICT (tenant_id, session_id) DO NOTHING RETURNING {_COLUMNS})
            SELECT {_COLUMNS}, true FROM made
            UNION ALL
            SELECT {_COLUMNS}, false FROM {conn.schema}.sessions
            WHERE tenant_id = %(tenant)s AND session_id = %(session)s AND NOT EXISTS (SELECT FROM made)""",
        {
            "tenant": scope.tenant_id, "session": session_id, "user": scope.user_id, "agent": scope.agent_id,
            "metadata": jsonb(metadata),
        },
    )  # fmt: skip
    if not rows:  # made by a transaction that this statement's snapshot does not see yet
        return fetch(conn, scope.tenant_id, session_id, user_id=scope.user_id)
    *row, made = rows[0]
    if row[2] != scope.user_id:
        raise Conflict(
            f"session {session_id!r} belongs to another user; open it with the user_id that created it, or use"
            " another session id"
        )
    if create_only and not made:
        raise Conflict(f"session {session_id!r} exists already; use session.open to get or create it")
    return _info(tuple(row))


def fetch(conn: Connection, tenant_id: str, session_id: str, *, user_id: str | None = None) -> SessionInfo:
    """Return the session. Raises: NotFound, also where it is another user's."""
    rows = conn.query(
        f"""SELECT {_COLUMNS} FROM {conn.schema}.sessions
            WHERE tenant_id = %(tenant)s AND session_id = %(session)s
              AND (%(user)s::text IS NULL OR user_id = %(user)s)""",
        {"tenant": tenant_id, "session": session_id, "user": user_id},
    )
    if not rows:
        raise NotFound(f"no session {session_id!r} in group {tenant_id!r}; create it with session.create")
    return _info(rows[0])


def scope_of_session(conn: Connection, tenant_id: str, session_id: str, *, user_id: str | None) -> Scope:
    """Return whose session it is. Raises: NotFound, also where it is another user's."""
    rows = conn.query(
        f"""SELECT user_id, agent_id FROM {conn.schema}.sessions
            WHERE tenant_id = %(tenant)s AND session_id = %(session)s
              AND (%(user)s::text IS NULL OR user_id = %(user)s)""",
        {"tenant": tenant_id, "session": session_id, "user": user_id},
    )
    if not rows:
        raise NotFound(f"no session {session_id!r} in group {tenant_id!r}; create it with session.create")
    return Scope(tenant_id, *rows[0])


def listing(conn: Connection, tenant_id: str, *, user_id: str | None, limit: int, offset: int) -> list[SessionInfo]:
    """Return sessions, newest first."""
    rows = conn.query(
        f"""SELECT {_COLUMNS} FROM {conn.schema}.sessions
            WHERE tenant_id = %(tenant)s AND (%(user)s::text IS NULL OR user_id = %(user)s)
            ORDER BY created_at DESC, session_id LIMIT %(limit)s OFFSET %(offset)s""",
        {"tenant": tenant_id, "user": user_id, "limit": limit, "offset": offset},
    )
    return [_info(row) for row in rows]


def end(conn: Connection, tenant_id: str, session_id: str, *, user_id: str) -> SessionInfo:
    """Mark the session ended (once) and return it. Raises: NotFound, also where it is another user's."""
    rows = conn.query(
        f"""WITH cleared AS (  -- what the agent was doing ends with the session
              DELETE FROM {conn.schema}.execution e USING {conn.schema}.sessions s
              WHERE e.tenant_id = %(tenant)s AND e.session_id = %(session)s AND s.tenant_id = %(tenant)s
                AND s.session_id = %(session)s AND s.user_id = %(user)s)
            UPDATE {conn.schema}.sessions SET ended_at = coalesce(ended_at, clock_timestamp()),
                touched_at = clock_timestamp(), unformed = formed_through < last_seq, uncompacted = true
            WHERE tenant_id = %(tenant)s AND session_id = %(session)s AND user_id = %(user)s RETURNING {_COLUMNS}""",
        {"tenant": tenant_id, "session": session_id, "user": user_id},
    )
    if not rows:
        raise NotFound(f"no session {session_id!r} in group {tenant_id!r}; nothing to end")
    return _info(rows[0])


def delete(conn: Connection, tenant_id: str, session_id: str, *, user_id: str) -> int:
    """Delete the user's session, its turns and what was made of them; return how many records that were (0 where the
    session is gone or another user's). Facts stated by calls in it stay. Runs in a transaction."""
    erased = erasing.session(conn, tenant_id, session_id, user_id=user_id, calls=False)
    return 0 if erased is None else erased[0]
