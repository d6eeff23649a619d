"""Nothing to say and nothing to ask: B13."""

from __future__ import annotations

import json

import pytest

from pgmem_core import Authority, InvalidArgument
from tests.fix_memory import Face, FakeEmbedder, Maker
from tests.scripted import Scripted
from tests.telling import Teller, Tellers

BLANK = [
    "", " ", " \n", "\t\r\n", "\u200b", "\u200b \ufeff", "\u00a0", "\u3000", "\x00", "\u200e", "\u2800", "\u3164",
    "\u180e", "\u2061", "\ufe0f", "\U000e0020", "\x1b", "\u061c",
]  # fmt: skip


async def test_b13_blank_content_is_refused_before_it_is_embedded(make_memory: Maker, make_store: Maker) -> None:
    embedder = FakeEmbedder()
    memory, store = await make_memory(embedder=embedder), await make_store(embedder=embedder)
    embedder.texts.clear()
    session = await memory.session.create("s", user_id="u1")
    [kept] = await memory.add("tea", user_id="u1")
    for blank in BLANK:
        for call in (
            memory.add(blank, user_id="u1"),
            memory.add(["milk", blank], user_id="u1"),
            memory.update(kept.id, blank),
            session.add_turn("user", blank),
            session.add_turn("assistant", blank),
            session.add_turn("system", blank),
            store.add("acme", "s", blank),
            store.add("acme", "s", blank, kind="note"),
            store.add_many("acme", [{"session_id": "s", "content": text} for text in ("milk", blank)]),
        ):
            with pytest.raises(InvalidArgument, match="blank"):
                await call
    await memory.form()
    assert embedder.texts == ["tea", "tea"]  # alone, and with what came before
    assert await memory.get_all(user_id="u1") == ["tea"]
    assert await store.count("acme") == 0


async def test_b13_a_blank_query_finds_nothing_and_asks_nobody(make_memory: Maker, make_store: Maker) -> None:
    embedder = FakeEmbedder()
    memory, store = await make_memory(embedder=embedder), await make_store(embedder=embedder)
    await memory.add("tea", user_id="u1")
    await memory.form()
    await store.add("acme", "s", "tea")
    embedder.texts.clear()
    session = await memory.session.create("s", user_id="u1")
    for blank in BLANK:
        assert await memory.search(blank, user_id="u1") == []
        assert await session.search(blank) == []
        assert await store.similar("acme", blank) == []
        context = await session.compile_context(blank, floor=None)
        assert len(context.sections["episodic"]) == 0
        assert [message["role"] for message in context.messages] == ["system"]
    await session.add_turn("assistant", "hello")
    assert [turn.text for turn in await session.turns()] == ["hello"]
    assert embedder.texts == []
    assert len(await memory.search("tea", user_id="u1")) == 1


@pytest.mark.parametrize("text", ["0", ".", "?", "👍", "\u0301", "\ufffd", "\ue000"], ids=ascii)
async def test_b13_what_shows_something_is_kept(memory: Face, text: str) -> None:
    session = await memory.session.create("s", user_id="u1")
    await session.add_turn("user", text)
    await memory.form()
    assert [turn.text for turn in await session.turns()] == [text]
    assert [found.content for found in await memory.search(text, user_id="u1")] == [text]


@pytest.mark.parametrize("text", ["ok", "Great, thanks!", "You're welcome!"])
async def test_b13_a_pleasantry_is_kept_and_never_recalled(memory: Face, text: str) -> None:
    session = await memory.session.create("s", user_id="u1")
    await session.add_turn("user", text)
    await session.add_turn("user", "Great, the walnut cake is for Ines")
    await memory.form()
    assert [turn.text for turn in await session.turns()] == [text, "Great, the walnut cake is for Ines"]
    assert [found.content for found in await memory.search(f"{text} walnut", user_id="u1")] == [
        "Great, the walnut cake is for Ines"
    ]


async def test_b13_a_tool_call_without_text_is_kept_in_history_and_never_embedded(make_memory: Maker) -> None:
    embedder = FakeEmbedder()
    memory = await make_memory(embedder=embedder)
    session = await memory.session.create("s", user_id="u1")
    call = {"id": "c1", "name": "weather", "args": {"city": "Lima"}}
    await session.add_turn("user", "weather in Lima?")
    nothings: list[object] = ["", None, [], "\u200b"]
    for empty in nothings:
        await session.add_turn("assistant", empty, tool_calls=[call])
    await session.add_turn("tool", "", tool_call_id="c1")
    embedder.texts.clear()
    await memory.form()
    turns = await session.turns()
    assert [turn.role for turn in turns] == ["user", *["assistant"] * 4, "tool"]
    assert all(turn.tool_calls == [call] for turn in turns[1:5])
    assert embedder.texts == ["weather in Lima?"] * 2  # alone, and with what came before
    assert [found.content for found in await memory.search("weather in Lima", user_id="u1")] == ["weather in Lima?"]
    context = await session.compile_context("and now?")
    assert [message["tool_calls"] for message in context.messages if message.get("tool_calls")] == [[call]] * 4


async def test_b13_a_blank_fact_is_none_whoever_states_it(make_memory: Maker) -> None:
    said = "I like tea"
    entries = [{"predicate": "likes", "value": blank, "turn": 1, "quote": said} for blank in BLANK[:6]]
    entries += [{"predicate": blank, "value": "milk", "turn": 1, "quote": said} for blank in BLANK[:6]]
    entries += [{"predicate": "likes", "value": f"cup {n}", "turn": 1, "quote": b} for n, b in enumerate(BLANK[:6])]
    entries += [{"predicate": "likes", "value": "tea", "turn": 1, "quote": said}]
    memory = await make_memory(model=Scripted(replies=[json.dumps({"facts": entries})]), summarizers=Tellers())
    session = await memory.session.create("s", user_id="u1")
    await session.add_turn("user", said)
    await memory.form()
    assert [fact.value for fact in await memory.facts(user_id="u1")] == ["tea"]
    for blank in BLANK:
        for call in (
            session.observe("likes", blank, authority=Authority.user),
            session.observe(blank, "milk", authority=Authority.user),
            session.correct("likes", blank, authority=Authority.user),
        ):
            with pytest.raises(InvalidArgument):
                await call
    assert [fact.value for fact in await memory.facts(user_id="u1")] == ["tea"]


async def test_b13_blank_summaries_are_errors_and_blank_turns_cost_no_summary(make_memory: Maker) -> None:
    tellers = Tellers(Teller(lambda *given: "\u200b \n"))
    memory = await make_memory(summarizers=tellers, extractor="patterns")
    session = await memory.session.create("s", user_id="u1")
    call = {"id": "c1", "name": "look", "args": {}}
    await session.add_turn("user", "Hello!")
    await session.add_turn("tool", "", tool_call_id="c0")
    assert (await session.compact()).episodes == 0
    assert tellers.episode.asked == []
    await session.add_turn("assistant", None, tool_calls=[call])
    await session.add_turn("tool", "\u200b", tool_call_id="c1")
    await session.add_turn("user", "The walnut cake is for Ines and her two brothers in Braga")
    report = await session.compact()
    assert "blank" in report.error
    assert await memory.search("walnut", user_id="u1", kind="episode") == []
    assert len(await memory.search("walnut", user_id="u1")) == 1  # what was said is there
