"""langchain-postgres' PGVectorStore on a read-only view of memories: finds, filters, one scope, no writes."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import psycopg
import pytest
from langchain_core.documents import Document
from langchain_postgres import PGEngine, PGVectorStore
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from pgmem_core import (
    AsyncPgMem,
    Authority,
    ConfigurationError,
    InvalidArgument,
    MemoryStore,
    PermissionDenied,
    PgMem,
    Scope,
)
from pgmem_langchain import aas_vectorstore, as_vectorstore
from tests.fix_memory import FakeEmbedder


def unit(x: float, y: float) -> list[float]:
    return [x, y, 0, 0, 0, 0, 0, 0]


COMPASS = {
    "north": unit(1, 0), "nearly": unit(0.9, 0.1), "east": unit(0, 1), "south": unit(-1, 0), "west": unit(0, -1),
}  # fmt: skip


def texts(found: list[Document]) -> list[str]:
    return [document.page_content for document in found]


@pytest.fixture
def mem(dsn: str) -> Iterator[PgMem]:
    with PgMem(dsn, embedder=FakeEmbedder(COMPASS)) as made:
        store = MemoryStore(dsn, embedder=FakeEmbedder(COMPASS))
        for user in ("u1", "u2"):
            store.add_many(
                "default",
                [
                    {"session_id": f"of {user}", "content": name, "kind": "note", "metadata": {"rank": n, "tag": name}}
                    for n, name in enumerate(COMPASS)
                ],
                user_id=user,
            )
        store.close()
        yield made


@pytest.fixture(params=["psycopg", "asyncpg"])
def engine(request: pytest.FixtureRequest, dsn: str) -> Iterator[PGEngine]:
    made = PGEngine.from_connection_string(dsn.replace("postgresql://", f"postgresql+{request.param}://"))
    yield made
    made._run_as_sync(made.close()) if made._loop is None else asyncio.run_coroutine_threadsafe(
        made._pool.dispose(), made._loop
    ).result()


def test_it_finds_and_filters_and_varies(mem: PgMem, engine: PGEngine) -> None:
    store = as_vectorstore(mem, Scope("default", "u1"), engine=engine)
    assert isinstance(store, PGVectorStore)
    found = store.similarity_search_with_score("north", k=10)
    assert texts([document for document, _ in found])[:2] == ["north", "nearly"]
    assert [round(distance, 2) for _, distance in found] == [0.0, 0.01, 1.0, 1.0, 2.0]
    metadata = found[0][0].metadata
    assert {key: metadata[key] for key in ("rank", "tag", "kind", "session_id")} == {
        "rank": 0, "tag": "north", "kind": "note", "session_id": "of u1",
    }  # fmt: skip
    assert metadata["created_at"].tzinfo is not None
    assert texts(store.similarity_search("north", k=1, filter={"tag": "south"})) == ["south"]
    assert texts(store.similarity_search("north", k=9, filter={"rank": {"$gte": 4}})) == ["west"]
    assert store.similarity_search("north", filter={"kind": "turn"}) == []
    both = store.max_marginal_relevance_search("north", k=2, fetch_k=5, lambda_mult=0.1)
    assert sorted(texts(both)) == ["north", "south"]
    [again] = store.get_by_ids([str(found[0][0].id)])
    assert again.page_content == "north"
    retriever = store.as_retriever(search_kwargs={"k": 2})
    assert texts(retriever.invoke("north")) == ["north", "nearly"]


async def test_awaited(mem: PgMem, engine: PGEngine) -> None:
    store = await aas_vectorstore(mem, user_id="u1", engine=engine, k=2)
    assert texts(await store.asimilarity_search("north")) == ["north", "nearly"]


def test_two_scopes_on_one_engine_never_meet(mem: PgMem, engine: PGEngine) -> None:
    stores = {
        name: as_vectorstore(mem, scope, engine=engine)
        for name, scope in (("u1", Scope("default", "u1")), ("u2", Scope("default", "u2")), ("x", Scope("other", "u1")))
    }
    for _ in range(7):  # past the driver's own preparing of statements
        for name, rows in {"u1": 5, "u2": 5, "x": 0}.items():
            found = stores[name].similarity_search("north", k=100)
            assert {document.metadata["session_id"] for document in found} <= {f"of {name}"}
            assert len(found) == rows
    mine = [str(document.id) for document in stores["u1"].similarity_search("north", k=100)]
    assert stores["u2"].get_by_ids(mine) == []
    assert len(stores["u1"].get_by_ids(mine)) == 5


def test_without_a_scope_the_view_is_empty(mem: PgMem, engine: PGEngine, dsn: str) -> None:
    store = as_vectorstore(mem, Scope("default", "u1"), engine=engine)
    assert len(store.similarity_search("north", k=9)) == 5
    plain = PGVectorStore.create_sync(engine, store.embeddings, "memories_m1", schema_name="pgmem")
    assert plain.similarity_search("north", k=9) == []  # on the connections that served the scoped one

    async def settings() -> Any:
        async with engine._pool.connect() as conn:
            sql = "SELECT current_setting('pgmem.tenant_id', true), current_setting('enable_indexscan')"
            return (await conn.execute(text(sql))).one()

    assert engine._loop is not None
    tenant, scans = asyncio.run_coroutine_threadsafe(settings(), engine._loop).result()
    assert not tenant
    assert scans == "on"
    with psycopg.connect(dsn) as conn:
        for user, rows in (("", 0), ("u1", 0)):
            conn.execute("SELECT set_config('pgmem.user_id', %s, true)", [user])
            [(count,)] = conn.execute("SELECT count(*) FROM pgmem.memories_m1").fetchall()
            assert count == rows
        conn.execute("SELECT set_config('pgmem.tenant_id', 'default', true)")
        [(count,)] = conn.execute("SELECT count(*) FROM pgmem.memories_m1").fetchall()
        assert count == 5


def test_an_agent_of_the_scope_sees_his_own(mem: PgMem, engine: PGEngine) -> None:
    mem.session.create("bee", user_id="u1", agent_id="bee").add_turn("user", "honey")
    mem.form()
    found = as_vectorstore(mem, Scope("default", "u1", "bee"), engine=engine).similarity_search("north", k=9)
    assert texts(found) == ["honey"]
    assert len(as_vectorstore(mem, Scope("default", "u1"), engine=engine).similarity_search("north", k=9)) == 6


def test_the_view_refuses_every_write(mem: PgMem, engine: PGEngine, dsn: str) -> None:
    store = as_vectorstore(mem, Scope("default", "u1"), engine=engine)
    [found] = store.similarity_search("north", k=1)
    with pytest.raises(Exception, match="ON CONFLICT"):
        store.add_texts(["up"])
    with pytest.raises(Exception, match="read-only"):
        store.delete([str(found.id)])
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("SELECT set_config('pgmem.tenant_id', 'default', false), set_config('pgmem.user_id', 'u1', false)")
        for statement in (
            "INSERT INTO pgmem.memories_m1 (langchain_id, content) VALUES (gen_random_uuid(), 'up')",
            "UPDATE pgmem.memories_m1 SET content = 'up'",
            "DELETE FROM pgmem.memories_m1",
        ):
            with pytest.raises(psycopg.errors.FeatureNotSupported, match="read-only"):
                conn.execute(statement)
    assert len(store.similarity_search("north", k=9)) == 5


def test_what_no_longer_holds_is_not_shown(mem: PgMem, engine: PGEngine) -> None:
    session = mem.session.create("s", user_id="u1")
    session.observe("lives_in", "Lisbon", authority=Authority.user, evidence="crm")
    session.observe("lives_in", "Porto", authority=Authority.user, evidence="crm")
    mem.form()
    store = as_vectorstore(mem, Scope("default", "u1"), engine=engine)
    assert texts(store.similarity_search("north", k=20, filter={"kind": "fact"})) == ["lives in: Porto"]


def _plan(dsn: str, user: str, small: str) -> str:
    """The plan of PGVectorStore's own statement in a transaction of that scope."""
    with psycopg.connect(dsn) as conn:
        conn.execute(
            "SELECT set_config('pgmem.tenant_id', 'default', true), set_config('pgmem.user_id', %s, true),"
            " set_config('enable_indexscan', %s, true), set_config('hnsw.iterative_scan', 'strict_order', true)",
            [user, small],
        )
        rows = conn.execute(
            'EXPLAIN SELECT "langchain_id", "content", cosine_distance("embedding", %s) as distance'
            ' FROM "pgmem"."memories_m1" ORDER BY "embedding" <=> %s LIMIT 4',
            ["[1,0,0,0,0,0,0,0]"] * 2,
        ).fetchall()
    return "\n".join(row for (row,) in rows)


