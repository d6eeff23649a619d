"""A chat history on real Postgres: what comes back, what is stored once, what a window shows; LangChain's runner."""

from __future__ import annotations

import asyncio
import uuid
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import Runnable, RunnableLambda

from pgmem_core import AsyncPgMem, Conflict, InvalidArgument, PgMem
from pgmem_langchain import PgMemChatMessageHistory, close_clients
from pgmem_langchain.convert import NO_RESULT
from tests.fix_memory import Face, FakeEmbedder, Maker
from tests.langchain.messages import EVERY_KIND, messages

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # upstream's own deprecation
    from langchain_core.runnables.history import RunnableWithMessageHistory

# Raised by the constructor, and nothing to do with the history behind it.
runner = pytest.mark.filterwarnings("ignore:.*RunnableWithMessageHistory.*")


class Talk:
    """A history used as its face says: the sync methods (in a thread), or the async ones."""

    def __init__(self, memory: Face, session_id: Any = "s", **options: Any) -> None:
        self.history = PgMemChatMessageHistory(session_id, mem=memory.target, **options)
        self._sync = memory.face == "sync"

    async def add(self, *given: Any, **options: Any) -> None:
        if self._sync:
            await asyncio.to_thread(self.history.add_messages, list(given), **options)
        else:
            await self.history.aadd_messages(list(given), **options)

    async def read(self) -> list[BaseMessage]:
        if self._sync:
            return await asyncio.to_thread(lambda: self.history.messages)
        return await self.history.aget_messages()

    async def clear(self) -> None:
        await (asyncio.to_thread(self.history.clear) if self._sync else self.history.aclear())


H, A = HumanMessage, AIMessage


# -- what comes back -------------------------------------------------------------------------------------------


async def test_every_kind_of_message_comes_back_equal_and_in_order(memory: Face) -> None:
    talk = Talk(memory, user_id="u1")
    await talk.add(*EVERY_KIND)
    assert await talk.read() == EVERY_KIND
    assert [type(message) for message in await talk.read()] == [type(message) for message in EVERY_KIND]


@pytest.fixture
def sync_memory(dsn: str) -> Iterator[PgMem]:
    with PgMem(dsn, embedder=FakeEmbedder()) as mem:
        yield mem


# One memory for all examples: each has a session of its own.
@given(st.lists(messages, min_size=1, max_size=6))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_was_added_is_what_is_read(sync_memory: PgMem, batch: list[BaseMessage]) -> None:
    history = PgMemChatMessageHistory(str(uuid.uuid4()), mem=sync_memory, repair=False)
    seen: set[str | None] = set()
    once = [m for m in batch if not m.id or not (m.id in seen or seen.add(m.id))]  # type: ignore[func-returns-value]
    history.add_messages(batch)
    assert history.messages == once


async def test_e10_media_come_back_and_are_never_searched(make_memory: Maker) -> None:
    embedder = FakeEmbedder()
    memory = await make_memory(embedder=embedder)
    embedder.texts.clear()
    image = "iVBOR" + "A" * 3_000_000
    said = [
        H([{"type": "text", "text": "My cat Miso"}, {"type": "image", "base64": image, "mime_type": "image/png"}]),
        A([{"type": "reasoning", "reasoning": "so cute"}, {"type": "text", "text": "Lovely!"}]),
    ]
    talk = Talk(memory, user_id="u1")
    await talk.add(*said)
    assert await talk.read() == said
    await memory.form()
    assert any("My cat Miso" in text for text in embedder.texts)
    assert not any("iVBOR" in text or "so cute" in text for text in embedder.texts)
    [found, *_] = await memory.search("cat Miso", user_id="u1")
    assert found.content == "My cat Miso"


async def test_b2_b3_b4_text_and_numbers_that_postgres_dislikes(memory: Face) -> None:
    awkward = [
        H("a\x00b and the six characters \\u0000", additional_kwargs={"k\x00": {"deep": ["\x00", "\ud800"]}}),
        A("", tool_calls=[{"name": "f", "args": {"v": "x\x00"}, "id": "c", "type": "tool_call"}]),
        ToolMessage("r\x00", tool_call_id="c", artifact={"w": float("inf"), "text": "\\u0000"}),
    ]
    talk, other = Talk(memory, user_id="u1"), Talk(memory, "other", user_id="u1")
    await talk.add(*awkward)
    await other.add(H("the harbour opens at six"))
    assert await talk.read() == awkward
    assert await other.read() == [H("the harbour opens at six")]
    assert (await memory.search("harbour", user_id="u1"))[0].content == "the harbour opens at six"
    await talk.add(ToolMessage("n", tool_call_id="d", artifact={"v": float("nan")}))
    [*_, last] = await talk.read()
    assert isinstance(last, ToolMessage)
    assert str(last.artifact["v"]) == "nan"


