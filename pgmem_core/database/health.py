"""What `pgmem doctor` asks of a database: operations that read, and the findings drawn from what they return.

Every statement names catalog objects by our schema, so a role that may read the tables may run them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from pgmem_core.database.connection import Connection

__all__ = [
    "Backlog", "Finding", "Health", "ModelHealth", "Scopes", "Server", "TableSize", "Upkeep", "backlog", "findings",
    "models", "refused_writes", "scopes", "server", "tables", "upkeep",
]  # fmt: skip

_MINIMUM_SERVER = 140000
_MINIMUM_PGVECTOR = (0, 8)
_INDEX_LIMIT = 4000
_HALF_FROM = 2001
# Below it the planner's guesses about a table do not matter, and autovacuum has not come by yet.
_WORTH_ANALYZING = 2000
_TABLES = ("records", "postings", "sessions", "scope_stats", "record_history", "embedding_models")


@dataclass(frozen=True, slots=True)
class Server:
    """The server and the database, as this connection sees them."""

    version: str
    version_number: int
    encoding: str
    database: str
    role: str
    backend_pid: int


@dataclass(frozen=True, slots=True)
class ModelHealth:
    """A registered model, its rows, and its HNSW index (None: there is none). `status`: active, target (rows are being
    moved to it) or retired (they have been moved away from it)."""

    id: str
    name: str
    dimensions: int
    source: str
    rows: int
    index: str | None
    index_valid: bool
    index_bytes: int
    status: Literal["active", "target", "retired"] = "active"


@dataclass(frozen=True, slots=True)
class TableSize:
    """Bytes of a table with its TOAST, and of its indexes. `analyzed_at`: the later of by hand and by itself."""

    name: str
    rows: int
    table_bytes: int
    index_bytes: int
    analyzed_at: datetime | None
    dead_rows: int

    @property
    def total_bytes(self) -> int:
        return self.table_bytes + self.index_bytes


@dataclass(frozen=True, slots=True)
class Backlog:
    """What waits for a worker. `failing`: (group, session, attempts, last error), the most tried first; `unformed`: the
    same of sessions whose facts or summaries could not be formed."""

    sessions: int
    turns: int
    claimed: int
    failing_sessions: int
    failing: tuple[tuple[str, str, int, str], ...]
    incomplete: int
    unformed_sessions: int = 0
    unformed: tuple[tuple[str, str, int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Scopes:
    """The counts that reads plan by: how many there are, the oldest, and the users of large scopes without one."""

    counted: int
    oldest_count_at: datetime | None
    uncounted: int


@dataclass(frozen=True, slots=True)
class Upkeep:
    """The rounds of prune and expire: when the last one succeeded, how many failed since, and why the last did."""

    finished_at: datetime | None
    attempts: int
    last_error: str | None


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to know. A problem makes `doctor` fail, a hint does not. `remedy` says what to do."""

    level: Literal["problem", "hint"]
    what: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Health:
    """Everything the doctor looked at. What hangs on the schema is None where there is none."""

    server: Server
    schema: str
    schema_version: int
    newest_version: int
    pgvector: str | None
    pgvector_schema: str | None
    behind_pooler: bool
    pooler: str
    models: Sequence[ModelHealth] = ()
    tables: Sequence[TableSize] = ()
    memories: int = 0
    refused_writes: int = 0
    backlog: Backlog | None = None
    scopes: Scopes | None = None
    upkeep: Upkeep | None = None
    findings: Sequence[Finding] = field(default_factory=tuple)


def server(conn: Connection) -> Server:
    """Return what the server says of itself."""
    [row] = conn.query(
        """SELECT current_setting('server_version'), current_setting('server_version_num')::int,
                  current_setting('server_encoding'), current_database()::text, current_user::text, pg_backend_pid()"""
    )
    return Server(*row)


