"""A memory read out whole: rows as JSON, one a line, in an order in which they can be written again. Operations.

Rows go by the columns that their tables have, so that what is added to a table is in the next export. Left out is
what the importing store finds for itself (terms, sketches, counts, the to-do lists of workers), what was shown to
agents, and what they were doing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pgmem_core.database.connection import Connection
from pgmem_core.database.migrate import quoted

__all__ = ["Line", "columns_of", "lines", "models", "snapshot"]

Line = tuple[str, str]  # the type of a line, and a row as the text of a JSON object

_FETCH = 500
_LEFT_OUT = {
    "sessions": {
        "embedded_through", "dirty", "claimed_until", "attempts", "last_error", "retry_at", "forming_until",
        "forming_attempts", "forming_error", "forming_retry_at",
    },
    "records": {"user_key", "terms", "model", "embedding", "sketch"},
    "tombstones": {"hits", "last_hit_at"},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Part:
    """Lines of one type: rows `t` of a table. `more`: further columns; `of_user`: the condition for one user."""

    kind: str
    table: str
    order: str
    where: str = "true"
    of_user: str = "t.user_id = %(user)s"
    more: str = ""


_OF_SESSION = """EXISTS (SELECT FROM {schema}.sessions s WHERE s.tenant_id = %(tenant)s
    AND s.session_id = t.session_id AND s.user_id = %(user)s)"""
_OF_SUBJECT = """EXISTS (SELECT FROM {schema}.subjects s WHERE s.tenant_id = %(tenant)s AND s.subject_id = t.subject_id
    AND (s.owner = %(user)s OR (s.kind = 'user' AND s.identifier = %(user)s) OR EXISTS (
         SELECT FROM {schema}.facts f WHERE f.tenant_id = %(tenant)s AND f.subject_id = s.subject_id
           AND f.user_id = %(user)s)))"""
_SUBJECT = """(SELECT row_to_json(s) FROM (
    SELECT {subject_columns} FROM {schema}.subjects s
    WHERE s.tenant_id = %(tenant)s AND s.subject_id = t.subject_id) s) AS subject"""
_EVIDENCE = """(SELECT coalesce(json_agg(row_to_json(e) ORDER BY e.recorded_at, e.evidence_id), '[]') FROM (
    SELECT {evidence_columns} FROM {schema}.evidence e
    WHERE e.tenant_id = %(tenant)s AND e.fact_id = t.fact_id) e) AS evidence"""
_TURNS = """(SELECT json_agg(e.turn_id ORDER BY e.turn_id) FROM {schema}.episode_turns e
    WHERE e.tenant_id = %(tenant)s AND e.episode_id = t.id) AS turns"""

_PARTS = (
    _Part("session", "sessions", "t.session_id"),
    _Part("turn", "records", "t.session_id, t.seq", where="t.seq IS NOT NULL"),
    _Part("running_summary", "running_summaries", "t.session_id, t.version", of_user=_OF_SESSION),
    # By subject: an import locks them in the order of their ids.
    _Part("fact", "facts", "t.subject_id, t.recorded_at, t.fact_id", more=f"{_SUBJECT}, {_EVIDENCE}"),
    _Part("tombstone", "tombstones", "t.subject_id, t.predicate, t.value_key", of_user=_OF_SUBJECT, more=_SUBJECT),
    _Part(
        "decision", "decisions", "t.decision_id",
        of_user="""EXISTS (SELECT FROM {schema}.facts f WHERE f.tenant_id = %(tenant)s AND f.fact_id = t.fact_id
                   AND f.user_id = %(user)s)""",
    ),
    _Part("record", "records", "t.id", where="t.seq IS NULL", more=_TURNS),
    _Part("narrative", "narratives", "t.user_id, t.version"),
    _Part("history", "record_history", "t.record_id, t.version"),
)  # fmt: skip


def snapshot(conn: Connection) -> str:
    """Let all that follows in this transaction be as of one moment, and return that (ISO 8601). Its first statement."""
    conn.query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
    conn.query("SET LOCAL TimeZone = 'UTC'")
    conn.query("SET LOCAL extra_float_digits = 1")
    conn.query("SET LOCAL bytea_output = 'hex'")
    [(now,)] = conn.query("SELECT to_json(clock_timestamp()) #>> '{}'")
    return str(now)


def columns_of(conn: Connection, table: str) -> list[str]:
    """Return the columns of one of our tables that can be written, in their order."""
    rows = conn.query(
        """SELECT a.attname::text FROM pg_catalog.pg_attribute a
           JOIN pg_catalog.pg_class c ON c.oid = a.attrelid AND c.relnamespace = %(schema)s::regnamespace
           WHERE c.relname = %(table)s AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
           ORDER BY a.attnum""",
        {"schema": conn.schema, "table": table},
    )
    return [name for (name,) in rows]


def models(conn: Connection) -> list[tuple[str, int, str]]:
    """Return name, dimensions and source of the models that vectors are of."""
    return [
        (name, dimensions, source)
        for name, dimensions, source in conn.query(
            f"""SELECT name, dimensions, source FROM {conn.schema}.embedding_models
                WHERE status <> 'retired' ORDER BY created_at"""
        )
    ]


def lines(conn: Connection, tenant_id: str, user_id: str | None, *, vectors: bool) -> Iterator[Line]:
    """Yield a group's memory, or what one user's consists of, as lines. In the transaction of `snapshot`: 500 rows at
    a time are held here, none there."""
    for part in _PARTS:
        for text in _rows(conn, _select(conn, part, one_user=user_id is not None, vectors=vectors), tenant_id, user_id):
            yield part.kind, text


def _select(conn: Connection, part: _Part, *, one_user: bool, vectors: bool) -> str:
    columns = ["t." + name for name in _listed(conn, part.table)]
    if part.more:
        columns.append(part.more)
    tables = f"{conn.schema}.{part.table} t"
    if vectors and part.table == "records":
        # The numbers as the wire has them, without their header: exact, and half the bytes of the text form.
        send = f"{quoted(conn.vector_type().schema)}.vector_send"
        columns.append(
            f"m.name AS model, translate(encode(substr({send}(t.embedding), 5), 'base64'), E'\\n', '') AS vector"
        )
        tables += f" LEFT JOIN {conn.schema}.embedding_models m ON m.id = t.model"
    condition = f"t.tenant_id = %(tenant)s AND {part.where}" + (f" AND {part.of_user}" if one_user else "")
    return (f"SELECT {', '.join(columns)} FROM {tables} WHERE {condition} ORDER BY {part.order}").format(
        schema=conn.schema,
        subject_columns=", ".join("s." + name for name in _listed(conn, "subjects")),
        evidence_columns=", ".join("e." + name for name in _listed(conn, "evidence")),
    )


def _listed(conn: Connection, table: str) -> list[str]:
    left_out = {"tenant_id", *_LEFT_OUT.get(table, ())}
    return [quoted(name) for name in columns_of(conn, table) if name not in left_out]


def _rows(conn: Connection, select: str, tenant_id: str, user_id: str | None) -> Iterator[str]:
    parameters = {"tenant": tenant_id, "user": user_id}
    conn.query(f"DECLARE exported NO SCROLL CURSOR FOR SELECT row_to_json(x)::text FROM ({select}) x", parameters)
    while rows := conn.query(f"FETCH {_FETCH} FROM exported"):
        for (text,) in rows:
            yield text
        if len(rows) < _FETCH:
            break
    conn.query("CLOSE exported")