async def test_e11_braces_in_messages_reach_the_model_byte_for_byte(memory: Face) -> None:
    text = '{"city": "{x}"} {{y}} %s ${z}'
    talk = Talk(memory)
    await talk.add(H(text), A(text))
    prompt = ChatPromptTemplate.from_messages([MessagesPlaceholder("past"), ("human", "{ask}")])
    made = prompt.invoke({"past": await talk.read(), "ask": text})
    assert [message.content for message in made.to_messages()] == [text, text, text]


# -- who and where ---------------------------------------------------------------------------------------------


AWKWARD = ["ticket#4711", "+4912345", "a-b", "a:b", "a b", "o'neil@example.org", "{x}", "用户1", "x" * 255, "7"]


async def test_a7_a10_any_string_is_a_session_id(memory: Face) -> None:
    talks = {name: Talk(memory, name, user_id=name) for name in AWKWARD}
    for name, talk in talks.items():
        await talk.add(H(name), A("hey"))
    for name, talk in talks.items():
        assert await talk.read() == [H(name), A("hey")]
        assert await Talk(memory, "another", user_id=name).read() == []
        await talk.clear()
        assert await talk.read() == []


@pytest.mark.parametrize("session_id", ["", " ", None, 7, "x" * 300])
def test_a10_no_session_id_is_never_a_shared_default(session_id: Any) -> None:
    with pytest.raises(InvalidArgument, match="session_id"):
        PgMemChatMessageHistory(session_id, mem=object())


async def test_a_session_is_its_users_alone(memory: Face) -> None:
    mine = Talk(memory, "s", user_id="u1")
    await mine.add(H("my secret"))
    for other in (Talk(memory, "s", user_id="u2"), Talk(memory, "s"), Talk(memory, "s", user_id="u1", group_id="g2")):
        assert await other.read() == []
    for other in (Talk(memory, "s", user_id="u2"), Talk(memory, "s")):
        with pytest.raises(Conflict):
            await other.add(H("hello"))
        with pytest.raises(Conflict):
            await other.clear()
    assert await mine.read() == [H("my secret")]


async def test_clearing_takes_back_one_conversation_and_no_other(memory: Face) -> None:
    talk, other = Talk(memory, "a", user_id="u1"), Talk(memory, "b", user_id="u1")
    await talk.add(H("the walnut cake is for Ines", id="1"), A("noted"))
    await other.add(H("the walnut tree is old"))
    await talk.clear()
    await talk.clear()  # nothing left to do
    assert await talk.read() == []
    assert [found.content for found in await memory.search("walnut", user_id="u1")] == ["the walnut tree is old"]
    assert await other.read() == [H("the walnut tree is old")]
    for _ in range(2):  # said again under its id, it is there again, once
        await talk.add(H("the walnut cake is for Ines", id="1"), A("noted", id="2"))
    assert await talk.read() == [H("the walnut cake is for Ines", id="1"), A("noted", id="2")]


def test_messages_can_be_set(sync_memory: PgMem) -> None:
    history = PgMemChatMessageHistory("s", mem=sync_memory)
    history.add_messages([H("a", id="1"), A("b"), H("c")])
    history.messages = [H("a", id="1"), A("B"), H("c", id="3")]
    assert history.messages == [H("a", id="1"), A("B"), H("c", id="3")]
    with pytest.raises(InvalidArgument):
        history.messages = [H("a"), RemoveMessage(id="1")]
    assert len(history.messages) == 3
    assert history.get_messages() == history.messages
    history.add_user_message("d")
    history.add_ai_message("e")
    assert str(history).endswith("Human: d\nAI: e")


async def test_e8_a_batch_with_something_unfit_stores_nothing(memory: Face) -> None:
    talk = Talk(memory)
    unfit: list[tuple[Any, str]] = [
        (RemoveMessage(id="x"), "message 2 is a RemoveMessage"),
        (7, "message 2 is of type int"),
        (ToolMessage("x", tool_call_id="c", artifact=[object()]), r'message 2 of 2: message\["artifact"\]\[0\] is of'),
    ]
    for bad, said in unfit:
        with pytest.raises(InvalidArgument, match=said):
            await talk.add(H("a"), bad)
    assert await talk.read() == []
    await talk.add(H("a"))
    assert await talk.read() == [H("a")]


