"""Items: keyed JSON documents in namespaces, found by key, by filter, by words and by meaning. Operations.

A namespace is kept as one text, `.users.u_1.`: each label ended by a dot, which no label may hold. So everything under
a prefix is one range of an index, and `("user",)` is no prefix of `("users",)`. An item that has expired is gone for
every read at once; `sweep` only reclaims its space.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import psycopg
from sqlalchemy.exc import DBAPIError

from pgmem_core.database.connection import Connection, VectorParameter, jsonb
from pgmem_core.database.migrate import INDEX_LIMIT, INDEX_WAIT_MS, LOCK, Model, quoted, state_of
from pgmem_core.encoding import decode_json, decode_text
from pgmem_core.filters import CompiledFilter
from pgmem_core.protocols import Vectors

__all__ = [
    "Match", "Metric", "NewItem", "Search", "StoredItem", "build_index", "count", "drop_index", "extend", "fetch",
    "left_by", "listing", "move", "namespaces", "path_of", "put", "search", "sweep", "texts_of",
]  # fmt: skip

Metric = Literal["cosine", "inner_product", "l2"]
# Of one statement: 10,000 deletions take about a second.
_SWEEP_BATCH = 1000
_LIVE = "i.expires_at > statement_timestamp()"
_COLUMNS = "i.namespace, i.key, i.value, i.created_at, i.updated_at, i.id, i.ttl_minutes IS NOT NULL"
# The labels of a namespace's text, in an order that is Python's for tuples of str.
_LABELS = "string_to_array(btrim(i.namespace, '.'), '.')"


@dataclass(frozen=True, slots=True)
class NewItem:
    """An item on its way in, checked and encoded. `value` None deletes the key."""

    path: str
    key: str
    id: uuid.UUID
    value: Any
    ttl_minutes: float | None
    texts: tuple[str, ...] = ()  # encoded; one vector each
    terms: tuple[int, ...] = ()
    term_counts: tuple[int, ...] = ()
    term_total: int = 0


@dataclass(frozen=True, slots=True)
class StoredItem:
    """An item as it is stored. `score`: of a search with a query, else None; `expiring`: it has a time to live."""

    namespace: tuple[str, ...]
    key: str
    value: dict[str, Any]
    created_at: datetime
    updated_at: datetime
    id: uuid.UUID
    expiring: bool
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Search:
    """What to rank by: terms and a vector (hybrid; either may be missing), or a vector alone."""

    hybrid: bool
    terms: Sequence[int]
    vector: Vectors | None
    model: Model | None
    metric: Metric
    exact: bool


@dataclass(frozen=True, slots=True)
class Match:
    """A condition on namespaces: `labels` at their beginning or their end, None for any one label."""

    at: Literal["prefix", "suffix"]
    labels: tuple[str | None, ...]


def path_of(namespace: Sequence[str]) -> str:
    """Return the text of a namespace, or of a prefix of namespaces: `.users.u_1.`, `.` for the empty one."""
    return "." + "".join(f"{label}." for label in namespace)


def _range(path: str) -> dict[str, str]:
    # "/" is the character after ".": nothing lies between, and no label holds either end.
    return {"prefix": path, "below": f"{path[:-1]}/"}


def _item(row: Sequence[Any]) -> StoredItem:
    path, key, value, created_at, updated_at, item_id, expiring = row[:7]
    return StoredItem(
        tuple(map(decode_text, path[1:-1].split("."))), decode_text(key), decode_json(value),
        created_at.astimezone(UTC), updated_at.astimezone(UTC), item_id, expiring, row[7] if len(row) > 7 else None,
    )  # fmt: skip


def put(
    conn: Connection,
    tenant_id: str,
    items: Sequence[NewItem],
    *,
    model: Model | None,
    vectors: Sequence[Vectors] | Vectors,
) -> None:
    """Write or delete items, each key once. One statement. `vectors`: one for each text of the items, in order.

    Locks the items in the order of their keys, so that two batches of the same keys wait in no circle.
    """
    at, placed = 0, []
    for item in items:
        placed.append((item, vectors[at : at + len(item.texts)]))
        at += len(item.texts)
    placed.sort(key=lambda pair: (pair[0].path.encode(), pair[0].key.encode()))
    terms: list[int] = []
    counts: list[int] = []
    texts: list[str] = []
    term_ends, vector_ends, bound = [], [], []
    for item, own in placed:
        terms += item.terms
        counts += item.term_counts
        texts += item.texts
        bound += [VectorParameter(vector) for vector in own]
        term_ends.append(len(terms))
        vector_ends.append(len(bound))
    conn.query(
        f"""SELECT {conn.schema}.put_items(
              %(tenant)s, %(paths)s::text[], %(keys)s::text[], %(ids)s::uuid[], %(values)s::jsonb[],
              %(ttls)s::float8[], %(terms)s::bigint[], %(counts)s::smallint[], %(term_ends)s::integer[],
              %(totals)s::integer[], %(model)s, %(vectors)b, %(texts)s::text[], %(vector_ends)s::integer[])""",
        {
            "tenant": tenant_id, "paths": [item.path for item, _ in placed], "keys": [item.key for item, _ in placed],
            "ids": [item.id for item, _ in placed],
            "values": [None if item.value is None else jsonb(item.value) for item, _ in placed],
            "ttls": [item.ttl_minutes for item, _ in placed], "terms": _integers(terms), "counts": _integers(counts),
            "term_ends": _integers(term_ends), "totals": _integers([item.term_total for item, _ in placed]),
            "model": None if model is None else model.id, "vectors": bound or None, "texts": texts,
            "vector_ends": _integers(vector_ends),
        },
    )  # fmt: skip


def _integers(values: Sequence[int]) -> str:
    # An array as Postgres writes it: 3 µs for 13 terms, where psycopg takes 20 for a list.
    return f"{{{','.join(map(str, values))}}}"


def fetch(conn: Connection, tenant_id: str, wanted: Sequence[tuple[str, str]]) -> dict[tuple[str, str], StoredItem]:
    """Return the live items among (path, key), by these. One statement."""
    if len(wanted) == 1:
        condition = "i.namespace = %(path)s AND i.key = %(key)s"
        values: dict[str, Any] = {"path": wanted[0][0], "key": wanted[0][1]}
    else:
        condition = "(i.namespace, i.key) IN (SELECT * FROM unnest(%(paths)s::text[], %(keys)s::text[]))"
        values = {"paths": [path for path, _ in wanted], "keys": [key for _, key in wanted]}
    rows = conn.query(
        f"SELECT {_COLUMNS} FROM {conn.schema}.items i WHERE i.tenant_id = %(tenant)s AND {condition} AND {_LIVE}",
        {"tenant": tenant_id, **values},
    )
    return {(row[0], row[1]): _item(row) for row in rows}


def search(
    conn: Connection, tenant_id: str, path: str, how: Search, filter: CompiledFilter | None, *, limit: int, offset: int
) -> list[StoredItem]:
    """Return the best live items under a prefix, best first. One statement.

    Plans: item_postings_pkey; item_vectors_pkey and a sort up to 5,000 items under the prefix (20,000 with a filter),
    item_vectors_hnsw_<model> above.
    """
    rows = conn.query(
        f"""SELECT * FROM {conn.schema}.search_items(
              %(tenant)s, %(prefix)s, %(below)s, %(hybrid)s, %(terms)s::bigint[], %(vector)s, %(model)s,
              %(dimensions)s, %(metric)s, %(exact)s, %(filter)s::jsonpath, %(variables)s, %(limit)s, %(offset)s)""",
        {
            "tenant": tenant_id, **_range(path), "hybrid": how.hybrid, "terms": list(how.terms),
            "vector": None if how.vector is None else VectorParameter(how.vector),
            "model": how.model.id if how.model else "m0", "dimensions": how.model.dimensions if how.model else 1,
            "metric": how.metric, "exact": how.exact, "limit": limit, "offset": offset, **_filter(filter),
        },
    )  # fmt: skip
    return [_item(row) for row in rows]


def listing(
    conn: Connection, tenant_id: str, path: str, filter: CompiledFilter | None, *, limit: int, offset: int
) -> list[StoredItem]:
    """Return the live items under a prefix, the last written first. One statement."""
    matching = " AND jsonb_path_match(i.value, %(filter)s::jsonpath, %(variables)s, true)" if filter else ""
    rows = conn.query(
        f"""SELECT {_COLUMNS} FROM {conn.schema}.items i
            WHERE i.tenant_id = %(tenant)s AND i.namespace >= %(prefix)s AND i.namespace < %(below)s
              AND {_LIVE}{matching}
            ORDER BY i.updated_at DESC, i.namespace, i.key LIMIT %(limit)s OFFSET %(offset)s""",
        {"tenant": tenant_id, **_range(path), **(_filter(filter) if filter else {}), "limit": limit, "offset": offset},
    )
    return [_item(row) for row in rows]


def _filter(filter: CompiledFilter | None) -> dict[str, Any]:
    return {
        "filter": None if filter is None else filter.path,
        "variables": jsonb({} if filter is None else filter.variables),
    }


def namespaces(
    conn: Connection, tenant_id: str, matches: Sequence[Match], *, max_depth: int | None, limit: int, offset: int
) -> list[tuple[str, ...]]:
    """Return the namespaces that hold live items and meet every condition, cut to max_depth, in order."""
    conditions, values = "", {}
    start: list[str] = []
    for n, match in enumerate(matches):
        labels = list(match.labels)
        if match.at == "prefix":
            known = labels[: labels.index(None)] if None in labels else labels
            start = max(start, [label for label in known if label is not None], key=len)
        first = "1" if match.at == "prefix" else f"cardinality(n.labels) - {len(labels)} + 1"
        conditions += f" AND cardinality(n.labels) >= {len(labels)}"
        for place, label in enumerate(labels):
            if label is not None:
                conditions += f" AND n.labels[{first} + {place}] = %(label{n}_{place})s"
                values[f"label{n}_{place}"] = label
    shown = "n.labels" if max_depth is None else "n.labels[:%(depth)s]"
    rows = conn.query(
        f"""SELECT DISTINCT {shown} COLLATE "C" AS shown FROM (
              SELECT DISTINCT {_LABELS} AS labels FROM {conn.schema}.items i
              WHERE i.tenant_id = %(tenant)s AND i.namespace >= %(prefix)s AND i.namespace < %(below)s AND {_LIVE}) n
            WHERE true{conditions} ORDER BY shown LIMIT %(limit)s OFFSET %(offset)s""",
        {"tenant": tenant_id, **_range(path_of(start)), "depth": max_depth, "limit": limit, "offset": offset, **values},
    )
    return [tuple(map(decode_text, labels)) for (labels,) in rows]


def extend(conn: Connection, tenant_id: str, ids: Sequence[uuid.UUID]) -> None:
    """Give live items their whole time to live again. What somebody is writing just now is passed over."""
    conn.query(
        f"""UPDATE {conn.schema}.items i SET expires_at = clock_timestamp() + i.ttl_minutes * interval '1 minute'
            FROM (SELECT x.id FROM {conn.schema}.items x
                  WHERE x.tenant_id = %(tenant)s AND x.id = ANY (%(ids)s) AND x.expires_at > clock_timestamp()
                  FOR NO KEY UPDATE SKIP LOCKED) AS due
            WHERE i.tenant_id = %(tenant)s AND i.id = due.id""",
        {"tenant": tenant_id, "ids": list(ids)},
    )


def sweep(conn: Connection, tenant_id: str, *, limit: int = _SWEEP_BATCH) -> int:
    """Delete at most `limit` items that have expired; return how many that were."""
    [(number,)] = conn.query(
        f"SELECT {conn.schema}.sweep_items(%(tenant)s, %(limit)s)", {"tenant": tenant_id, "limit": limit}
    )
    return int(number)


def count(conn: Connection, tenant_id: str, paths: Sequence[str], added: int) -> None:
    """Count what lies under prefixes anew, where their count is old or much was added."""
    conn.query(
        f"SELECT {conn.schema}.refresh_item_stats(%(tenant)s, %(paths)s::text[], %(added)s)",
        {"tenant": tenant_id, "paths": list(paths), "added": added},
    )


def build_index(conn: Connection, model: Model) -> bool:
    """Build the model's vector index over items, once; False where it has to wait (the table is being written to, or
    the role does not own it) and searches stay exact until the next process tries. In a transaction."""
    if model.dimensions > INDEX_LIMIT:
        return True
    name = f"item_vectors_hnsw_{model.id}"
    if _exists(conn, name):
        return True
    conn.query("SELECT pg_advisory_xact_lock(%(key)s)", {"key": LOCK})
    if _exists(conn, name):
        return True
    schema = f"{quoted(conn.vector_type().schema)}."
    kind = "vector" if model.dimensions <= 2000 else "halfvec"
    conn.query("SAVEPOINT building")
    try:
        conn.query(f"SET LOCAL lock_timeout = {INDEX_WAIT_MS}")
        conn.query(f"LOCK TABLE {conn.schema}.item_vectors IN SHARE MODE")
        conn.query("SET LOCAL lock_timeout = DEFAULT")
        # ef_construction 48: a put of 1.6 ms instead of 2.3 at 64, recall of ten 0.964 instead of 0.974 among 40,000.
        conn.query(
            f"""CREATE INDEX {name} ON {conn.schema}.item_vectors
                USING hnsw ((embedding::{schema}{kind}({model.dimensions})) {schema}{kind}_cosine_ops)
                WITH (m = 16, ef_construction = 48) WHERE model = '{model.id}'"""
        )
    except (DBAPIError, psycopg.Error) as exc:
        if state_of(exc) not in ("42501", "55P03"):
            raise
        conn.query("ROLLBACK TO SAVEPOINT building")
        return False
    return True


def drop_index(conn: Connection, model: Model) -> None:
    """Drop a model's vector index over items while others read and write; in autocommit."""
    conn.query(f"DROP INDEX CONCURRENTLY IF EXISTS {conn.schema}.item_vectors_hnsw_{model.id}")


