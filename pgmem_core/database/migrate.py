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

__all__ = [
    "INDEX_LIMIT", "INDEX_WAIT_MS", "LOCK", "Model", "State", "admit", "check_size", "find_model", "index_definition",
    "insert_model", "inspect", "migrations", "quoted", "read_committed", "register_model", "setup", "state_of",
]  # fmt: skip

log = logging.getLogger(__name__)

LOCK = 0x70676D656D  # "pgmem": one lock for the whole database, the extension being the database's
_MINIMUM_PGVECTOR = (0, 8)
_MINIMUM_SERVER = 140000
# pgvector's limits of an HNSW index: 2,000 dimensions as vector, 4,000 as halfvec.
INDEX_LIMIT = 4000
_HALF_FROM = 2001
INDEX_WAIT_MS = 1000


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
    """Return what is set up, without changing anything. Two statements at most.

    Raises: PermissionDenied if the role may not look into pgmem's schema, or the one of pgvector.
    """
    [(role, database, may_look, oid, array_oid, schema, version, may_use)] = conn.query(
        """SELECT quote_ident(current_user), quote_ident(current_database()), m.may_look, v.oid::bigint,
                  v.typarray::bigint, v.nspname, v.extversion, v.may_use
           FROM (SELECT 1) one LEFT JOIN (
             SELECT pg_catalog.has_schema_privilege(n.oid, 'USAGE') AS may_look FROM pg_catalog.pg_class c
             JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
             WHERE n.nspname = %(schema)s AND c.relname = 'schema_migrations') m ON true
           LEFT JOIN (
             SELECT t.oid, t.typarray, n.nspname, e.extversion,
                    pg_catalog.has_schema_privilege(n.oid, 'USAGE') AS may_use
             FROM pg_catalog.pg_extension e
             JOIN pg_catalog.pg_depend d ON d.refobjid = e.oid
                  AND d.refclassid = 'pg_catalog.pg_extension'::regclass
                  AND d.classid = 'pg_catalog.pg_type'::regclass
             JOIN pg_catalog.pg_type t ON t.oid = d.objid AND t.typname = 'vector'
             JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
             WHERE e.extname = 'vector') v ON true""",
        {"schema": conn.schema.strip('"')},
    )
    vector = None if oid is None else VectorType(oid, array_oid, schema)
    if may_look is None:
        return State(0, vector, version)
    missing = []
    if may_use is False:
        missing.append(f"GRANT USAGE ON SCHEMA {quoted(schema)} TO {role};")
    if not may_look:
        missing += [
            f"GRANT USAGE ON SCHEMA {conn.schema} TO {role};",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {conn.schema} TO {role};",
        ]
    if missing:
        raise _denied(role, database, "may not use what is set up here", missing)
    [(applied,)] = conn.query(f"SELECT coalesce(max(version), 0) FROM {conn.schema}.schema_migrations")
    return State(applied, vector, version)


def setup(conn: Connection) -> State:
    """Create or upgrade everything in the caller's transaction. A second call changes nothing.

    Raises: SchemaError (server, encoding, pgvector or a schema from a newer pgmem), PermissionDenied.
    """
    read_committed(conn)
    conn.query("SELECT pg_advisory_xact_lock(%(key)s)", {"key": LOCK})
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
    state = _ensure_access(conn)
    known = migrations()
    newest = known[-1][0]
    if state.version > newest:
        raise SchemaError(
            f"schema {conn.schema} is at version {state.version}, this pgmem knows {newest}; upgrade pgmem-ai"
        )
    if state.version == newest:
        return state
    if state.version == 0:
        conn.query(
            f"""CREATE TABLE IF NOT EXISTS {conn.schema}.schema_migrations (
                  version integer PRIMARY KEY, name text NOT NULL,
                  applied_at timestamptz NOT NULL DEFAULT clock_timestamp())"""
        )
    _set_path(conn, state)
    try:
        for version, name, sql in known:
            if version > state.version:
                conn.query(sql)
                conn.query(
                    f"INSERT INTO {conn.schema}.schema_migrations (version, name) VALUES (%(version)s, %(name)s)",
                    {"version": version, "name": name},
                )
    except (DBAPIError, psycopg.Error) as exc:
        if state_of(exc) != "42501":
            raise
        raise PermissionDenied(
            f"schema {conn.schema} is at version {state.version} and this role may not bring it to {newest}"
            f" ({_primary(exc)}); run 'pgmem init' once with the DSN of the schema's owner"
        ) from exc
    return State(newest, state.vector, state.pgvector)


def read_committed(conn: Connection) -> None:
    """Let the transaction see what others committed while it waited for the lock; its first statement."""
    # A database may default to a stricter level, whose snapshot is as old as the wait.
    conn.query("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")


def _set_path(conn: Connection, state: State) -> None:
    assert state.vector is not None
    conn.query(f"SET LOCAL search_path = {conn.schema}, {quoted(state.vector.schema)}, pg_catalog")
    # Loads pgvector's library: until then a plain role may not name its settings in CREATE FUNCTION.
    conn.query("SELECT '[1]'::vector")


