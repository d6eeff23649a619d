"""`PgMemMemory` beside LlamaIndex's `Memory` with `VectorMemoryBlock`, in one process, on one Postgres.

    python -m benchmarks.llamaindex_peers [--dsn DSN] [--total 20000] [--users 20] [--runs 90]

Both remember the same messages of so many users (ours ranks words and meaning over all sessions of a user, theirs
meaning in one session, so each user has one), embed with the bundled 256-d model, and go through one growing
conversation: the user's message is put, memory is read with recall, the reply is put. Theirs keeps its queue in
`SQLAlchemyChatStore` and its vectors in `PGVectorStore` with an HNSW index. Then what the blocking calls cost inside a
running loop, which is where notebooks and web handlers make them. Prints p50 in milliseconds; a ratio below 1 means
ours is faster.

Needs llama-index-vector-stores-postgres, which wants SQLAlchemy below 2.1 (ours takes either).
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
import warnings
from collections.abc import Awaitable
from typing import Any
from urllib.parse import urlencode

import psycopg
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.memory import InsertMethod, Memory, VectorMemoryBlock
from llama_index.core.schema import TextNode
from llama_index.vector_stores.postgres import PGVectorStore
from pydantic import PrivateAttr

from benchmarks.corpus import Corpus
from pgmem_core import BundledEmbedder, PgMem
from pgmem_core.database.embedded import EmbeddedPostgres
from pgmem_llamaindex import PgMemMemory

_SESSION = "conversation 0"


class Bundled(BaseEmbedding):
    """The bundled embedder as LlamaIndex takes one."""

    _embedder: BundledEmbedder = PrivateAttr(default_factory=BundledEmbedder)

    def _get_text_embedding(self, text: str) -> list[float]:
        return [float(x) for x in self._embedder.embed([text])[0]]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


def url(dsn: str, driver: str) -> str:
    """Return the DSN as SQLAlchemy's URL for a driver."""
    info = psycopg.conninfo.conninfo_to_dict(dsn)
    query = urlencode({key: str(value) for key, value in info.items() if key in ("host", "port")})
    return f"postgresql+{driver}://{info.get('user', 'postgres')}@/{info.get('dbname', 'postgres')}?{query}"


def theirs(dsn: str, texts: list[str], users: int) -> Memory:
    """Return the first user's memory of theirs, with the texts in its vector store."""
    embed = Bundled()
    store = PGVectorStore.from_params(
        connection_string=url(dsn, "psycopg2"), async_connection_string=url(dsn, "asyncpg"), table_name="block",
        embed_dim=256, use_jsonb=True, indexed_metadata_keys={("session_id", "text")},
        hnsw_kwargs={"hnsw_m": 16, "hnsw_ef_construction": 64, "hnsw_ef_search": 40},
    )  # fmt: skip
    vectors = BundledEmbedder().embed(texts)
    nodes: list[Any] = [
        TextNode(text=text, embedding=vector.tolist(), metadata={"session_id": f"conversation {n % users}"})
        for n, (text, vector) in enumerate(zip(texts, vectors, strict=True))
    ]
    store.add(nodes)
    return Memory.from_defaults(
        session_id=_SESSION, async_database_uri=url(dsn, "asyncpg"), insert_method=InsertMethod.USER,
        memory_blocks=[VectorMemoryBlock(vector_store=store, embed_model=embed, similarity_top_k=8)],
    )  # fmt: skip


def ours(mem: PgMem, texts: list[str], users: int) -> PgMemMemory:
    """Return the first user's memory of ours, with the texts in earlier sessions."""
    for user in range(users):
        said = texts[user::users]
        for at in range(0, len(said), 500):
            session = mem.session.create(user_id=f"user {user}")
            session.add_turns([{"role": "user", "content": text} for text in said[at : at + 500]])
    mem.form()
    return PgMemMemory.from_defaults(_SESSION, user_id="user 0", mem=mem)


