"""The caller's own connections and engines: joined as they are, whatever their rows look like, and never committed or
rolled back for the caller (D13)."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row, namedtuple_row, tuple_row
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session as ORMSession

from pgmem_core import (
    AsyncMemoryStore,
    AsyncPgMem,
    BadVector,
    ConfigurationError,
    InvalidArgument,
    MemoryStore,
    NotFound,
    PgMem,
)
from tests.fix_memory import Face, FakeEmbedder, Maker

COUNT = "SELECT count(*) FROM pgmem.records"


def through_psycopg(dsn: str) -> str:
    return dsn.replace("postgresql://", "postgresql+psycopg://", 1)


async def settled(value: Any) -> Any:
    """The value itself in the blocking world, what it comes to in the other."""
    return await value if inspect.isawaitable(value) else value


class Given:
    """A caller's connection of any kind, with the three things that a test does to it."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def count(self) -> int:
        if isinstance(self.connection, psycopg.Connection | psycopg.AsyncConnection):
            cursor = await settled(self.connection.execute(COUNT))
            row = await settled(cursor.fetchone())
        else:
            row = (await settled(self.connection.execute(text(COUNT)))).one()
        return int(row["count"] if isinstance(row, dict) else row[0])

    async def commit(self) -> None:
        await settled(self.connection.commit())

    async def rollback(self) -> None:
        await settled(self.connection.rollback())


Opener = Callable[[str, str], Any]


def psycopg_with(**options: Any) -> Opener:
    @asynccontextmanager
    async def opened(face: str, dsn: str) -> AsyncIterator[Given]:
        if face == "sync":
            with psycopg.connect(dsn, **options) as conn:
                yield Given(conn)
        else:
            async with await psycopg.AsyncConnection.connect(dsn, **options) as conn:
                yield Given(conn)

    return opened


def alchemy_with(kind: str, **options: Any) -> Opener:
    @asynccontextmanager
    async def opened(face: str, dsn: str) -> AsyncIterator[Given]:
        where = through_psycopg(dsn)
        if face == "sync":
            engine = create_engine(where, poolclass=NullPool, **options)
            with engine.connect() if kind == "connection" else ORMSession(engine) as conn:
                yield Given(conn)
        else:
            aengine = create_async_engine(where, poolclass=NullPool, **options)
            async with aengine.connect() if kind == "connection" else AsyncSession(aengine) as conn:
                yield Given(conn)

    return opened


KINDS: dict[str, Opener] = {
    "psycopg": psycopg_with(),
    "psycopg tuple_row": psycopg_with(row_factory=tuple_row),
    "psycopg dict_row": psycopg_with(row_factory=dict_row),
    "psycopg namedtuple_row": psycopg_with(row_factory=namedtuple_row),
    "psycopg without prepared statements": psycopg_with(prepare_threshold=None),
    "psycopg prepared at once": psycopg_with(prepare_threshold=0),
    "SQLAlchemy connection": alchemy_with("connection"),
    "SQLAlchemy session": alchemy_with("session"),
}
AUTOCOMMIT: dict[str, Opener] = {
    "psycopg": psycopg_with(autocommit=True),
    "psycopg dict_row": psycopg_with(autocommit=True, row_factory=dict_row),
    "SQLAlchemy connection": alchemy_with("connection", isolation_level="AUTOCOMMIT"),
    "SQLAlchemy session": alchemy_with("session", isolation_level="AUTOCOMMIT"),
}


@pytest.fixture
async def both(make_memory: Maker, make_store: Maker) -> tuple[Face, Face]:
    memory = await make_memory(embedder=FakeEmbedder())
    await memory.session.open("s1", user_id="u1")
    store = await make_store(model="given")
    await store.delete("t1", await store.add("t1", "s1", "registers the model", [1.0, 0.0]))
    return memory, store


ROWS = [{"session_id": "s1", "content": f"row {n}", "embedding": [1.0, n], "kind": "fact"} for n in range(12)]