def _ensure_access(conn: Connection) -> State:
    """Create the extension and the schema where they are missing. Raises: PermissionDenied with all the SQL that
    an admin must run, in one message."""
    state = inspect(conn)
    [(role, database, creation_schema, exists, may_create, may_fill, may_use)] = conn.query(
        """SELECT quote_ident(current_user), quote_ident(current_database()), current_schema(), n.oid IS NOT NULL,
                  has_database_privilege(current_database(), 'CREATE'),
                  has_schema_privilege(n.oid, 'CREATE') AND has_schema_privilege(n.oid, 'USAGE'),
                  has_schema_privilege(v.oid, 'USAGE')
           FROM (SELECT 1) one LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = %(schema)s
           LEFT JOIN pg_catalog.pg_namespace v ON v.nspname = %(vector_schema)s""",
        {"schema": conn.schema.strip('"'), "vector_schema": state.vector.schema if state.vector else None},
    )
    missing = []
    if state.vector is not None and not may_use:
        missing.append(f"GRANT USAGE ON SCHEMA {quoted(state.vector.schema)} TO {role};")
    if not exists and not may_create:
        missing.append(f"CREATE SCHEMA {conn.schema} AUTHORIZATION {role};")
    elif exists and not may_fill and state.version == 0:
        missing.append(f"GRANT USAGE, CREATE ON SCHEMA {conn.schema} TO {role};")
    if state.vector is None:
        if not conn.query("SELECT FROM pg_catalog.pg_available_extensions WHERE name = 'vector'"):
            raise SchemaError(
                "pgvector is not installed on this server; install its package (for example postgresql-17-pgvector)"
                " or enable the extension 'vector' with your provider, then call setup() again"
            )
        if creation_schema is None:
            raise SchemaError(
                f"the search_path of {role} in {database} names no schema that exists, so the extension pgvector has"
                " no place to go; run once: CREATE SCHEMA extensions; CREATE EXTENSION vector SCHEMA extensions;"
            )
        try:
            conn.query("CREATE EXTENSION vector")
        except (DBAPIError, psycopg.Error) as exc:
            if state_of(exc) != "42501":
                raise
            needed = ["CREATE EXTENSION vector;", *missing]
            raise _denied(role, database, "may not create the extension pgvector", needed) from exc
        state = inspect(conn)
    numbers = tuple(int(part) for part in re.findall(r"\d+", state.pgvector or "0")[:2])
    if numbers < _MINIMUM_PGVECTOR:
        raise SchemaError(
            f"pgvector {state.pgvector} found, 0.8 or newer needed (filtered searches come back short before it);"
            " install it and run: ALTER EXTENSION vector UPDATE;"
        )
    if missing:
        raise _denied(role, database, f"may not set up schema {conn.schema}", missing)
    if not exists:
        conn.query(f"CREATE SCHEMA {conn.schema}")
    return state


def _denied(role: str, database: str, what: str, statements: list[str]) -> PermissionDenied:
    sql = " ".join(statements)
    return PermissionDenied(f"role {role} {what}; an admin must run once, in database {database}: {sql}")


def quoted(name: str) -> str:
    """Return the name as an identifier."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def state_of(exc: BaseException) -> str | None:
    """Return the SQLSTATE of a driver's error, wrapped or not."""
    inner = exc.orig if isinstance(exc, DBAPIError) else exc
    return getattr(inner, "sqlstate", None)


def _primary(exc: BaseException) -> str:
    inner = exc.orig if isinstance(exc, DBAPIError) else exc
    return getattr(getattr(inner, "diag", None), "message_primary", None) or str(inner)


def find_model(conn: Connection, name: str) -> Model | None:
    """Return the registered model of that name."""
    rows = conn.query(
        f"SELECT id, name, dimensions FROM {conn.schema}.embedding_models WHERE name = %(name)s",
        {"name": name},
    )
    return Model(*rows[0]) if rows else None


def admit(conn: Connection, name: str, dimensions: int) -> None:
    """Let an embedder of that name write here: one that is registered, or the first. Beside another one only while
    rows are being moved from the one to the other.

    Raises: DimensionMismatch, naming the embedder to open the store with.
    """
    rows = conn.query(
        f"""SELECT name, dimensions, status FROM {conn.schema}.embedding_models
            WHERE source = 'embedder' ORDER BY created_at""",
    )
    own = next((status for known, _, status in rows if known == name), None)
    others = [(known, size) for known, size, status in rows if known != name and status != "retired"]
    if own == "retired":
        names = " and ".join(repr(known) for known, _ in others) or "another embedder"
        raise DimensionMismatch(
            f"embedder {name!r} is retired: the vectors of this store are those of {names} now; open it with that"
            f" one, or run 'pgmem reembed --to {name}' to go back"
        )
    if own is None and others:
        raise DimensionMismatch(
            f"embedder {name!r} gives {dimensions} dimensions, the store was filled by {others[0][0]!r} with"
            f" {others[0][1]}; open it with that embedder, or run 'pgmem reembed --to {name}' to move it over (names"
            " as --embedder takes them; or mem.reembed(to=embedder))"
        )