async def test_e8_a_streamed_reply_is_read_as_the_message_it_made_up(memory: Face) -> None:
    talk = Talk(memory)
    streamed = AIMessageChunk("Hel", id="run-1") + AIMessageChunk("lo", id="run-1")
    await talk.add(H("hi"), streamed, {"role": "user", "content": "x"})
    assert await talk.read() == [H("hi"), A("Hello", id="run-1"), H("x")]


async def test_a_write_joins_the_applications_transaction(memory: Face, dsn: str) -> None:
    talk = Talk(memory)
    for keep in (False, True):
        if memory.face == "sync":
            with psycopg.connect(dsn) as conn:
                await talk.add(H("hi"), connection=conn)
                (conn.commit if keep else conn.rollback)()
        else:
            async with await psycopg.AsyncConnection.connect(dsn) as aconn:
                await talk.add(H("hi"), connection=aconn)
                await (aconn.commit if keep else aconn.rollback)()
        assert await talk.read() == ([H("hi")] if keep else [])


# -- E9: what is stored once -----------------------------------------------------------------------------------


async def test_e9_two_honest_exchanges_stay_four_rows(memory: Face) -> None:
    talk = Talk(memory)
    for _ in range(2):
        await talk.add(H("ok"), A("ok"))
    assert await talk.read() == [H("ok"), A("ok"), H("ok"), A("ok")]
    same = H("ok")
    await talk.add(same)
    await talk.add(same)  # without an id nothing says that it is the same
    assert len(await talk.read()) == 6


async def test_e9_a_repeated_id_is_stored_once(memory: Face) -> None:
    talk, copy = Talk(memory, "a", user_id="u1"), Talk(memory, "b", user_id="u1")
    said = [H("hi", id="0b0e8f0e-3f5e-4a0f-8d41-0c6e0f3f0b11"), A("ok", id="run-1"), H("more", id="m2")]
    await talk.add(said[0], said[0], said[1])
    await talk.add(said[1], said[2])
    await talk.add(A("other words", id="run-1"))  # the first stays
    assert await talk.read() == said
    await copy.add(*said)  # another session's copy is its own
    assert await copy.read() == said
    await talk.add(A("ok", id="run-2"))  # other ids, the same words: two messages
    assert len(await talk.read()) == 4


async def test_e9_a_client_that_sends_everything_each_time(memory: Face) -> None:
    """Five turns are ten rows, whether messages have ids, the model's replies alone, or replies lose theirs."""
    for ids in ("none", "replies", "all", "lost"):
        await _five_turns(memory, ids)


async def _five_turns(memory: Face, ids: str) -> None:
    talk = Talk(memory, ids)
    sent: list[BaseMessage] = []
    for turn in range(5):
        call = {"name": "f", "args": {"at": turn}, "id": f"c{turn}", "type": "tool_call"}
        human = H("ok", id=f"h{turn}" if ids == "all" else None)
        reply = A("ok", id=None if ids == "none" else f"r{turn}")
        if turn == 2:
            reply = A("", id=reply.id, tool_calls=[call])
        await talk.add(*sent, human, reply)
        sent += [human, reply.model_copy(update={"id": None}) if ids == "lost" else reply]
    stored = Talk(memory, ids, repair=False)
    assert [message.model_copy(update={"id": None}) for message in await stored.read()] == [
        message.model_copy(update={"id": None}) for message in sent
    ]  # fmt: skip


BATCHES: list[tuple[list[BaseMessage], int]] = [
    ([H("a"), A("b")], 4),  # as long as what is stored: said again
    ([H("a"), A("b"), H("c")], 3),  # longer, and begins with all of it
    ([H("a"), A("B"), H("c")], 5),  # a word differs
    ([H("a"), H("b"), H("c")], 5),  # a speaker differs
    ([H("a"), A("b", id="x"), H("c")], 3),  # what is stored has no id to contradict
    ([H("a"), A([{"type": "text", "text": "b"}]), H("c")], 5),  # blocks are not the text
    ([A("b"), H("a"), A("b"), H("c")], 6),
    ([H("a"), A("b"), H("a"), A("b"), H("c")], 5),
]