def models(conn: Connection) -> list[ModelHealth]:
    """Return the registered models. Counts rows: a scan of an index, 0.1 s a million."""
    rows = conn.query(
        f"""SELECT m.id, m.name, m.dimensions, m.source, coalesce(n.rows, 0), c.relname::text,
                   coalesce(i.indisvalid AND i.indisready, false), coalesce(pg_relation_size(c.oid), 0),
                   m.status
            FROM {conn.schema}.embedding_models m
            LEFT JOIN (SELECT model, count(*) AS rows FROM {conn.schema}.records WHERE model IS NOT NULL
                       GROUP BY model) n ON n.model = m.id
            LEFT JOIN pg_catalog.pg_class c ON c.relname = 'records_hnsw_' || m.id
                 AND c.relnamespace = %(schema)s::regnamespace
            LEFT JOIN pg_catalog.pg_index i ON i.indexrelid = c.oid
            ORDER BY m.created_at""",
        {"schema": conn.schema},
    )
    return [ModelHealth(*row) for row in rows]


def tables(conn: Connection) -> list[TableSize]:
    """Return the sizes of our tables, largest first. Rows are the planner's estimate."""
    rows = conn.query(
        """SELECT c.relname::text, greatest(c.reltuples, coalesce(s.n_live_tup, 0), 0)::bigint,
                  pg_table_size(c.oid), pg_indexes_size(c.oid),
                  greatest(s.last_analyze, s.last_autoanalyze), coalesce(s.n_dead_tup, 0)
           FROM pg_catalog.pg_class c LEFT JOIN pg_catalog.pg_stat_all_tables s ON s.relid = c.oid
           WHERE c.relnamespace = %(schema)s::regnamespace AND c.relname = ANY (%(tables)s) AND c.relkind IN ('r', 'p')
           ORDER BY pg_total_relation_size(c.oid) DESC""",
        {"schema": conn.schema, "tables": list(_TABLES)},
    )
    return [TableSize(*row) for row in rows]


def memories(conn: Connection) -> int:
    """Return how many records there are."""
    [(count,)] = conn.query(f"SELECT count(*) FROM {conn.schema}.records")
    return int(count)


def refused_writes(conn: Connection) -> int:
    """Return how many writes the policy refused."""
    [(count,)] = conn.query(f"SELECT count(*) FROM {conn.schema}.refusals")
    return int(count)


def backlog(conn: Connection) -> Backlog:
    """Return what waits, and what fails. Plan: sessions_dirty."""
    [(waiting, turns, claimed, failing_sessions, unformed_sessions)] = conn.query(
        f"""SELECT count(*) FILTER (WHERE turns_behind > 0), coalesce(sum(turns_behind), 0)::bigint,
                   count(*) FILTER (WHERE claimed_until > clock_timestamp()), count(*) FILTER (WHERE attempts > 0),
                   count(*) FILTER (WHERE forming_attempts > 0)
            FROM {conn.schema}.pending_work"""
    )
    failing = conn.query(
        f"""SELECT tenant_id, session_id, attempts, coalesce(last_error, '') FROM {conn.schema}.pending_work
            WHERE attempts > 0 ORDER BY attempts DESC, tenant_id, session_id LIMIT 5"""
    )
    unformed = conn.query(
        f"""SELECT tenant_id, session_id, forming_attempts, coalesce(forming_error, '') FROM {conn.schema}.pending_work
            WHERE forming_attempts > 0 ORDER BY forming_attempts DESC, tenant_id, session_id LIMIT 5"""
    )
    [(incomplete,)] = conn.query(
        f"SELECT count(*) FROM {conn.schema}.sessions WHERE NOT dirty AND last_error IS NOT NULL"
    )
    return Backlog(
        waiting,
        turns,
        claimed,
        failing_sessions,
        tuple((row[0], row[1], row[2], row[3]) for row in failing),
        incomplete,
        unformed_sessions,
        tuple((row[0], row[1], row[2], row[3]) for row in unformed),
    )


