"""A session's turns as a list that its keeper may cut: archived ones leave the window, withdrawn ones everything.

===========  ===================  ================================================================================
active       neither              in the window, recalled, read by extraction
archived     archived_at          out of the window; recalled and read like any turn of the past
withdrawn    and invalidated_at   taken back: neither shown, nor recalled, nor read again. The row stays, for it may
                                  be the evidence of a fact; erasing is another matter (`edits`, `sessions.delete`)
===========  ===================  ================================================================================

Operations. Those that write run in a transaction; lock order: session, then its records.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pgmem_core.database.connection import Connection
from pgmem_core.errors import Conflict
from pgmem_core.ids import new_id
from pgmem_core.tiers import working
from pgmem_core.tiers.working import TURN_COLUMNS, turn_of_row
from pgmem_core.types import NewTurn, Scope, Turn

__all__ = ["Status", "add", "archive_oldest", "assign", "count", "keys", "listing", "withdraw", "withdraw_all"]

Status = Literal["active", "archived"]

_STANDING = {
    "active": "r.archived_at IS NULL",
    "archived": "r.archived_at IS NOT NULL AND r.invalidated_at IS NULL",
    None: "(r.archived_at IS NULL OR r.invalidated_at IS NULL)",
}
_OF_SESSION = "r.tenant_id = %(tenant)s AND r.session_id = %(session)s AND r.seq IS NOT NULL"


def listing(
    conn: Connection,
    scope: Scope,
    session_id: str,
    *,
    status: Status | None,
    limit: int | None = None,
    offset: int = 0,
) -> list[Turn]:
    """Return the turns of a user's session that stand so (None: active and archived ones), oldest first."""
    rows = conn.query(
        f"""SELECT {TURN_COLUMNS} FROM {conn.schema}.records r
            WHERE {_OF_SESSION} AND r.user_id = %(user)s AND {_STANDING[status]}
            ORDER BY r.seq LIMIT %(limit)s OFFSET %(offset)s""",
        {"limit": limit, "offset": offset, **_names(scope, session_id)},
    )
    return [turn_of_row(row) for row in rows]


def count(conn: Connection, scope: Scope, session_id: str, *, status: Status | None) -> int:
    """Return how many `listing` would give."""
    [(number,)] = conn.query(
        f"""SELECT count(*) FROM {conn.schema}.records r
            WHERE {_OF_SESSION} AND r.user_id = %(user)s AND {_STANDING[status]}""",
        _names(scope, session_id),
    )
    return int(number)


def keys(conn: Connection, tenant_id: str, *, user_id: str | None, anonymous: str) -> list[str]:
    """Return the sessions that hold a turn, oldest first: of a user, or those without one (whose user is the mark
    `anonymous` and the session's own id)."""
    rows = conn.query(
        f"""SELECT s.session_id FROM {conn.schema}.sessions s
            WHERE s.tenant_id = %(tenant)s AND s.user_id = coalesce(%(user)s, %(anonymous)s || s.session_id)
              AND EXISTS (SELECT FROM {conn.schema}.records r
                          WHERE r.tenant_id = %(tenant)s AND r.session_id = s.session_id AND r.seq IS NOT NULL
                            AND {_STANDING[None]})
            ORDER BY s.created_at, s.session_id""",
        {"tenant": tenant_id, "user": user_id, "anonymous": anonymous},
    )
    return [session_id for (session_id,) in rows]


def add(
    conn: Connection, scope: Scope, session_id: str, turns: Sequence[NewTurn], *, create: bool, archived: bool
) -> None:
    """Append turns; `archived`: out of the window at once."""
    stored = working.append(conn, scope, session_id, turns, create=create)
    if archived:
        _archive(conn, scope, session_id, [uuid.UUID(one[0]) for one in stored if one[3]])