def test_c6_the_index_serves_a_large_scope_and_a_small_one_is_exact(dsn: str) -> None:
    """2,000 memories of u1, which count as many, all nearer to the query than any of u2's thirty."""
    random = np.random.default_rng(1)
    near = np.hstack([np.ones((2000, 1)), random.normal(scale=0.3, size=(2000, 7))]).astype(np.float32)
    far = np.hstack([-np.ones((30, 1)), random.normal(scale=0.3, size=(30, 7))]).astype(np.float32)
    embedder = FakeEmbedder({"north": unit(1, 0)})
    with PgMem(dsn, embedder=embedder) as mem, MemoryStore(dsn, embedder=embedder) as filling:
        for user, vectors in (("u1", near), ("u2", far)):
            filling.add_many(
                "default",
                [{"session_id": "s", "content": f"n{n}", "kind": "n", "embedding": v} for n, v in enumerate(vectors)],
                user_id=user,
            )
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("ANALYZE pgmem.records")
            conn.execute("UPDATE pgmem.scope_stats SET record_count = 6000 WHERE user_id = 'u1'")
        for user, vectors in (("u1", near), ("u2", far)):
            found = as_vectorstore(mem, Scope("default", user)).similarity_search_with_score("north", k=10)
            cosines = np.sort(vectors[:, 0] / np.linalg.norm(vectors, axis=1))[::-1]
            got = [1 - distance for _, distance in found]
            assert got == pytest.approx(cosines[:10].tolist(), abs=1e-4)
        assert "records_hnsw_m1" in _plan(dsn, "u1", "on")
        assert "records_hnsw_m1" not in _plan(dsn, "u2", "off")
        gc.collect()


