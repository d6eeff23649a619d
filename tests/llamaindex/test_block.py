"""`PgMemMemoryBlock` in LlamaIndex's own `Memory`: what it shows, what it keeps, and of whom."""

from __future__ import annotations

from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage, ToolCallBlock
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.memory import InsertMethod, Memory
from llama_index.core.storage.chat_store.base_db import MessageStatus
from pydantic import ValidationError

from pgmem_core import Conflict, InvalidArgument
from pgmem_core.tokens import count_tokens
from pgmem_llamaindex import PgMemAsyncChatStore, PgMemMemoryBlock
from pgmem_llamaindex.recalled import is_recalled
from tests.fix_memory import Face
from tests.llamaindex.fix_llamaindex import contents, mixed
from tests.llamaindex.scripted import Llama, texts

__all__ = ["mixed"]

NOTE = "My bicycle is green and stands in the yard"
QUESTION = ChatMessage(role="user", content="What colour is my bicycle?")


async def known(memory: Face, user_id: str | None = "u", session_id: str = "earlier") -> None:
    session = await memory.session.open(session_id, user_id=user_id)
    await session.add_turn("user", NOTE)
    await memory.form()


def queue(memory: Face, block: PgMemMemoryBlock, **options: Any) -> Memory:
    """LlamaIndex's memory of session "s", whose queue is kept beside pgmem's sessions."""
    return Memory.from_defaults(
        "s", memory_blocks=[block], chat_store=PgMemAsyncChatStore(memory.target, group_id="queues"),
        insert_method=InsertMethod.USER, **options,
    )  # fmt: skip


async def test_what_is_remembered_reaches_the_model_in_the_question(mixed: Face) -> None:
    await known(mixed)
    memory = queue(mixed, PgMemMemoryBlock(mixed.target, user_id="u"))
    llm = Llama(replies=["green", "yes"])
    engine = SimpleChatEngine.from_defaults(llm=llm, memory=memory)
    await engine.achat(str(QUESTION.content))
    await engine.achat("Is my bicycle in the yard?")
    for asked in llm.asked:
        assert NOTE in texts(asked)[-1]
        assert "\n".join(texts(asked)).count("<memory recalled ") == 1
    assert contents(await memory.aget_all()) == [QUESTION.content, "green", "Is my bicycle in the yard?", "yes"]


async def test_nothing_is_shown_where_nothing_is_relevant(mixed: Face) -> None:
    await known(mixed)
    block = PgMemMemoryBlock(mixed.target, user_id="u")
    football = ChatMessage(role="user", content="Explain the offside rule of football to a beginner")
    for messages in (None, [], [ChatMessage(role="assistant", content=NOTE)], [football]):
        assert await block.aget(messages, session_id="s") == ""
    shown = await block.aget([football, QUESTION], session_id="s")
    assert NOTE in shown
    assert is_recalled(shown)


@pytest.mark.parametrize(
    ("written", "read", "seen"),
    [
        (("u", "earlier"), ("u", "s"), True),
        (("someone else", "earlier"), ("u", "s"), False),
        (("u", "earlier"), (None, "s"), False),
        ((None, "earlier"), ("u", "s"), False),
        ((None, "earlier"), (None, "s"), False),
    ],
)
async def test_whose_memory_is_shown(
    mixed: Face, written: tuple[str | None, str], read: tuple[str | None, str], seen: bool
) -> None:
    """A user's sessions are one memory; a session without a user stands alone."""
    await known(mixed, *written)
    block = PgMemMemoryBlock(mixed.target, user_id=read[0])
    assert (NOTE in await block.aget([QUESTION], session_id=read[1])) is seen
    own = PgMemMemoryBlock(mixed.target, user_id=written[0], recall_items=3)
    await own.aput([ChatMessage(role="user", content=NOTE + " today")], session_id="flushed")
    assert NOTE + " today" in await own.aget([QUESTION], session_id="flushed")


async def test_another_users_session_is_refused(mixed: Face) -> None:
    await known(mixed, "someone else", "s")
    block = PgMemMemoryBlock(mixed.target, user_id="u")
    with pytest.raises(Conflict):
        await block.aget([QUESTION], session_id="s")
    with pytest.raises(Conflict):
        await block.aput([QUESTION], session_id="s")


async def test_what_the_queue_flushes_is_kept_once_and_found_again(mixed: Face) -> None:
    memory = queue(mixed, PgMemMemoryBlock(mixed.target, user_id="u"), token_limit=300, token_flush_size=60)
    told = [ChatMessage(role="user", content=NOTE), ChatMessage(role="assistant", content="I see")]
    told += [
        ChatMessage(role="user" if n % 2 == 0 else "assistant", content=f"number {n} of the walnuts") for n in range(40)
    ]
    await memory.aput_messages([message.model_copy(deep=True) for message in told])
    left = contents(await memory.aget_all(status=MessageStatus.ACTIVE))
    session = await mixed.session.get("s", user_id="u")
    flushed = await session.turns()
    assert [turn.text for turn in flushed] + left == contents(told)
    assert all(turn.extra == {} for turn in flushed)  # without the session that `Memory` notes on messages
    assert NOTE not in left
    await memory.aput(QUESTION)
    assert NOTE in texts(await memory.aget())[-1]