async def test_e9_what_counts_as_the_stored_session(memory: Face) -> None:
    for number, (batch, rows) in enumerate(BATCHES):
        talk = Talk(memory, f"s{number}")
        await talk.add(H("a"), A("b"))
        await talk.add(*batch)
        assert len(await talk.read()) == rows, batch


async def test_e9_ids_that_contradict_are_other_messages(memory: Face) -> None:
    talk = Talk(memory)
    await talk.add(H("a", id="1"), A("b", id="2"))
    await talk.add(H("a", id="1"), A("b", id="3"), H("c", id="4"))
    assert [message.id for message in await talk.read()] == ["1", "2", "3", "4"]


# -- E1: order -------------------------------------------------------------------------------------------------


async def test_e1_order_is_that_of_writing(memory: Face) -> None:
    talk = Talk(memory)
    batch = [H(f"batch {n}") for n in range(200)]
    await talk.add(*batch)

    async def write(writer: int) -> None:
        own = Talk(memory)
        for n in range(15):
            await own.add(H(f"{writer} {n}"))

    await asyncio.gather(*(write(writer) for writer in range(4)))
    read = await talk.read()
    assert read[:200] == batch
    assert len(read) == 260
    for writer in range(4):
        assert [m.text for m in read if m.text.startswith(f"{writer} ")] == [f"{writer} {n}" for n in range(15)]
    assert await talk.read() == read


# -- E3, E4: windows and repair --------------------------------------------------------------------------------


def call(*ids: str) -> AIMessage:
    return A("", tool_calls=[{"name": "f", "args": {}, "id": id, "type": "tool_call"} for id in ids])


def result(id: str) -> ToolMessage:
    return ToolMessage("42", tool_call_id=id)


SIX = [H("one"), call("x"), result("x"), A("two"), H("three"), A("four")]


def fit(read: Sequence[BaseMessage]) -> bool:
    """True if every result follows its call, and every call but the last is answered."""
    open_calls: set[str] = set()
    for message in read:
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in open_calls:
                return False
            open_calls.discard(message.tool_call_id)
        elif open_calls:
            return False
        if isinstance(message, AIMessage):
            open_calls = {str(one["id"]) for one in message.tool_calls}
    return True


async def test_e3_a_window_never_starts_with_a_result_and_holds_the_newest_human(memory: Face) -> None:
    await Talk(memory).add(*SIX)
    for limit in range(7):
        read = await Talk(memory, limit=limit).read()
        assert len(read) <= limit
        assert fit(read)
        assert [message for message in SIX if message in read] == read
        assert (H("three") in read) == (limit >= 1)
        assert (A("four") in read) == (limit >= 2)
    assert read == SIX


async def test_e3_while_tools_are_at_work(memory: Face) -> None:
    said = [H("first"), A("yes"), H("go"), call("x", "y"), result("y"), result("x")]
    await Talk(memory).add(*said)
    for limit in range(1, 7):
        read = await Talk(memory, limit=limit).read()
        assert H("go") in read
        assert fit(read)
    assert read == said


async def test_e6_the_request_survives_any_number_of_tool_steps(memory: Face) -> None:
    steps = [message for n in range(40) for message in (call(f"c{n}"), result(f"c{n}"))]
    await Talk(memory).add(H("count the boats"), *steps)
    read = await Talk(memory, limit=5).read()
    assert read == [H("count the boats"), *steps[-4:]]
    read = await Talk(memory, limit_tokens=60).read()
    assert read[0] == H("count the boats")
    assert 1 < len(read) < 20
    assert fit(read)


async def test_e3_a_window_by_tokens(memory: Face) -> None:
    await Talk(memory).add(*SIX)
    costs = {turn.text: turn.token_count for turn in await (await memory.session.get("s")).turns()}
    for tokens in (0, 1, 10, 20, 40, 100, 10_000):
        read = await Talk(memory, limit_tokens=tokens).read()
        assert H("three") in read
        assert fit(read)
        assert (read == SIX) == (tokens >= 100)
        assert sum(costs[message.text] for message in read) <= max(tokens, costs["three"])


async def test_a_window_over_a_long_session(memory: Face) -> None:
    said = [message for n in range(200) for message in (H(f"question {n}"), A(f"answer {n}"))]
    await Talk(memory).add(*said)
    assert await Talk(memory, limit=3).read() == said[-3:]
    assert await Talk(memory, limit=300).read() == said[-300:]
    assert await Talk(memory, limit_tokens=1 << 40).read() == said
    assert await Talk(memory, limit=100, limit_tokens=1 << 40).read() == said[-100:]


