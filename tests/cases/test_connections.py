"""Connections come and go, loops end, processes fork, many set up at once: memory goes on working."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any

import psycopg
import pytest

from pgmem_core import AsyncPgMem, ConfigurationError, MemoryStore, PgMem, StoreUnavailable
from pgmem_core.database import migrate
from tests.fix_memory import Face, FakeEmbedder, Maker
from tests.fix_postgres import PostgresServer
from tests.pooler import pgbouncer


def python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own, warnings as errors there too unless PYTHONWARNINGS says otherwise."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONWARNINGS": "error", **environment},
    )  # fmt: skip


def backends(dsn: str) -> list[int]:
    """Process ids of the server's ends of other connections to this database."""
    with psycopg.connect(dsn) as conn:
        rows = conn.execute(
            """SELECT pid FROM pg_stat_activity
               WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"""
        ).fetchall()
        return [row[0] for row in rows]


def cut(dsn: str) -> int:
    """End every other connection to this database, as an administrator or a failover would; returns how many."""
    found = backends(dsn)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) pid", (found,))
    while set(found) & set(backends(dsn)):
        time.sleep(0.002)
    return len(found)


# -- D1, D2: many at once ----------------------------------------------------------------------------------------

CROWD_OF_SETUPS = """
    import json, os, sys, traceback
    import numpy as np
    from pgmem_core import MemoryStore, PgMem, tokens

    class Tiny:
        model, dimensions, local, min_relevance = "tiny", 3, True, None
        def embed(self, texts):
            return np.ones((len(texts), 3), dtype=np.float32)
        async def aembed(self, texts):
            return self.embed(texts)

    tokens.warm()  # once here rather than in each child
    failures = []
    for number, dsn in enumerate(json.loads(sys.argv[1])):
        start_read, start_write = os.pipe()
        children = []
        for child in range(12):
            pid = os.fork()
            if pid == 0:
                try:
                    os.close(start_write)
                    mem = PgMem(dsn, embedder=Tiny()) if number % 2 else MemoryStore(dsn)
                    os.read(start_read, 1)  # the end of the pipe starts them all at once
                    mem.setup()
                    mem.setup()
                    mem.close()
                    os._exit(0)
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
            children.append(pid)
        os.close(start_read), os.close(start_write)
        failures += [number for pid in children if os.waitpid(pid, 0)[1] != 0]
    print(json.dumps(failures))
"""


def test_d1_twelve_processes_set_up_at_once(server: PostgresServer) -> None:
    """Six databases in turn: two half migrated, two that default to serializable transactions, each kind once for
    the store and once for the memory, which registers its embedder as well."""
    names = [f"pgmem_d1_{os.getpid()}_{n}" for n in range(6)]
    known = migrate.migrations()
    with psycopg.connect(server.admin_dsn, autocommit=True) as admin:
        try:
            for number, name in enumerate(names):
                admin.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'".encode())
                if number in (4, 5):
                    with pytest.MonkeyPatch.context() as older:
                        older.setattr(migrate, "migrations", lambda: known[:1])
                        with MemoryStore(server.dsn(name)):
                            pass
                if number in (2, 3):
                    admin.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = serializable".encode())
            done = python(CROWD_OF_SETUPS, json.dumps([server.dsn(name) for name in names]))
            assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr[-3000:]
            for number, name in enumerate(names):
                with psycopg.connect(server.dsn(name)) as conn:
                    versions = conn.execute("SELECT version FROM pgmem.schema_migrations ORDER BY version").fetchall()
                    models = conn.execute("SELECT name FROM pgmem.embedding_models").fetchall()
                assert [version for (version,) in versions] == [version for version, _, _ in known]
                assert models == ([("tiny",)] if number % 2 else [])
        finally:
            for name in names:
                admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode())


async def test_d1_twelve_tasks_set_up_at_once(make_memory: Maker, bare_dsn: str) -> None:
    clients = [await make_memory(dsn=bare_dsn, setup=False, embedder=FakeEmbedder()) for _ in range(12)]
    await asyncio.gather(*(client.setup() for client in clients))
    await asyncio.gather(*(client.setup() for client in clients))
    with psycopg.connect(bare_dsn) as conn:
        assert conn.execute("SELECT count(*) FROM pgmem.schema_migrations").fetchone() == (len(migrate.migrations()),)
        assert conn.execute("SELECT array_agg(name) FROM pgmem.embedding_models").fetchone() == (["fake"],)