async def test_beside_a_store_of_pgmem_nothing_is_kept_twice(mixed: Face) -> None:
    store = PgMemAsyncChatStore(mixed.target, user_id="u")
    block = PgMemMemoryBlock(mixed.target, user_id="u", accept_short_term_memory=False)
    memory = Memory.from_defaults(
        "s", memory_blocks=[block], chat_store=store, insert_method=InsertMethod.USER, token_limit=300,
        token_flush_size=60,
    )  # fmt: skip
    told = [NOTE, *(f"number {n} of the walnuts" for n in range(40))]
    await memory.aput_messages([ChatMessage(role="user", content=text) for text in told])
    session = await mixed.session.get("s", user_id="u")
    assert [turn.text for turn in await session.turns()] == told
    await memory.aput(QUESTION)
    given = texts(await memory.aget())
    assert NOTE in given[-1]  # flushed, and remembered
    assert sum(text.count("number 39") for text in given) == 1  # in the queue, and not remembered besides


async def test_it_is_cut_to_whole_entries_where_memory_says_so(mixed: Face) -> None:
    session = await mixed.session.create(user_id="u")
    await session.add_turns([{"role": "user", "content": f"My bicycle number {n} is green"} for n in range(20)])
    await mixed.form()
    block = PgMemMemoryBlock(mixed.target, user_id="u", priority=1)
    whole = await block.aget([QUESTION], session_id="s")
    shorter = await block.atruncate(whole, 60)
    assert shorter is not None
    assert is_recalled(shorter)
    assert 1 <= shorter.count("\n- ") < whole.count("\n- ") == 8
    assert count_tokens(shorter) <= count_tokens(whole) - 60
    assert await block.atruncate(whole, 0) == whole
    assert await block.atruncate(whole, 10_000) is None

    async def entries(priority: int, limit: int) -> int:
        one = PgMemMemoryBlock(mixed.target, user_id="u", priority=priority)
        memory = queue(mixed, one, token_limit=limit)
        await memory.aset([QUESTION])
        return texts(await memory.aget())[-1].count("\n- ")

    assert [await entries(1, 1_000), await entries(1, 20), await entries(0, 20)] == [8, 0, 8]
    assert 0 < await entries(1, 180) < 8


async def test_a_limit_of_its_own(mixed: Face) -> None:
    session = await mixed.session.create(user_id="u")
    await session.add_turns([{"role": "user", "content": f"My bicycle number {n} is green"} for n in range(20)])
    await mixed.form()
    cases: list[tuple[dict[str, Any], int]] = [({}, 8), ({"recall_items": 2}, 2), ({"recall_tokens": 0}, 0)]
    for options, most in cases:
        block = PgMemMemoryBlock(mixed.target, user_id="u", **options)
        assert (await block.aget([QUESTION], session_id="s")).count("\n- ") == most
    small = PgMemMemoryBlock(mixed.target, user_id="u", token_limit=400)
    assert 0 < count_tokens(await small.aget([QUESTION], session_id="s")) <= 400


async def test_any_text_passes_the_template_of_memory(mixed: Face) -> None:
    """E11."""
    odd = '{"city": "{x}"} {{y}} {% if %} %s ${z} {query_str} {{ block }}'
    session = await mixed.session.create(user_id="u")
    await session.add_turn("user", odd)
    memory = queue(mixed, PgMemMemoryBlock(mixed.target, user_id="u", floor=None))
    await memory.aput(ChatMessage(role="user", content="which city?"))
    assert odd in texts(await memory.aget())[-1]


async def test_messages_of_every_kind_are_kept(mixed: Face) -> None:
    """E10, F7, F8: a call without words, nothing at all, and what another memory added."""
    block = PgMemMemoryBlock(mixed.target, user_id="u", session_id="mine")
    await known(mixed)
    shown = await block.aget([QUESTION])
    made = ToolCallBlock(tool_call_id="c", tool_name="look", tool_kwargs={"where": "yard"})
    await block.aput([])
    await block.aput([ChatMessage(role="user", content=shown)])
    await block.aput([ChatMessage(role="assistant", blocks=[made]), ChatMessage(role="user", content="thanks")])
    session = await mixed.session.get("mine", user_id="u")
    assert [(turn.role, turn.text, len(turn.tool_calls)) for turn in await session.turns()] == [
        ("assistant", "", 1), ("user", "thanks", 0),
    ]  # fmt: skip


async def test_what_it_is_made_of(mixed: Face) -> None:
    block = PgMemMemoryBlock(mixed.target, user_id="u", group_id="g", name="longer")
    written = block.model_dump()
    assert (written["name"], written["user_id"], written["group_id"]) == ("longer", "u", "g")
    assert PgMemMemoryBlock(**written).model_dump() == written
    with pytest.raises(InvalidArgument, match="no session"):
        await block.aget([QUESTION])
    with pytest.raises(ValidationError):
        PgMemMemoryBlock(mixed.target, user="u")
    with pytest.raises(InvalidArgument):
        PgMemMemoryBlock(mixed.target, user_id=" ")
