"""Narrative memory: the long story of a user, in versions; the newest stands. Operations."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pgmem_core.database.connection import Connection
from pgmem_core.encoding import decode_text, encode_text
from pgmem_core.facts import Fact
from pgmem_core.tiers import beliefs
from pgmem_core.types import MemoryText

__all__ = ["Sources", "newest", "read", "write"]

# An episode's time is taken before its commit, which is at most this much later.
_OVERLAP = "interval '5 minutes'"
# About two hundred episodes of 120 words are what a model reads at a time; more wait for the next version.
_MOST_EPISODES = 200
_MOST_FACTS = 100


@dataclass(frozen=True, slots=True)
class Sources:
    """What the next version is to be written from: the story so far, the episodes it has not seen (oldest first),
    the facts that hold, and those withdrawn since. `seen_through`: what it may say it has seen. `more`: there are
    more episodes than it takes at a time."""

    version: int
    previous: str | None
    episodes: tuple[MemoryText, ...]
    facts: tuple[Fact, ...]
    withdrawn: tuple[Fact, ...]
    seen_through: datetime
    seen_episodes: tuple[uuid.UUID, ...]
    more: bool


def newest(conn: Connection, tenant_id: str, user_id: str) -> int:
    """Return the version of a user's narrative that stands, 0 if there is none."""
    [(version,)] = conn.query(
        f"""SELECT coalesce(max(version), 0) FROM {conn.schema}.narratives
            WHERE tenant_id = %(tenant)s AND user_id = %(user)s""",
        {"tenant": tenant_id, "user": user_id},
    )
    return int(version)


def read(conn: Connection, tenant_id: str, user_id: str) -> Sources | None:
    """Return what the user's next narrative is to be written from; None if there is nothing new: no episode that
    the last one has not seen, and no fact withdrawn that it may tell as true."""
    head = conn.query(
        f"""SELECT version, content, seen_through, seen_episodes FROM {conn.schema}.narratives
            WHERE tenant_id = %(tenant)s AND user_id = %(user)s ORDER BY version DESC LIMIT 1""",
        {"tenant": tenant_id, "user": user_id},
    )
    version, previous, seen_through, seen = head[0] if head else (0, None, None, [])
    rows = conn.query(
        f"""SELECT id, content, session_id, created_at, recorded_at FROM {conn.schema}.records
            WHERE tenant_id = %(tenant)s AND user_id = %(user)s AND kind = 'episode' AND invalidated_at IS NULL
              AND (%(seen)s::timestamptz IS NULL OR recorded_at > %(seen)s::timestamptz - {_OVERLAP})
              AND id <> ALL (%(ids)s) AND metadata ? 'from_seq'
            ORDER BY recorded_at, id LIMIT %(limit)s""",
        {"tenant": tenant_id, "user": user_id, "seen": seen_through, "ids": list(seen), "limit": _MOST_EPISODES},
    )
    withdrawn: list[Fact] = []
    if seen_through is not None:
        withdrawn = beliefs.select(
            conn, tenant_id,
            "f.user_id = %(user)s AND f.ended_as IN ('wrong', 'retracted') AND f.superseded_at > %(seen)s"
            " AND f.recorded_at <= %(seen)s AND f.superseded_at <> 'infinity'",
            {"user": user_id, "seen": seen_through},
        )  # fmt: skip
    if not rows and not withdrawn:
        return None
    facts = beliefs.facts_of(conn, tenant_id, user_id=user_id)
    facts.sort(key=lambda fact: fact.last_confirmed_at, reverse=True)
    del facts[_MOST_FACTS:]
    episodes = tuple(
        MemoryText.of(
            decode_text(content), id=str(record_id), kind="episode", session_id=session_id, user_id=user_id,
            created_at=created_at.astimezone(UTC), metadata={},
        )
        for record_id, content, session_id, created_at, _ in rows
    )  # fmt: skip
    # In the order in which things happened, not in that of being told: a session may be summarised late.
    ordered = tuple(sorted(episodes, key=lambda one: (one.created_at, one.id)))
    times = [row[4].astimezone(UTC) for row in rows]
    more = len(rows) == _MOST_EPISODES
    if not more:  # else the mark would pass episodes that still wait
        times += [fact.recorded_at for fact in facts]
        times += [fact.superseded_at for fact in withdrawn if fact.superseded_at is not None]
    seen_until = max([*times, *([] if seen_through is None else [seen_through.astimezone(UTC)])])
    ids = tuple(row[0] for row in rows)
    return Sources(version, None if previous is None else decode_text(previous), ordered, tuple(facts),
                   tuple(withdrawn), seen_until, (*seen, *ids), more)  # fmt: skip


def write(conn: Connection, tenant_id: str, user_id: str, sources: Sources, text: str) -> bool:
    """Write the next version. False, and nothing is written, if what it was written from is not there any more:
    another worker was faster, or something of it was deleted meanwhile. In a transaction."""
    conn.query(f"SELECT {conn.schema}.lock_narrative(%(tenant)s, %(user)s)", {"tenant": tenant_id, "user": user_id})
    [(version, episodes, facts)] = conn.query(
        f"""SELECT coalesce((SELECT max(n.version) FROM {conn.schema}.narratives n
                             WHERE n.tenant_id = %(tenant)s AND n.user_id = %(user)s), 0),
                   (SELECT count(*) FROM {conn.schema}.records r
                    WHERE r.tenant_id = %(tenant)s AND r.id = ANY (%(episodes)s)),
                   (SELECT count(*) FROM {conn.schema}.facts f
                    WHERE f.tenant_id = %(tenant)s AND f.fact_id = ANY (%(facts)s))""",
        {
            "tenant": tenant_id, "user": user_id, "episodes": _ids(sources.episodes),
            "facts": _ids([*sources.facts, *sources.withdrawn]),
        },
    )  # fmt: skip
    told = len(sources.facts) + len(sources.withdrawn)
    if (version, episodes, facts) != (sources.version, len(sources.episodes), told):
        return False
    conn.query(
        f"""INSERT INTO {conn.schema}.narratives (tenant_id, user_id, version, content, seen_through, seen_episodes)
            SELECT %(tenant)s, %(user)s, %(version)s, %(content)s, %(seen)s,
                   ARRAY(SELECT r.id FROM {conn.schema}.records r
                         WHERE r.tenant_id = %(tenant)s AND r.id = ANY (%(ids)s)
                           AND r.recorded_at > %(seen)s::timestamptz - {_OVERLAP})""",
        {
            "tenant": tenant_id, "user": user_id, "version": sources.version + 1, "content": encode_text(text),
            "seen": sources.seen_through, "ids": list(sources.seen_episodes),
        },
    )  # fmt: skip
    return True


def _ids(items: Sequence[MemoryText] | Sequence[Fact]) -> list[uuid.UUID]:
    return [uuid.UUID(str(item.id)) for item in items]