async def test_d2_first_operations_at_once(make_memory: Maker, make_store: Maker, bare_dsn: str) -> None:
    memory = await make_memory(dsn=bare_dsn, setup=False, embedder=FakeEmbedder())
    found = await asyncio.gather(
        *(memory.search("anything", user_id="u1") for _ in range(3)),
        *(memory.get_all(user_id="u1") for _ in range(2)),
        memory.session.list(user_id="u1"),
        memory.add("hello", user_id="u2"),
        memory.form(group_id="another"),
    )
    assert found[:6] == [[]] * 6
    assert await memory.get_all(user_id="u2") == ["hello"]

    store = await make_store(dsn=bare_dsn, setup=False, schema_name="fresh", embedder=FakeEmbedder())
    ids = await asyncio.gather(*(store.add("t1", f"s{n}", f"text {n}") for n in range(8)))
    assert len(set(ids)) == 8 == await store.count("t1")


# -- D5: lost connections ----------------------------------------------------------------------------------------


async def test_d5_connections_that_were_cut(memory: Face, store: Face, dsn: str) -> None:
    session = await memory.session.open("s1", user_id="u1")
    for number in range(4):
        await asyncio.gather(*(session.turns() for _ in range(3)))  # several connections in the pool, all to be cut
        await store.count("t1")
        assert cut(dsn) >= 2
        await session.add_turn("user", f"turn {number}")
        assert cut(dsn) >= 1
        assert [turn.text for turn in await session.turns()] == [f"turn {n}" for n in range(number + 1)]
        await store.add("t1", "s1", f"text {number}", [1.0, number])
        assert cut(dsn) >= 1
        assert len(await store.similar("t1", [1.0, 0.0])) == number + 1
        context = await session.compile_context(store_query=False)
        assert len(context.sections["working"]) == number + 1
    assert len(backends(dsn)) <= 10  # no heap of dead ones


