"""The query that compile_context was given is the user's turn: nothing lost, nothing twice."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import time

import pytest

from pgmem_core import AsyncPgMem, PgMem
from tests.fix_memory import Face, Maker


async def texts(session: Face) -> list[tuple[str, str]]:
    return [(turn.role, turn.text) for turn in await session.turns()]


async def test_the_reply_brings_the_query_before_it(memory: Face) -> None:
    session = await memory.session.create(user_id="u1")
    ctx = await session.compile_context("where is my parcel?")
    reply = await session.add_turn("assistant", "on its way")
    assert reply.seq == 2
    assert await texts(session) == [("user", "where is my parcel?"), ("assistant", "on its way")]
    assert (await session.turns())[0].id == ctx.query_id


async def test_an_explicit_write_lands_on_the_same_turn(memory: Face) -> None:
    session = await memory.session.create(user_id="u1")
    ctx = await session.compile_context("hello")
    turn = await session.add_turn("user", "hello", metadata={"channel": "web"}, id="own-1")
    assert (turn.id, turn.seq) == (ctx.query_id, 1)
    again = await session.add_turn("user", "hello", id="own-1")
    await session.add_turn("assistant", "hi")
    assert again.seq == 1
    assert await texts(session) == [("user", "hello"), ("assistant", "hi")]
    assert (await session.turns())[0].metadata == {"channel": "web"}


async def test_an_explicit_write_before_the_read_is_the_query(memory: Face) -> None:
    session = await memory.session.create(user_id="u1")
    turn = await session.add_turn("user", "hello")
    ctx = await session.compile_context("hello")
    await session.add_turn("assistant", "hi")
    assert ctx.query_id == turn.id
    assert [message["content"] for message in ctx.messages].count("hello") == 1
    assert await texts(session) == [("user", "hello"), ("assistant", "hi")]


async def test_the_same_words_later_are_another_turn(memory: Face) -> None:
    session = await memory.session.create(user_id="u1")
    for _ in range(3):
        await session.compile_context("ok")
        await session.add_turn("assistant", "done")
    assert await texts(session) == [("user", "ok"), ("assistant", "done")] * 3


async def test_two_reads_before_one_reply(memory: Face) -> None:
    session = await memory.session.create(user_id="u1")
    first = await session.compile_context("what is the plan?")
    second = await session.compile_context("what is the plan?")
    third = await session.compile_context("and the budget?")
    await session.add_turn("assistant", "here they are")
    assert first.query_id == second.query_id != third.query_id
    assert await texts(session) == [
        ("user", "what is the plan?"),
        ("user", "and the budget?"),
        ("assistant", "here they are"),
    ]


async def test_a_model_that_raises_loses_nothing(memory: Face) -> None:
    session = await memory.session.create(user_id="u1")

    async def turn() -> None:
        await session.compile_context("will this be lost?")
        raise RuntimeError("the model is down")

    with pytest.raises(RuntimeError):
        await turn()
    await memory.flush()
    assert await texts(session) == [("user", "will this be lost?")]


async def test_a_query_becomes_durable_without_another_call(memory: Face, dsn: str) -> None:
    session = await memory.session.create("s", user_id="u1")
    await session.compile_context("beside the model call")
    with PgMem(dsn) as other:
        deadline = time.monotonic() + 5
        while not (seen := other.session.get("s").turns()) and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
    assert [turn.text for turn in seen] == ["beside the model call"]


async def test_a_cancelled_task_loses_nothing(dsn: str) -> None:
    async with AsyncPgMem(dsn) as mem:
        session = await mem.session.create(user_id="u1")

        async def turn() -> None:
            await session.compile_context("cancelled?")
            await asyncio.sleep(60)

        task = asyncio.create_task(turn())
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await mem.flush()
        assert [turn.text for turn in await session.turns()] == ["cancelled?"]


def test_a_loop_that_ends_at_once_loses_nothing(dsn: str) -> None:
    program = """
        import asyncio, sys
        from pgmem_core import AsyncPgMem

        async def main():
            mem = AsyncPgMem(sys.argv[1])
            session = await mem.session.open("s", user_id="u1")
            await session.compile_context("the process ends here")
            raise SystemExit(3)

        asyncio.run(main())
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program), dsn], check=False, capture_output=True)
    assert done.returncode == 3, done.stderr.decode()
    with PgMem(dsn) as mem:
        assert [turn.text for turn in mem.session.get("s").turns()] == ["the process ends here"]


async def test_reading_and_writing_in_two_processes(make_memory: Maker) -> None:
    reader, writer = await make_memory(), await make_memory()
    session = await reader.session.create("s", user_id="u1")
    await session.compile_context("who replies?")
    await reader.flush()
    there = await writer.session.get("s")
    await there.add_turn("user", "who replies?")
    await there.add_turn("assistant", "another process")
    assert await texts(session) == [("user", "who replies?"), ("assistant", "another process")]
    # Both compile the same retried request before either has written it.
    one, two = await asyncio.gather(
        session.compile_context("sent twice by a nervous client"),
        there.compile_context("sent twice by a nervous client"),
    )
    await reader.flush()
    await writer.flush()
    await there.add_turn("assistant", "answered once")
    assert [text for _, text in await texts(session)].count("sent twice by a nervous client") == 1
    assert one.messages[-1] == two.messages[-1] == {"role": "user", "content": "sent twice by a nervous client"}


async def test_a_failing_database_keeps_the_query_for_the_next_write(memory: Face, dsn: str) -> None:
    import psycopg

    session = await memory.session.create("s", user_id="u1")
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("ALTER TABLE pgmem.postings RENAME TO hidden")
        conn.execute("CREATE VIEW pgmem.postings AS SELECT * FROM pgmem.hidden WHERE false")
        conn.execute("CREATE RULE no AS ON INSERT TO pgmem.postings DO INSTEAD SELECT 1/0")
        await session.compile_context("kept in mind")
        await asyncio.sleep(0.2)
        assert conn.execute("SELECT count(*) FROM pgmem.records").fetchone() == (0,)
        conn.execute("DROP VIEW pgmem.postings CASCADE")
        conn.execute("ALTER TABLE pgmem.hidden RENAME TO postings")
    await session.add_turn("assistant", "the database is back")
    assert await texts(session) == [("user", "kept in mind"), ("assistant", "the database is back")]


async def test_store_query_false_writes_nothing(memory: Face) -> None:
    session = await memory.session.create(user_id="u1")
    ctx = await session.compile_context("only looking", store_query=False)
    await memory.flush()
    assert ctx.query_id is None
    assert ctx.messages[-1]["content"] == "only looking"
    assert await session.turns() == []
