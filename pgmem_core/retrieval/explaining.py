"""How Postgres would answer a read: the plans of its statements, and whether they take the indexes made for them.

The statements stand inside functions, where EXPLAIN does not look. auto_explain does, and shows what really runs;
where a provider withholds it, the same statements are explained by themselves, under the settings of their functions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pgmem_core.database.connection import Connection
from pgmem_core.database.migrate import quoted

__all__ = ["Explained", "Scope", "Step", "biggest_scope", "explain", "judge", "named", "outline", "real_read"]

Plan = dict[str, Any]

# As in `nearest`: up to here a scope is compared whole; by sketch up to there, where it is a small part of the table.
_EXACT_TO = 5000
_SKETCH_TO = 60_000
_SKETCH_SHARE = 4
_INDEXED_DIMENSIONS = 4000
_CANDIDATES = 50
_TERMS = 8
_VECTOR = re.compile(r"'\[[-+0-9.,eE]+\]'|B?'[01]{8,}'")


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose read, how much there is of him, and what is asked: the words and the vector of one of his memories."""

    tenant_id: str
    user_id: str
    memories: int
    table_rows: int
    session_id: str
    user_key: int
    terms: tuple[int, ...]
    model: str | None
    dimensions: int
    vector: str | None

    @property
    def arm(self) -> str:
        """How the nearest are found: exact, sketch or index."""
        if self.memories <= _EXACT_TO:
            return "exact"
        if self.memories <= _SKETCH_TO and self.memories * _SKETCH_SHARE < self.table_rows:
            return "sketch"
        return "index" if self.dimensions <= _INDEXED_DIMENSIONS else "exact"


@dataclass(frozen=True, slots=True)
class Step:
    """A statement of the read and its plan. `expected`: the index that it should take; None: any but a whole scan."""

    name: str
    expected: str | None
    plan: Plan
    used: tuple[str, ...]
    scanned: tuple[str, ...]
    good: bool


@dataclass(frozen=True, slots=True)
class Explained:
    """The plans of one read. `source`: "auto_explain" (what ran) or "statements" (explained one by one)."""

    scope: Scope
    source: str
    analyzed: bool
    steps: tuple[Step, ...]


def biggest_scope(conn: Connection, *, tenant_id: str | None = None, user_id: str | None = None) -> Scope | None:
    """Return the user with the most memories (or that one), and something to ask for; None where there is nothing."""
    schema = conn.schema
    found = conn.query(
        f"""SELECT tenant_id, user_id, record_count FROM {schema}.scope_stats
            WHERE level = 'user' AND (%(tenant)s::text IS NULL OR tenant_id = %(tenant)s)
              AND (%(user)s::text IS NULL OR user_id = %(user)s)
            ORDER BY record_count DESC, tenant_id, user_id LIMIT 1""",
        {"tenant": tenant_id, "user": user_id},
    ) or conn.query(
        f"""SELECT tenant_id, user_id, count(*) FROM {schema}.records
            WHERE (%(tenant)s::text IS NULL OR tenant_id = %(tenant)s)
              AND (%(user)s::text IS NULL OR user_id = %(user)s)
            GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2 LIMIT 1""",
        {"tenant": tenant_id, "user": user_id},
    )
    if not found:
        return None
    [(tenant, user, count)] = found
    sample = conn.query(
        f"""SELECT r.session_id, r.user_key, r.terms, r.model, m.dimensions, r.embedding::text
            FROM {schema}.records r LEFT JOIN {schema}.embedding_models m ON m.id = r.model
            WHERE r.tenant_id = %(tenant)s AND r.user_id = %(user)s AND r.invalidated_at IS NULL
            ORDER BY r.model IS NULL, r.seq IS NULL, r.term_total DESC, r.id LIMIT 1""",
        {"tenant": tenant, "user": user},
    )
    if not sample:
        return None
    [(session, key, terms, model, dimensions, vector)] = sample
    [(rows,)] = conn.query(
        "SELECT greatest(c.reltuples, 0)::bigint FROM pg_catalog.pg_class c WHERE c.oid = %(table)s::regclass",
        {"table": f"{schema}.records"},
    )
    return Scope(
        tenant, user, int(count), int(rows), session, key, tuple(terms[:_TERMS]), model, dimensions or 0, vector
    )


