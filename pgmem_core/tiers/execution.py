"""Execution memory: what the agent is doing right now. Keyed JSON of one session, with a time to live. Operations.

Nothing here is ever recalled into another session, extracted or embedded. An entry that has expired is gone for
every read at once; `expire` only reclaims its space.
"""

from __future__ import annotations

from typing import Any

from pgmem_core.database.connection import Connection, jsonb
from pgmem_core.encoding import decode_json
from pgmem_core.types import Scope

__all__ = ["clear", "expire", "fetch", "fetch_all", "put"]

_LIVE = "(expires_at IS NULL OR expires_at > clock_timestamp())"
# The session is the user's, and open: a write that raced with its end may have left an entry behind.
_OPEN = """SELECT FROM {schema}.sessions s WHERE s.tenant_id = %(tenant)s AND s.session_id = %(session)s
    AND s.user_id = %(user)s AND s.ended_at IS NULL"""


def put(conn: Connection, scope: Scope, session_id: str, key: str, value: Any, *, ttl_seconds: float | None) -> bool:
    """Set a key; False if the user has no such session or it has ended. One statement."""
    rows = conn.query(
        f"""INSERT INTO {conn.schema}.execution (tenant_id, session_id, key, value, expires_at)
            SELECT %(tenant)s, %(session)s, %(key)s, %(value)s,
                   clock_timestamp() + %(ttl)s::float8 * interval '1 second'
            FROM {conn.schema}.sessions
            WHERE tenant_id = %(tenant)s AND session_id = %(session)s AND user_id = %(user)s
              AND ended_at IS NULL
            ON CONFLICT (tenant_id, session_id, key) DO UPDATE
            SET value = excluded.value, expires_at = excluded.expires_at, set_at = clock_timestamp()
            RETURNING true""",
        {
            "tenant": scope.tenant_id,
            "user": scope.user_id,
            "session": session_id,
            "key": key,
            "value": jsonb(value),
            "ttl": ttl_seconds,
        },
    )
    return bool(rows)


def fetch(conn: Connection, scope: Scope, session_id: str, key: str) -> list[Any]:
    """Return [value], or [] if the key is not set or has expired."""
    rows = conn.query(
        f"""SELECT value FROM {conn.schema}.execution
            WHERE tenant_id = %(tenant)s AND session_id = %(session)s AND key = %(key)s AND {_LIVE}
              AND EXISTS ({_OPEN.format(schema=conn.schema)})""",
        {"tenant": scope.tenant_id, "user": scope.user_id, "session": session_id, "key": key},
    )
    return [decode_json(row[0]) for row in rows]


def fetch_all(conn: Connection, scope: Scope, session_id: str) -> dict[str, Any]:
    """Return every live key with its value, in the order of the keys."""
    rows = conn.query(
        f"""SELECT key, value FROM {conn.schema}.execution
            WHERE tenant_id = %(tenant)s AND session_id = %(session)s AND {_LIVE}
              AND EXISTS ({_OPEN.format(schema=conn.schema)}) ORDER BY key""",
        {"tenant": scope.tenant_id, "user": scope.user_id, "session": session_id},
    )
    return {key: decode_json(value) for key, value in rows}


def clear(conn: Connection, scope: Scope, session_id: str, key: str | None = None) -> int:
    """Remove a key, or all; return how many there were."""
    return len(
        conn.query(
            f"""DELETE FROM {conn.schema}.execution
                WHERE tenant_id = %(tenant)s AND session_id = %(session)s AND (%(key)s::text IS NULL OR key = %(key)s)
                  AND EXISTS ({_OPEN.format(schema=conn.schema)})
                RETURNING true""",
            {"tenant": scope.tenant_id, "user": scope.user_id, "session": session_id, "key": key},
        )
    )


def expire(conn: Connection, tenant_id: str, *, limit: int) -> int:
    """Delete up to limit entries that have expired, or that were set as their session ended; return how many."""
    [(count,)] = conn.query(
        f"""WITH gone AS (
              DELETE FROM {conn.schema}.execution e
              USING (SELECT x.session_id, x.key FROM {conn.schema}.execution x
                     JOIN {conn.schema}.sessions s ON s.tenant_id = x.tenant_id AND s.session_id = x.session_id
                     WHERE x.tenant_id = %(tenant)s AND (x.expires_at <= clock_timestamp() OR s.ended_at IS NOT NULL)
                     ORDER BY x.session_id, x.key LIMIT %(limit)s FOR UPDATE OF x SKIP LOCKED) due
              WHERE e.tenant_id = %(tenant)s AND e.session_id = due.session_id AND e.key = due.key
              RETURNING 1)
            SELECT count(*) FROM gone""",
        {"tenant": tenant_id, "limit": limit},
    )
    return int(count)