def scopes(conn: Connection) -> Scopes:
    """Return the state of the counts that reads plan by."""
    [(counted, oldest, uncounted)] = conn.query(
        f"""SELECT (SELECT count(*) FROM {conn.schema}.scope_stats WHERE level = 'user'),
                   (SELECT min(counted_at) FROM {conn.schema}.scope_stats WHERE level = 'user'),
                   (SELECT count(*) FROM (
                      SELECT tenant_id, user_id FROM {conn.schema}.records GROUP BY tenant_id, user_id
                      HAVING count(*) > 5000) big
                    WHERE NOT EXISTS (SELECT FROM {conn.schema}.scope_stats s WHERE s.tenant_id = big.tenant_id
                                      AND s.level = 'user' AND s.user_id = big.user_id))"""
    )
    return Scopes(counted, oldest, uncounted)


def upkeep(conn: Connection) -> Upkeep | None:
    """Return the state of upkeep; None where no worker has begun with it."""
    rows = conn.query(
        f"SELECT finished_at, attempts, last_error FROM {conn.schema}.upkeep ORDER BY attempts DESC LIMIT 1"
    )
    return Upkeep(*rows[0]) if rows else None


# -- findings: pure --------------------------------------------------------------------------------------------


def findings(health: Health) -> list[Finding]:
    """Return what is wrong and what is worth knowing, problems first."""
    found = [*_of_server(health)]
    if health.schema_version:
        found += [*_of_models(health), *_of_work(health), *_of_tables(health)]
    return sorted(found, key=lambda one: one.level != "problem")


def _of_server(health: Health) -> list[Finding]:
    found: list[Finding] = []
    at = health.server
    if at.version_number < _MINIMUM_SERVER:
        found.append(Finding("problem", f"Postgres {at.version}, 14 or newer is needed", "upgrade the server"))
    if at.encoding != "UTF8":
        found.append(
            Finding(
                "problem",
                f"database {at.database!r} is encoded in {at.encoding}, which cannot hold every text",
                f"CREATE DATABASE {at.database}_utf8 TEMPLATE template0 ENCODING 'UTF8', and use that one",
            )
        )
    if health.pgvector is None:
        found.append(Finding("problem", "pgvector is not in this database", "as an admin: CREATE EXTENSION vector;"))
    elif tuple(int(part) for part in health.pgvector.split(".")[:2] if part.isdigit()) < _MINIMUM_PGVECTOR:
        found.append(
            Finding(
                "problem",
                f"pgvector {health.pgvector}, 0.8 or newer is needed: filtered searches come back short before it",
                "install it on the server, then: ALTER EXTENSION vector UPDATE;",
            )
        )
    if health.schema_version == 0:
        found.append(Finding("problem", f"schema {health.schema} is missing", "pgmem init"))
    elif health.schema_version < health.newest_version:
        found.append(
            Finding(
                "problem",
                f"schema {health.schema} is at version {health.schema_version} of {health.newest_version}",
                "pgmem init, with the owner's DSN",
            )
        )
    elif health.schema_version > health.newest_version:
        found.append(
            Finding(
                "problem",
                f"schema {health.schema} is at version {health.schema_version}, this pgmem knows up to"
                f" {health.newest_version}",
                "pip install --upgrade pgmem-ai",
            )
        )
    if health.behind_pooler and health.pooler == "none":
        found.append(
            Finding(
                "hint",
                "the connection seems to go through a pooler; in transaction mode prepared statements fail there",
                "set PGMEM_POOLER=pgbouncer (or pooler='pgbouncer')",
            )
        )
    return found