def assign(
    conn: Connection, scope: Scope, session_id: str, turns: Sequence[NewTurn], *, create: bool, archived: bool
) -> None:
    """Make these the session's active (or archived) turns: what both begin with stays as it is, the other turns of
    that standing are withdrawn, and the rest is appended. The same list again changes nothing."""
    if not _lock(conn, scope, session_id):
        if not turns:
            return
        if create:  # before the look at what is there: of two that make it, the second sees what the first has written
            conn.query(
                f"""INSERT INTO {conn.schema}.sessions (tenant_id, session_id, user_id, agent_id)
                    VALUES (%(tenant)s, %(session)s, %(user)s, %(agent)s) ON CONFLICT DO NOTHING""",
                {"agent": scope.agent_id, **_names(scope, session_id)},
            )
            _lock(conn, scope, session_id)
    status: Status = "archived" if archived else "active"
    held = conn.query(
        f"""SELECT r.id, r.role, r.content, r.message FROM {conn.schema}.records r
            WHERE {_OF_SESSION} AND {_STANDING[status]} ORDER BY r.seq""",
        _names(scope, session_id),
    )
    same = 0
    for (_, role, content, message), turn in zip(held, turns, strict=False):
        if (role, content, message or None) != (turn.role, turn.text, turn.message or None):
            break
        same += 1
    withdraw(conn, scope, session_id, [row[0] for row in held[same:]])
    new = _as_new(conn, scope, turns[same:])
    if new:
        add(conn, scope, session_id, new, create=create, archived=archived)


def _as_new(conn: Connection, scope: Scope, turns: Sequence[NewTurn]) -> list[NewTurn]:
    """Return the turns, under ids of their own where theirs are taken: one that was withdrawn and is said again is
    another turn, in another place."""
    given = [turn.id for turn in turns if turn.given_id]
    if not given:
        return list(turns)
    taken = {
        row[0]
        for row in conn.query(
            f"""SELECT id FROM {conn.schema}.records WHERE tenant_id = %(tenant)s AND id = ANY (%(ids)s)
                UNION SELECT alias_id FROM {conn.schema}.records
                WHERE tenant_id = %(tenant)s AND alias_id = ANY (%(ids)s)""",
            {"tenant": scope.tenant_id, "ids": given},
        )
    }
    return [replace(turn, id=new_id(), given_id=False) if turn.id in taken else turn for turn in turns]


def archive_oldest(conn: Connection, scope: Scope, session_id: str, number: int) -> list[Turn]:
    """Archive the oldest active turns and return them."""
    if not _lock(conn, scope, session_id):
        return []
    turns = listing(conn, scope, session_id, status="active", limit=number)
    _archive(conn, scope, session_id, [uuid.UUID(turn.id) for turn in turns])
    return turns


def withdraw_all(
    conn: Connection,
    scope: Scope,
    session_id: str,
    *,
    status: Status | None,
    limit: int | None = None,
    place: int | None = None,
) -> list[Turn]:
    """Withdraw the turns that stand so (the oldest `limit`, or the one at `place`, counted from the end where
    negative) and return them; [] where there are none."""
    if not _lock(conn, scope, session_id):
        return []
    if place is None:
        turns = listing(conn, scope, session_id, status=status, limit=limit)
    else:
        turns = _at(conn, scope, session_id, place, status=status)
    withdraw(conn, scope, session_id, [uuid.UUID(turn.id) for turn in turns])
    return turns


def _at(conn: Connection, scope: Scope, session_id: str, place: int, *, status: Status | None) -> list[Turn]:
    rows = conn.query(
        f"""SELECT {TURN_COLUMNS} FROM {conn.schema}.records r WHERE {_OF_SESSION} AND {_STANDING[status]}
            ORDER BY r.seq {"DESC" if place < 0 else ""} LIMIT 1 OFFSET %(offset)s""",
        {"offset": -place - 1 if place < 0 else place, **_names(scope, session_id)},
    )
    return [turn_of_row(row) for row in rows]