async def test_d5_connections_that_idled_out(make_memory: Maker, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as admin:
        name = admin.info.dbname
        admin.execute(f"ALTER DATABASE {name} SET idle_session_timeout = '200ms'".encode())
    memory = await make_memory()
    session = await memory.session.open("s1", user_id="u1")
    await session.add_turn("user", "before")
    await asyncio.sleep(0.5)
    assert backends(dsn) == []
    await session.add_turn("user", "after")
    await asyncio.sleep(0.4)
    assert [turn.text for turn in await session.turns()] == ["before", "after"]


async def test_d5_a_server_that_went_away(face: str, own_server: PostgresServer) -> None:
    async with opened(face, own_server.dsn("postgres"), embedder=FakeEmbedder()) as memory:
        session = await memory.session.open("s1", user_id="u1")
        await session.add_turn("user", "before")
        own_server.stop()
        with pytest.raises(StoreUnavailable, match="Postgres at"):
            await session.turns()
        own_server.start()
        assert [turn.text for turn in await session.turns()] == ["before"]
        own_server.kill()
        own_server.start()
        await session.add_turn("user", "after")
        assert [turn.text for turn in await session.turns()] == ["before", "after"]


class opened:  # noqa: N801 — reads as the function it is
    """`async with opened(face, dsn) as memory`: a client outside the fixtures, set up, closed at the end."""

    def __init__(self, face: str, dsn: str, **options: Any) -> None:
        self.memory = Face((PgMem if face == "sync" else AsyncPgMem)(dsn, **options), face)

    async def __aenter__(self) -> Face:
        await self.memory.setup()
        return self.memory

    async def __aexit__(self, *_: object) -> None:
        await self.memory.close()


# -- D8, D9, D11: event loops ------------------------------------------------------------------------------------


def test_d8_one_object_in_one_loop_after_another(dsn: str) -> None:
    memory = AsyncPgMem(dsn, embedder=FakeEmbedder())  # built where no loop runs, as at import

    async def first() -> None:
        await memory.add("I like jazz", user_id="u1", session_id="s1")
        await memory.form()

    async def later() -> int:
        found = await asyncio.gather(*(memory.search("jazz", user_id="u1") for _ in range(4)))
        assert [one[0].content for one in found] == ["I like jazz"] * 4
        return len(backends(dsn))

    asyncio.run(first())
    counts = [asyncio.run(later()) for _ in range(5)]
    assert max(counts) <= 5  # those of ended loops are closed, not heaped up

    async def last() -> None:
        await memory.close()

    asyncio.run(last())
    deadline = time.monotonic() + 5
    while backends(dsn) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert backends(dsn) == []


async def test_d8_two_loops_at_the_same_time(make_memory: Maker, dsn: str) -> None:
    memory = AsyncPgMem(dsn, embedder=FakeEmbedder())
    await memory.add("I like jazz", user_id="u1")
    errors: list[BaseException] = []

    def other_loop() -> None:
        async def body() -> None:
            for _ in range(10):
                assert len(await memory.search("jazz", user_id="u1")) == 1
            await memory.close()

        try:
            asyncio.run(body())
        except BaseException as exc:
            errors.append(exc)

    thread = threading.Thread(target=other_loop)
    thread.start()
    for _ in range(10):
        assert len(await memory.search("jazz", user_id="u1")) == 1
    await asyncio.to_thread(thread.join)
    assert errors == []
    assert len(await memory.search("jazz", user_id="u1")) == 1  # closing in the other loop closed the other's
    await memory.close()


async def test_d9_blocking_methods_in_a_running_loop(dsn: str) -> None:
    """As in a notebook: no nested loop, no patching of asyncio, and the loop goes on."""
    with PgMem(dsn, embedder=FakeEmbedder()) as memory:
        session = memory.session.open("s1", user_id="u1")
        context = session.compile_context("do I like jazz?")
        assert context.messages[-1]["content"] == "do I like jazz?"
        session.add_turn("assistant", "you do")
        memory.form()
        assert [turn.role for turn in session.turns()] == ["user", "assistant"]
        assert len(memory.search("jazz", user_id="u1")) == 2
        await asyncio.sleep(0)
    with MemoryStore(dsn) as store:
        store.add("t1", "s1", "hello", [1.0, 0.0])
        assert store.similar("t1", [1.0, 0.0]) == ["hello"]


def test_d11_windows_default_loop_is_refused_with_the_way_out(dsn: str) -> None:
    class ProactorEventLoop(asyncio.SelectorEventLoop):
        pass

    class Theirs(ProactorEventLoop):
        """As servers derive it."""

    async def body() -> None:
        await AsyncPgMem(dsn).setup()

    for kind in (ProactorEventLoop, Theirs):
        with (
            asyncio.Runner(loop_factory=kind) as runner,
            pytest.raises(ConfigurationError, match=r"ProactorEventLoop.*loop_factory=asyncio\.SelectorEventLoop"),
        ):
            runner.run(body())


# -- D12: forks --------------------------------------------------------------------------------------------------

FORKING = """
    import os, sys, threading, traceback
    from pgmem_core import PgMem

    mem = PgMem(sys.argv[1])
    mem.setup()
    mem.start()  # the worker's thread and its connection are there when the process forks
    session = mem.session.open("parent", user_id="u1")
    session.compile_context("does the parent like jazz?")
    session.add_turn("assistant", "it does")
    mem.search("jazz", user_id="u1")

    def calls(name):
        own = mem.session.open(name, user_id="u1")
        for n in range(10):
            own.compile_context(f"{name} asks {n}")
            own.add_turn("assistant", f"{name} hears {n}")
            assert len(own.turns()) == 2 * n + 2, own.turns()
            assert mem.search("jazz", user_id="u1"), n
            mem.session.list(user_id="u1")

    children = []
    for number in range(4):
        pid = os.fork()
        if pid == 0:
            try:
                if number % 2:
                    mem.start()
                calls(f"child {number}")
                mem.close()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        children.append(pid)
    calls("parent again")
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    calls("parent at last")
    report = mem.form()
    tls = mem._rt.database.run(lambda conn: conn.query("SELECT count(*) FROM pgmem.records"), single=True)
    mem.close()
    print(codes, report.errors, tls[0][0])
"""


def check_forks(dsn: str, through: str) -> None:
    # Python 3.12 and later warn of any fork in a process with threads; that is what is tried here.
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore:This process:DeprecationWarning", "-c",
         textwrap.dedent(FORKING), through],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == "[0, 0, 0, 0] {} 122"
    with psycopg.connect(dsn) as conn:
        assert conn.execute("SELECT count(*) FROM pgmem.pending_work").fetchone() == (0,)
        assert conn.execute("SELECT count(DISTINCT content) FROM pgmem.records").fetchone() == (122,)


def test_d12_forked_children(dsn: str) -> None:
    check_forks(dsn, dsn)


def test_d12_forked_children_over_tls(server: PostgresServer, dsn: str) -> None:
    # The wheel's Postgres has no TLS, so PgBouncer, a connection a session, ends it.
    with pgbouncer(server, dsn, mode="session", pool_size=50, tls=True) as through:
        with psycopg.connect(through) as conn:
            assert conn.pgconn.ssl_in_use
        check_forks(dsn, through)