# -- by themselves ---------------------------------------------------------------------------------------------


def explain(conn: Connection, scope: Scope, *, analyze: bool) -> list[tuple[str, Plan]]:
    """Return name and plan of the read's statements, each under the settings of the function it stands in. In a
    transaction; with analyze they are run."""
    parameters = {
        "tenant": scope.tenant_id, "user": scope.user_id, "session": scope.session_id, "key": scope.user_key,
        "terms": list(scope.terms), "vector": scope.vector,
    }  # fmt: skip
    conn.query(f"SELECT '[1]'::{quoted(conn.vector_type().schema)}.vector")  # loads the library, and so its settings
    found = []
    for name, function, statement in _statements(scope):
        conn.query("SAVEPOINT explaining")
        conn.query(
            """SELECT set_config(split_part(c.setting, '=', 1), substr(c.setting, strpos(c.setting, '=') + 1), true)
               FROM pg_catalog.pg_proc p, unnest(p.proconfig) AS c (setting)
               WHERE p.proname = %(function)s AND p.pronamespace = %(schema)s::regnamespace""",
            {"function": function, "schema": conn.schema},
        )
        [(plans,)] = conn.query(f"EXPLAIN (FORMAT JSON{', ANALYZE' if analyze else ''}) {statement}", parameters)
        conn.query("ROLLBACK TO SAVEPOINT explaining")
        found.append((name, plans[0]["Plan"]))
    return found


def _statements(scope: Scope) -> Iterator[tuple[str, str, str]]:
    """Yield name, function and SQL, as the functions of 0003 and 0005 have them; the model a literal, as there."""
    yield (
        "window",
        "read_context",
        """SELECT r.id FROM records r
        WHERE r.tenant_id = %(tenant)s AND r.session_id = %(session)s AND r.seq IS NOT NULL AND r.seq > 0
        ORDER BY r.seq DESC LIMIT 200""",
    )
    if scope.terms:
        yield (
            "words",
            "recall",
            """SELECT p.record_id, p.tf, p.len FROM unnest(%(terms)s::bigint[]) AS q (term)
            JOIN postings p ON p.tenant_id = %(tenant)s AND p.user_key = %(key)s AND p.term = q.term""",
        )
    if scope.model is None:
        return
    model = "'" + scope.model.replace("'", "''") + "'"
    where = f"""r.tenant_id = %(tenant)s AND r.user_id = %(user)s AND r.model = {model} AND r.invalidated_at IS NULL"""
    match scope.arm:
        case "sketch":
            yield (
                "meaning",
                "nearest_by_sketch",
                f"""SELECT r.id, 1 - (r.embedding <=> %(vector)s::vector) FROM (
                SELECT r.id FROM records r WHERE {where} AND r.embedding IS NOT NULL
                ORDER BY r.sketch <~> binary_quantize(%(vector)s::vector) LIMIT {6 * _CANDIDATES}) c
                JOIN records r ON r.tenant_id = %(tenant)s AND r.id = c.id
                ORDER BY (r.embedding <=> %(vector)s::vector) + 0 LIMIT {_CANDIDATES}""",
            )
        case "index":
            kind = "vector" if scope.dimensions <= 2000 else "halfvec"
            typed = f"{kind}({scope.dimensions})"
            yield (
                "meaning",
                "nearest_by_index",
                f"""SELECT r.id FROM records r WHERE {where}
                ORDER BY (r.embedding::{typed}) <=> %(vector)s::{typed} LIMIT {_CANDIDATES}""",
            )
        case _:
            yield (
                "meaning",
                "nearest",
                f"""SELECT r.id FROM records r WHERE {where}
                ORDER BY (r.embedding <=> %(vector)s::vector) + 0 LIMIT {_CANDIDATES}""",
            )


