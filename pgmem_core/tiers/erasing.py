"""Erasure: a user, a session, a turn or a subject, with everything that was made of it. Operations, each run in a
transaction.

One mechanism serves forgetting and the plain deletions: `erase` in SQL takes records and facts, and finds what rests
on them; here is said which those are. Lock order: sessions, subjects, records, facts.
"""

from __future__ import annotations

import uuid
from typing import Any

from pgmem_core.database.connection import Connection
from pgmem_core.tiers import review
from pgmem_core.types import SubjectRef

__all__ = ["Counts", "session", "subject", "turn", "user"]

Counts = dict[str, int]
"""Rows erased, by kind: turns, facts, vectors …"""

# What an agent or program said by a call in this session, rather than in a turn, names the session as its source.
_CALLED = """(e.source = 'call in session ' || %(session)s
    OR starts_with(e.source, 'execution memory of session ' || %(session)s || ','))"""


def user(conn: Connection, tenant_id: str, user_id: str, own: SubjectRef) -> tuple[int, Counts]:
    """Erase everything of one user, and all that anybody knows of him as a subject (`own`); return how many records
    those were, and the rows by kind."""
    schema = conn.schema
    who: dict[str, Any] = {"tenant": tenant_id, "user": user_id, "kind": own.kind, "identifier": own.identifier}
    sessions = conn.query(
        f"""SELECT session_id FROM {schema}.sessions WHERE tenant_id = %(tenant)s AND user_id = %(user)s
            ORDER BY session_id FOR UPDATE""",
        who,
    )
    who["sessions"] = [row[0] for row in sessions]
    more = _of_sessions(conn, tenant_id, who["sessions"])
    subjects = conn.query(
        f"""SELECT subject_id FROM {schema}.subjects
            WHERE tenant_id = %(tenant)s AND (owner = %(user)s OR (kind = %(kind)s AND identifier = %(identifier)s))
            ORDER BY subject_id FOR UPDATE""",
        who,
    )
    who["subjects"] = [row[0] for row in subjects]
    decided = review.forget(conn, tenant_id, who["subjects"])
    more["tombstones"] = _delete(conn, "tombstones", "subject_id = ANY (%(subjects)s)", who)
    injections = _delete(conn, "injections", "user_id = %(user)s", who)
    [(erased, counts)] = conn.query(
        f"""SELECT erased, counts FROM {schema}.erase(%(tenant)s,
              ARRAY(SELECT id FROM {schema}.records WHERE tenant_id = %(tenant)s AND user_id = %(user)s),
              ARRAY(SELECT fact_id FROM {schema}.facts WHERE tenant_id = %(tenant)s
                    AND (user_id = %(user)s OR subject_id = ANY (%(subjects)s))),
              true, %(sessions)s)""",
        who,
    )
    counts["decisions"] += decided
    counts["injections"] += injections
    counts["narratives"] += _delete(conn, "narratives", "user_id = %(user)s", who)
    counts["record_history"] += _delete(conn, "record_history", "user_id = %(user)s", who)
    counts["subjects"] += _delete(conn, "subjects", "subject_id = ANY (%(subjects)s)", who)
    _delete(conn, "scope_stats", "level = 'user' AND user_id = %(user)s", who)
    # Those that are locked: one that was begun meanwhile holds turns that were not seen above.
    more["sessions"] = _delete(conn, "sessions", "session_id = ANY (%(sessions)s)", who)
    return int(erased), counts | more