def withdraw(conn: Connection, scope: Scope, session_id: str, ids: Sequence[uuid.UUID]) -> None:
    """Take turns back. Their session is locked. Summaries that tell of them go, and episodes of them alone."""
    if not ids:
        return
    names = {"ids": sorted(ids), **_names(scope, session_id)}
    [(first, parted, start, base)] = conn.query(
        f"""WITH standing AS (
              SELECT r.id, r.seq, r.token_offset, r.archived_at FROM {conn.schema}.records r
              WHERE {_OF_SESSION} AND r.id = ANY (%(ids)s) ORDER BY r.id FOR UPDATE),
            gone AS (
              UPDATE {conn.schema}.records r
              SET archived_at = coalesce(r.archived_at, clock_timestamp()), invalidated_at = clock_timestamp(),
                  provisional = false, token_offset = -1
              FROM standing s WHERE r.tenant_id = %(tenant)s AND r.id = s.id)
            SELECT min(seq), count(*) FILTER (WHERE archived_at IS NULL), min(seq) FILTER (WHERE archived_at IS NULL),
              min(token_offset) FILTER (WHERE archived_at IS NULL) FROM standing""",
        names,
    )
    if parted:
        # As if they had never been: the window is measured by the tokens of what is left.
        conn.query(
            f"""WITH placed AS (
                  SELECT r.id, r.token_offset, r.token_count,
                         %(base)s + sum(r.token_count) OVER (ORDER BY r.seq) - r.token_count AS place
                  FROM {conn.schema}.records r WHERE {_OF_SESSION} AND r.seq > %(start)s AND r.archived_at IS NULL),
                moved AS (
                  UPDATE {conn.schema}.records r SET token_offset = p.place
                  FROM placed p WHERE r.tenant_id = %(tenant)s AND r.id = p.id AND r.token_offset <> p.place)
                UPDATE {conn.schema}.sessions s SET parted = parted + %(parted)s, touched_at = clock_timestamp(),
                  token_total = %(base)s + (SELECT coalesce(sum(p.token_count), 0) FROM placed p)
                WHERE s.tenant_id = %(tenant)s AND s.session_id = %(session)s""",
            {"parted": parted, "start": start, "base": base, **names},
        )
    conn.query(
        f"""DELETE FROM {conn.schema}.running_summaries
            WHERE tenant_id = %(tenant)s AND session_id = %(session)s AND through_seq >= %(first)s""",
        {"first": first, **names},
    )
    conn.query(
        f"""UPDATE {conn.schema}.records e SET invalidated_at = clock_timestamp()
            WHERE e.tenant_id = %(tenant)s AND e.invalidated_at IS NULL AND e.id IN (
              SELECT t.episode_id FROM {conn.schema}.episode_turns t
              WHERE t.tenant_id = %(tenant)s AND t.turn_id = ANY (%(ids)s))
              AND NOT EXISTS (
                SELECT FROM {conn.schema}.episode_turns t JOIN {conn.schema}.records r
                  ON r.tenant_id = t.tenant_id AND r.id = t.turn_id
                WHERE t.tenant_id = %(tenant)s AND t.episode_id = e.id AND r.invalidated_at IS NULL)""",
        names,
    )


def _archive(conn: Connection, scope: Scope, session_id: str, ids: Sequence[uuid.UUID]) -> None:
    if not ids:
        return
    # Before every window's start: recalled again, also in their own session.
    conn.query(
        f"""WITH gone AS (
              UPDATE {conn.schema}.records r SET archived_at = clock_timestamp(), provisional = false, token_offset = -1
              WHERE {_OF_SESSION} AND r.id = ANY (%(ids)s) AND r.archived_at IS NULL RETURNING r.id)
            UPDATE {conn.schema}.sessions s SET parted = parted + (SELECT count(*) FROM gone)
            WHERE s.tenant_id = %(tenant)s AND s.session_id = %(session)s""",
        {"ids": sorted(ids), **_names(scope, session_id)},
    )


def _lock(conn: Connection, scope: Scope, session_id: str) -> bool:
    """Lock the session; False if there is none. Raises: Conflict if it is another user's."""
    rows = conn.query(
        f"""SELECT user_id FROM {conn.schema}.sessions
            WHERE tenant_id = %(tenant)s AND session_id = %(session)s FOR NO KEY UPDATE""",
        _names(scope, session_id),
    )
    if rows and rows[0][0] != scope.user_id:
        raise Conflict(
            f"session {session_id!r} belongs to another user; open it with the user_id that created it, or use"
            " another session id"
        )
    return bool(rows)


def _names(scope: Scope, session_id: str) -> dict[str, str]:
    return {"tenant": scope.tenant_id, "session": session_id, "user": scope.user_id}