# -- engines ---------------------------------------------------------------------------------------------------


@pytest.fixture
async def loopless(dsn: str) -> AsyncIterator[PGEngine]:
    pool = create_async_engine(dsn.replace("postgresql://", "postgresql+psycopg://"))
    yield PGEngine.from_engine(pool)
    await pool.dispose()


async def test_an_engine_without_a_sync_side(mem: PgMem, loopless: PGEngine) -> None:
    with pytest.raises(ConfigurationError, match=r"no sync side; await aas_vectorstore"):
        as_vectorstore(mem, Scope("default", "u1"), engine=loopless)
    store = await aas_vectorstore(mem, Scope("default", "u1"), engine=loopless)
    assert texts(await store.asimilarity_search("north", k=1)) == ["north"]


async def test_on_an_async_client_with_an_engine_of_its_own(dsn: str) -> None:
    async with AsyncPgMem(dsn, embedder=FakeEmbedder(COMPASS)) as mem:
        await mem.add("north", user_id="u1")
        await mem.form()
        store = await aas_vectorstore(mem, user_id="u1")
        assert texts(await store.asimilarity_search("north")) == ["north"]
        assert texts(await asyncio.to_thread(store.similarity_search, "north")) == ["north"]
        engine = store._engine
        del store
        gc.collect()
        assert engine._loop is not None
        # What was put on the loop before this has run when this has.
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asyncio.sleep(0.05), engine._loop))
        assert engine._pool.sync_engine.pool.checkedin() == 0  # type: ignore[attr-defined]


def test_no_scope_is_ever_everybody(mem: PgMem) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "user_id must be a string"),
        ({"scope": Scope("default", "")}, "user_id"),
        ({"scope": Scope("", "u1")}, "group_id"),
        ({"scope": {"user_id": "u1"}}, "scope must be a pgmem_core.Scope, got dict"),
        ({"scope": Scope("default", "u1"), "user_id": "u2"}, "both given"),
    ]
    for arguments, said in wrong:
        with pytest.raises(InvalidArgument, match=said):
            as_vectorstore(mem, **arguments)


def test_a_role_that_owns_nothing_is_told_who_must(mem: PgMem, dsn: str) -> None:
    mem.search("x", user_id="u1")
    with psycopg.connect(dsn, autocommit=True) as conn:
        role = f"reader_{conn.info.dbname}"
        conn.execute(f'CREATE ROLE "{role}" LOGIN')
        conn.execute(f'GRANT USAGE ON SCHEMA pgmem TO "{role}"')
        conn.execute(f'GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA pgmem TO "{role}"')
    try:
        plain = PgMem(dsn.replace("postgres@", f"{role}@"), embedder=FakeEmbedder(COMPASS))
        try:
            with pytest.raises(PermissionDenied, match=r"memories_m1 .*call as_vectorstore once on the owner's DSN"):
                as_vectorstore(plain, user_id="u1")
        finally:
            plain.close()
    finally:
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(f'DROP OWNED BY "{role}"')
            conn.execute(f'DROP ROLE "{role}"')
