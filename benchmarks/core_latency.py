"""Latency of the hot paths beside a bare vector query, in one process, on one table of 100,000 memories.

    python -m benchmarks.core_latency [--dsn DSN] [--total 100000]

Prints p50 and p99 in milliseconds and the ratio to `SELECT … ORDER BY embedding <=> … LIMIT 10` by the index,
then how soon a written turn is found by meaning, and what a scope's size does to recall and time.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import psycopg

from benchmarks.fill import SCOPES, TENANT, fill
from pgmem_core import BundledEmbedder, MemoryStore, PgMem
from pgmem_core.database.embedded import EmbeddedPostgres

USER = "u10000"


def measure(
    call: Callable[[int], Any], runs: int, warm: int = 15, between: Callable[[], Any] = lambda: None
) -> tuple[float, float]:
    """Return p50 and p99 of call(i) in milliseconds; `between` runs after each, untimed."""
    times = []
    for i in range(warm + runs):
        started = time.perf_counter()
        call(i)
        if i >= warm:
            times.append((time.perf_counter() - started) * 1000)
        between()
    return statistics.median(times), float(np.percentile(times, 99))


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dsn", default=None)
    parser.add_argument("--total", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=300)
    options = parser.parse_args()
    if options.dsn is not None:
        report(options.dsn, options.total, options.runs)
        return
    with tempfile.TemporaryDirectory() as folder, EmbeddedPostgres(f"{folder}/pg") as server:
        report(server.dsn, options.total, options.runs)


def report(dsn: str, total: int, runs: int) -> None:
    corpus = fill(dsn, total)
    embedder = BundledEmbedder()
    store, mem = MemoryStore(dsn, embedder=embedder), PgMem(dsn, embedder=embedder)
    mem.setup()
    texts = [str(text) for text in mem.get_all(user_id=USER, group_id=TENANT, limit=2000)]
    queries = [corpus.query_like(texts[i % len(texts)]) for i in range(runs + 50)]
    vectors = embedder.embed(queries)
    with psycopg.connect(dsn, autocommit=True) as conn:
        [(version, pgvector)] = conn.execute(
            "SELECT current_setting('server_version'), (SELECT extversion FROM pg_extension WHERE extname = 'vector')"
        ).fetchall()
        print(f"Postgres {version}, pgvector {pgvector}, Python {platform.python_version()}, {total:,} memories")
        rows = []
        literals = ["[" + ",".join(f"{x:.6f}" for x in vector) + "]" for vector in vectors]
        [(model, dims)] = conn.execute("SELECT id, dimensions FROM pgmem.embedding_models").fetchall()
        bare = (
            f"SELECT id FROM pgmem.records WHERE model = '{model}' AND tenant_id = %s"
            f" ORDER BY embedding::vector({dims}) <=> %s::vector LIMIT 10"
        )
        rows.append(
            (
                "bare SELECT … <=> … LIMIT 10 (index, tenant only)",
                *measure(lambda i: conn.execute(bare, (TENANT, literals[i])).fetchall(), runs),
            )
        )
        [(plan,)] = conn.execute(f"EXPLAIN (FORMAT JSON) {bare}", (TENANT, literals[0])).fetchall()
        assert "records_hnsw" in str(plan), plan
        rows.append(
            (
                "MemoryStore.similar(user of 10,000, limit 10)",
                *measure(lambda i: store.similar(TENANT, vectors[i], 10, user_id=USER), runs),
            )
        )
        rows.append(
            (
                "MemoryStore.similar(whole tenant, limit 10)",
                *measure(lambda i: store.similar(TENANT, vectors[i], 10), runs),
            )
        )
        rows.append(
            (
                "PgMem.search(user of 10,000, top_k 10)",
                *measure(lambda i: mem.search(queries[i], user_id=USER, group_id=TENANT), runs),
            )
        )
        session = mem.session.open(f"bench-{uuid.uuid4()}", user_id=USER, group_id=TENANT)
        for i in range(40):
            session.add_turn("user" if i % 2 == 0 else "assistant", texts[i])
        rows.append(
            (
                "compile_context(user of 10,000, 40 turns in the session)",
                *measure(lambda i: session.compile_context(queries[i], store_query=False), runs),
            )
        )
        rows.append(
            (
                "compile_context, the query made durable beside it",
                *measure(lambda i: session.compile_context(queries[i]), runs, between=mem.flush),
            )
        )
        mem.flush()
        other = mem.session.open(f"bench-{uuid.uuid4()}", user_id=USER, group_id=TENANT)
        rows.append(("add_turn", *measure(lambda i: other.add_turn("user", texts[i % len(texts)]), runs)))
        base = rows[0][1]
        for name, p50, p99 in rows:
            print(f"{name:62} p50 {p50:6.2f} ms   p99 {p99:6.2f} ms   × {p50 / base:.2f}")
    lag(mem, texts)
    sizes(dsn, store, corpus, embedder, runs=100)
    footprint(dsn)
    mem.close()
    store.close()


def lag(mem: PgMem, texts: list[str]) -> None:
    """Print how soon a turn is found: by words in its own transaction, by meaning once the worker has been."""
    mem.form()
    mem.start()
    times = []
    for i in range(30):
        session = mem.session.create(user_id=f"lag{uuid.uuid4()}", group_id=TENANT)
        session.add_turn("user", texts[i])
        written = time.perf_counter()
        assert mem.search(texts[i], user_id=session.user_id or "", group_id=TENANT)[0].content == texts[i]
        while True:
            [found] = mem.search(texts[i], user_id=session.user_id or "", group_id=TENANT)
            if found.parts.cosine is not None:
                break
            time.sleep(0.001)
        times.append((time.perf_counter() - written) * 1000)
    print(f"written to found by words: 0 (same transaction); by meaning: p50 {statistics.median(times):.0f} ms,"
          f" max {max(times):.0f} ms")  # fmt: skip


def sizes(dsn: str, store: MemoryStore, corpus: Any, embedder: BundledEmbedder, *, runs: int) -> None:
    """Print, for each scope size, how many of 10 came back, recall against the exact scan, and the time."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("SET enable_indexscan = off")
        for user, count in SCOPES.items():
            vectors = embedder.embed([corpus.query_like(text) for text in corpus.texts(runs, user)])
            recalls, fewest = [], 10
            for vector in vectors:
                literal = "[" + ",".join(map(str, vector.tolist())) + "]"
                [(tenth,)] = conn.execute(
                    "SELECT 1 - (embedding <=> %(v)s::vector) FROM pgmem.records WHERE tenant_id = %(t)s"
                    " AND user_id = %(u)s AND model = 'm1' ORDER BY embedding <=> %(v)s::vector OFFSET 9 LIMIT 1",
                    {"v": literal, "t": TENANT, "u": user},
                ).fetchall()
                found = store.similar(TENANT, vector, 10, user_id=user)
                fewest = min(fewest, len(found))
                # Equal texts have equal vectors: what counts is how near the ten are, not which of equals.
                recalls.append(sum((text.score or 0) >= tenth - 1e-6 for text in found) / 10)
            p50, p99 = measure(lambda i: store.similar(TENANT, vectors[i % runs], 10, user_id=user), runs)  # noqa: B023
            print(f"scope of {count:6,}: fewest rows {fewest} of 10, recall {statistics.mean(recalls):.3f},"
                  f" p50 {p50:.2f} ms, p99 {p99:.2f} ms")  # fmt: skip


def footprint(dsn: str) -> None:
    """Print bytes a memory, by part."""
    with psycopg.connect(dsn) as conn:
        [(records, hnsw, postings, count)] = conn.execute(
            "SELECT pg_table_size('pgmem.records'), pg_relation_size('pgmem.records_hnsw_m1'),"
            " pg_total_relation_size('pgmem.postings'), (SELECT count(*) FROM pgmem.records)"
        ).fetchall()
    print(
        f"bytes a memory: row and vector {records // count:,}, HNSW {hnsw // count:,}, postings {postings // count:,}"
    )


if __name__ == "__main__":
    main()
