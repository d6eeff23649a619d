"""What was stored is there after a restart: a new store on the same DSN, a killed server, a new process."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pgmem_core import AsyncMemoryStore, AsyncPgMem, MemoryStore
from pgmem_core.database.embedded import EmbeddedPostgres
from tests.fix_postgres import PostgresServer

E1 = [0.1, 0.7, -0.2, 0.4]
QUERY = [0.1, 0.6, -0.1, 0.4]


def write(store: MemoryStore) -> None:
    store.add("t1", "s1", "My name is Ada", E1, kind="fact")
    store.add("t1", "s1", "Hello there", E1)


def check(store: MemoryStore) -> None:
    results = store.similar("t1", QUERY, limit=1, kind="fact")
    assert "Ada" in results[0]
    assert results[0].kind == "fact"
    assert (results[0].score or 0) > 0.9
    turns = store.recent_turns("t1", "s1", limit=5)
    assert turns == ["Hello there"]
    assert store.similar("t2", QUERY, limit=1, kind="fact") == []


def test_a_new_store_on_the_same_dsn(dsn: str) -> None:
    store = MemoryStore(dsn)
    write(store)
    store.close()
    store2 = MemoryStore(dsn)
    check(store2)
    store2.close()


async def test_a_new_store_on_the_same_dsn_awaited(dsn: str) -> None:
    async with AsyncMemoryStore(dsn) as store:
        await store.add("t1", "s1", "My name is Ada", E1, kind="fact")
        await store.add("t1", "s1", "Hello there", E1)
    async with AsyncMemoryStore(dsn) as store2:
        results = await store2.similar("t1", QUERY, limit=1, kind="fact")
        assert "Ada" in results[0]
        assert await store2.recent_turns("t1", "s1", limit=5) == ["Hello there"]


@pytest.mark.parametrize("wheel_settings", [{"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}])
def test_the_server_killed_in_between(wheel_settings: dict[str, str]) -> None:
    server = PostgresServer(18, wheel_settings)
    try:
        dsn = server.dsn("postgres")
        store = MemoryStore(dsn)
        write(store)
        server.kill()
        server.start()
        check(store)  # the same object: its connections were lost, one retry finds the new server
        store.close()
        store2 = MemoryStore(dsn)
        check(store2)
        store2.close()
    finally:
        server.destroy()


def test_the_embedded_server_killed_in_between(tmp_path: Path) -> None:
    program = """
        import os, signal, sys
        from pgmem_core import MemoryStore, PgMem
        mem = PgMem.embedded(sys.argv[1])
        mem.session.open("s1", user_id="ada").add_turn("user", "My name is Ada")
        [pid] = [int(line) for line in open(sys.argv[1] + "/pgdata/postmaster.pid").read().split()[:1]]
        os.kill(pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    path = str(tmp_path / "memory")
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program), path], check=False, capture_output=True)
    assert done.returncode == -9, done.stderr.decode()
    with EmbeddedPostgres(path) as server, MemoryStore(server.dsn) as store:
        assert store.recent_turns("default", "s1") == ["My name is Ada"]


async def test_the_snippet_of_the_front_page(dsn: str) -> None:
    """The main road, as it is written there, with a model that answers."""
    seen = []

    async def your_model(messages: list[dict[str, object]]) -> str:
        seen.append(messages)
        return "Hello Ada"

    user_text = "Hi, I am Ada"
    mem = AsyncPgMem(dsn)
    await mem.setup()
    session = await mem.session.create(group_id="acme", user_id="u_123")
    ctx = await session.compile_context(query=user_text)
    reply = await your_model(ctx.messages)
    turn = await session.add_turn(role="assistant", content=reply)
    ctx = await session.compile_context(query="what is my name?", injected_context=["subscription: active"])
    assert turn.seq == 2
    assert seen[0][-1] == {"role": "user", "content": user_text}
    assert [message["content"] for message in ctx.messages if message["role"] == "assistant"] == ["Hello Ada"]
    assert "subscription: active" in str(ctx.messages[-2]["content"])
    await mem.close()
