"""Behind PgBouncer in transaction mode (D4): no errors with the setting for it, nothing left on shared connections."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from pgmem_core import ConfigurationError
from tests.fix_memory import Face, Maker
from tests.fix_postgres import PostgresServer
from tests.pooler import pgbouncer

TASKS, ROUNDS = 8, 5
# What pgmem sets, on its functions and in its setup; whoever gets the connection next must not see it.
# (application_name is a label of the startup packet, which PgBouncer itself carries from client to client.)
SETTINGS = (
    "search_path", "hnsw.ef_search", "hnsw.iterative_scan", "enable_sort", "enable_seqscan", "enable_hashjoin",
    "enable_mergejoin", "jit", "plan_cache_mode", "default_transaction_isolation", "client_encoding",
)  # fmt: skip


@pytest.fixture
def pooled(server: PostgresServer, dsn: str) -> Iterator[str]:
    with pgbouncer(server, dsn, mode="transaction", pool_size=4) as through:
        yield through


def seen(dsn: str) -> list[dict[str, Any]]:
    """What a stranger finds on each of the shared connections, all held at once."""
    connections = [psycopg.connect(dsn, prepare_threshold=None) for _ in range(4)]
    try:
        found = []
        for conn in connections:
            conn.execute("SELECT '[1]'::vector")  # loads the library, so that its settings are known
            values = {name: conn.execute(f"SHOW {name}".encode()).fetchone() for name in SETTINGS}
            [(prepared, locks, temporary)] = conn.execute(
                """SELECT (SELECT count(*) FROM pg_prepared_statements),
                          (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'),
                          (SELECT count(*) FROM pg_class WHERE relpersistence = 't')"""
            )
            found.append(values | {"prepared": prepared, "locks": locks, "temporary": temporary})
        assert len({conn.info.backend_pid for conn in connections}) == 4
        return found
    finally:
        for conn in connections:
            conn.close()


async def mixed(memory: Face, task: int) -> int:
    """Five operations a round, each of another kind; returns how many were made."""
    session = await memory.session.open(f"s{task}", user_id=f"u{task}")
    for number in range(ROUNDS):
        text = f"task {task} likes jazz number {number}"
        context = await session.compile_context(text)
        assert context.messages[-1]["content"] == text
        await session.add_turn("assistant", f"noted {number}")
        assert len(await session.turns()) == 2 * (number + 1)
        found = await memory.search("jazz", user_id=f"u{task}")
        assert {one.content.split(" likes")[0] for one in found if one.role == "user"} == {f"task {task}"}
        assert (await memory.form(group_id="default")).errors == {}
    return 5 * ROUNDS


async def test_d4_mixed_operations_through_transaction_pooling(make_memory: Maker, pooled: str) -> None:
    before = seen(pooled)
    memory = await make_memory(dsn=pooled, pooler="pgbouncer")
    counts = await asyncio.gather(*(mixed(memory, task) for task in range(TASKS)))
    assert sum(counts) == 200
    assert [len(await memory.get_all(user_id=f"u{task}")) for task in range(TASKS)] == [2 * ROUNDS] * TASKS
    assert seen(pooled) == before


async def test_d4_batches_and_transactions_through_transaction_pooling(make_store: Maker, pooled: str) -> None:
    before = seen(pooled)
    store = await make_store(dsn=pooled, pooler="pgbouncer")

    async def fill(tenant: str) -> None:
        rows = [
            {"session_id": "s1", "content": f"{tenant} {n}", "embedding": [1.0, n], "kind": "fact"} for n in range(20)
        ]
        await store.add_many(tenant, rows)
        assert len(await store.similar(tenant, [1.0, 0.0], limit=30)) == 20
        assert await store.delete(tenant, kind="fact") == 20

    await asyncio.gather(*(fill(f"t{n}") for n in range(8)))
    assert seen(pooled) == before


async def test_d4_without_the_setting_the_error_names_it(make_memory: Maker, pooled: str) -> None:
    memory = await make_memory(dsn=pooled)
    session = await memory.session.open("s1", user_id="u1")

    async def read() -> None:
        for _ in range(20):
            await session.turns()

    # All are awaited: one still reading when the client closes would keep its connection from being closed.
    results = await asyncio.gather(*(read() for _ in range(TASKS)), return_exceptions=True)
    failures = [result for result in results if result is not None]
    assert failures
    assert {type(failure) for failure in failures} == {ConfigurationError}
    assert all("pooler='pgbouncer'" in str(failure) for failure in failures)


async def test_d4_setup_from_many_clients_at_once(make_memory: Maker, pooled: str) -> None:
    clients = [await make_memory(dsn=pooled, pooler="pgbouncer", setup=False) for _ in range(8)]
    await asyncio.gather(*(client.setup() for client in clients))
    assert all(found["locks"] == 0 for found in seen(pooled))
