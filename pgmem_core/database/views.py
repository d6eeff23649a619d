"""A read-only view of one model's memories for other people's vector stores, and engines that see one scope of it.

The view shows the scope that the transaction's settings name, and nothing where they name none: a store that somebody
builds on it by hand is empty, not open.
"""

from __future__ import annotations

import psycopg
from sqlalchemy import Connection as SAConnection
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from pgmem_core.database.connection import Connection
from pgmem_core.database.engine import Database
from pgmem_core.database.migrate import Model
from pgmem_core.errors import PermissionDenied

__all__ = ["COLUMNS", "ensure_view", "scoped"]

# Columns beside id, content, embedding and metadata.
COLUMNS = ("kind", "session_id", "role", "seq", "created_at")
# A scope of at most so many memories is compared exactly, as everywhere in pgmem.
_EXACT = 5000


def ensure_view(conn: Connection, model: Model) -> str:
    """Return the name of the model's view, making it the first time. In a transaction. Raises: PermissionDenied."""
    name = f"memories_{model.id}"
    if _exists(conn, name):
        return name
    # Two at once would both find it missing.
    conn.query("SELECT pg_advisory_xact_lock(hashtextextended('pgmem view', 0))")
    if _exists(conn, name):
        return name
    try:
        _create(conn, name, model)
    except (DBAPIError, psycopg.Error) as exc:
        if getattr(getattr(exc, "orig", exc), "sqlstate", None) != "42501":
            raise
        raise PermissionDenied(
            f"the view {conn.schema}.{name} is not there yet and this role does not own the schema; call"
            " as_vectorstore once on the owner's DSN"
        ) from exc
    return name


def _exists(conn: Connection, name: str) -> bool:
    [(found,)] = conn.query("SELECT to_regclass(%(name)s) IS NOT NULL", {"name": f"{conn.schema}.{name}"})
    return bool(found)


def _create(conn: Connection, name: str, model: Model) -> None:
    [(server,)] = conn.query("SELECT current_setting('server_version_num')::int")
    # From 15 on the reader's own rights count, and row-level security with them.
    options = "WITH (security_invoker = true)" if server >= 150000 else ""
    # The index's own expression, so that ORDER BY embedding <=> … finds it.
    kind = "halfvec" if 2000 < model.dimensions <= 4000 else "vector"
    home = conn.vector_type().schema.replace('"', '""')
    conn.query(
        f"""CREATE VIEW {conn.schema}.{name} {options} AS
            SELECT r.id AS langchain_id, r.content, r.embedding::"{home}".{kind}({model.dimensions}) AS embedding,
                   {", ".join(f"r.{column}" for column in COLUMNS)}, r.metadata AS langchain_metadata
            FROM {conn.schema}.records r
            WHERE r.model = '{model.id}' AND r.invalidated_at IS NULL
              AND r.tenant_id = current_setting('pgmem.tenant_id', true)
              AND r.user_id = current_setting('pgmem.user_id', true)
              AND coalesce(nullif(current_setting('pgmem.agent_id', true), ''), r.agent_id, '')
                  = coalesce(r.agent_id, '')
              -- A fact whose time is over, or has not come, is not shown as if it held.
              AND (r.kind <> 'fact' OR NOT EXISTS (
                   SELECT FROM {conn.schema}.facts b WHERE b.tenant_id = r.tenant_id AND b.fact_id = r.id
                     AND (b.valid_from > statement_timestamp() OR b.valid_to <= statement_timestamp()
                          OR b.expires_at <= statement_timestamp())))"""
    )
    conn.query(
        f"""CREATE TRIGGER {name}_read_only INSTEAD OF INSERT OR UPDATE OR DELETE ON {conn.schema}.{name}
            FOR EACH ROW EXECUTE FUNCTION {conn.schema}.refuse_view_writes()"""
    )


def scoped(
    engine: AsyncEngine, database: Database, *, tenant_id: str, user_id: str, agent_id: str | None
) -> AsyncEngine:
    """Return an engine on the same pool whose every transaction begins by naming one scope. The engine that was given
    is left as it is, and so are its connections: settings end with the transaction.

    A small scope is compared exactly; a large one by the model's index, which goes on looking until it has enough.
    """
    made = engine.execution_options()  # events of its own, the pool of the other
    assert database.vector is not None
    statement = text(
        f"""SELECT set_config('pgmem.tenant_id', :tenant, true), set_config('pgmem.user_id', :user, true),
              set_config('pgmem.agent_id', :agent, true),
              set_config('search_path', concat_ws(', ', nullif(current_setting('search_path'), ''),
                                                  quote_ident(:vector_schema)), true),
              set_config('hnsw.iterative_scan', 'strict_order', true), set_config('hnsw.ef_search', '200', true),
              set_config('plan_cache_mode', 'force_custom_plan', true),
              -- The graph is only ever read by an index scan, the scope's own index by a bitmap as well.
              set_config('enable_indexscan', CASE WHEN coalesce(
                  (SELECT s.record_count FROM "{database.schema}".scope_stats s
                   WHERE s.tenant_id = :tenant AND s.level = 'user' AND s.user_id = :user),
                  (SELECT count(*) FROM (SELECT FROM "{database.schema}".records r
                      WHERE r.tenant_id = :tenant AND r.user_id = :user LIMIT {_EXACT + 1}) c)) <= {_EXACT}
                THEN 'off' ELSE 'on' END, true)"""
    )
    values = {
        "tenant": tenant_id, "user": user_id, "agent": agent_id or "", "vector_schema": database.vector.schema,
    }  # fmt: skip

    def name_scope(connection: SAConnection) -> None:
        connection.execute(statement, values)

    event.listen(made.sync_engine, "begin", name_scope)
    return made
