"""Rebuilding: what was made of the turns is made of them again, where it is missing.

The turns are the source. Their words and vectors, and what a model reads out of them (facts, episodes, summaries,
narratives), can be lost with a table or an index that somebody dropped, or be out of date with a setting, and are then
made anew. Nothing that is there is thrown away: a fact that is read again is confirmed, a value called wrong stays
dead. What no turn holds has no source here: facts that programs stated, execution memory, decisions. Of those an
export is the copy.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pgmem_core.database.connection import Connection
from pgmem_core.effects import Flow, transact
from pgmem_core.encoding import decode_text
from pgmem_core.errors import InvalidArgument
from pgmem_core.flows import ready, store_model
from pgmem_core.formation import worker
from pgmem_core.ids import check_id
from pgmem_core.lifecycle.pruning import tenants
from pgmem_core.retrieval import lexical
from pgmem_core.runtime import Runtime
from pgmem_core.turns import turn_terms

__all__ = ["RebuildReport", "rebuild"]

# Sessions put on the workers' list in one transaction.
_SESSIONS = 500
_START = uuid.UUID(int=0)


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """What a rebuild did. `records`: those whose words were found anew; `sessions`: those read again; `turns`: turns,
    facts and episodes that got a vector; `facts`, `episodes`: added, or changed; `errors`: by session, tried again by
    themselves."""

    records: int = 0
    sessions: int = 0
    turns: int = 0
    facts: int = 0
    episodes: int = 0
    errors: Mapping[str, str] = field(default_factory=dict)


def rebuild(rt: Runtime, *, group_id: str | None, batch: int) -> Flow[RebuildReport]:
    """Make what is missing of one group, or of all, in transactions of `batch` records. Raises: InvalidArgument."""
    tenant = None if group_id is None else check_id(group_id, "group_id")
    if not isinstance(batch, int) or isinstance(batch, bool) or not 1 <= batch <= 10_000:
        raise InvalidArgument(f"batch must be a whole number, 1 to 10,000, got {batch!r}")
    yield from ready(rt)
    rt.models.pop(rt.embedder.model, None)
    yield from store_model(rt)  # looks whether the model's index is there, and builds it
    records = sessions = 0
    for one in [tenant] if tenant is not None else (yield from transact(tenants, single=True)):
        after: uuid.UUID | None = _START
        while after is not None:
            after, count = yield from transact(_find_words, one, after, language=rt.settings.language, limit=batch)
            records += count
        yield from transact(_count_scopes, one)
        last: str | None = ""
        while last is not None:
            last, count = yield from transact(_read_again, one, last)
            sessions += count
    formed = yield from worker.form(rt, tenant_id=tenant)
    return RebuildReport(records, sessions, formed.turns, formed.facts, formed.episodes, formed.errors)


def _find_words(
    conn: Connection, tenant_id: str, after: uuid.UUID, *, language: str, limit: int
) -> tuple[uuid.UUID | None, int]:
    """Write the words of the next records anew; return the last of them (None: there is no more) and how many."""
    rows = conn.query(
        f"""SELECT id, user_key, kind, role, content, message->>'name', terms FROM {conn.schema}.records
            WHERE tenant_id = %(tenant)s AND id > %(after)s ORDER BY id LIMIT %(limit)s FOR NO KEY UPDATE""",
        {"tenant": tenant_id, "after": after, "limit": limit},
    )
    if not rows:
        return None, 0
    found: list[lexical.Terms] = []
    for _, _, kind, role, content, name, _ in rows:
        text = decode_text(content)
        found.append(
            turn_terms(role, text, name and decode_text(name), language=language)
            if kind == "turn"
            else lexical.analyse(text, language=language)
        )
    conn.query(
        f"""WITH old AS (
              SELECT v.id, v.key, t.term FROM unnest(%(ids)s::uuid[], %(keys)s::bigint[]) AS v (id, key)
              JOIN {conn.schema}.records r ON r.tenant_id = %(tenant)s AND r.id = v.id
              CROSS JOIN LATERAL unnest(r.terms) AS t (term))
            DELETE FROM {conn.schema}.postings p USING old
            WHERE p.tenant_id = %(tenant)s AND p.user_key = old.key AND p.term = old.term AND p.record_id = old.id""",
        {"tenant": tenant_id, "ids": [row[0] for row in rows], "keys": [row[1] for row in rows]},
    )
    conn.query(
        f"""INSERT INTO {conn.schema}.postings (tenant_id, user_key, term, record_id, tf, len)
            SELECT %(tenant)s, v.key, v.term, v.id, v.tf, v.len
            FROM unnest(%(ids)s::uuid[], %(keys)s::bigint[], %(terms)s::bigint[], %(counts)s::smallint[],
                        %(lengths)s::smallint[]) AS v (id, key, term, tf, len)
            ON CONFLICT (tenant_id, user_key, term, record_id) DO UPDATE SET tf = excluded.tf, len = excluded.len""",
        _postings(tenant_id, rows, found),
    )
    changed = [(row[0], one) for row, one in zip(rows, found, strict=True) if list(one.hashes) != row[6]]
    for record_id, one in changed:  # few, unless the language was changed
        conn.query(
            f"""UPDATE {conn.schema}.records SET terms = %(terms)s::bigint[], term_total = %(total)s
                WHERE tenant_id = %(tenant)s AND id = %(id)s""",
            {"tenant": tenant_id, "id": record_id, "terms": list(one.hashes), "total": one.length},
        )
    last: uuid.UUID = rows[-1][0]
    return last, len(rows)


def _postings(tenant_id: str, rows: list[tuple[Any, ...]], found: list[lexical.Terms]) -> dict[str, Any]:
    """Return the postings as one column a field."""
    columns: dict[str, Any] = {"tenant": tenant_id, "ids": [], "keys": [], "terms": [], "counts": [], "lengths": []}
    for row, one in zip(rows, found, strict=True):
        size = len(one.hashes)
        columns["ids"] += [row[0]] * size
        columns["keys"] += [row[1]] * size
        columns["terms"] += one.hashes
        columns["counts"] += one.counts
        columns["lengths"] += [min(one.length, lexical.MAX_COUNT)] * size
    return columns


def _count_scopes(conn: Connection, tenant_id: str) -> None:
    """Count the records of each user, and of the group, anew."""
    conn.query(
        f"""INSERT INTO {conn.schema}.scope_stats (tenant_id, level, user_id, record_count, term_total)
            SELECT %(tenant)s, CASE WHEN user_id IS NULL THEN 'tenant' ELSE 'user' END, coalesce(user_id, ''), count(*),
                   coalesce(sum(term_total), 0)
            FROM {conn.schema}.records WHERE tenant_id = %(tenant)s GROUP BY GROUPING SETS ((user_id), ())
            ORDER BY 2, 3
            ON CONFLICT (tenant_id, level, user_id) DO UPDATE
            SET record_count = excluded.record_count, term_total = excluded.term_total,
                counted_at = clock_timestamp()""",
        {"tenant": tenant_id},
    )


def _read_again(conn: Connection, tenant_id: str, after: str) -> tuple[str | None, int]:
    """Put the next sessions on the workers' list from their first turn on; return the last of them (None: there is no
    more) and how many. Whoever is at one of them loses it, and starts again.

    A session that has lost its episodes, or its running summary, is summarised from its first turn; another from where
    its summary ends, as turns that were pruned since can not be summarised again.
    """
    rows = conn.query(
        f"""SELECT session_id FROM {conn.schema}.sessions WHERE tenant_id = %(tenant)s AND session_id > %(after)s
            ORDER BY session_id LIMIT %(limit)s FOR NO KEY UPDATE""",
        {"tenant": tenant_id, "after": after, "limit": _SESSIONS},
    )
    if not rows:
        return None, 0
    sessions = [row[0] for row in rows]
    conn.query(
        f"""WITH told AS (
              SELECT s.session_id, coalesce(v.through, 0) AS through
              FROM unnest(%(sessions)s::text[]) AS s (session_id)
              LEFT JOIN LATERAL (
                SELECT max(o.through_seq) AS through FROM {conn.schema}.running_summaries o
                WHERE o.tenant_id = %(tenant)s AND o.session_id = s.session_id
                  AND EXISTS (SELECT FROM {conn.schema}.records e
                              WHERE e.tenant_id = %(tenant)s AND e.session_id = s.session_id AND e.kind = 'episode'
                                AND e.seq IS NULL)) v ON true
            ), gone AS (
              DELETE FROM {conn.schema}.running_summaries o USING told
              WHERE o.tenant_id = %(tenant)s AND o.session_id = told.session_id AND told.through = 0)
            UPDATE {conn.schema}.sessions s
            SET formed_through = 0, embedded_through = 0,
                summarised_through = least(s.summarised_through, told.through),
                dirty = s.last_seq > 0, unformed = s.last_seq > 0, uncompacted = s.last_seq > 0, claimed_until = NULL,
                forming_until = NULL, retry_at = NULL, forming_retry_at = NULL
            FROM told WHERE s.tenant_id = %(tenant)s AND s.session_id = told.session_id""",
        {"tenant": tenant_id, "sessions": sessions},
    )
    last: str = sessions[-1]
    return last, len(sessions)
