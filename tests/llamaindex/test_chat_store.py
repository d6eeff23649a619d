"""Chat stores over pgmem: each method in both forms, what is withdrawn, what survives it, where the memory is kept."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, TextBlock, ToolCallBlock
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.llms import MockLLM
from llama_index.core.memory import ChatMemoryBuffer, Memory
from llama_index.core.storage.chat_store.base_db import MessageStatus

import pgmem_llamaindex
from pgmem_core import AsyncPgMem, ConfigurationError, Conflict, InvalidArgument, PgMem, SubjectRef
from pgmem_llamaindex import PgMemAsyncChatStore, PgMemChatStore, close_memories, register_memory
from pgmem_llamaindex.handle import Handle
from tests.fix_memory import Face, Maker
from tests.llamaindex.fix_llamaindex import Store, contents, mixed

__all__ = ["mixed"]

ARCHIVED, ACTIVE = MessageStatus.ARCHIVED, MessageStatus.ACTIVE


def said(*texts: str) -> list[ChatMessage]:
    return [ChatMessage(role="assistant" if n % 2 else "user", content=text) for n, text in enumerate(texts)]


async def recalled(memory: Face, query: str, user_id: str = "u") -> set[str]:
    return {found.content for found in await memory.search(query, user_id=user_id, kind="turn")}


async def shown(memory: Face, session_id: str, user_id: str = "u") -> list[str]:
    session = await memory.session.open(session_id, user_id=user_id)
    context = await session.compile_context(None, recall_items=0, store_query=False)
    return [item.text for item in context.sections["working"].items]


# -- BaseChatStore ---------------------------------------------------------------------------------------------


async def test_messages_are_added_read_and_listed_by_session(memory: Face) -> None:
    store = Store(memory, user_id="u")
    assert await store.get_messages("nothing yet") == []
    for message in said("hello", "hi", "a b"):
        await store.add_message("s1", message)
    await store.add_message("s2", ChatMessage(content="other"))
    assert await store.get_messages("s1") == said("hello", "hi", "a b")
    assert await store.get_messages("s2") == [ChatMessage(content="other")]
    assert await store.get_keys() == ["s1", "s2"]
    first, again = await store.get_messages("s1"), await store.get_messages("s1")
    assert first[0] is not again[0]
    await store.add_message("s1", ChatMessage(content="put first"), 0)
    assert contents(await store.get_messages("s1")) == ["put first", "hello", "hi", "a b"]


async def test_messages_are_deleted_by_place_and_whole(memory: Face) -> None:
    store = Store(memory, user_id="u")
    await store.set_messages("s1", said("one", "two", "three", "four"))
    await store.set_messages("s2", said("stays"))
    assert (await store.delete_message("s1", 1)).content == "two"
    assert (await store.delete_last_message("s1")).content == "four"
    assert (await store.delete_message("s1", -2)).content == "one"
    assert [await store.delete_message("s1", place) for place in (1, -2, 99)] == [None, None, None]
    assert contents(await store.get_messages("s1")) == ["three"]
    assert contents(await store.delete_messages("s1")) == ["three"]
    assert await store.delete_messages("s1") is None
    assert await store.delete_last_message("s1") is None
    assert await store.delete_last_message("never heard of") is None
    assert await store.get_messages("s1") == []
    assert await store.get_keys() == ["s2"]
    assert await store.get_messages("s2") == said("stays")


async def test_f8_empty_batches_do_nothing_and_an_empty_set_clears_its_own_session_only(memory: Face) -> None:
    store = Store(memory, user_id="u")
    await store.set_messages("new", [])
    assert await store.get_keys() == []
    assert await memory.session.list(user_id="u") == []  # no session was made for nothing
    await store.set_messages("s1", said("one", "two"))
    await store.set_messages("s2", said("one", "two"))
    await store.set_messages("s1", [])
    assert await store.get_messages("s1") == []
    assert await store.get_messages("s2") == said("one", "two")
    await store.add_message("s1", ChatMessage(content="afresh"))
    assert contents(await store.get_messages("s1")) == ["afresh"]
    awaited = PgMemAsyncChatStore(memory.target, user_id="u") if memory.face == "async" else None
    if awaited is not None:
        await awaited.add_messages("s1", [])
        await awaited.set_messages("s3", [])
        await awaited.delete_messages("s3")
        assert await awaited.delete_oldest_messages("s1", 0) == []
        assert await awaited.archive_oldest_messages("s3", 5) == []
        assert await awaited.get_keys() == ["s1", "s2"]


# -- what set and delete leave ---------------------------------------------------------------------------------


async def rows(dsn: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as conn:
        return conn.execute(
            "SELECT seq, content, archived_at IS NULL, invalidated_at IS NULL, xmin::text FROM pgmem.records"
            " WHERE seq IS NOT NULL ORDER BY session_id, seq"
        ).fetchall()


async def test_an_identical_set_writes_nothing_and_a_longer_one_appends(memory: Face, dsn: str) -> None:
    store = Store(memory, user_id="u")
    call = ToolCallBlock(tool_call_id="c", tool_name="t", tool_kwargs={"x": 1.0, "big": 1e300, "nul": "\x00"})
    history = [
        ChatMessage(role="system", content="be brief"),
        ChatMessage(blocks=[TextBlock(text="see"), ImageBlock(image=b"\x00\x01")]),
        ChatMessage(role="assistant", blocks=[call], additional_kwargs={"n": 2**60}),
        ChatMessage(role="tool", content="done", additional_kwargs={"tool_call_id": "c"}),
    ]
    await store.set_messages("s", history)
    before = await rows(dsn)
    await store.set_messages("s", await store.get_messages("s"))
    assert await rows(dsn) == before
    await store.set_messages("s", [*history, ChatMessage(content="more")])
    after = await rows(dsn)
    assert after[:4] == before
    assert after[4][:4] == (5, "more", True, True)


async def test_set_keeps_the_common_beginning_and_withdraws_the_rest(memory: Face, dsn: str) -> None:
    store = Store(memory, user_id="u")
    await store.set_messages("s", said("my cat is Tom", "nice", "my dog is Rex", "good"))
    await memory.form()
    assert "my dog is Rex" in await recalled(memory, "dog Rex")
    session = await memory.session.get("s")
    turns = await session.turns()
    fact = await session.observe("pet.dog", "Rex", authority="user", evidence=turns[2])

    edited = said("my cat is Tom", "nice", "my dog is Max")
    await store.set_messages("s", edited)
    assert await store.get_messages("s") == edited
    assert [row[:4] for row in await rows(dsn)] == [
        (1, "my cat is Tom", True, True), (2, "nice", True, True), (3, "my dog is Rex", False, False),
        (4, "good", False, False), (5, "my dog is Max", True, True),
    ]  # fmt: skip
    await memory.form()
    # Neither in the window, nor among the turns, nor recalled; what stands is.
    assert await shown(memory, "s") == contents(edited)
    assert [turn.text for turn in await session.turns()] == contents(edited)
    assert [turn.text for turn in await session.window()] == contents(edited)
    found = await recalled(memory, "dog Rex Max")
    assert "my dog is Max" in found
    assert "my dog is Rex" not in found
    # The fact survives, and so does what it rests on.
    [kept] = await memory.facts(SubjectRef("user", "u"))
    assert (kept.id, kept.value) == (fact.id, "Rex")
    assert kept.evidence[0].turn_id == turns[2].id


async def test_a_withdrawn_turn_is_not_read_by_extraction(make_memory: Maker) -> None:
    read: list[str] = []

    class Reader:
        def extract(self, turns: Any, known: Any = ()) -> list[Any]:
            read.extend(turn.text for turn in turns)
            return []

        async def aextract(self, turns: Any, known: Any = ()) -> list[Any]:
            return self.extract(turns)

    memory: Face = await make_memory(extractor=Reader())
    store = Store(memory, user_id="u")
    await store.set_messages("s", said("my cat is Tom", "a lovely name", "my dog is Rex"))
    await store.set_messages("s", said("my cat is Tom"))
    await memory.form()
    assert "my cat is Tom" in read
    assert "my dog is Rex" not in read


async def test_the_window_is_as_wide_as_if_the_withdrawn_had_never_been(make_memory: Maker) -> None:
    memory: Face = await make_memory(window_turns=20)
    store = Store(memory, user_id="u")
    kept = [ChatMessage(content=f"kept number {n}") for n in range(8)]
    await store.set_messages(
        "s", [*kept, *(ChatMessage(content=f"thrown away {n} " + "word " * 200) for n in range(60))]
    )
    await store.set_messages("s", [*kept, ChatMessage(content="the last")])
    assert await shown(memory, "s") == [*contents(kept), "the last"]
    more = [ChatMessage(content=f"later {n}") for n in range(16)]
    for message in more:
        await store.add_message("s", message)
    window = await shown(memory, "s")
    assert window == [*contents(kept), "the last", *contents(more)][-len(window) :]
    assert 10 <= len(window) <= 20
    # The newest stays however long, also where turns after it were withdrawn.
    await store.set_messages("s", [ChatMessage(content="long " * 9_000)])
    await store.add_message("s", ChatMessage(content="taken back"))
    await store.delete_last_message("s")
    assert (await shown(memory, "s"))[0].startswith("long long")


async def test_a_message_withdrawn_and_said_again_is_a_turn_of_its_own(memory: Face, dsn: str) -> None:
    store = Store(memory, user_id="u")
    for _ in range(3):
        await store.set_messages("s", said("hello", "hi"))
        await store.set_messages("s", [])
    await store.set_messages("s", said("hello", "hi"))
    assert await store.get_messages("s") == said("hello", "hi")
    assert len(await rows(dsn)) == 8


async def test_concurrent_sets_leave_one_of_the_histories_whole(memory: Face) -> None:
    store = Store(memory, user_id="u")
    histories = [[ChatMessage(content=f"{writer} says {n}") for n in range(5)] for writer in range(6)]
    await asyncio.gather(*(store.set_messages("s", history) for history in histories))
    assert await store.get_messages("s") in histories


async def test_a_bad_message_changes_nothing(memory: Face) -> None:
    store = Store(memory, user_id="u")
    await store.set_messages("s", said("one", "two"))
    with pytest.raises(InvalidArgument, match="turn 2 of 2"):
        await store.set_messages(
            "s", [ChatMessage(content="x"), ChatMessage(content="y", additional_kwargs={"o": {1: 2}})]
        )
    assert await store.get_messages("s") == said("one", "two")


# -- isolation and ids -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", ["a-b", "a:b", "o'neil@example.org", "{x}", "用户1", "x" * 255])
async def test_a7_any_id_is_an_id(memory: Face, user: str) -> None:
    store, key = Store(memory, user_id=user), f"ticket#{user}"[:255]
    await store.add_message(key, ChatMessage(content="mine alone"))
    assert contents(await store.get_messages(key)) == ["mine alone"]
    assert await store.get_keys() == [key]
    assert await Store(memory, user_id=f"{user[:-1]}!").get_messages(key) == []
    assert contents(await store.delete_messages(key)) == ["mine alone"]


async def test_one_users_key_is_empty_and_closed_to_another(memory: Face) -> None:
    ada, bob, nobody = Store(memory, user_id="ada"), Store(memory, user_id="bob"), Store(memory)
    await ada.set_messages("s", said("hers"))
    for other in (
        bob,
        nobody,
    ):
        assert await other.get_messages("s") == []
        assert await other.get_keys() == []
        for write in (other.set_messages("s", []), other.set_messages("s", said("x")), other.delete_messages("s")):
            with pytest.raises(Conflict, match="another user"):
                await write
    assert await Store(memory, user_id="ada", group_id="elsewhere").get_messages("s") == []
    assert await ada.get_messages("s") == said("hers")
    await nobody.set_messages("t", said("a scope of its own"))
    assert await nobody.get_keys() == ["t"]
    assert await ada.get_keys() == ["s"]


@pytest.mark.parametrize("key", ["", "  ", None, 7, "a\x00b", "x" * 256], ids=repr)
async def test_a_key_that_is_no_id_is_refused(memory: Face, key: Any) -> None:
    store = Store(memory, user_id="u")
    with pytest.raises(InvalidArgument, match="key"):
        await store.add_message(key, ChatMessage(content="x"))


async def test_a9_llamaindexs_default_key_is_refused(mixed: Face) -> None:
    buffer = ChatMemoryBuffer.from_defaults(chat_store=PgMemChatStore(mixed.target), token_limit=1000)
    with pytest.raises(InvalidArgument, match="chat_store_key"):
        await asyncio.to_thread(buffer.put, ChatMessage(content="alpha"))


@pytest.mark.parametrize("fields", [{"usr_id": "u"}, {"user_id": ""}, {"user_id": 7}, {"group_id": " "}], ids=repr)
@pytest.mark.parametrize("kind", [PgMemChatStore, PgMemAsyncChatStore])
def test_a_misspelt_or_empty_scope_is_refused(kind: Any, fields: dict[str, Any], dsn: str) -> None:
    with PgMem(dsn) as mem, pytest.raises(ValueError, match=next(iter(fields))):
        kind(mem, **fields)


async def test_b2_b5_text_that_others_stumble_over_comes_back(memory: Face) -> None:
    store = Store(memory, user_id="u")
    odd = said(
        "a\x00b", "<|endoftext|> and <|im_start|>", "\\u0000 as six characters", "{brace} {{x}} %s", "half \ud83d"
    )
    odd.append(ChatMessage(content="k", additional_kwargs={"a\x00b": {"\x00": "\x00"}, "nan": [float("inf")]}))
    await store.set_messages("s", odd)
    assert await store.get_messages("s") == odd


# -- in memories of LlamaIndex ---------------------------------------------------------------------------------


async def test_a_chat_memory_buffer_keeps_its_turns_here(mixed: Face) -> None:
    store = PgMemChatStore(mixed.target, user_id="u")
    buffer = ChatMemoryBuffer.from_defaults(chat_store=store, chat_store_key="s", token_limit=40)
    for message in said("the first of all", "yes", "and another one", "well", "the last"):
        await buffer.aput(message)
    assert contents(await buffer.aget())[-1] == "the last"
    assert len(await buffer.aget_all()) == 5
    buffer.put(ChatMessage(content="blocking, inside a running loop"))
    assert contents(buffer.get_all())[-1] == "blocking, inside a running loop"
    again = ChatMemoryBuffer.from_defaults(chat_store=PgMemChatStore(mixed.target, user_id="u"), chat_store_key="s")
    assert len(again.get_all()) == 6
    await buffer.areset()
    assert again.get_all() == []


async def test_f10_an_engine_saves_its_messages_in_order(mixed: Face) -> None:
    store = PgMemChatStore(mixed.target, user_id="u")
    buffer = ChatMemoryBuffer.from_defaults(chat_store=store, chat_store_key="s", token_limit=3000)
    engine = SimpleChatEngine.from_defaults(llm=MockLLM(), memory=buffer)
    await engine.achat("one")
    engine.chat("two")
    async for _ in (await engine.astream_chat("three")).async_response_gen():
        pass
    kept = store.get_messages("s")
    assert [message.role.value for message in kept] == ["user", "assistant"] * 3
    assert contents(kept)[::2] == ["one", "two", "three"]


async def test_llamaindexs_memory_keeps_its_queue_here_and_what_it_flushes_is_recalled(mixed: Face) -> None:
    store = PgMemAsyncChatStore(mixed.target, user_id="u")
    queue = Memory.from_defaults(
        session_id="s", token_limit=100, token_flush_size=30, chat_history_token_ratio=0.5, chat_store=store
    )
    for n in range(8):
        await queue.aput_messages(said(f"remember the number {n}, the colour green", f"that is number {n}"))
    active, archived = await store.get_messages("s"), await store.get_messages("s", ARCHIVED)
    assert archived
    assert contents(archived + active) == contents(await store.get_messages("s", status=None))
    assert contents(await queue.aget()) == contents(active)
    assert await queue.aget_all(status=None) == archived + active
    assert await shown(mixed, "s") == contents(active)
    session = await mixed.session.get("s")
    assert len(await session.turns()) == 16  # the whole conversation, as it was
    await mixed.form()
    assert contents(archived)[0] in await recalled(mixed, "number 0 green colour")
    context = await session.compile_context("number 0 colour green", store_query=False)
    assert any(str(archived[0].content) in item.text for item in context.sections["episodic"].items)
    await queue.areset()
    assert await store.count_messages("s", status=None) == 0


async def test_every_method_of_the_async_store(mixed: Face) -> None:
    store = PgMemAsyncChatStore(mixed.target, user_id="u")
    texts = [f"message {n}" for n in range(6)]
    await store.add_messages("s", said(*texts[:5]))
    await store.add_message("s", said(*texts)[5])
    assert await store.count_messages("s") == 6
    assert contents(await store.get_messages("s", limit=2)) == texts[:2]
    assert contents(await store.get_messages("s", offset=4)) == texts[4:]
    assert contents(await store.get_messages("s", limit=2, offset=3)) == texts[3:5]
    assert await store.get_messages("s", limit=0) == []
    assert contents(await store.archive_oldest_messages("s", 2)) == texts[:2]
    assert contents(await store.delete_oldest_messages("s", 1)) == texts[2:3]
    assert contents(await store.get_messages("s")) == texts[3:]
    assert contents(await store.get_messages("s", status=ARCHIVED)) == texts[:2]
    assert contents(await store.get_messages("s", status=None, limit=1, offset=2)) == texts[3:4]
    assert [await store.count_messages("s", status) for status in (ACTIVE, ARCHIVED, None)] == [3, 2, 5]
    await store.add_message("s", ChatMessage(content="filed at once"), status=ARCHIVED)
    assert contents(await store.get_messages("s", status=ARCHIVED)) == [*texts[:2], "filed at once"]
    assert (await store.delete_message("s", 0)).content == texts[3]  # type: ignore[union-attr]
    await store.set_messages("s", said("new"))
    assert contents(await store.get_messages("s", status=None)) == [*texts[:2], "filed at once", "new"]
    await store.set_messages("s", said("only this"), status=ARCHIVED)
    assert contents(await store.get_messages("s", status=None)) == ["new", "only this"]
    await store.delete_messages("s", status=ARCHIVED)
    assert contents(await store.get_messages("s", status=None)) == ["new"]
    assert await store.get_keys() == ["s"]
    await store.delete_messages("s")
    assert await store.get_keys() == []
    with pytest.raises(InvalidArgument, match="limit"):
        await store.get_messages("s", limit=-1)


# -- loops and connections -------------------------------------------------------------------------------------


async def test_blocking_calls_in_a_running_loop_keep_the_connections_flat(mixed: Face, dsn: str) -> None:
    plain = PgMemChatStore(mixed.target, user_id="u")
    queue = Memory.from_defaults(
        session_id="s", token_limit=9000, chat_store=PgMemAsyncChatStore(mixed.target, user_id="u")
    )

    def connections() -> int:
        with psycopg.connect(dsn) as conn:
            [(number,)] = conn.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgmem'"
            ).fetchall()
        return int(number)

    async def put(times: int) -> None:
        for n in range(times):
            queue.put(ChatMessage(content=f"by a loop that LlamaIndex makes for it {n}"))
            plain.add_message("s", ChatMessage(content=f"blocking {n}"))
            await plain.async_add_message("s", ChatMessage(content=f"awaited {n}"))

    await put(3)
    before = connections()
    await put(20)
    assert connections() <= before + 1
    assert len(plain.get_messages("s")) == 69


def test_one_store_serves_one_loop_after_another(dsn: str) -> None:
    mem = AsyncPgMem(dsn)
    store = PgMemChatStore(mem, user_id="u")
    for n in range(3):
        asyncio.run(store.async_add_message("s", ChatMessage(content=f"loop {n}")))
    assert contents(store.get_messages("s")) == ["loop 0", "loop 1", "loop 2"]
    asyncio.run(mem.close())


# -- where the memory is kept ----------------------------------------------------------------------------------


@pytest.fixture
def secret(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The test's database by a URL with a password, which nothing may show."""
    monkeypatch.delenv("PGMEM_DSN", raising=False)
    yield dsn + ("&" if "?" in dsn else "?") + "password=hunter2"
    close_memories()