def _of_models(health: Health) -> list[Finding]:
    found: list[Finding] = []
    schema = health.schema
    if not health.models:
        found.append(
            Finding("hint", "no embedding model is registered: searches go by words only", "pgmem init --embedder NAME")
        )
    found += _of_move(health)
    for model in health.models:
        if model.status == "retired":
            continue
        kind = "vector" if model.dimensions < _HALF_FROM else "halfvec"
        if model.index is None and model.dimensions <= _INDEX_LIMIT:
            found.append(
                Finding(
                    "problem",
                    f"model {model.name!r} has no index: searches of large scopes read every row",
                    f"CREATE INDEX CONCURRENTLY records_hnsw_{model.id} ON {schema}.records USING hnsw"
                    f" ((embedding::{kind}({model.dimensions})) {kind}_cosine_ops) WHERE model = '{model.id}';",
                )
            )
        elif model.index is not None and not model.index_valid:
            found.append(
                Finding(
                    "problem",
                    f"index {schema}.{model.index} of model {model.name!r} is invalid: it is written, never read",
                    f"REINDEX INDEX CONCURRENTLY {schema}.{model.index};",
                )
            )
    return found


def _of_move(health: Health) -> list[Finding]:
    """A reembed that is under way, or was broken off: the two look alike from outside."""
    target = next((model for model in health.models if model.status == "target"), None)
    if target is None:
        return []
    left = sum(model.rows for model in health.models if model.source == "embedder" and model is not target)
    share = target.rows / max(target.rows + left, 1)
    return [
        Finding(
            "hint",
            f"vectors are being moved to {target.name!r}: {target.rows:,} rows ({share:.0%}), {left:,} are another"
            " embedder's still",
            f"nothing while 'pgmem reembed' runs; else go on with it: pgmem reembed --to {target.name} (the name as"
            " --embedder takes it)",
        )
    ]


def _of_work(health: Health) -> list[Finding]:
    found: list[Finding] = []
    work = health.backlog
    if work is not None and work.failing:
        group, session, attempts, error = work.failing[0]
        found.append(
            Finding(
                "problem",
                f"{work.failing_sessions} session(s) cannot be embedded; {session!r} in group {group!r} failed"
                f" {attempts} time(s): {error}",
                "put right what the error names (the embedder, as a rule); workers try again by themselves, and"
                " 'pgmem worker --once' at once",
            )
        )
    if work is not None and work.unformed:
        group, session, attempts, error = work.unformed[0]
        found.append(
            Finding(
                "problem",
                f"no facts or summaries can be formed of {work.unformed_sessions} session(s); {session!r} in group"
                f" {group!r} failed {attempts} time(s): {error}",
                "put right what the error names (the model, as a rule); the turns are all there, workers try again by"
                " themselves, and 'pgmem worker --once' at once",
            )
        )
    if work is not None and work.sessions > work.failing_sessions:
        found.append(
            Finding(
                "hint",
                f"{work.turns:,} turn(s) of {work.sessions:,} session(s) wait to be embedded; words find them",
                "run 'pgmem worker', or call start() on a client",
            )
        )
    if health.upkeep is not None and health.upkeep.last_error is not None:
        found.append(
            Finding(
                "problem",
                f"upkeep (prune and expire) failed {health.upkeep.attempts} time(s): {health.upkeep.last_error}",
                "put right what the error names; workers try again by themselves, 'pgmem expire' at once",
            )
        )
    if work is not None and work.incomplete:
        found.append(
            Finding(
                "hint",
                f"{work.incomplete} session(s) hold turns that the embedder gave no usable vector for",
                f"see which: SELECT session_id, last_error FROM {health.schema}.sessions"
                " WHERE NOT dirty AND last_error IS NOT NULL;",
            )
        )
    return found


def _of_tables(health: Health) -> list[Finding]:
    found: list[Finding] = []
    never = [table.name for table in health.tables if table.analyzed_at is None and table.rows >= _WORTH_ANALYZING]
    if never:
        names = ", ".join(f"{health.schema}.{name}" for name in never)
        found.append(Finding("hint", f"never analyzed: {names}; plans are guesses", f"ANALYZE {names};"))
    if health.scopes is not None and health.scopes.uncounted:
        found.append(
            Finding(
                "hint",
                f"{health.scopes.uncounted} user(s) with more than 5,000 memories have not been counted: their"
                " searches compare every vector",
                "run 'pgmem worker --once'",
            )
        )
    return found