def left_by(conn: Connection, model: Model) -> list[tuple[str, str]]:
    """Return (tenant, model's id) wherever an embedder other than this one still has vectors of items."""
    return [
        (tenant, other)
        for tenant, other in conn.query(
            f"""SELECT DISTINCT v.tenant_id, v.model FROM {conn.schema}.item_vectors v
                JOIN {conn.schema}.embedding_models m ON m.id = v.model
                WHERE m.source = 'embedder' AND m.id <> %(id)s""",
            {"id": model.id},
        )
    ]


def texts_of(conn: Connection, tenant_id: str, model_id: str, *, limit: int) -> list[tuple[str, uuid.UUID, int, str]]:
    """Return the places (namespace, item, place) and texts of some vectors of a model."""
    return [
        (path, item_id, place, content)
        for path, item_id, place, content in conn.query(
            f"""SELECT namespace, item_id, place, content FROM {conn.schema}.item_vectors
                WHERE tenant_id = %(tenant)s AND model = %(model)s
                ORDER BY namespace, item_id, place LIMIT %(limit)s""",
            {"tenant": tenant_id, "model": model_id, "limit": limit},
        )
    ]


def move(
    conn: Connection,
    tenant_id: str,
    rows: Sequence[tuple[str, uuid.UUID, int, str]],
    vectors: Sequence[Vectors | None],
    *,
    model: Model,
) -> None:
    """Give texts another model's vectors; those without one (None) are found by words from then on. What was put
    anew meanwhile stays as it is."""
    keys = {
        "tenant": tenant_id, "paths": [row[0] for row in rows], "ids": [row[1] for row in rows],
        "places": _integers([row[2] for row in rows]), "texts": [row[3] for row in rows], "model": model.id,
        "bad": [vector is None for vector in vectors],
    }  # fmt: skip
    same = """v.tenant_id = %(tenant)s AND v.namespace = u.path AND v.item_id = u.id AND v.place = u.place
              AND v.content = u.content AND v.model <> %(model)s"""
    rows_of = "unnest(%(paths)s::text[], %(ids)s::uuid[], %(places)s::smallint[], %(texts)s::text[]"
    conn.query(
        f"""DELETE FROM {conn.schema}.item_vectors v
            USING {rows_of}, %(bad)s::boolean[]) AS u (path, id, place, content, bad) WHERE u.bad AND {same}""",
        keys,
    )
    # A vector that is not used stands where there is none: arrays of vectors hold no NULL on this way.
    known = next((vector for vector in vectors if vector is not None), None)
    if known is not None:
        bound = [VectorParameter(known if vector is None else vector) for vector in vectors]
        conn.query(
            f"""UPDATE {conn.schema}.item_vectors v SET model = %(model)s, embedding = u.vector
                FROM {rows_of}, %(vectors)b) AS u (path, id, place, content, vector) WHERE {same}""",
            {**keys, "vectors": bound},
        )


def _exists(conn: Connection, index: str) -> bool:
    return bool(
        conn.query(
            """SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
               WHERE n.nspname = %(schema)s AND c.relname = %(index)s""",
            {"schema": conn.schema.strip('"'), "index": index},
        )
    )