async def write(both: tuple[Face, Face], connection: Any) -> int:
    """Write through every door that takes a connection; returns how many records that makes."""
    memory, store = both
    session = memory.target.session.open("s1", user_id="u1")
    session = await settled(session)
    turn = await settled(session.add_turn("user", "one", connection=connection))
    assert turn.seq == 1
    turns = [{"role": "user", "content": "two"}, {"role": "assistant", "content": "three"}]
    assert [turn.seq for turn in await settled(session.add_turns(turns, connection=connection))] == [2, 3]
    await settled(store.target.add("t1", "s9", "four", [1.0, 0.0], connection=connection))
    await settled(store.target.add("t1", "s9", "five", [1.0, 1.0], kind="fact", connection=connection))
    await settled(store.target.add_many("t1", ROWS, connection=connection))  # by COPY
    return 5 + len(ROWS)


@pytest.mark.parametrize("kind", KINDS)
async def test_d13_writes_join_the_callers_transaction(both: tuple[Face, Face], face: str, dsn: str, kind: str) -> None:
    async with KINDS[kind](face, dsn) as given:
        assert await given.count() == 0
        written = await write(both, given.connection)
        assert await given.count() == written  # seen inside
        assert outside(dsn) == 0  # and nowhere else: not committed for the caller
        await given.rollback()
        assert outside(dsn) == 0 == await given.count()
        await write(both, given.connection)
        await given.commit()
        assert outside(dsn) == written
    memory, store = both
    assert [turn.text for turn in await (await memory.session.get("s1")).turns()] == ["one", "two", "three"]
    assert await store.similar("t1", [1.0, 0.0], 1, kind="turn") == ["four"]
    await memory.form()
    assert len(await memory.search("three", user_id="u1")) == 3


def outside(dsn: str) -> int:
    with psycopg.connect(dsn) as conn:
        [(count,)] = conn.execute(COUNT)
        return int(count)


@pytest.mark.parametrize("kind", AUTOCOMMIT)
async def test_d13_autocommit_is_all_or_nothing(both: tuple[Face, Face], face: str, dsn: str, kind: str) -> None:
    _, store = both
    async with AUTOCOMMIT[kind](face, dsn) as given:
        written = await write(both, given.connection)
        assert outside(dsn) == written == await given.count()
        # The first session's turn goes in, the second's session is another user's: neither stays.
        one, two = (dict(row, kind="turn", session_id=name) for row, name in zip(ROWS, ("a", "s1"), strict=False))
        with pytest.raises(Exception, match="another user"):
            await settled(store.target.add_many("default", [one, two], connection=given.connection))
        assert outside(dsn) == written


@pytest.mark.parametrize("kind", KINDS)
async def test_d13_a_refusal_leaves_the_callers_transaction_usable(
    both: tuple[Face, Face], face: str, dsn: str, kind: str
) -> None:
    memory, store = both
    async with KINDS[kind](face, dsn) as given:
        await settled(store.target.add("t1", "s1", "kept", [1.0, 0.0], connection=given.connection))
        with pytest.raises(BadVector):
            await settled(store.target.add("t1", "s1", "bad", [float("nan"), 0.0], connection=given.connection))
        session = await settled(memory.target.session.get("s1"))
        with pytest.raises(InvalidArgument):
            await settled(session.add_turn("user", "  ", connection=given.connection))
        with pytest.raises(NotFound):
            await settled(memory.target.session.get("no such session"))
        assert await given.count() == 1
        await given.commit()
    assert outside(dsn) == 1


async def test_d13_the_callers_settings_stay(both: tuple[Face, Face], face: str, dsn: str) -> None:
    async with KINDS["psycopg dict_row"](face, dsn) as given:
        connection = given.connection
        await write(both, connection)
        assert connection.row_factory is dict_row
        assert connection.autocommit is False
        assert connection.info.transaction_status == TransactionStatus.INTRANS
        cursor = await settled(connection.execute("SHOW search_path"))
        assert (await settled(cursor.fetchone())) == {"search_path": '"$user", public'}
        # What pgmem teaches its own cursors, the caller's do not know.
        cursor = await settled(connection.execute("SELECT embedding FROM pgmem.memories WHERE content = 'four'"))
        assert (await settled(cursor.fetchone())) == {"embedding": "[1,0]"}


async def test_d13_inside_a_savepoint(both: tuple[Face, Face], face: str, dsn: str) -> None:
    async with KINDS["psycopg"](face, dsn) as given:
        connection = given.connection
        if face == "sync":
            with connection.transaction(force_rollback=True):
                await write(both, connection)
        else:
            async with connection.transaction(force_rollback=True):
                await write(both, connection)
        assert await given.count() == 0
        written = await write(both, connection)
        await given.commit()
    assert outside(dsn) == written