def session(
    conn: Connection, tenant_id: str, session_id: str, *, user_id: str | None, calls: bool
) -> tuple[int, Counts] | None:
    """Erase a session; return how many of its records there were, and the rows by kind. None where there is no such
    session, or it is not this user's (if one is named).

    Facts learnt in it go if they rest on its turns alone; calls: also those that were stated by calls in it.
    """
    schema = conn.schema
    where: dict[str, Any] = {"tenant": tenant_id, "session": session_id, "user": user_id}
    found = conn.query(
        f"""SELECT user_id FROM {schema}.sessions
            WHERE tenant_id = %(tenant)s AND session_id = %(session)s
              AND (%(user)s::text IS NULL OR user_id = %(user)s) FOR UPDATE""",
        where,
    )
    if not found:
        return None
    where["user"] = found[0][0]
    more = _of_sessions(conn, tenant_id, [session_id])
    injections = _delete(conn, "injections", "session_id = %(session)s", where)
    # Records that are not turns may name a session that is not their user's: those are not this user's to delete.
    [(erased, counts)] = conn.query(
        f"""SELECT erased, counts FROM {schema}.erase(%(tenant)s,
              ARRAY(SELECT r.id FROM {schema}.records r
                    WHERE r.tenant_id = %(tenant)s AND r.session_id = %(session)s AND r.user_id = %(user)s
                      AND NOT EXISTS (SELECT FROM {schema}.facts f
                                      WHERE f.tenant_id = %(tenant)s AND f.fact_id = r.id)),
              ARRAY(SELECT f.fact_id FROM {schema}.facts f
                    WHERE %(calls)s AND f.tenant_id = %(tenant)s AND f.session_id = %(session)s AND NOT EXISTS (
                      SELECT FROM {schema}.evidence e
                      LEFT JOIN {schema}.records r ON r.tenant_id = e.tenant_id AND r.id = e.turn_id
                      WHERE e.tenant_id = %(tenant)s AND e.fact_id = f.fact_id
                        AND (r.session_id = %(session)s OR {_CALLED}) IS NOT true)),
              %(calls)s, ARRAY[%(session)s])""",
        where | {"calls": calls},
    )
    counts["injections"] += injections
    more["sessions"] = _delete(conn, "sessions", "session_id = %(session)s", where)
    return int(erased), counts | more


def turn(conn: Connection, tenant_id: str, record_id: uuid.UUID) -> Counts:
    """Erase one turn (or any other record), by its id or the one its caller gave it. Of a turn that was pruned goes
    what is left of it in evidence."""
    [(counts,)] = conn.query(
        f"""SELECT counts FROM {conn.schema}.erase(%(tenant)s,
              ARRAY(SELECT id FROM {conn.schema}.records
                    WHERE tenant_id = %(tenant)s AND (id = %(id)s OR alias_id = %(id)s)
                    UNION SELECT %(id)s),
              NULL, true)""",
        {"tenant": tenant_id, "id": record_id},
    )
    return dict(counts)


def subject(conn: Connection, tenant_id: str, about: SubjectRef) -> Counts:
    """Erase all that anybody in the tenant knows of a subject: facts, also superseded ones, and what was called wrong.

    What was said of it, in turns and in their summaries, belongs to those who said it, and stays.
    """
    name = {"tenant": tenant_id, "kind": about.kind, "identifier": about.identifier}
    rows = conn.query(
        f"""SELECT subject_id FROM {conn.schema}.subjects
            WHERE tenant_id = %(tenant)s AND kind = %(kind)s AND identifier = %(identifier)s
            ORDER BY subject_id FOR UPDATE""",
        name,
    )
    of = {"tenant": tenant_id, "subjects": [row[0] for row in rows]}
    decided = review.forget(conn, tenant_id, of["subjects"])
    buried = _delete(conn, "tombstones", "subject_id = ANY (%(subjects)s)", of)
    [(counts,)] = conn.query(
        f"""SELECT counts FROM {conn.schema}.erase(%(tenant)s, NULL,
              ARRAY(SELECT fact_id FROM {conn.schema}.facts
                    WHERE tenant_id = %(tenant)s AND subject_id = ANY (%(subjects)s)),
              true)""",
        of,
    )
    counts["decisions"] += decided
    counts["subjects"] += _delete(conn, "subjects", "subject_id = ANY (%(subjects)s)", of)
    return {**counts, "tombstones": buried}


def _of_sessions(conn: Connection, tenant_id: str, session_ids: list[str]) -> Counts:
    """Delete what hangs on sessions that are about to go; return the rows by kind."""
    of = {"tenant": tenant_id, "sessions": session_ids}
    tables = ("execution", "running_summaries")
    return {table: _delete(conn, table, "session_id = ANY (%(sessions)s)", of) for table in tables}


def _delete(conn: Connection, table: str, condition: str, parameters: dict[str, Any]) -> int:
    [(count,)] = conn.query(
        f"""WITH gone AS (DELETE FROM {conn.schema}.{table} WHERE tenant_id = %(tenant)s AND {condition} RETURNING 1)
            SELECT count(*) FROM gone""",
        parameters,
    )
    return int(count)