def register_model(conn: Connection, name: str, dimensions: int, *, source: str = "embedder") -> Model:
    """Return the model, registering it and building its index the first time.

    Raises: DimensionMismatch if the store holds this name with another size, PermissionDenied.
    """
    read_committed(conn)
    model = find_model(conn, name)
    new = model is None
    if model is None or not _is_indexed(conn, model):
        conn.query("SELECT pg_advisory_xact_lock(%(key)s)", {"key": LOCK})
        model = find_model(conn, name) or insert_model(conn, name, dimensions, source)
        if model.dimensions == dimensions and not _is_indexed(conn, model):
            _build_index(conn, model, new=new)
    check_size(model, dimensions)
    return model


def check_size(model: Model, dimensions: int) -> None:
    """Raise DimensionMismatch if the store holds that name with another size."""
    if model.dimensions != dimensions:
        raise DimensionMismatch(
            f"embedder {model.name!r} gives {dimensions} dimensions, the store holds {model.dimensions} under that"
            " name; give the new embedder a name of its own (model=...), or use the one the store was filled with"
        )


def insert_model(conn: Connection, name: str, dimensions: int, source: str) -> Model:
    """Add the model, under the lock. Raises: DimensionMismatch (a size that pgvector has not), PermissionDenied."""
    if not 1 <= dimensions <= 16000:
        raise DimensionMismatch(f"embedder {name!r} gives {dimensions} dimensions; pgvector holds 1 to 16,000")
    try:
        [(model_id,)] = conn.query(
            f"""INSERT INTO {conn.schema}.embedding_models (id, name, dimensions, source)
                SELECT 'm' || count(*) + 1, %(name)s, %(dimensions)s, %(source)s
                FROM {conn.schema}.embedding_models RETURNING id""",
            {"name": name, "dimensions": dimensions, "source": source},
        )
    except (DBAPIError, psycopg.Error) as exc:
        if state_of(exc) != "42501":
            raise
        raise _needs_owner(name) from exc
    if dimensions > INDEX_LIMIT:
        log.warning(
            "embedder %r gives %d dimensions; pgvector indexes at most %d, so its searches scan the scope exactly",
            name,
            dimensions,
            INDEX_LIMIT,
        )
    return Model(model_id, name, dimensions)


def _is_indexed(conn: Connection, model: Model) -> bool:
    """True if the model's index is there, or none can be."""
    if model.dimensions > INDEX_LIMIT:
        return True
    [(found,)] = conn.query(
        """SELECT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
                          WHERE n.nspname = %(schema)s AND c.relname = %(index)s)""",
        {"schema": conn.schema.strip('"'), "index": f"records_hnsw_{model.id}"},
    )
    return bool(found)


def _build_index(conn: Connection, model: Model, *, new: bool) -> None:
    """Build the model's index. Where the table is being written to for longer than a second, perhaps by a
    transaction of the caller's own, searches stay exact until the next process that registers the model."""
    state = inspect(conn)
    conn.query("SAVEPOINT building")
    try:
        _set_path(conn, state)
        conn.query(f"SET LOCAL lock_timeout = {INDEX_WAIT_MS}")
        conn.query(f"LOCK TABLE {conn.schema}.records IN SHARE MODE")
        conn.query("SET LOCAL lock_timeout = DEFAULT")
        conn.query(f"CREATE INDEX {index_definition(conn, model)}")
    except (DBAPIError, psycopg.Error) as exc:
        if state_of(exc) == "42501" and new:
            raise _needs_owner(model.name) from exc
        if state_of(exc) not in ("42501", "55P03"):
            raise
        conn.query("ROLLBACK TO SAVEPOINT building")
        log.warning(
            "the index of embedder %r is not built yet (%s); its searches are exact until a later setup() builds it",
            model.name,
            _primary(exc),
        )


def index_definition(conn: Connection, model: Model, schema: str = "") -> str:
    """Return what follows CREATE INDEX. `schema`: of pgvector, with its dot, where no search_path leads to it."""
    kind = "vector" if model.dimensions < _HALF_FROM else "halfvec"
    return f"""records_hnsw_{model.id} ON {conn.schema}.records
        USING hnsw ((embedding::{schema}{kind}({model.dimensions})) {schema}{kind}_cosine_ops)
        WITH (m = 16, ef_construction = 128) WHERE model = '{model.id}'"""


def _needs_owner(name: str) -> PermissionDenied:
    return PermissionDenied(
        f"a new embedding model ({name!r}) needs an index, and this role does not own the schema; run 'pgmem init'"
        " once with the owner's DSN and this embedder"
    )
