"""Large scopes by the vector index, small ones exactly: what is there is found, by the plan meant for it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import psycopg
import pytest

from pgmem_core import MemoryStore
from tests.fix_memory import Face, Maker
from tests.fix_postgres import PostgresServer


def unit(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    scaled: np.ndarray[Any, Any] = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return scaled


def texts(found: Sequence[Any]) -> list[str]:
    return [str(one) for one in found]


CROWD, FEW = 20_000, 30


@pytest.fixture(scope="module")
def crowd(server: PostgresServer) -> Iterator[str]:
    """50,030 records of one tenant: u1's 20,000 near the query, u2's 30 far from it, u3's 30,000 anywhere."""
    name = f"pgmem_crowd_{os.getpid()}"
    with psycopg.connect(server.admin_dsn, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'")
        try:
            with MemoryStore(server.dsn(name)) as store:
                store.add("t0", "s1", "registers the model", [1.0, 0, 0, 0, 0, 0, 0, 0])
            with psycopg.connect(server.dsn(name), autocommit=True) as conn:
                [definition] = conn.execute("SELECT indexdef FROM pg_indexes WHERE indexname = 'records_hnsw_m1'")
                conn.execute("DROP INDEX pgmem.records_hnsw_m1")  # 2 s to build at the end, 11 s to fill row by row
                conn.execute(
                    """INSERT INTO pgmem.records (tenant_id, id, user_id, user_key, session_id, kind, content, metadata,
                         token_count, created_at, model, embedding)
                       SELECT 't1', gen_random_uuid(), u, hashtextextended(u, 0), 's-' || u, 'fact', u || ' ' || n,
                         jsonb_build_object('n', n, 'odd', mod(n, 2) = 1), 3, now(), 'm1',
                         (SELECT array_agg(CASE u WHEN 'u1' THEN 0.2 WHEN 'u2' THEN 0.1 ELSE 1 END * (random() - 0.5)
                                           + CASE WHEN d = 1 AND u = 'u1' THEN 1 WHEN d = 1 AND u = 'u2' THEN -1
                                                  ELSE 0 END + 0 * n)::vector FROM generate_series(1, 8) d)
                       FROM (VALUES ('u1', %s), ('u2', %s), ('u3', 30000)) c (u, many),
                            generate_series(1, many) n""",
                    (CROWD, FEW),
                )
                conn.execute("SET max_parallel_maintenance_workers = 2; SET maintenance_work_mem = '200MB'")
                conn.execute(definition[0])
                conn.execute("VACUUM ANALYZE pgmem.records")
                conn.execute(
                    """INSERT INTO pgmem.scope_stats (tenant_id, level, user_id, record_count, term_total)
                       VALUES ('t1', 'tenant', '', 50030, 0), ('t1', 'user', 'u1', 20000, 0),
                              ('t1', 'user', 'u2', 30, 0), ('t1', 'user', 'u3', 30000, 0)"""
                )
            yield server.dsn(name)
        finally:
            admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


NORTH = [1.0, 0, 0, 0, 0, 0, 0, 0]


def exact(dsn: str, where: str, limit: int) -> list[str]:
    with psycopg.connect(dsn) as conn:
        rows = conn.execute(
            f"""SELECT content FROM pgmem.records WHERE tenant_id = 't1' AND {where}
                ORDER BY (embedding <=> '{NORTH}'::vector) + 0 LIMIT {limit}""".encode()
        )
        return [row[0] for row in rows]


def scans(dsn: str, index: str) -> int:
    """How often Postgres has read an index."""
    with psycopg.connect(dsn) as conn:
        conn.execute("SELECT pg_stat_force_next_flush()")
        [count] = conn.execute(
            "SELECT idx_scan FROM pg_stat_user_indexes WHERE schemaname = 'pgmem' AND indexrelname = %s", (index,)
        )
        return int(count[0])


def reaches(dsn: str, index: str, count: int) -> bool:
    """Whether an index has been read so often: a backend reports it as it ends, a moment after its client closed."""
    deadline = time.monotonic() + 10
    while scans(dsn, index) < count and time.monotonic() < deadline:
        time.sleep(0.02)
    return scans(dsn, index) >= count


@pytest.fixture
async def crowded(make_store: Maker, crowd: str) -> Face:
    return await make_store(dsn=crowd)


@pytest.mark.parametrize("by_index", [False, True])
async def test_c6_the_few_are_found_among_the_many(crowded: Face, crowd: str, by_index: bool) -> None:
    if by_index:  # tell the guard that u2 is large, so that HNSW must find the 30 behind 20,000 nearer ones
        with psycopg.connect(crowd, autocommit=True) as conn:
            conn.execute("UPDATE pgmem.scope_stats SET record_count = 30000 WHERE user_id = 'u2'")
    try:
        before = scans(crowd, "records_hnsw_m1")
        found = await crowded.similar("t1", NORTH, 10, user_id="u2")
        assert texts(found) == exact(crowd, "user_id = 'u2'", 10)
        assert len(await crowded.similar("t1", NORTH, 100, user_id="u2")) == FEW
        odd = await crowded.similar("t1", NORTH, 100, user_id="u2", filter={"odd": True, "n": {"lte": 9}})
        assert texts(odd) == exact(crowd, "user_id = 'u2' AND (metadata->>'n')::int IN (1, 3, 5, 7, 9)", 10)
        await crowded.close()
        assert reaches(crowd, "records_hnsw_m1", before + 1) if by_index else scans(crowd, "records_hnsw_m1") == before
    finally:
        with psycopg.connect(crowd, autocommit=True) as conn:
            conn.execute("UPDATE pgmem.scope_stats SET record_count = 30 WHERE user_id = 'u2'")


async def test_c6_a_rare_filter_over_a_whole_tenant(crowded: Face, crowd: str) -> None:
    found = await crowded.similar("t1", NORTH, 10, session_id="s-u2")
    assert texts(found) == exact(crowd, "user_id = 'u2'", 10)
    found = await crowded.similar("t1", NORTH, 100, kind="fact", filter={"n": {"gt": 29_995}})
    assert texts(found) == exact(crowd, "(metadata->>'n')::int > 29995", 100)
    assert len(found) == 5


@pytest.mark.parametrize("threshold", [None, 0.5])
async def test_c7_large_scopes_are_read_by_the_vector_index(crowded: Face, crowd: str, threshold: float | None) -> None:
    """The statement that the product runs, seen from the server's own counters."""
    for conditions, where in (({"user_id": "u1"}, "user_id = 'u1'"), ({}, "true")):
        before = scans(crowd, "records_hnsw_m1")
        found = await crowded.similar("t1", NORTH, 10, min_score=threshold, **conditions)
        assert len(set(texts(found)) & set(exact(crowd, where, 10))) >= 9
        await crowded.close()  # a backend that ends has reported what it counted
        assert reaches(crowd, "records_hnsw_m1", before + 1)


async def test_c7_small_scopes_are_read_exactly_by_their_own_index(crowded: Face, crowd: str) -> None:
    before = scans(crowd, "records_hnsw_m1"), scans(crowd, "records_scope")
    assert len(await crowded.similar("t1", NORTH, 10, user_id="u2")) == 10
    await crowded.close()
    assert reaches(crowd, "records_scope", before[1] + 1)
    assert scans(crowd, "records_hnsw_m1") == before[0]


@pytest.mark.parametrize("face", ["sync"])  # the statements are the same in both, and the fill takes seconds
async def test_c8_an_index_made_on_an_empty_table_finds_what_comes_later(store: Face, dsn: str) -> None:
    rng = np.random.default_rng(8)
    vectors = unit(rng.normal(size=(5_200, 16)))
    rows = [{"session_id": "s1", "content": f"text {n}", "embedding": v, "kind": "fact"} for n, v in enumerate(vectors)]
    await store.add_many("t1", rows)
    with psycopg.connect(dsn) as conn:
        kinds = {row[0] for row in conn.execute("SELECT indexdef FROM pg_indexes WHERE schemaname = 'pgmem'")}
        assert not any("ivfflat" in kind for kind in kinds)
        assert any("hnsw" in kind for kind in kinds)
        conn.execute("DELETE FROM pgmem.scope_stats")  # counted at read then: at the default settings
    queries = unit(rng.normal(size=(20, 16)))
    hits = 0
    for query in queries:
        best = np.argsort(-(vectors @ query))[:10]
        hits += len({f"text {n}" for n in best} & set(await store.similar("t1", query, 10)))
    await store.close()
    assert reaches(dsn, "records_hnsw_m1", len(queries))
    assert hits / 200 >= 0.95
