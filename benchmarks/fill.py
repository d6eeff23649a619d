"""Fill a database with a large table: one user with 10,000 memories among 100,000, and small scopes beside it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import psycopg

from benchmarks.corpus import Corpus
from pgmem_core import BundledEmbedder, MemoryStore

__all__ = ["SCOPES", "TENANT", "fill"]

TENANT = "bench"
# user → memories; the rest of the table belongs to users of 1,000 each.
SCOPES = {"u30": 30, "u300": 300, "u2500": 2500, "u10000": 10_000}
_SESSION = 25


def _rows(corpus: Corpus, embedder: BundledEmbedder, user: str, count: int) -> Iterator[dict[str, Any]]:
    texts = corpus.texts(count, user)
    for at in range(0, count, 1000):
        part = texts[at : at + 1000]
        for i, (text, vector) in enumerate(zip(part, embedder.embed(part), strict=True), start=at):
            yield {
                "session_id": f"{user}-s{i // _SESSION}", "content": text, "embedding": vector,
                "role": "user" if i % 2 == 0 else "assistant", "metadata": {"rank": i},
            }  # fmt: skip


def fill(dsn: str, total: int = 100_000, *, seed: int = 7) -> Corpus:
    """Write the table and return its corpus. Takes about three minutes for 100,000; does nothing if it is there."""
    corpus, embedder = Corpus(seed), BundledEmbedder()
    with MemoryStore(dsn, embedder=embedder) as store:
        if store.count(TENANT) >= total:
            return corpus
        started = time.perf_counter()
        users = dict(SCOPES)
        while sum(users.values()) < total:
            users[f"other{len(users)}"] = min(1000, total - sum(users.values()))
        # The index is built at the end, as anyone would who loads much at once: 1 minute instead of 4.
        with psycopg.connect(dsn, autocommit=True) as conn:
            store.add(TENANT, "first", corpus.texts(1)[0], kind="note", user_id="first")
            [(index,)] = conn.execute("SELECT pg_get_indexdef('pgmem.records_hnsw_m1'::regclass)").fetchall()
            conn.execute("DROP INDEX pgmem.records_hnsw_m1")
        for user, count in users.items():
            rows = list(_rows(corpus, embedder, user, count))
            for at in range(0, count, 2500):
                store.add_many(TENANT, rows[at : at + 2500], user_id=user)
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("SET maintenance_work_mem = '1GB'")
            conn.execute(index)
        print(f"filled {total:,} memories in {time.perf_counter() - started:.0f} s", flush=True)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("VACUUM ANALYZE pgmem.records")
        conn.execute("VACUUM ANALYZE pgmem.postings")
        conn.execute("ANALYZE pgmem.sessions")
    return corpus