def test_nothing_that_is_written_out_holds_a_secret_and_it_is_found_again(
    secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PgMemChatStore(dsn=secret, user_id="u")
    store.set_messages("s", said("kept"))
    buffer = ChatMemoryBuffer.from_defaults(chat_store=store, chat_store_key="s", token_limit=100)
    written = [
        repr(store), str(store), store.to_json(), str(store.model_dump()), repr(pickle.dumps(store)),
        buffer.to_string(), repr(store._handle),
    ]  # fmt: skip
    assert not [text for text in written if "hunter2" in text]
    for again in (
        PgMemChatStore.from_dict(store.to_dict()),
        PgMemChatStore.model_validate(store.model_dump(exclude={"class_name"})),
        pickle.loads(pickle.dumps(store)),
        copy.deepcopy(store),
        ChatMemoryBuffer.from_string(buffer.to_string()).chat_store,
    ):
        assert again.get_messages("s") == said("kept")
        assert again.model_dump() == store.model_dump()


def test_a_reference_says_what_is_missing_where_it_leads_nowhere(secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = PgMemChatStore(dsn=secret, user_id="u").to_dict()
    close_memories()
    again = PgMemChatStore.from_dict(written)  # connects to nothing yet
    with pytest.raises(ConfigurationError, match="PGMEM_DSN"):
        again.get_messages("s")
    monkeypatch.setenv("PGMEM_DSN", "postgresql://elsewhere.example/other")
    with pytest.raises(ConfigurationError, match="leads elsewhere"):
        again.get_messages("s")
    monkeypatch.setenv("PGMEM_DSN", secret)
    assert again.get_messages("s") == []

    with pytest.raises(ConfigurationError, match="MY_DATABASE"):
        PgMemChatStore(dsn="env:MY_DATABASE").get_messages("s")
    monkeypatch.setenv("MY_DATABASE", secret)
    mine = PgMemChatStore(dsn="env:MY_DATABASE", user_id="u")
    mine.set_messages("s", said("by name"))
    assert mine.model_dump()["reference"] == {"env": "MY_DATABASE"}
    assert PgMemChatStore(user_id="u").get_messages("s") == said("by name")  # PGMEM_DSN, the default


def test_a_registered_client_is_found_by_its_name(dsn: str) -> None:
    with PgMem(dsn, schema_name="another") as mem:
        store = PgMemChatStore(mem, user_id="u")
        assert store.model_dump()["reference"] == {"address": mem.dsn, "schema": "another"}
        register_memory("main", mem)
        assert store.model_dump()["reference"] == {"handle": "main"}
        assert Handle.restored({"handle": "main"}).mem is mem
        with pytest.raises(ConfigurationError, match="register_memory"):
            _ = Handle.restored({"handle": "other"}).mem
        for name, odd in (("", mem), ("main", "postgresql://x")):
            with pytest.raises(InvalidArgument):
                register_memory(name, odd)  # type: ignore[arg-type]
    for odd in ({}, {"dsn": "postgresql://x"}, "main"):
        with pytest.raises(InvalidArgument, match="reference"):
            Handle.restored(odd)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="not both"):
        Handle(mem, "postgresql://x")
    with pytest.raises(InvalidArgument, match="dsn="):
        Handle("postgresql://x")  # type: ignore[arg-type]


def test_a_new_process_reads_on_from_what_was_written_out(secret: str) -> None:
    """F9: building the memory anew keeps everything. And importing all there is prints nothing."""
    PgMemChatStore(dsn=secret, user_id="u").set_messages("s", said("one", "two", "three", "four"))
    written = PgMemChatStore(dsn="env:THE_DSN", user_id="u").to_json()
    program = (
        "import json, sys\n"
        "from pgmem_llamaindex import *\n"
        "store = PgMemChatStore.from_dict(json.loads(sys.argv[1]))\n"
        "print(json.dumps([message.content for message in store.get_messages('s')]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, written],
        env={"THE_DSN": secret, "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.stderr, done.returncode) == ("", 0)
    assert json.loads(done.stdout) == ["one", "two", "three", "four"]


def test_every_public_name_is_there() -> None:
    space: dict[str, Any] = {}
    exec("from pgmem_llamaindex import *", space)
    assert set(space) - {"__builtins__"} == set(pgmem_llamaindex.__all__)
    assert set(pgmem_llamaindex.__all__) <= set(dir(pgmem_llamaindex))
    with pytest.raises(AttributeError):
        _ = pgmem_llamaindex.nothing_of_that_name
