"""Facts of an export, written, with their evidence and tombstones. Operations, each run in a transaction; lock order:
erasures, subjects, tombstones, facts.

A value that was rejected here stays dead, and a fact that is not what is believed here is written as contested.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from pgmem_core.database.connection import Connection, jsonb
from pgmem_core.tiers import erasures
from pgmem_core.tiers.erasures import Key, Said
from pgmem_core.tiers.restoring import Columns, Done, Row, allowed_of, insert, instant
from pgmem_core.types import SubjectRef

__all__ = ["decisions", "facts", "tombstones"]


def facts(conn: Connection, tenant: str, columns: Columns, rows: Sequence[Row]) -> Done:
    """Write facts with their evidence, under the lock of their subjects. A turn that is not here becomes a source;
    a fact all of whose evidence was forgotten is forgotten."""
    about = [_subject(row) for row in rows]
    said = [
        Said(row["user_id"], row.get("session_id") or "", instant(row["recorded_at"]), None, subject)
        for row, subject in zip(rows, about, strict=True)
    ]
    allowed, lost = allowed_of(conn, tenant, said)
    cited = {key for i in allowed for one in rows[i]["evidence"] for key in _cited(one)}
    gone = erasures.erased_at(conn, tenant, cited)
    kept = {i: [one for one in rows[i]["evidence"] if not _is_gone(one, gone)] for i in allowed}
    lost += tuple(i for i in allowed if rows[i]["evidence"] and not kept[i])
    allowed = [i for i in allowed if i not in lost]
    _lock_subjects(conn, tenant, columns, [rows[i]["subject"] for i in allowed])
    known = {
        found
        for (found,) in conn.query(
            f"""SELECT fact_id::text FROM {conn.schema}.facts
                WHERE tenant_id = %(tenant)s AND fact_id = ANY (%(ids)s::uuid[])""",
            {"tenant": tenant, "ids": [rows[i]["fact_id"] for i in allowed]},
        )
    }
    graves = _graves(conn, tenant, [rows[i] for i in allowed])
    fresh = [rows[i] for i in allowed if rows[i]["fact_id"] not in known]
    dead = [row for row in fresh if _believed(row) and _grave(row) in graves]
    _hit(conn, tenant, dead)
    todo = [row for row in fresh if not (_believed(row) and _grave(row) in graves)]
    made = set(insert(conn, tenant, "facts", columns, todo, "fact_id", where=_nothing_else_holds(conn)))
    # What is left meets a belief of this store's own: the same value, which it has then, or another one.
    against = [{**row, "status": "contested"} for row in todo if row["fact_id"] not in made]
    contested = set(insert(conn, tenant, "facts", columns, against, "fact_id"))
    evidence = [
        {**one, "fact_id": rows[i]["fact_id"]} for i in allowed if rows[i]["fact_id"] in made | contested | known
        for one in kept[i]
    ]  # fmt: skip
    _evidence(conn, tenant, evidence)
    return Done(len(made), len(known) + len(against) - len(contested), len(dead), len(contested), lost)


def _cited(evidence: Row) -> Iterator[Key]:
    """Yield the turns, and the session of a pruned one, that evidence leads to."""
    for turn in (evidence.get("turn_id"), evidence.get("gone_turn")):
        if turn:
            yield "turn", turn
    if evidence.get("gone_session"):
        yield "session", evidence["gone_session"]


def _is_gone(evidence: Row, erased: Mapping[Key, datetime]) -> bool:
    said = instant(evidence.get("recorded_at"))
    return any(key in erased and (key[0] == "turn" or said is None or said <= erased[key]) for key in _cited(evidence))


def _nothing_else_holds(conn: Connection) -> str:
    """Return the condition that no other value of one at a time stands here for the time of fact `r`: an end that is
    still to come escapes the unique index."""
    return f"""NOT (r.single_valued AND r.status = 'accepted' AND r.superseded_at = 'infinity' AND EXISTS (
        SELECT FROM {conn.schema}.facts f
        WHERE f.tenant_id = %(tenant)s AND f.subject_id = r.subject_id AND f.predicate = r.predicate
          AND f.value_key <> r.value_key AND f.single_valued AND f.status = 'accepted' AND f.superseded_at = 'infinity'
          AND f.valid_from < r.valid_to AND r.valid_from < f.valid_to))"""


def _subject(row: Row) -> SubjectRef:
    return SubjectRef(row["subject"]["kind"], row["subject"]["identifier"])


def _grave(row: Row) -> tuple[str, str, str]:
    return row["subject"]["subject_id"], row["predicate"], row["value_key"]


def _believed(row: Row) -> bool:
    return row.get("superseded_at") == "infinity" and row.get("status") != "rejected"


def _lock_subjects(conn: Connection, tenant: str, columns: Columns, subjects: Sequence[Row]) -> None:
    """Make and lock the subjects' rows, lowest id first; their times never go back behind the file's."""
    one_each = {one["subject_id"]: one for one in subjects}
    insert(conn, tenant, "subjects", columns, list(one_each.values()), "subject_id")
    ids = sorted(one_each)
    conn.query(
        f"""SELECT FROM {conn.schema}.subjects WHERE tenant_id = %(tenant)s AND subject_id = ANY (%(ids)s::uuid[])
            ORDER BY subject_id FOR UPDATE""",
        {"tenant": tenant, "ids": ids},
    )
    conn.query(
        f"""UPDATE {conn.schema}.subjects s SET last_change = f.last_change
            FROM unnest(%(ids)s::uuid[], %(times)s::timestamptz[]) AS f (subject_id, last_change)
            WHERE s.tenant_id = %(tenant)s AND s.subject_id = f.subject_id AND s.last_change < f.last_change""",
        {"tenant": tenant, "ids": ids, "times": [one_each[one].get("last_change") for one in ids]},
    )


def _graves(conn: Connection, tenant: str, rows: Sequence[Row]) -> set[tuple[str, str, str]]:
    """Return what is dead here, of these rows' subjects."""
    found = conn.query(
        f"""SELECT subject_id::text, predicate, '\\x' || encode(value_key, 'hex') FROM {conn.schema}.tombstones
            WHERE tenant_id = %(tenant)s AND subject_id = ANY (%(ids)s::uuid[]) AND lifted_at IS NULL
            ORDER BY subject_id, predicate, value_key FOR UPDATE""",
        {"tenant": tenant, "ids": sorted({row["subject"]["subject_id"] for row in rows})},
    )
    return {(subject, predicate, key) for subject, predicate, key in found}