async def test_e4_a_lost_tool_result_does_not_spoil_the_conversation(memory: Face) -> None:
    talk = Talk(memory)
    await talk.add(H("go"), call("x"))
    assert await talk.read() == [H("go"), call("x")]  # under way
    await talk.add(H("are you there?"))
    missing = ToolMessage(NO_RESULT, tool_call_id="x", name="f", status="error")
    assert await talk.read() == [H("go"), call("x"), missing, H("are you there?")]
    await talk.add(result("x"))  # late
    await talk.add(A("I am."))
    assert await talk.read() == [H("go"), call("x"), result("x"), H("are you there?"), A("I am.")]
    rows = [H("go"), call("x"), H("are you there?"), result("x"), A("I am.")]
    assert await Talk(memory, repair=False).read() == rows


# -- LangChain's runner ----------------------------------------------------------------------------------------


def echo(given: Any) -> AIMessage:
    """A model that says what it was last told, and how many messages it saw."""
    said = given.to_messages() if hasattr(given, "to_messages") else list(given)
    return AIMessage(f"{len(said)}: {said[-1].text}")


def with_history(memory: Any, model: Runnable[Any, Any], **keys: str) -> Runnable[Any, Any]:
    def history(session_id: str) -> BaseChatMessageHistory:
        return PgMemChatMessageHistory(session_id, mem=memory)

    return RunnableWithMessageHistory(model, history, **keys)


def of(session: str) -> Any:
    return {"configurable": {"session_id": session}}


@runner
async def test_e9_five_turns_through_the_runner_are_ten_rows(memory: Face) -> None:
    prompt = ChatPromptTemplate.from_messages([("system", "Be kind."), MessagesPlaceholder("past"), ("human", "{ask}")])
    chains = {
        "keyed": with_history(
            memory.target, prompt | RunnableLambda(echo), input_messages_key="ask", history_messages_key="past"
        ),
        "list": with_history(memory.target, RunnableLambda(echo)),
    }
    for name, chain in chains.items():
        for turn in range(5):
            ask: Any = {"ask": f"hello {turn}"} if name == "keyed" else [H(f"hello {turn}")]
            if memory.face == "sync":
                reply = await asyncio.to_thread(chain.invoke, ask, of(name))
            else:
                reply = await chain.ainvoke(ask, of(name))
            before = 2 * turn + (2 if name == "keyed" else 1)
            assert reply.content == f"{before}: hello {turn}"
        read = await Talk(memory, name).read()
        assert [message.type for message in read] == ["human", "ai"] * 5
        assert [m.text for m in read[::2]] == [f"hello {turn}" for turn in range(5)]


@runner
async def test_e9_a_client_of_the_runner_that_sends_everything(memory: Face) -> None:
    chain = with_history(memory.target, RunnableLambda(echo))
    sent: list[BaseMessage] = []
    for turn in range(5):
        sent.append(H(f"hello {turn}"))
        if memory.face == "sync":
            sent.append(await asyncio.to_thread(chain.invoke, list(sent), of("s")))
        else:
            sent.append(await chain.ainvoke(list(sent), of("s")))
    assert len(await Talk(memory).read()) == 10


@runner
async def test_d10_twenty_sessions_at_once_on_one_pool(memory: Face) -> None:
    chain = with_history(memory.target, RunnableLambda(echo))
    asks: list[Any] = [[H(f"I am {n}")] for n in range(20)]
    where = [of(f"session {n}") for n in range(20)]
    if memory.face == "sync":
        await asyncio.to_thread(chain.batch, asks, where)
    else:
        await chain.abatch(asks, where)
    for n in range(20):
        assert [m.text for m in await Talk(memory, f"session {n}").read()] == [f"I am {n}", f"1: I am {n}"]


class Streaming(GenericFakeChatModel):
    """Streams word by word."""


def streaming(*replies: str) -> Streaming:
    return Streaming(messages=iter([AIMessage(reply) for reply in replies]))


@runner
async def test_d10_a_streamed_reply_is_stored_whole(memory: Face) -> None:
    chain = with_history(memory.target, streaming("the quick brown fox"))
    parts = []
    if memory.face == "sync":
        parts = await asyncio.to_thread(lambda: list(chain.stream([H("tell me")], of("s"))))
    else:
        parts = [part async for part in chain.astream([H("tell me")], of("s"))]
    assert len(parts) > 1
    read = await Talk(memory).read()
    assert [(type(message), message.text) for message in read] == [(H, "tell me"), (A, "the quick brown fox")]