async def test_d13_a_wrong_kind_is_refused_before_anything_is_written(
    both: tuple[Face, Face], face: str, dsn: str
) -> None:
    other = "async" if face == "sync" else "sync"
    wanted = r"psycopg\.Connection" if face == "sync" else r"psycopg\.AsyncConnection"
    _, store = both
    for kind in ("psycopg", "SQLAlchemy connection", "SQLAlchemy session"):
        async with KINDS[kind](other, dsn) as given:
            with pytest.raises(InvalidArgument, match=rf"connection= got .*joins .*{wanted}"):
                await settled(store.target.add("t1", "s1", "x", [1.0, 0.0], connection=given.connection))
    engine = create_engine("sqlite://")
    for wrong in (5, "postgresql://localhost/x", object(), engine):
        with pytest.raises(InvalidArgument, match=f"connection= got .*joins .*{wanted}"):
            await settled(store.target.add("t1", "s1", "x", [1.0, 0.0], connection=wrong))
    if face == "sync":
        with engine.connect() as conn, pytest.raises(ConfigurationError, match=r"sqlite\+pysqlite"):
            store.target.add("t1", "s1", "x", [1.0, 0.0], connection=conn)
    engine.dispose()
    assert outside(dsn) == 0


async def test_d13_reads_do_not_wait_for_the_callers_transaction(make_memory: Maker, face: str, dsn: str) -> None:
    memory = await make_memory(embedder=FakeEmbedder())
    session = await memory.session.open("s1", user_id="u1")
    await session.compile_context("do I like jazz?")
    inner = session.target
    async with KINDS["psycopg"](face, dsn) as given:
        await settled(inner.add_turn("assistant", "you do", connection=given.connection))
        await settled(inner.turns())  # all of these on this thread: waiting would be for ever
        await settled(inner.window())
        await settled(inner.compile_context("and tea?", store_query=False))
        await settled(inner.search("jazz"))
        await memory.session.open("s1", user_id="u1")
        await given.rollback()
    await memory.flush()
    assert [turn.text for turn in await session.turns()] == ["do I like jazz?"]  # the query outlives the rollback

    await session.compile_context("and tea?")
    async with KINDS["psycopg"](face, dsn) as given:
        await settled(inner.add_turn("assistant", "tea too", connection=given.connection))
        await given.commit()
    await memory.flush()
    assert [turn.text for turn in await session.turns()] == ["do I like jazz?", "and tea?", "tea too"]


