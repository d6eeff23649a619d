"""Episodic memory: the summaries of what happened, and the running summary of a session. Operations.

An episode is a record of kind "episode" that is linked to the turns it tells of (`episode_turns`). The running
summary keeps its versions: each is made of the turns through its `through_seq` and of no later one.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from pgmem_core.database.connection import Connection
from pgmem_core.encoding import decode_text, encode_text
from pgmem_core.errors import NotFound
from pgmem_core.tiers import plain
from pgmem_core.tiers.plain import NewRecord
from pgmem_core.tiers.working import TURN_COLUMNS, turn_of_row
from pgmem_core.types import Scope, Turn

__all__ = [
    "Standing",
    "Summary",
    "add_episode",
    "add_running",
    "advance",
    "ask",
    "load",
    "standing",
    "unclaimed",
    "written",
]


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a session has been summarised. Tokens are those of its turns past `watermark`.

    `kept_from`: the first of the newest turns that fit into the tokens to keep, a question if one is among the older
    half of them (None: not even the last turn fits).
    """

    watermark: int
    last_seq: int
    asked_through: int
    ended: bool
    tokens: int
    kept_from: int | None
    running: str | None


@dataclass(frozen=True, slots=True)
class Summary:
    """What there is of a session's summaries past a turn: episodes, the turns they tell of, and how many versions of
    the running summary. `through`: the last turn told of at all."""

    through: int
    episodes: tuple[str, ...]
    turns: int
    running: int
    error: str | None


def ask(conn: Connection, tenant_id: str, session_id: str, *, user_id: str) -> int:
    """Put the session on the to-do list, to be summarised through its last turn; return how far it has been until
    now. Raises: NotFound, also where it is another user's."""
    rows = conn.query(
        # A microsecond: whoever is at the session now, perhaps past its last look, leaves it on the list.
        f"""UPDATE {conn.schema}.sessions
            SET compact_through = last_seq, uncompacted = true, forming_retry_at = NULL,
                touched_at = touched_at + interval '1 microsecond'
            WHERE tenant_id = %(tenant)s AND session_id = %(session)s AND user_id = %(user)s
            RETURNING summarised_through""",
        {"tenant": tenant_id, "session": session_id, "user": user_id},
    )
    if not rows:
        raise NotFound(f"no session {session_id!r} in group {tenant_id!r}; nothing to compact")
    return int(rows[0][0])


def unclaimed(conn: Connection, tenant_id: str, session_id: str, *, summarises: bool) -> bool:
    """True if there is work on the session that somebody could begin now."""
    rows = conn.query(
        f"""SELECT (dirty AND coalesce(claimed_until, retry_at, '-infinity') < clock_timestamp())
                OR (uncompacted AND %(summarises)s
                    AND coalesce(forming_until, forming_retry_at, '-infinity') < clock_timestamp())
            FROM {conn.schema}.sessions WHERE tenant_id = %(tenant)s AND session_id = %(session)s""",
        {"tenant": tenant_id, "session": session_id, "summarises": summarises},
    )
    return bool(rows and rows[0][0])


def standing(conn: Connection, tenant_id: str, session_id: str, *, keep_tokens: int) -> Standing | None:
    """Return how far the session has been summarised; None if it is gone. Plan: records_turns, past the watermark."""
    rows = conn.query(
        f"""SELECT s.summarised_through, s.last_seq, s.compact_through, s.ended_at IS NOT NULL, o.tokens, o.kept_from,
                   (SELECT v.content FROM {conn.schema}.running_summaries v
                    WHERE v.tenant_id = %(tenant)s AND v.session_id = %(session)s ORDER BY v.version DESC LIMIT 1)
            FROM {conn.schema}.sessions s CROSS JOIN LATERAL (
              SELECT coalesce(max(behind), 0) AS tokens,
                     coalesce(min(seq) FILTER (WHERE behind <= %(keep)s AND behind >= %(keep)s / 2 AND role = 'user'),
                              min(seq) FILTER (WHERE behind <= %(keep)s)) AS kept_from
              FROM (SELECT r.seq, r.role, sum(r.token_count) OVER (ORDER BY r.seq DESC) AS behind
                    FROM {conn.schema}.records r
                    WHERE r.tenant_id = %(tenant)s AND r.session_id = %(session)s AND r.seq IS NOT NULL
                      AND r.seq > s.summarised_through AND r.invalidated_at IS NULL) t) o
            WHERE s.tenant_id = %(tenant)s AND s.session_id = %(session)s""",
        {"tenant": tenant_id, "session": session_id, "keep": keep_tokens},
    )
    if not rows:
        return None
    watermark, last_seq, asked, ended, tokens, kept_from, running = rows[0]
    return Standing(
        watermark, last_seq, asked, ended, int(tokens), kept_from, None if running is None else decode_text(running)
    )