@runner
async def test_d10_a_stream_broken_off_early_leaves_a_history_to_go_on_with(memory: Face) -> None:
    chain = with_history(memory.target, streaming("the quick brown fox", "here again"))

    if memory.face == "sync":
        stream = chain.stream([H("tell me")], of("s"))
        await asyncio.to_thread(next, stream)
        await asyncio.to_thread(stream.close)  # type: ignore[attr-defined]
        await asyncio.to_thread(chain.invoke, [H("again")], of("s"))
    else:
        stream = chain.astream([H("tell me")], of("s"))
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        await chain.ainvoke([H("again")], of("s"))
    read = await Talk(memory).read()
    assert [m.text for m in read[-2:]] == ["again", "here again"]
    assert all(isinstance(message, H | A) and not isinstance(message, AIMessageChunk) for message in read)


@runner
async def test_d10_awaiting_uses_no_blocking_connection(dsn: str) -> None:
    mem = PgMem(dsn, embedder=FakeEmbedder())
    chain = with_history(mem, RunnableLambda(echo))
    await chain.ainvoke([H("hi")], of("s"))
    await chain.abatch([[H("hi")], [H("ho")]], [of("a"), of("b")])
    assert mem._rt.database._sync is None
    assert len(await PgMemChatMessageHistory("s", mem=mem).aget_messages()) == 2
    mem.close()


# -- D8, D9: loops and threads ---------------------------------------------------------------------------------


async def test_d9_the_sync_face_works_inside_a_running_loop(dsn: str) -> None:
    async with AsyncPgMem(dsn, embedder=FakeEmbedder()) as mem:
        history = PgMemChatMessageHistory("s", mem=mem)
        history.add_messages([H("hi")])
        await history.aadd_messages([A("hey")])
        assert history.messages == [H("hi"), A("hey")] == await history.aget_messages()


def test_d8_one_history_in_one_loop_after_another(dsn: str) -> None:
    mem = AsyncPgMem(dsn, embedder=FakeEmbedder())
    history = PgMemChatMessageHistory("s", mem=mem)

    async def turn(n: int) -> int:
        await history.aadd_messages([H(str(n)), A(str(n))])
        return len(await history.aget_messages())

    assert [asyncio.run(turn(n)) for n in range(3)] == [2, 4, 6]
    assert len(history.messages) == 6
    asyncio.run(mem.close())


async def test_a_dsn_is_enough_and_shared_by_the_process(dsn: str) -> None:
    try:
        one = PgMemChatMessageHistory("s", dsn=dsn, user_id="u1")
        await asyncio.to_thread(one.add_messages, [H("hi")])
        other = PgMemChatMessageHistory("s", dsn=dsn, user_id="u1")
        assert await asyncio.to_thread(other.get_messages) == [H("hi")]
        assert one._rt is other._rt
    finally:
        await asyncio.to_thread(close_clients)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"mem": "postgresql://localhost/app"}, "mem must be a PgMem or an AsyncPgMem, got str; a DSN goes into dsn="),
        ({"mem": object(), "dsn": "postgresql://localhost/app"}, "mem and dsn were both given"),
        ({"mem": object(), "limit": -1}, "limit must be a whole number"),
        ({"mem": object(), "limit_tokens": 1.5}, "limit_tokens must be a whole number"),
        ({"mem": object(), "user_id": ""}, "user_id"),
    ],
)
def test_what_it_is_made_of_is_checked(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        PgMemChatMessageHistory("s", **arguments)


def test_its_repr_says_whose_it_is_and_reads_nothing(sync_memory: PgMem) -> None:
    history = PgMemChatMessageHistory("s", mem=sync_memory, user_id="u1")
    assert repr(history) == "PgMemChatMessageHistory('s', user_id='u1', group_id='default')"
    assert history.session_id == "s"


async def test_a_turn_of_the_session_is_a_message_of_the_history(memory: Face) -> None:
    """One conversation, whichever face of pgmem writes it: the query that was compiled, and turns."""
    session = await memory.session.create("s", user_id="u1")
    await session.compile_context("what is the plan?")
    await session.add_turn("assistant", "Porto", metadata={"x": 1})
    talk = Talk(memory, "s", user_id="u1")
    await talk.add(SystemMessage("be brief"))
    assert [(type(m), m.text) for m in await talk.read()] == [
        (H, "what is the plan?"), (A, "Porto"), (SystemMessage, "be brief"),
    ]  # fmt: skip