# -- what really runs ------------------------------------------------------------------------------------------


def real_read(conn: Connection, scope: Scope) -> None:
    """Run the read, for auto_explain to watch."""
    vector = f"%(vector)s::{quoted(conn.vector_type().schema)}.vector"
    conn.query(
        f"""SELECT FROM {conn.schema}.recall(%(tenant)s, %(user)s, %(key)s, %(terms)s::bigint[], {vector}, %(model)s,
              %(dimensions)s, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 10, {_CANDIDATES},
              clock_timestamp(), 30, 0.1, NULL, false)""",
        {
            "tenant": scope.tenant_id, "user": scope.user_id, "key": scope.user_key, "terms": list(scope.terms),
            "vector": scope.vector, "model": scope.model or "m0", "dimensions": scope.dimensions or 1,
        },
    )  # fmt: skip


def named(notices: Sequence[str]) -> list[tuple[str, Plan]]:
    """Return name and plan of the statements in auto_explain's notices (JSON) that find words and meaning."""
    found: dict[str, Plan] = {}
    for text in notices:
        document = json.loads(text)
        query = " ".join(document["Query Text"].split())
        if "hit AS MATERIALIZED" in query:
            found.setdefault("words", document["Plan"])
        # Not the call, nor the ranking of what the arms found. A second one is for what the index had too little of.
        elif (
            "FROM records" in query
            and ("<=>" in query or "<~>" in query)
            and not ("nearest_by" in query or "found AS (" in query)
        ):
            found.setdefault("meaning", document["Plan"])
    return list(found.items())


# -- what to make of it ----------------------------------------------------------------------------------------


def judge(scope: Scope, name: str, plan: Plan) -> Step:
    """Say which index a statement should take, which it takes, and whether that will do."""
    nodes = list(_nodes(plan))
    used = tuple(dict.fromkeys(node["Index Name"] for node in nodes if "Index Name" in node))
    scanned = tuple(dict.fromkeys(node["Relation Name"] for node in nodes if node["Node Type"].endswith("Seq Scan")))
    expected = {
        "window": "records_turns",
        "words": "postings_pkey",
        "meaning": {"sketch": "records_sketch", "index": f"records_hnsw_{scope.model}"}.get(scope.arm),
    }[name]
    if expected is not None:
        good = expected in used
    else:
        # Where the scope is most of the table, to read it whole is the way.
        good = not scanned or scope.memories * _SKETCH_SHARE >= scope.table_rows
    return Step(name, expected, _short(plan), used, scanned, good)


def _short(value: Any) -> Any:
    """Return a plan without the vectors that stand in its conditions: they are somebody's memory."""
    if isinstance(value, dict):
        return {key: _short(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_short(one) for one in value]
    return _VECTOR.sub("'[…]'", value) if isinstance(value, str) else value


def _nodes(plan: Plan) -> Iterator[Plan]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


def outline(plan: Plan, depth: int = 0) -> Iterator[str]:
    """Yield a plan as indented lines, one a node."""
    on = f" on {plan['Relation Name']}" if "Relation Name" in plan else ""
    using = f" using {plan['Index Name']}" if "Index Name" in plan else ""
    text = f"{plan['Node Type']}{using}{on}  (cost {plan['Total Cost']:,.0f}, {plan['Plan Rows']:,} rows"
    if "Actual Total Time" in plan:
        text += f"; {plan['Actual Total Time']:.2f} ms, {plan['Actual Rows']:,.0f} rows"
    yield "  " * depth + text + ")"
    for child in plan.get("Plans", ()):
        yield from outline(child, depth + 1)