async def test_d13_a_first_vector_in_a_transaction_that_has_written(
    make_memory: Maker, make_store: Maker, face: str, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The model's index cannot be built past the caller's open transaction, so it is left to a later setup."""
    memory, store = await make_memory(embedder=FakeEmbedder()), await make_store(model="new")
    session = (await memory.session.open("s1", user_id="u1")).target
    async with KINDS["psycopg"](face, dsn) as given:
        await settled(session.add_turn("user", "one", connection=given.connection))
        await settled(store.target.add("t1", "s1", "two", [1.0, 0.0], connection=given.connection))
        assert "not built yet" in caplog.text
        await given.commit()
    assert await store.similar("t1", [1.0, 0.0]) == ["two"]

    def built() -> bool:
        with psycopg.connect(dsn) as conn:
            return conn.execute("SELECT FROM pg_indexes WHERE indexname = 'records_hnsw_m2'").fetchone() is not None

    assert not built()
    await (await make_store(model="new")).add("t1", "s1", "three", [0.0, 1.0])
    assert built()


# -- engines of the caller's -------------------------------------------------------------------------------------


def recorded(engine: Engine) -> list[Connection]:
    from sqlalchemy import event

    seen: list[Connection] = []
    event.listen(engine, "engine_connect", seen.append)
    return seen


async def test_d13_the_callers_engine(face: str, dsn: str) -> None:
    engine: Engine | AsyncEngine
    if face == "sync":
        engine = create_engine(through_psycopg(dsn), pool_size=1, max_overflow=0)
        used = recorded(engine)
        memory, store = Face(PgMem(engine, embedder=FakeEmbedder()), face), Face(MemoryStore(engine, model="m"), face)
    else:
        engine = create_async_engine(through_psycopg(dsn), pool_size=1, max_overflow=0)
        used = recorded(engine.sync_engine)
        memory = Face(AsyncPgMem(engine, embedder=FakeEmbedder()), face)
        store = Face(AsyncMemoryStore(engine, model="m"), face)
    session = await memory.session.open("s1", user_id="u1")
    await session.add_turn("user", "I like jazz")
    if face == "sync":
        await session.compile_context("do I like jazz?")
        await memory.flush()
    await store.add("t1", "s1", "hello", [1.0, 0.0])
    assert await store.similar("t1", [1.0, 0.0]) == ["hello"]
    assert len(used) > 4
    await memory.close()
    await store.close()
    # Theirs goes on, at their own isolation level.
    if isinstance(engine, Engine):
        with engine.connect() as conn:
            assert conn.execute(text("SELECT 1")).scalar() == 1
            assert conn.get_isolation_level() == "READ COMMITTED"
            conn.rollback()
        engine.dispose()
    else:
        async with engine.connect() as aconn:
            assert (await aconn.execute(text("SELECT 1"))).scalar() == 1
            assert await aconn.get_isolation_level() == "READ COMMITTED"
            await aconn.rollback()
        await engine.dispose()


async def test_d13_queries_become_durable_on_an_async_engine(dsn: str) -> None:
    engine = create_async_engine(through_psycopg(dsn))
    memory = AsyncPgMem(engine, embedder=FakeEmbedder())
    session = await memory.session.open("s1", user_id="u1")
    await session.compile_context("do I like jazz?")
    await memory.flush()
    assert [turn.text for turn in await session.turns()] == ["do I like jazz?"]
    await memory.close()
    await engine.dispose()


@pytest.mark.parametrize("kind", [PgMem, AsyncPgMem, MemoryStore, AsyncMemoryStore])
def test_d13_what_is_neither_dsn_nor_engine_is_refused_at_construction(kind: Any) -> None:
    pools = pytest.importorskip("psycopg_pool")
    for pool in (pools.ConnectionPool("host=x", open=False), pools.NullConnectionPool("host=x", open=False)):
        with pytest.raises(ConfigurationError, match=r"dsn must be .*SQLAlchemy engine .*got psycopg_pool\.\w+"):
            kind(pool)
        pool.close()
    engine = create_engine("sqlite://")
    with pytest.raises(ConfigurationError, match=r"sqlite\+pysqlite; pgmem needs postgresql\+psycopg"):
        kind(engine)
    engine.dispose()
    with pytest.raises(ConfigurationError, match="dsn"):
        kind(dsn=5)


async def test_d13_the_other_worlds_engine(dsn: str) -> None:
    """An async engine's URL gives the sync side that the worker needs; a sync engine gives no async side."""
    engine, aengine = create_engine(through_psycopg(dsn)), create_async_engine(through_psycopg(dsn))
    with PgMem(aengine) as memory:
        memory.add("the cello", user_id="u1")
        assert [str(text) for text in memory.get_all(user_id="u1")] == ["the cello"]
    bare = create_async_engine("postgresql+psycopg://", async_creator=lambda: psycopg.AsyncConnection.connect(dsn))
    with pytest.raises(ConfigurationError, match="AsyncEngine"):
        PgMem(bare).setup()
    await bare.dispose()
    with pytest.raises(ConfigurationError, match="sync Engine"):
        await AsyncPgMem(engine).setup()
    engine.dispose()
    await aengine.dispose()


async def test_every_write_of_the_plain_verbs_joins(memory: Face, dsn: str) -> None:
    [turn] = await memory.add("I play the cello", user_id="u1")
    await memory.add("I like jazz", user_id="u2")

    async def writes(connection: Any) -> None:
        await memory.add("I play the flute", user_id="u1", connection=connection)
        await memory.update(turn.id, "I play the violin", connection=connection)
        await memory.delete_all(user_id="u2", connection=connection)
        session = await memory.session.create("inside", user_id="u3", connection=connection)
        await session.end(connection=connection)
        await session.delete(connection=connection)

    if memory.face == "sync":
        with psycopg.connect(dsn) as conn:
            await writes(conn)
            conn.rollback()
    else:
        async with await psycopg.AsyncConnection.connect(dsn) as aconn:
            await writes(aconn)
            await aconn.rollback()
    assert [str(text) for text in await memory.get_all(user_id="u1")] == ["I play the cello"]
    assert [str(text) for text in await memory.get_all(user_id="u2")] == ["I like jazz"]
    assert await memory.session.list(user_id="u3") == []
