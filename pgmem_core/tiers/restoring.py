"""Rows of an export, written: each once per key, in its own words and at its own times. Operations, each run in a
transaction; lock order: erasures, sessions, records; facts are in `tiers.restoring_facts`.

What a store has decided for itself stands: rows that it has are left as they are, what was forgotten stays away.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pgmem_core.database.connection import Connection, VectorParameter, jsonb
from pgmem_core.database.migrate import quoted
from pgmem_core.errors import Conflict
from pgmem_core.ids import user_key
from pgmem_core.protocols import Vectors
from pgmem_core.tiers import erasures
from pgmem_core.tiers.erasures import Said

__all__ = [
    "Columns", "Done", "Indexed", "Row", "allowed_of", "finish", "history", "insert", "instant", "known_records",
    "narratives", "records", "sessions", "summaries", "turns",
]  # fmt: skip

Row = Mapping[str, Any]
Columns = Mapping[str, Sequence[str]]
"""The writable columns of each table: only these are ever named in a statement."""


@dataclass(frozen=True, slots=True)
class Done:
    """What became of rows. `dead`: values rejected here; `contested`: against what is believed here. By position:
    `lost` was erased here, `homeless` are turns of a session that is not here."""

    new: int = 0
    known: int = 0
    dead: int = 0
    contested: int = 0
    lost: tuple[int, ...] = ()
    homeless: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Indexed:
    """A record with what makes it findable: its terms, and its vector if the file has one that can be used."""

    row: Row
    terms: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    length: int = 0
    model: str | None = None
    vector: Vectors | None = None


def insert(
    conn: Connection,
    tenant: str,
    table: str,
    columns: Columns,
    rows: Sequence[Row],
    key: str,
    *,
    where: str = "true",
    vectors: Sequence[Indexed] = (),
) -> list[str]:
    """Insert the rows that break no key and meet a condition on `r`; return `key` of each inserted, as text.
    `vectors`: of records that have one, which comes with the row."""
    names = [name for name in columns[table] if name == "tenant_id" or any(name in row for row in rows)]
    listed = ", ".join(quoted(name) for name in names)
    values = {name: f"r.{quoted(name)}" for name in names}
    joined = ""
    parameters: dict[str, Any] = {"rows": jsonb([{**row, "tenant_id": tenant} for row in rows]), "tenant": tenant}
    if vectors:
        # In the insert itself: a vector that comes later costs a second version of the row in every index.
        values |= {"model": "v.model", "embedding": "v.embedding"}
        joined = """LEFT JOIN unnest(%(ids)s::uuid[], %(models)s::text[], %(vectors)b) AS v (id, model, embedding)
            ON v.id = r.id"""
        parameters |= {
            "ids": [one.row["id"] for one in vectors], "models": [one.model for one in vectors],
            "vectors": [VectorParameter(one.vector) for one in vectors if one.vector is not None],
        }  # fmt: skip
    made = conn.query(
        f"""INSERT INTO {conn.schema}.{table} ({listed})
            SELECT {", ".join(values[name] for name in names)}
            FROM jsonb_populate_recordset(NULL::{conn.schema}.{table}, %(rows)s) r {joined}
            WHERE {where} ORDER BY r.{quoted(key)}
            ON CONFLICT DO NOTHING RETURNING {quoted(key)}::text""",
        parameters,
    )
    return [found for (found,) in made]


def _said(row: Row, at: str, *, turn: str | None = None, session: str = "session_id") -> Said:
    moment = row.get(at)
    return Said(
        row.get("user_id") or "", row.get(session) or "", instant(moment),
        None if turn is None else uuid.UUID(row[turn]),
    )  # fmt: skip


def instant(value: Any) -> datetime | None:
    """Return the time of a row, None where it has none."""
    # Infinity is no time that anything was said at.
    return None if not isinstance(value, str) or "infinity" in value else datetime.fromisoformat(value)


def allowed_of(conn: Connection, tenant: str, said: Sequence[Said]) -> tuple[list[int], tuple[int, ...]]:
    """Return the positions of what may be written, and of what was forgotten; nothing can be forgotten meanwhile."""
    erasures.serialise(conn, tenant, erasing=False)
    blocked = erasures.blocked(conn, tenant, said)
    return (
        [i for i, stopped in enumerate(blocked) if not stopped],
        tuple(i for i, stopped in enumerate(blocked) if stopped),
    )


# -- sessions and records --------------------------------------------------------------------------------------


def sessions(conn: Connection, tenant: str, columns: Columns, rows: Sequence[Row]) -> Done:
    """Make sessions that have no turns yet, for no worker to look at before `finish`. One that is there gets as long
    as the file's. Raises: Conflict where one is another user's."""
    allowed, lost = allowed_of(conn, tenant, [_said(row, "touched_at") for row in rows])
    todo = sorted((rows[i] for i in allowed), key=lambda row: row["session_id"])
    quiet = {"unformed": False, "uncompacted": False, "formed_through": 0, "summarised_through": 0}
    made = insert(conn, tenant, "sessions", columns, [{**row, **quiet} for row in todo], "session_id")
    owners = conn.query(
        f"""WITH grown AS (
              UPDATE {conn.schema}.sessions s
              SET last_seq = greatest(s.last_seq, f.last_seq), token_total = greatest(s.token_total, f.token_total)
              FROM unnest(%(ids)s::text[], %(seqs)s::bigint[], %(tokens)s::bigint[])
                   AS f (session_id, last_seq, token_total)
              WHERE s.tenant_id = %(tenant)s AND s.session_id = f.session_id AND s.last_seq < f.last_seq)
            SELECT session_id, user_id FROM {conn.schema}.sessions
            WHERE tenant_id = %(tenant)s AND session_id = ANY (%(ids)s)""",
        {
            "tenant": tenant, "ids": [row["session_id"] for row in todo], "seqs": [row["last_seq"] for row in todo],
            "tokens": [row.get("token_total") or 0 for row in todo],
        },
    )  # fmt: skip
    _check_owners(dict(owners), {row["session_id"]: row["user_id"] for row in todo})
    return Done(len(made), len(todo) - len(made), lost=lost)


def _check_owners(found: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    for session, user in wanted.items():
        if found.get(session, user) != user:
            raise Conflict(
                f"session {session!r} belongs to another user here, {user!r} in the file; import into another group"
            )


def known_records(conn: Connection, tenant: str, ids: Sequence[str]) -> set[str]:
    """Return which of these records are stored."""
    rows = conn.query(
        f"SELECT id::text FROM {conn.schema}.records WHERE tenant_id = %(tenant)s AND id = ANY (%(ids)s::uuid[])",
        {"tenant": tenant, "ids": list(ids)},
    )
    return {found for (found,) in rows}


def turns(conn: Connection, tenant: str, columns: Columns, turns: Sequence[Indexed]) -> Done:
    """Write turns at their places in their sessions. Raises: Conflict where another turn has the place: the session
    has gone on both here and there."""
    allowed, lost = allowed_of(conn, tenant, [_said(one.row, "recorded_at", turn="id") for one in turns])
    places = sorted({turns[i].row["session_id"] for i in allowed})
    there: dict[str, str] = dict(
        conn.query(
            f"""SELECT session_id, user_id FROM {conn.schema}.sessions
                WHERE tenant_id = %(tenant)s AND session_id = ANY (%(sessions)s)
                ORDER BY session_id FOR NO KEY UPDATE""",
            {"tenant": tenant, "sessions": places},
        )
    )
    homeless = tuple(i for i in allowed if turns[i].row["session_id"] not in there)
    todo = [turns[i] for i in allowed if i not in homeless]
    _check_owners(there, {one.row["session_id"]: one.row["user_id"] for one in todo})
    made, known = _write_records(conn, tenant, columns, todo)
    taken = [one.row for one in todo if one.row["id"] not in made and one.row["id"] not in known]
    if taken:
        raise Conflict(
            f"session {taken[0]['session_id']!r} has another turn {taken[0]['seq']} here than in the file: it has gone"
            " on in both places; import into another group"
        )
    fresh = [one.row for one in todo if one.row["id"] in made]
    conn.query(
        # An export has them; without, the session would come to a place that is taken, and take no more turns.
        f"""UPDATE {conn.schema}.sessions s SET last_seq = f.last
            FROM (SELECT session_id, max(seq) AS last
                  FROM unnest(%(ids)s::text[], %(seqs)s::bigint[]) AS u (session_id, seq) GROUP BY session_id) f
            WHERE s.tenant_id = %(tenant)s AND s.session_id = f.session_id AND s.last_seq < f.last""",
        {"tenant": tenant, "ids": [row["session_id"] for row in fresh], "seqs": [row["seq"] for row in fresh]},
    )
    late = [one.row for one in todo if one.row["id"] in made and one.vector is None]
    conn.query(
        # Where a worker is at the session, its lease ends: it would step over these.
        f"""UPDATE {conn.schema}.sessions s
            SET dirty = true, claimed_until = NULL, embedded_through = least(s.embedded_through, f.first - 1)
            FROM (SELECT session_id, min(seq) AS first
                  FROM unnest(%(ids)s::text[], %(seqs)s::bigint[]) AS u (session_id, seq) GROUP BY session_id) f
            WHERE s.tenant_id = %(tenant)s AND s.session_id = f.session_id""",
        {"tenant": tenant, "ids": [row["session_id"] for row in late], "seqs": [row["seq"] for row in late]},
    )
    return Done(len(made), len(known), lost=lost, homeless=homeless)


def records(conn: Connection, tenant: str, columns: Columns, records: Sequence[Indexed]) -> Done:
    """Write notes, episodes, and the searchable texts of the facts that are accepted here. An episode of a turn that
    was forgotten is forgotten."""
    said = [_said(one.row, "recorded_at", turn="id") for one in records]
    allowed, lost = allowed_of(conn, tenant, said)
    told = {turn for i in allowed for turn in records[i].row.get("turns") or ()}
    gone = {one for target, one in erasures.erased_at(conn, tenant, [("turn", turn) for turn in told])}
    lost += tuple(i for i in allowed if gone.intersection(records[i].row.get("turns") or ()))
    todo = [records[i] for i in allowed if i not in lost]
    made, known = _write_records(
        conn, tenant, columns, todo,
        where=f"""(r.kind <> 'fact' OR EXISTS (SELECT FROM {conn.schema}.facts f
                  WHERE f.tenant_id = %(tenant)s AND f.fact_id = r.id AND f.status = 'accepted'))""",
    )  # fmt: skip
    links = [(one.row["id"], turn) for one in todo if one.row["id"] in made for turn in one.row.get("turns") or ()]
    conn.query(
        f"""INSERT INTO {conn.schema}.episode_turns (tenant_id, episode_id, turn_id)
            SELECT %(tenant)s, l.episode, l.turn
            FROM unnest(%(episodes)s::uuid[], %(turns)s::uuid[]) AS l (episode, turn)
            WHERE EXISTS (SELECT FROM {conn.schema}.records t WHERE t.tenant_id = %(tenant)s AND t.id = l.turn)
            ORDER BY 2, 3 ON CONFLICT DO NOTHING""",
        {"tenant": tenant, "episodes": [one for one, _ in links], "turns": [turn for _, turn in links]},
    )
    return Done(len(made), len(known), lost=lost)


def _write_records(
    conn: Connection, tenant: str, columns: Columns, records: Sequence[Indexed], *, where: str = "true"
) -> tuple[set[str], set[str]]:
    """Insert records with their terms and vectors; return the ids of the new ones, and of those that were there."""
    if not records:
        return set(), set()
    rows = [
        {
            **one.row, "user_key": user_key(one.row["user_id"]), "terms": list(one.terms), "term_total": one.length,
            "model": None, "embedding": None,
        }
        for one in records
    ]  # fmt: skip
    known = known_records(conn, tenant, [row["id"] for row in rows])
    todo = [row for row in rows if row["id"] not in known]
    given = [one for one in records if one.vector is not None and one.row["id"] not in known]
    made = set(insert(conn, tenant, "records", columns, todo, "id", where=where, vectors=given))
    fresh = [one for one in records if one.row["id"] in made]
    conn.query(
        f"""INSERT INTO {conn.schema}.postings (tenant_id, user_key, term, record_id, tf, len)
            SELECT %(tenant)s, u.user_key, u.term, u.id, u.tf, u.len
            FROM unnest(%(keys)s::bigint[], %(terms)s::bigint[], %(ids)s::uuid[], %(counts)s::smallint[],
                        %(lengths)s::integer[]) AS u (user_key, term, id, tf, len)
            ORDER BY u.user_key, u.term, u.id""",
        {
            "tenant": tenant,
            "keys": [user_key(one.row["user_id"]) for one in fresh for _ in one.terms],
            "terms": [term for one in fresh for term in one.terms],
            "ids": [one.row["id"] for one in fresh for _ in one.terms],
            "counts": [count for one in fresh for count in one.counts],
            "lengths": [min(one.length, 32767) for one in fresh for _ in one.terms],
        },
    )  # fmt: skip
    return made, known & {row["id"] for row in rows}


def summaries(conn: Connection, tenant: str, columns: Columns, rows: Sequence[Row], *, gaps: Mapping[str, int]) -> Done:
    """Write running summaries of sessions that are here, but for those that may tell of a forgotten turn: `gaps` says
    where each session lost its first."""
    allowed, lost = allowed_of(conn, tenant, [_said(row, "created_at") for row in rows])
    lost += tuple(i for i in allowed if rows[i]["through_seq"] >= gaps.get(rows[i]["session_id"], 1 << 62))
    todo = [rows[i] for i in allowed if i not in lost]
    made = insert(
        conn, tenant, "running_summaries", columns, todo, "session_id",
        where=f"""EXISTS (SELECT FROM {conn.schema}.sessions s
                          WHERE s.tenant_id = %(tenant)s AND s.session_id = r.session_id)""",
    )  # fmt: skip
    return Done(len(made), len(todo) - len(made), lost=lost)


def narratives(
    conn: Connection, tenant: str, columns: Columns, rows: Sequence[Row], *, gaps: Mapping[str, datetime]
) -> Done:
    """Write narratives, but for those that may tell of something forgotten: `gaps` says since when, of each user."""
    allowed, lost = allowed_of(conn, tenant, [_said(row, "created_at") for row in rows])
    lost += tuple(
        i for i in allowed if rows[i]["user_id"] in gaps and (_at(rows[i], "created_at") >= gaps[rows[i]["user_id"]])
    )
    todo = [rows[i] for i in allowed if i not in lost]
    made = insert(conn, tenant, "narratives", columns, todo, "user_id")
    return Done(len(made), len(todo) - len(made), lost=lost)


def _at(row: Row, key: str) -> datetime:
    return datetime.fromisoformat(row[key])


def history(conn: Connection, tenant: str, columns: Columns, rows: Sequence[Row]) -> Done:
    """Write what updates and deletions replaced."""
    allowed, lost = allowed_of(conn, tenant, [_said(row, "happened_at", turn="record_id") for row in rows])
    todo = [rows[i] for i in allowed]
    made = insert(conn, tenant, "record_history", columns, todo, "record_id")
    return Done(len(made), len(todo) - len(made), lost=lost)


# -- the end ---------------------------------------------------------------------------------------------------


def finish(conn: Connection, tenant: str, rows: Sequence[Row], *, gaps: Mapping[str, int]) -> None:
    """Let workers look at sessions: what the file's facts and summaries were made of is not read again, what is not
    formed yet will be, and so will what was told of by a summary that is forgotten."""
    ordered = sorted(rows, key=lambda row: row["session_id"])
    conn.query(
        f"""UPDATE {conn.schema}.sessions s
            SET formed_through = greatest(s.formed_through, f.formed),
                summarised_through = greatest(s.summarised_through, f.summarised),
                unformed = s.unformed OR f.unformed, uncompacted = s.uncompacted OR f.uncompacted,
                embedded_through = CASE WHEN s.dirty THEN s.embedded_through ELSE s.last_seq END
            FROM unnest(%(ids)s::text[], %(formed)s::bigint[], %(summarised)s::bigint[], %(unformed)s::boolean[],
                        %(uncompacted)s::boolean[]) AS f (session_id, formed, summarised, unformed, uncompacted)
            WHERE s.tenant_id = %(tenant)s AND s.session_id = f.session_id""",
        {
            "tenant": tenant, "ids": [row["session_id"] for row in ordered],
            "formed": [row.get("formed_through") or 0 for row in ordered],
            "summarised": [
                min(row.get("summarised_through") or 0, gaps.get(row["session_id"], 1 << 62) - 1) for row in ordered
            ],
            "unformed": [bool(row.get("unformed")) for row in ordered],
            "uncompacted": [bool(row.get("uncompacted")) or row["session_id"] in gaps for row in ordered],
        },
    )  # fmt: skip
