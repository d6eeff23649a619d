"""Setup: the extension, the schema, the numbered migrations, and the registry of embedding models.

One transaction under one advisory lock: any number of processes may call it at once, and a setup that fails
leaves nothing behind.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

import psycopg
from sqlalchemy.exc import DBAPIError

from pgmem_core.database.connection import Connection, VectorType
from pgmem_core.errors import DimensionMismatch, PermissionDenied, SchemaError

__all__ = ["Model", "State", "find_model", "inspect", "migrations", "other_models", "register_model", "setup"]

log = logging.getLogger(__name__)

_LOCK = 0x70676D656D  # "pgmem": one lock for the whole database, the extension being the database's
_MINIMUM_PGVECTOR = (0, 8)
_MINIMUM_SERVER = 140000
# pgvector's limits of an HNSW index: 2,000 dimensions as vector, 4,000 as halfvec.
_INDEX_LIMIT = 4000
_HALF_FROM = 2001


@dataclass(frozen=True, slots=True)
class State:
    """What a database holds of pgmem. version 0: no schema yet."""

    version: int
    vector: VectorType | None
    pgvector: str | None


@dataclass(frozen=True, slots=True)
class Model:
    """A registered embedding model: `id` is short, minted by the store, safe as a literal in SQL."""

    id: str
    name: str
    dimensions: int


@cache
def migrations() -> tuple[tuple[int, str, str], ...]:
    """Return (version, name, SQL) of every migration, in order."""
    found = []
    for entry in resources.files("pgmem_core.database").joinpath("migrations").iterdir():
        match = re.fullmatch(r"(\d{4})_(\w+)\.sql", entry.name)
        if match:
            found.append((int(match[1]), match[2], entry.read_text(encoding="utf-8")))
    return tuple(sorted(found))


def inspect(conn: Connection) -> State:
    """Return what is set up, without changing anything. Two statements at most."""
    [(table, oid, array_oid, schema, version)] = conn.query(
        """SELECT to_regclass(%(table)s)::text, v.oid::bigint, v.typarray::bigint, v.nspname, v.extversion
           FROM (SELECT 1) one LEFT JOIN (
             SELECT t.oid, t.typarray, n.nspname, e.extversion FROM pg_catalog.pg_extension e
             JOIN pg_catalog.pg_depend d ON d.refobjid = e.oid
                  AND d.refclassid = 'pg_catalog.pg_extension'::regclass
                  AND d.classid = 'pg_catalog.pg_type'::regclass
             JOIN pg_catalog.pg_type t ON t.oid = d.objid AND t.typname = 'vector'
             JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
             WHERE e.extname = 'vector') v ON true""",
        {"table": f"{conn.schema}.schema_migrations"},
    )
    vector = None if oid is None else VectorType(oid, array_oid, schema)
    if table is None:
        return State(0, vector, version)
    [(applied,)] = conn.query(f"SELECT coalesce(max(version), 0) FROM {conn.schema}.schema_migrations")
    return State(applied, vector, version)


def setup(conn: Connection) -> State:
    """Create or upgrade everything in the caller's transaction. A second call changes nothing.

    Raises: SchemaError (server, encoding, pgvector or a schema from a newer pgmem), PermissionDenied.
    """
    conn.query("SELECT pg_advisory_xact_lock(%(key)s)", {"key": _LOCK})
    [(server, encoding, database)] = conn.query(
        "SELECT current_setting('server_version_num')::int, current_setting('server_encoding'), current_database()"
    )
    if server < _MINIMUM_SERVER:
        raise SchemaError(f"Postgres {server // 10000} found, 14 or newer needed")
    if encoding != "UTF8":
        raise SchemaError(
            f"database {database!r} is encoded in {encoding}, and texts in other scripts would be lost; pgmem needs"
            f" UTF8: CREATE DATABASE {database}_utf8 TEMPLATE template0 ENCODING 'UTF8'"
        )
    state = _ensure_extension(conn)
    known = migrations()
    newest = known[-1][0]
    if state.version > newest:
        raise SchemaError(
            f"schema {conn.schema} is at version {state.version}, this pgmem knows {newest}; upgrade pgmem-ai"
        )
    if state.version == newest:
        return state
    if state.version == 0:
        _ensure_schema(conn)
        conn.query(
            f"""CREATE TABLE IF NOT EXISTS {conn.schema}.schema_migrations (
                  version integer PRIMARY KEY, name text NOT NULL,
                  applied_at timestamptz NOT NULL DEFAULT clock_timestamp())"""
        )
    _set_path(conn, state)
    for version, name, sql in known:
        if version > state.version:
            conn.query(sql)
            conn.query(
                f"INSERT INTO {conn.schema}.schema_migrations (version, name) VALUES (%(version)s, %(name)s)",
                {"version": version, "name": name},
            )
    return State(newest, state.vector, state.pgvector)


def _set_path(conn: Connection, state: State) -> None:
    assert state.vector is not None
    quoted = state.vector.schema.replace('"', '""')
    conn.query(f'SET LOCAL search_path = {conn.schema}, "{quoted}", pg_catalog')
    # Loads pgvector's library: until then a plain role may not name its settings in CREATE FUNCTION.
    conn.query("SELECT '[1]'::vector")


def _ensure_extension(conn: Connection) -> State:
    state = inspect(conn)
    if state.vector is None:
        available = conn.query("SELECT default_version FROM pg_catalog.pg_available_extensions WHERE name = 'vector'")
        if not available:
            raise SchemaError(
                "pgvector is not installed on this server; install its package (for example postgresql-17-pgvector)"
                " or enable the extension 'vector' with your provider, then call setup() again"
            )
        try:
            conn.query("CREATE EXTENSION vector")
        except (DBAPIError, psycopg.Error) as exc:
            if _state(exc) != "42501":
                raise
            [(role, database)] = _role_after_failure(exc)
            raise PermissionDenied(
                f"{role} may not create the extension pgvector; an admin must run once, in {database}:"
                " CREATE EXTENSION vector;"
            ) from exc
        state = inspect(conn)
    numbers = tuple(int(part) for part in re.findall(r"\d+", state.pgvector or "0")[:2])
    if numbers < _MINIMUM_PGVECTOR:
        raise SchemaError(
            f"pgvector {state.pgvector} found, 0.8 or newer needed (filtered searches come back short before it);"
            " install it and run: ALTER EXTENSION vector UPDATE;"
        )
    return state


def _ensure_schema(conn: Connection) -> None:
    [(exists,)] = conn.query("SELECT to_regnamespace(%(name)s) IS NOT NULL", {"name": conn.schema})
    try:
        if not exists:
            conn.query(f"CREATE SCHEMA {conn.schema}")
        else:
            [(may,)] = conn.query("SELECT has_schema_privilege(%(name)s, 'CREATE')", {"name": conn.schema.strip('"')})
            if not may:
                raise PermissionDenied(
                    f"the role may not create tables in schema {conn.schema}; an admin must run once:"
                    f" ALTER SCHEMA {conn.schema} OWNER TO <this role>;"
                )
    except (DBAPIError, psycopg.Error) as exc:
        if _state(exc) != "42501":
            raise
        [(role, database)] = _role_after_failure(exc)
        raise PermissionDenied(
            f"{role} may not create the schema; an admin must run once, in {database}:"
            f" CREATE SCHEMA {conn.schema} AUTHORIZATION {role};"
        ) from exc


def _state(exc: BaseException) -> str | None:
    inner = exc.orig if isinstance(exc, DBAPIError) else exc
    return getattr(inner, "sqlstate", None)


def _role_after_failure(exc: BaseException) -> list[tuple[str, str]]:
    """Role and database from the failed connection itself: its transaction takes no more statements."""
    inner = exc.orig if isinstance(exc, DBAPIError) else exc
    pgconn = getattr(inner, "pgconn", None)
    if pgconn is None:
        return [("the role of this DSN", "this database")]
    return [(pgconn.user.decode(), pgconn.db.decode())]


def find_model(conn: Connection, name: str) -> Model | None:
    """Return the registered model of that name."""
    rows = conn.query(
        f"SELECT id, name, dimensions FROM {conn.schema}.embedding_models WHERE name = %(name)s",
        {"name": name},
    )
    return Model(*rows[0]) if rows else None


def other_models(conn: Connection, name: str) -> list[Model]:
    """Return the models of embedders registered here under other names."""
    rows = conn.query(
        f"""SELECT id, name, dimensions FROM {conn.schema}.embedding_models
            WHERE source = 'embedder' AND name <> %(name)s ORDER BY created_at""",
        {"name": name},
    )
    return [Model(*row) for row in rows]


def register_model(conn: Connection, name: str, dimensions: int, *, source: str = "embedder") -> Model:
    """Return the model, registering it and building its index the first time.

    Raises: DimensionMismatch if the store holds this name with another size, PermissionDenied.
    """
    model = find_model(conn, name)
    if model is None:
        conn.query("SELECT pg_advisory_xact_lock(%(key)s)", {"key": _LOCK})
        model = find_model(conn, name) or _create_model(conn, name, dimensions, source)
    if model.dimensions != dimensions:
        raise DimensionMismatch(
            f"embedder {name!r} gives {dimensions} dimensions, the store holds {model.dimensions} under that name;"
            " give the new embedder a name of its own (model=...), or use the one the store was filled with"
        )
    return model


def _create_model(conn: Connection, name: str, dimensions: int, source: str) -> Model:
    if not 1 <= dimensions <= 16000:
        raise DimensionMismatch(f"embedder {name!r} gives {dimensions} dimensions; pgvector holds 1 to 16,000")
    try:
        [(model_id,)] = conn.query(
            f"""INSERT INTO {conn.schema}.embedding_models (id, name, dimensions, source)
                SELECT 'm' || count(*) + 1, %(name)s, %(dimensions)s, %(source)s
                FROM {conn.schema}.embedding_models RETURNING id""",
            {"name": name, "dimensions": dimensions, "source": source},
        )
        if dimensions <= _INDEX_LIMIT:
            state = inspect(conn)
            _set_path(conn, state)
            kind = "vector" if dimensions < _HALF_FROM else "halfvec"
            conn.query(
                f"""CREATE INDEX records_hnsw_{model_id} ON {conn.schema}.records
                    USING hnsw ((embedding::{kind}({dimensions})) {kind}_cosine_ops) WHERE model = '{model_id}'"""
            )
        else:
            log.warning(
                "embedder %r gives %d dimensions; pgvector indexes at most %d, so its searches are exact scans of"
                " the scope",
                name,
                dimensions,
                _INDEX_LIMIT,
            )
    except (DBAPIError, psycopg.Error) as exc:
        if _state(exc) != "42501":
            raise
        raise PermissionDenied(
            f"a new embedding model ({name!r}) needs an index, and this role does not own the schema; run"
            " 'pgmem init' once with the owner's DSN and this embedder"
        ) from exc
    return Model(model_id, name, dimensions)