def _hit(conn: Connection, tenant: str, rows: Sequence[Row]) -> None:
    conn.query(
        f"""UPDATE {conn.schema}.tombstones t SET hits = hits + 1, last_hit_at = clock_timestamp()
            FROM unnest(%(subjects)s::uuid[], %(predicates)s::text[], %(keys)s::text[]) AS h (subject_id, predicate, k)
            WHERE t.tenant_id = %(tenant)s AND t.subject_id = h.subject_id AND t.predicate = h.predicate
              AND t.value_key = decode(substr(h.k, 3), 'hex')""",
        {
            "tenant": tenant, "subjects": [row["subject"]["subject_id"] for row in rows],
            "predicates": [row["predicate"] for row in rows], "keys": [row["value_key"] for row in rows],
        },
    )  # fmt: skip


def _evidence(conn: Connection, tenant: str, rows: Sequence[Row]) -> None:
    conn.query(
        f"""INSERT INTO {conn.schema}.evidence (tenant_id, evidence_id, fact_id, turn_id, source, quote, recorded_at,
              gone_turn, gone_session)
            SELECT %(tenant)s, e.evidence_id, e.fact_id, t.id,
                   CASE WHEN e.turn_id IS NULL THEN e.source
                        WHEN t.id IS NULL THEN 'turn ' || e.turn_id || ', which was not imported' END,
                   e.quote, e.recorded_at, CASE WHEN t.id IS NULL THEN coalesce(e.turn_id, e.gone_turn) END,
                   e.gone_session
            FROM jsonb_populate_recordset(NULL::{conn.schema}.evidence, %(rows)s) e
            LEFT JOIN {conn.schema}.records t ON t.tenant_id = %(tenant)s AND t.id = e.turn_id
            ORDER BY e.evidence_id ON CONFLICT DO NOTHING""",
        {"tenant": tenant, "rows": jsonb(list(rows))},
    )


def tombstones(conn: Connection, tenant: str, columns: Columns, rows: Sequence[Row]) -> Done:
    """Write what was called wrong, but for what is believed here: that was said with both at hand, or will be."""
    said = [
        Said(row["subject"].get("owner") or "", "", instant(row["created_at"]), None, _subject(row)) for row in rows
    ]
    allowed, lost = allowed_of(conn, tenant, said)
    todo = [{**rows[i], "subject_id": rows[i]["subject"]["subject_id"]} for i in allowed]
    _lock_subjects(conn, tenant, columns, [row["subject"] for row in todo])
    made = insert(
        conn, tenant, "tombstones", columns, todo, "subject_id",
        where=f"""(r.lifted_at IS NOT NULL OR NOT EXISTS (SELECT FROM {conn.schema}.facts f
                   WHERE f.tenant_id = %(tenant)s AND f.subject_id = r.subject_id AND f.predicate = r.predicate
                     AND f.value_key = r.value_key AND f.superseded_at = 'infinity' AND f.status = 'accepted'))""",
    )  # fmt: skip
    return Done(len(made), len(todo) - len(made), lost=lost)


def decisions(conn: Connection, tenant: str, columns: Columns, rows: Sequence[Row]) -> Done:
    """Write what people decided in review, about facts that are here."""
    made = insert(
        conn, tenant, "decisions", columns, rows, "decision_id",
        where=f"""EXISTS (SELECT FROM {conn.schema}.facts f
                          WHERE f.tenant_id = %(tenant)s AND f.fact_id = r.fact_id)""",
    )  # fmt: skip
    return Done(len(made), len(rows) - len(made))
