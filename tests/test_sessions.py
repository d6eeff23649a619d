"""Sessions and turns through the public face, sync and async."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from pgmem_core import Conflict, InvalidArgument, NotFound
from tests.fix_memory import Face, Maker


async def test_a_turn_comes_back_whole(memory: Face) -> None:
    session = await memory.session.create(user_id="u1")
    at = datetime(2026, 3, 1, 9, 30, tzinfo=timezone(timedelta(hours=-8)))
    given = await session.add_turn(
        "assistant",
        [
            {"type": "text", "text": "Let me look."},
            {"type": "image", "url": "https://example.org/a.png", "alt": "a map"},
        ],
        id="msg-1",
        name="guide",
        tool_calls=[{"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q": "x"}'}}],
        metadata={"lang": "en", "rank": 3},
        created_at=at,
        extra={"usage": {"tokens": 12}},
    )
    [stored] = await session.turns()
    assert stored == given
    assert stored.content[1]["url"] == "https://example.org/a.png"
    assert stored.text == "Let me look.\n[image: a map]"
    assert (stored.role, stored.name, stored.seq) == ("assistant", "guide", 1)
    assert stored.tool_calls[0]["function"]["name"] == "find"
    assert stored.metadata == {"lang": "en", "rank": 3}
    assert stored.extra == {"usage": {"tokens": 12}}
    assert stored.created_at == at
    assert stored.created_at.tzinfo is UTC
    assert stored.as_message()["tool_calls"] == stored.tool_calls


async def test_an_object_with_content_is_taken(memory: Face) -> None:
    session = await memory.session.create(user_id="u1")
    turn = await session.add_turn("assistant", SimpleNamespace(content="from an object"))
    assert turn.text == "from an object"


async def test_a_retried_write_stores_once(memory: Face) -> None:
    session = await memory.session.create(user_id="u1")
    own = str(uuid.uuid4())
    first = await session.add_turn("user", "hello", id=own)
    again = await session.add_turn("user", "hello", id=own)
    named = [await session.add_turn("user", "hello", id="run-7") for _ in range(2)]
    assert first.id == again.id == own
    assert named[0] == named[1]
    assert [turn.seq for turn in await session.turns()] == [1, 2]


async def test_two_honest_oks_are_two_turns(memory: Face) -> None:
    session = await memory.session.create(user_id="u1")
    for _ in range(2):
        await session.add_turn("user", "ok")
        await session.add_turn("assistant", "ok")
    assert [turn.text for turn in await session.turns()] == ["ok"] * 4


async def test_an_id_of_another_session_is_refused(memory: Face) -> None:
    one, two = [await memory.session.create(user_id="u1") for _ in range(2)]
    own = uuid.uuid4()
    await one.add_turn("user", "hello", id=own)
    with pytest.raises(Conflict, match="in use in another session"):
        await two.add_turn("user", "hello", id=own)
    assert await two.turns() == []


async def test_seq_is_gapless_under_concurrent_writers(make_memory: Maker) -> None:
    memory = await make_memory(pool_size=16)
    session = await memory.session.create("busy", user_id="u1")

    async def write(writer: int) -> None:
        for i in range(10):
            turn_id = f"w{writer}-{i}"
            await session.add_turn("user", f"{writer}:{i}", id=turn_id)
            if i % 3 == 0:
                await session.add_turn("user", f"{writer}:{i}", id=turn_id)

    await asyncio.gather(*(write(writer) for writer in range(16)))
    turns = await session.turns()
    assert [turn.seq for turn in turns] == list(range(1, 161))
    for writer in range(16):  # each writer's own order is kept
        own = [turn.text for turn in turns if turn.text.startswith(f"{writer}:")]
        assert own == [f"{writer}:{i}" for i in range(10)]


async def test_a_batch_is_all_or_nothing(memory: Face) -> None:
    session = await memory.session.create(user_id="u1")
    with pytest.raises(InvalidArgument, match=r"turn 2 of 3: role 'robot' is unknown"):
        await session.add_turns(
            [{"role": "user", "content": "a"}, {"role": "robot", "content": "b"}, {"role": "user", "content": "c"}]
        )
    assert await session.turns() == []
    stored = await session.add_turns([{"role": "user", "content": str(i)} for i in range(50)])
    assert [turn.text for turn in stored] == [str(i) for i in range(50)]
    assert await session.add_turns([]) == []
    with pytest.raises(InvalidArgument, match="unknown key 'contents'"):
        await session.add_turns([{"role": "user", "contents": "a"}])


async def test_sessions_are_created_opened_got_listed_ended(memory: Face) -> None:
    minted = await memory.session.create(user_id="u1")
    assert uuid.UUID(minted.id).version == 7
    await memory.session.create("s", user_id="u1", metadata={"channel": "web"})
    with pytest.raises(Conflict, match="exists already"):
        await memory.session.create("s", user_id="u1")
    assert (await memory.session.open("s", user_id="u1")).id == "s"
    with pytest.raises(Conflict, match="another user"):
        await memory.session.open("s", user_id="u2")
    with pytest.raises(NotFound):
        await memory.session.get("nowhere")
    with pytest.raises(NotFound):
        await memory.session.get("s", user_id="u2")
    got = await memory.session.get("s")
    assert got.user_id == "u1"
    await got.add_turn("user", "hello")
    info = await got.info()
    assert (info.turn_count, info.metadata, info.ended_at) == (1, {"channel": "web"}, None)
    assert [one.session_id for one in await memory.session.list(user_id="u1")] == ["s", minted.id]
    ended = await memory.session.end("s")
    assert ended.ended_at is not None
    assert (await got.end()).ended_at == ended.ended_at


async def test_deleting_a_session_leaves_the_others(memory: Face) -> None:
    one, two = [await memory.session.create(user_id="u1") for _ in range(2)]
    await one.add_turn("user", "the zebra crossed the river")
    await two.add_turn("user", "the zebra slept")
    assert await one.delete() == 1
    assert [found.session_id for found in await memory.search("zebra", user_id="u1")] == [two.id]
    with pytest.raises(NotFound):
        await one.info()


async def test_a_session_without_a_user_recalls_itself_only(memory: Face) -> None:
    one, two = [await memory.session.create() for _ in range(2)]
    assert one.user_id is None
    await one.add_turn("user", "my parrot is called Quixote")
    assert [found.content for found in await one.search("parrot Quixote")] == ["my parrot is called Quixote"]
    assert await two.search("parrot Quixote") == []


async def test_a_turn_joins_the_callers_transaction(memory: Face, dsn: str) -> None:
    session = await memory.session.create(user_id="u1")

    async def add(connection: Any, text: str) -> Any:
        if memory.face == "async":
            return await session.target.add_turn("user", text, connection=connection)
        return session.target.add_turn("user", text, connection=connection)

    if memory.face == "sync":
        with psycopg.connect(dsn) as conn:
            await add(conn, "the violet giraffe")
            # Found by its words inside the transaction that wrote it, and nowhere else yet.
            assert conn.execute("SELECT count(*) FROM pgmem.postings").fetchone()[0] > 0  # type: ignore[index]
            assert await session.turns() == []
            conn.rollback()
            await add(conn, "kept")
    else:
        async with await psycopg.AsyncConnection.connect(dsn) as conn:
            await add(conn, "the violet giraffe")
            assert await session.turns() == []
            await conn.rollback()
            await add(conn, "kept")
    assert [(turn.seq, turn.text) for turn in await session.turns()] == [(1, "kept")]


async def test_turns_page_backwards(memory: Face) -> None:
    session = await memory.session.create(user_id="u1")
    await session.add_turns([{"role": "user", "content": f"t{i}"} for i in range(1, 11)])
    assert [turn.seq for turn in await session.turns(3)] == [8, 9, 10]
    assert [turn.seq for turn in await session.turns(3, before_seq=8)] == [5, 6, 7]
    with pytest.raises(InvalidArgument, match="limit"):
        await session.turns(-1)


async def test_the_window_never_parts_a_call_from_its_results(memory: Face) -> None:
    session = await memory.session.create(user_id="u1")
    call = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    await session.add_turns(
        [
            {"role": "user", "content": "find it"},
            {"role": "assistant", "content": "", "tool_calls": call},
            {"role": "tool", "content": "found", "tool_call_id": "c1"},
            {"role": "assistant", "content": "here it is"},
            {"role": "user", "content": "thanks"},
            {"role": "assistant", "content": "welcome"},
        ]
    )
    for count in range(1, 7):
        window = await session.window(max_turns=count)
        assert window[0].role != "tool"
        assert any(turn.text == "thanks" for turn in window), count
        assert len(window) <= count
    small = await session.window(budget_tokens=1)
    assert [turn.text for turn in small] == ["thanks"]
    assert len(await session.window()) == 6


async def test_the_plain_verbs(memory: Face) -> None:
    [turn] = await memory.add("I am allergic to walnuts", user_id="u1", metadata={"topic": "health"})
    await memory.add(
        [{"role": "user", "content": "I play the cello"}, {"role": "assistant", "content": "Lovely"}], user_id="u1"
    )
    await memory.add("I am allergic to bees", user_id="u2")
    await memory.form()
    assert (await memory.search("walnuts allergy", user_id="u1"))[0].content == "I am allergic to walnuts"
    assert [str(text) for text in await memory.get_all(user_id="u1", filter={"topic": "health"})] == [
        "I am allergic to walnuts"
    ]
    changed = await memory.update(turn.id, "I am allergic to hazelnuts")
    assert changed == "I am allergic to hazelnuts"
    assert changed.id == turn.id
    assert (await memory.search("hazelnuts", user_id="u1"))[0].id == turn.id
    assert all(found.parts.bm25 == 0 for found in await memory.search("walnuts", user_id="u1"))
    await memory.form()
    [found] = [one for one in await memory.search("hazelnuts", user_id="u1") if one.id == turn.id]
    assert found.parts.cosine is not None
    events = await memory.history(turn.id)
    assert [(event["event"], event["new_memory"]) for event in events] == [
        ("ADD", "I am allergic to walnuts"),
        ("UPDATE", "I am allergic to hazelnuts"),
    ]
    assert await memory.delete(turn.id, user_id="u2") is False
    assert await memory.delete(turn.id) is True
    assert await memory.delete(turn.id) is False
    assert [(event["event"], event["old_memory"], event["new_memory"]) for event in await memory.history(turn.id)] == [
        ("UPDATE", None, None),
        ("DELETE", None, None),
    ]
    assert [str(text) for text in await memory.get_all(user_id="u1")] == ["Lovely", "I play the cello"]
    with pytest.raises(NotFound):
        await memory.update(uuid.uuid4(), "x")


async def test_the_sql_view_reads_and_refuses_writes(memory: Face, dsn: str) -> None:
    await memory.add("I play the cello", user_id="u1")
    with psycopg.connect(dsn, autocommit=True) as conn:
        columns = [c.name for c in conn.execute("SELECT * FROM pgmem.memories").description or ()]
        assert columns == [
            "id", "tenant_id", "session_id", "content", "embedding", "kind", "created_at", "invalidated_at",
        ]  # fmt: skip
        assert conn.execute("SELECT content FROM pgmem.memories").fetchall() == [("I play the cello",)]
        for statement in (
            "INSERT INTO pgmem.memories (tenant_id, content) VALUES ('t', 'x')",
            "UPDATE pgmem.memories SET content = 'x'",
            "DELETE FROM pgmem.memories",
        ):
            with pytest.raises(psycopg.errors.FeatureNotSupported, match="read-only"):
                conn.execute(statement)
