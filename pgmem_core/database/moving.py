"""The registry while one embedding model takes over from another: its index built, and the other's dropped, while
others read and write. Only the owner of the tables may do that."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from sqlalchemy.exc import DBAPIError

from pgmem_core.database.connection import Connection
from pgmem_core.database.migrate import (
    INDEX_LIMIT,
    INDEX_WAIT_MS,
    LOCK,
    Model,
    check_size,
    find_model,
    index_definition,
    insert_model,
    quoted,
    read_committed,
    state_of,
)
from pgmem_core.errors import PermissionDenied

__all__ = ["build_online", "close_models", "drop_online", "make_target"]


def make_target(conn: Connection, name: str, dimensions: int) -> Model:
    """Register the model that rows are to be moved to, without its index; in a transaction. One that was the target
    before is active from then on, a retired one may be written again.

    Raises: PermissionDenied if the role does not own the tables, DimensionMismatch.
    """
    read_committed(conn)
    [(owner,)] = conn.query(
        """SELECT pg_has_role(c.relowner, 'USAGE') FROM pg_catalog.pg_class c
           WHERE c.relname = 'records' AND c.relnamespace = %(schema)s::regnamespace""",
        {"schema": conn.schema},
    )
    if not owner:
        raise PermissionDenied(
            f"reembedding to {name!r} builds an index and drops the old one, and this role does not own the tables of"
            f" schema {conn.schema}; run 'pgmem reembed --to {name}' once with the owner's DSN"
        )
    conn.query("SELECT pg_advisory_xact_lock(%(key)s)", {"key": LOCK})
    model = find_model(conn, name) or insert_model(conn, name, dimensions, "embedder")
    check_size(model, dimensions)
    conn.query(
        f"""UPDATE {conn.schema}.embedding_models SET status = 'active'
            WHERE status = 'target' AND id <> %(id)s""",
        {"id": model.id},
    )
    [(before,)] = conn.query(
        f"SELECT status FROM {conn.schema}.embedding_models WHERE id = %(id)s FOR UPDATE", {"id": model.id}
    )
    if before == "retired":
        conn.query(f"SET LOCAL lock_timeout = {INDEX_WAIT_MS}")
        conn.query(f"DROP TRIGGER IF EXISTS records_retired_{model.id} ON {conn.schema}.records")
    if before != "target":
        conn.query(
            f"""UPDATE {conn.schema}.embedding_models SET status = 'target', claimed_tenant = DEFAULT,
                  claimed_id = DEFAULT WHERE id = %(id)s""",
            {"id": model.id},
        )
    return model


def build_online(conn: Connection, model: Model) -> None:
    """Build the model's index while others write; in autocommit. Waits for transactions that are open already.
    What a build that was broken off left behind goes first."""
    if model.dimensions > INDEX_LIMIT:
        return
    schema = f"{quoted(conn.vector_type().schema)}."
    broken = conn.query(
        """SELECT FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
           WHERE c.relname = %(index)s AND c.relnamespace = %(schema)s::regnamespace AND NOT i.indisvalid
             AND NOT EXISTS (SELECT FROM pg_catalog.pg_stat_progress_create_index p WHERE p.index_relid = c.oid)""",
        {"index": f"records_hnsw_{model.id}", "schema": conn.schema},
    )
    if broken:
        drop_online(conn, model)
    conn.query(f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {index_definition(conn, model, schema)}")


def drop_online(conn: Connection, model: Model) -> None:
    """Drop the model's index while others read and write; in autocommit."""
    conn.query(f"DROP INDEX CONCURRENTLY IF EXISTS {conn.schema}.records_hnsw_{model.id}")


def close_models(conn: Connection, models: Sequence[Model]) -> bool:
    """Retire models: from the commit on nobody can write a vector as theirs. In a transaction of its own; False where
    other writes held the table for longer than a second."""
    conn.query("SAVEPOINT closing")
    try:
        conn.query(f"SET LOCAL lock_timeout = {INDEX_WAIT_MS}")
        for model in models:
            conn.query(
                f"""CREATE OR REPLACE TRIGGER records_retired_{model.id} BEFORE INSERT OR UPDATE OF model
                    ON {conn.schema}.records FOR EACH ROW WHEN (NEW.model = '{model.id}')
                    EXECUTE FUNCTION {conn.schema}.refuse_retired_model()"""
            )
    except (DBAPIError, psycopg.Error) as exc:
        if state_of(exc) != "55P03":
            raise
        conn.query("ROLLBACK TO SAVEPOINT closing")
        return False
    conn.query(
        f"UPDATE {conn.schema}.embedding_models SET status = 'retired' WHERE id = ANY (%(ids)s)",
        {"ids": [model.id for model in models]},
    )
    return True