async def timed(call: Awaitable[Any]) -> tuple[float, Any]:
    """Return how long a call took, in milliseconds, and what it gave."""
    started = time.perf_counter()
    found = await call
    return (time.perf_counter() - started) * 1000, found


async def awaited(memories: dict[str, Any], questions: list[str]) -> None:
    """Go through the conversation, in turn, and print the table."""
    taken: dict[str, dict[str, list[float]]] = {
        what: {name: [] for name in memories} for what in ("aput", "aget", "aget again, as agents do")
    }
    shown = dict.fromkeys(memories, 0)
    for n, question in enumerate(questions):
        for name, memory in memories.items():
            spent, _ = await timed(memory.aput(ChatMessage(role="user", content=question)))
            taken["aput"][name].append(spent)
            spent, given = await timed(memory.aget())
            taken["aget"][name].append(spent)
            shown[name] += len(given) > 2 * n + 1 or len(given[-1].blocks) > 1
            taken["aget again, as agents do"][name].append((await timed(memory.aget()))[0])
            await memory.aput(ChatMessage(role="assistant", content="Noted, thank you."))
    print(f"questions with something recalled: {shown} of {len(questions)}")
    warm = len(questions) // 10
    for what, times in taken.items():
        show(what, {name: one[warm:] for name, one in times.items()})


def show(what: str, times: dict[str, list[float]]) -> None:
    mine, peers = (statistics.median(times[name]) for name in ("ours", "theirs"))
    print(f"{what:28} ours {mine:6.2f} ms   theirs {peers:6.2f} ms   ratio {mine / peers:.2f}", flush=True)


async def blocking(dsn: str, memories: dict[str, Any], calls: int) -> None:
    """Print what blocking calls inside this running loop cost, and how many connections they leave."""
    times: dict[str, list[float]] = {name: [] for name in memories}
    with psycopg.connect(dsn, autocommit=True) as conn:
        for name, memory in memories.items():
            before = _connections(conn)
            for n in range(calls if name == "ours" else calls // 10):
                started = time.perf_counter()
                try:
                    memory.put(ChatMessage(role="assistant", content=f"number {n}"))
                except Exception as exc:
                    print(f"blocking put, {name}: {type(exc).__name__}: {str(exc)[:80]}")
                    break
                times[name].append((time.perf_counter() - started) * 1000)
            if times[name]:
                print(
                    f"blocking put in a loop, {name}: p50 {statistics.median(times[name]):.2f} ms over"
                    f" {len(times[name])} calls, connections {before} -> {_connections(conn)}"
                )


def _connections(conn: psycopg.Connection) -> int:
    row = conn.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()").fetchone()
    return 0 if row is None else int(row[0])


def report(dsn: str, total: int, users: int, runs: int) -> None:
    """Fill both, and compare them."""
    corpus = Corpus(seed=13)
    texts = corpus.texts(total)
    places = corpus.random.integers(0, total // users, size=runs)
    questions = [corpus.query_like(texts[int(n) * users]) for n in places]
    with PgMem(dsn, embedder=BundledEmbedder()) as mem:
        memories = {"ours": ours(mem, texts, users), "theirs": theirs(dsn, texts, users)}
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("VACUUM ANALYZE")

        async def main() -> None:
            await awaited(memories, questions)
            await blocking(dsn, memories, 1_000)

        asyncio.run(main())


def main() -> None:
    """Run it on a Postgres of its own, or on the one named."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dsn", default=None)
    parser.add_argument("--total", type=int, default=20_000)
    parser.add_argument("--users", type=int, default=20)
    parser.add_argument("--runs", type=int, default=90)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.dsn is not None:
        report(options.dsn, options.total, options.users, options.runs)
        return
    with tempfile.TemporaryDirectory() as folder, EmbeddedPostgres(f"{folder}/pg") as server:
        report(server.dsn, options.total, options.users, options.runs)


if __name__ == "__main__":
    main()
