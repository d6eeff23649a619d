"""`PgMemStore` beside LangGraph's `PostgresStore`: put and search, in one process on one server, turn by turn.

    python -m benchmarks.store_peers [--dsn DSN] [--rows 40000] [--runs 300]

Ours ranks hybrid, theirs dense; both embed with the bundled 256-d model, so what is compared is the store. Two layouts
of the same rows: one namespace that holds them all, and one for each of 40 users. Calls of the two alternate, so that
both meet the same machine; a ratio below 1 means ours is faster. Needs langgraph-checkpoint-postgres.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import psycopg
from langchain_core.embeddings import Embeddings
from langgraph.store.base import BaseStore, PutOp
from langgraph.store.postgres import PostgresStore
from psycopg import sql

from benchmarks.corpus import Corpus
from pgmem_core import BundledEmbedder
from pgmem_core.database.embedded import EmbeddedPostgres
from pgmem_langchain.store import PgMemStore

_USERS = 40


class Bundled(Embeddings):
    """The bundled embedder for both."""

    def __init__(self) -> None:
        self._embedder = BundledEmbedder()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self._embedder.embed(texts).tolist()  # type: ignore[no-any-return]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


def place(n: int, layout: str) -> tuple[str, ...]:
    """Return the namespace of row n."""
    return ("memories", "all") if layout == "one" else ("memories", f"user{n % _USERS}")


def fill(store: BaseStore, texts: Sequence[str], layout: str) -> float:
    """Put every text, 500 at a time; return the rows a second."""
    started = time.perf_counter()
    for at in range(0, len(texts), 500):
        store.batch([
            PutOp(place(n, layout), f"k{n}", {"text": texts[n], "rank": n % 100})
            for n in range(at, min(at + 500, len(texts)))
        ])  # fmt: skip
    return len(texts) / (time.perf_counter() - started)


def alternate(calls: dict[str, Callable[[int], Any]], runs: int) -> dict[str, np.ndarray[Any, Any]]:
    """Time each call `runs` times, in turn; the first tenth is left out."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for n in range(runs + runs // 10):
        for name, call in calls.items():
            started = time.perf_counter()
            call(n)
            taken[name].append((time.perf_counter() - started) * 1000)
    return {name: np.array(times[runs // 10 :]) for name, times in taken.items()}


def show(what: str, times: dict[str, np.ndarray[Any, Any]]) -> None:
    """Print p50 and p99 of both, and the ratio of the p50s."""
    ours, theirs = times["ours"], times["theirs"]
    print(
        f"{what:34} ours {np.median(ours):6.2f} ms (p99 {np.percentile(ours, 99):6.2f})   theirs"
        f" {np.median(theirs):6.2f} ms (p99 {np.percentile(theirs, 99):6.2f})   ratio"
        f" {np.median(ours) / np.median(theirs):.2f}",
        flush=True,
    )


def measure(dsn: str, layout: str, rows: int, runs: int) -> None:
    """Fill both stores in databases of their own, and compare them."""
    corpus = Corpus(seed=11)
    texts = corpus.texts(rows + 4 * runs)
    embed = Bundled()
    index: Any = {"dims": 256, "embed": embed, "fields": ["text"]}
    names = {name: f"bench_{name}_{layout}" for name in ("ours", "theirs")}
    with ExitStack() as stack:
        stores: dict[str, BaseStore] = {}
        for name, database in names.items():
            with psycopg.connect(dsn, autocommit=True) as conn:
                conn.execute(sql.SQL("DROP DATABASE IF EXISTS {}").format(sql.Identifier(database)))
                conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))
            where = psycopg.conninfo.make_conninfo(dsn, dbname=database)
            kind = PgMemStore if name == "ours" else PostgresStore
            store = stack.enter_context(kind.from_conn_string(where, index=index))
            store.setup()
            stores[name] = store
        for name, store in stores.items():
            print(f"{layout}: filled {name} with {rows:,} rows at {fill(store, texts[:rows], layout):,.0f} rows/s")
            with psycopg.connect(dsn, dbname=names[name], autocommit=True) as conn:
                conn.execute("VACUUM ANALYZE")
        queries = [corpus.query_like(texts[int(n)]) for n in corpus.random.integers(0, rows, size=2 * runs)]

        def search(store: BaseStore) -> Callable[[int], Any]:
            return lambda n: store.search(place(n, layout), query=queries[n], limit=10)

        def filtered(store: BaseStore) -> Callable[[int], Any]:
            return lambda n: store.search(place(n, layout), query=queries[n], filter={"rank": n % 100}, limit=10)

        def listing(store: BaseStore) -> Callable[[int], Any]:
            return lambda n: store.search(place(n, layout), limit=10)

        def get(store: BaseStore) -> Callable[[int], Any]:
            return lambda n: store.get(place(n, layout), f"k{n}")

        def put(store: BaseStore) -> Callable[[int], Any]:
            return lambda n: store.put(place(n, layout), f"new{n}", {"text": texts[rows + n], "rank": n % 100})

        def update(store: BaseStore) -> Callable[[int], Any]:
            return lambda n: store.put(place(n, layout), f"k{n}", {"text": texts[rows + 2 * runs + n], "rank": n % 100})

        for what, make in {
            "search": search, "search, filtered": filtered, "list (blank query)": listing, "get": get, "put": put,
            "put again (update)": update,
        }.items():  # fmt: skip
            show(f"{layout}: {what}", alternate({name: make(store) for name, store in stores.items()}, runs))
    if layout == "users":
        asyncio.run(awaited(psycopg.conninfo.make_conninfo(dsn, dbname=names["ours"]), index, texts[rows:], queries))


async def awaited(dsn: str, index: Any, texts: Sequence[str], queries: Sequence[str]) -> None:
    """Print what ours costs awaited (theirs gathers calls in the background, which cannot be timed alike)."""
    async with PgMemStore.from_conn_string(dsn, index=index) as store:
        for what in ("asearch", "aput"):
            taken = []
            for n in range(200):
                started = time.perf_counter()
                if what == "asearch":
                    await store.asearch(place(n, "users"), query=queries[n % len(queries)], limit=10)
                else:
                    await store.aput(place(n, "users"), f"async{n}", {"text": texts[n % len(texts)], "rank": n})
                taken.append((time.perf_counter() - started) * 1000)
            print(f"users: {what:27} ours {np.median(taken[20:]):6.2f} ms")


def main() -> None:
    """Run both layouts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dsn", default=None)
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--layout", choices=["one", "users"], default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = None if options.dsn else EmbeddedPostgres(f"{folder}/pg")
        dsn = options.dsn or (server.start() if server else "")
        for layout in [options.layout] if options.layout else ["one", "users"]:
            measure(dsn, layout, options.rows, options.runs)
        if server is not None:
            server.release()


if __name__ == "__main__":
    main()
