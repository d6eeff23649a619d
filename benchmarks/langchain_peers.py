"""The LangChain adapter beside langchain-postgres, in one process, on one Postgres.

    python -m benchmarks.langchain_peers [--dsn DSN] [--total 10000]

Adding a pair of messages and reading a conversation: `PgMemChatMessageHistory` and `PostgresChatMessageHistory`.
Finding: `PgMemRetriever` (words and meaning), `PgMemVectorStore` and `as_vectorstore` beside `PGVectorStore` with an
HNSW index, the same texts and vectors. Prints p50 in milliseconds and ratios. The runs take turns, so that whatever
else the machine does falls on both.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable
from typing import Any

import psycopg
from langchain_core.messages import AIMessage, HumanMessage
from langchain_postgres import PGEngine, PGVectorStore, PostgresChatMessageHistory
from langchain_postgres.v2.indexes import HNSWIndex

from benchmarks.corpus import Corpus
from pgmem_core import BundledEmbedder, MemoryStore, PgMem
from pgmem_core.database.embedded import EmbeddedPostgres
from pgmem_langchain import PgMemChatMessageHistory, PgMemRetriever, PgMemVectorStore, as_vectorstore
from pgmem_langchain.vectorstore import PgMemEmbeddings

USER = "u1"


def beside(calls: dict[str, Callable[[int], Any]], runs: int, warm: int = 20) -> dict[str, float]:
    """Return the p50 of each call in milliseconds; the calls take turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for i in range(warm + runs):
        for name, call in calls.items():
            started = time.perf_counter()
            call(i)
            if i >= warm:
                times[name].append((time.perf_counter() - started) * 1000)
    return {name: statistics.median(taken) for name, taken in times.items()}


def show(title: str, found: dict[str, float], peer: str) -> None:
    print(f"\n{title}")
    for name, p50 in found.items():
        print(f"  {name:<34} {p50:7.2f} ms   {p50 / found[peer]:5.2f} x")


def main() -> None:
    """Run everything and print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dsn", default=None)
    parser.add_argument("--total", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=300)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.dsn is not None:
        report(options.dsn, options.total, options.runs)
        return
    with tempfile.TemporaryDirectory() as folder, EmbeddedPostgres(f"{folder}/pg") as server:
        report(server.dsn, options.total, options.runs)


def report(dsn: str, total: int, runs: int) -> None:
    embedder = BundledEmbedder()
    with PgMem(dsn, embedder=embedder) as mem, psycopg.connect(dsn) as conn:
        histories(mem, conn, runs)
        finding(dsn, mem, embedder, total, runs)


def histories(mem: PgMem, conn: psycopg.Connection, runs: int) -> None:
    PostgresChatMessageHistory.create_tables(conn, "peer_history")
    ours = PgMemChatMessageHistory(str(uuid.uuid4()), mem=mem, user_id=USER)
    theirs = PostgresChatMessageHistory("peer_history", str(uuid.uuid4()), sync_connection=conn)

    def pair(i: int) -> list[Any]:
        return [
            HumanMessage(f"I would like to move the booking number {i} to the second week of May, please."),
            AIMessage(f"Done: booking {i} is now from the eighth to the fourteenth of May.", id=f"run-{i}"),
        ]

    show(
        "add a pair of messages",
        beside(
            {
                "PgMemChatMessageHistory": lambda i: ours.add_messages(pair(i)),
                "PostgresChatMessageHistory": lambda i: theirs.add_messages(pair(i)),
            },
            runs,
        ),
        "PostgresChatMessageHistory",
    )
    window = PgMemChatMessageHistory(ours.session_id, mem=mem, user_id=USER, limit=20)
    show(
        f"read a conversation of {len(theirs.messages)} messages",
        beside(
            {
                "PgMemChatMessageHistory": lambda i: ours.messages,
                "the same, limit=20": lambda i: window.messages,
                "PostgresChatMessageHistory": lambda i: theirs.messages,
            },
            min(runs, 50),
            warm=3,
        ),
        "PostgresChatMessageHistory",
    )


def finding(dsn: str, mem: PgMem, embedder: BundledEmbedder, total: int, runs: int) -> None:
    corpus = Corpus(seed=1)
    texts = corpus.texts(total)
    with MemoryStore(dsn, embedder=embedder) as store:
        for at in range(0, total, 2000):
            rows = [{"session_id": f"s{at}", "content": text, "kind": "note"} for text in texts[at : at + 2000]]
            store.add_many("default", rows, user_id=USER)
    shelf = PgMemVectorStore(mem, collection="peers")
    shelf.add_texts(texts)
    engine = PGEngine.from_connection_string(dsn.replace("postgresql://", "postgresql+psycopg://"))
    engine.init_vectorstore_table("peer_vectors", embedder.dimensions)
    peer = PGVectorStore.create_sync(engine, PgMemEmbeddings(embedder), "peer_vectors")
    ids = [str(uuid.uuid4()) for _ in texts]
    with (
        psycopg.connect(dsn) as conn,
        conn.cursor().copy(
            "COPY peer_vectors (langchain_id, content, embedding, langchain_metadata) FROM STDIN"
        ) as copy,
    ):
        for one, text, vector in zip(ids, texts, embedder.embed(texts), strict=True):
            copy.write_row((one, text, str([float(x) for x in vector]), "{}"))
    peer.apply_vector_index(HNSWIndex(m=16, ef_construction=128))
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("ANALYZE")
    view = as_vectorstore(mem, user_id=USER, engine=engine)
    retriever = PgMemRetriever(mem=mem, user_id=USER, k=4)
    queries = [corpus.query_like(texts[i % total]) for i in range(runs + 50)]
    show(
        f"find 4 of {total:,}",
        beside(
            {
                "PgMemRetriever (words and meaning)": lambda i: retriever.invoke(queries[i]),
                "PgMemVectorStore": lambda i: shelf.similarity_search(queries[i], k=4),
                "as_vectorstore": lambda i: view.similarity_search(queries[i], k=4),
                "PGVectorStore": lambda i: peer.similarity_search(queries[i], k=4),
            },
            runs,
        ),
        "PGVectorStore",
    )
    assert engine._loop is not None
    asyncio.run_coroutine_threadsafe(engine._pool.dispose(), engine._loop).result()


if __name__ == "__main__":
    main()