def load(conn: Connection, tenant_id: str, session_id: str, *, after: int, limit: int) -> list[Turn]:
    """Return the next turns past a seq, oldest first, without those that were taken back. Plan: records_turns."""
    rows = conn.query(
        f"""SELECT {TURN_COLUMNS} FROM {conn.schema}.records
            WHERE tenant_id = %(tenant)s AND session_id = %(session)s AND seq IS NOT NULL AND seq > %(after)s
              AND invalidated_at IS NULL ORDER BY seq LIMIT %(limit)s""",
        {"tenant": tenant_id, "session": session_id, "after": after, "limit": limit},
    )
    return [turn_of_row(row) for row in rows]


def add_episode(conn: Connection, scope: Scope, episode: NewRecord, turns: Sequence[Turn]) -> bool:
    """Add an episode with its words (its meaning: off the turn) and the turns it tells of. False, and nothing is
    added, if one of them was deleted, taken back or edited since it was read."""
    there = conn.query(
        f"""SELECT r.id FROM unnest(%(ids)s::uuid[], %(digests)s::bytea[]) AS t (id, digest)
            JOIN {conn.schema}.records r ON r.tenant_id = %(tenant)s AND r.id = t.id
            WHERE r.invalidated_at IS NULL AND sha256(convert_to(r.content, 'UTF8')) = t.digest
            ORDER BY r.id FOR KEY SHARE OF r""",
        {
            "tenant": scope.tenant_id, "ids": [uuid.UUID(turn.id) for turn in turns],
            "digests": [sha256(encode_text(turn.text).encode()).digest() for turn in turns],
        },
    )  # fmt: skip
    if len(there) < len(turns):
        return False
    plain.insert(conn, scope, episode, model=None, vector=None)
    conn.query(
        f"""INSERT INTO {conn.schema}.episode_turns (tenant_id, episode_id, turn_id)
            SELECT %(tenant)s, %(episode)s, t.id FROM unnest(%(ids)s::uuid[]) AS t (id)""",
        {"tenant": scope.tenant_id, "episode": episode.id, "ids": [row[0] for row in there]},
    )
    return True


def add_running(
    conn: Connection, tenant_id: str, session_id: str, text: str, *, through: int, token_count: int
) -> None:
    """Add the next version of the running summary. The caller holds the session's row."""
    conn.query(
        f"""INSERT INTO {conn.schema}.running_summaries (tenant_id, session_id, version, content, through_seq,
              token_count)
            SELECT %(tenant)s, %(session)s, coalesce(max(version), 0) + 1, %(content)s, %(through)s, %(tokens)s
            FROM {conn.schema}.running_summaries WHERE tenant_id = %(tenant)s AND session_id = %(session)s""",
        {
            "tenant": tenant_id, "session": session_id, "content": encode_text(text), "through": through,
            "tokens": token_count,
        },
    )  # fmt: skip


def advance(conn: Connection, tenant_id: str, session_id: str, *, through: int, told: bool) -> None:
    """Move the watermark; where something was told, the stable prefix is to be rendered anew. The caller holds the
    session's row, and has seen that nobody else moved it."""
    conn.query(
        f"""UPDATE {conn.schema}.sessions
            SET summarised_through = %(through)s, compact_through = greatest(compact_through, %(through)s),
                prefix_at = CASE WHEN %(told)s THEN clock_timestamp() ELSE prefix_at END
            WHERE tenant_id = %(tenant)s AND session_id = %(session)s""",
        {"tenant": tenant_id, "session": session_id, "through": through, "told": told},
    )


def written(conn: Connection, tenant_id: str, session_id: str, *, after: int) -> Summary | None:
    """Return what tells of the session's turns past a seq; None if the session is gone."""
    rows = conn.query(
        f"""SELECT s.summarised_through, s.forming_error,
                   (SELECT count(*) FROM {conn.schema}.running_summaries v
                    WHERE v.tenant_id = %(tenant)s AND v.session_id = %(session)s AND v.through_seq > %(after)s),
                   coalesce(array_agg(DISTINCT e.episode_id) FILTER (WHERE e.episode_id IS NOT NULL), '{{}}'),
                   count(e.turn_id)
            FROM {conn.schema}.sessions s
            LEFT JOIN {conn.schema}.records t ON t.tenant_id = %(tenant)s AND t.session_id = %(session)s
              AND t.seq IS NOT NULL AND t.seq > %(after)s
            LEFT JOIN {conn.schema}.episode_turns e ON e.tenant_id = %(tenant)s AND e.turn_id = t.id
            WHERE s.tenant_id = %(tenant)s AND s.session_id = %(session)s
            GROUP BY s.summarised_through, s.forming_error""",
        {"tenant": tenant_id, "session": session_id, "after": after},
    )
    if not rows:
        return None
    through, error, running, episodes, turns = rows[0]
    return Summary(
        through, tuple(sorted(str(one) for one in episodes)), int(turns), int(running),
        None if error is None else decode_text(error),
    )  # fmt: skip
