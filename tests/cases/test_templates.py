"""What looks like a template, and what has no words: E11 and F7, from the turn to every prompt."""

from __future__ import annotations

import json

from langchain_core.messages import AIMessage

from pgmem_core import Authority
from tests.fix_memory import FakeEmbedder, Maker
from tests.scripted import Scripted

ODD = '{"city": "{x}"} {{y}} %s ${z} {0} {% if a %} {{#b}} <<c>> \\n'


async def test_e11_text_reaches_every_model_byte_for_byte(make_memory: Maker) -> None:
    told = f"It was said: {ODD}"

    def answer(asked: str) -> str:
        return json.dumps(
            {"facts": [{"predicate": "template", "value": ODD, "turn": 1, "quote": f"my template is {ODD}"}]}
        )

    model = Scripted(answer=answer)
    memory = await make_memory(model=model)
    session = await memory.session.create("s1", user_id="u1")
    await session.add_turns([
        {"role": "user", "content": f"Remember, my template is {ODD}", "name": "{name}"},
        {"role": "assistant", "content": f"I keep the template {ODD}", "metadata": {"{k}": ODD}},
    ])  # fmt: skip
    assert (await memory.form()).facts == 1
    assert f"my template is {ODD}" in model.prompt()
    model.answer = lambda asked: told
    assert (await session.compact()).error is None
    # Turns, the summary so far, episodes and facts: each as it was.
    assert sum(ODD in str(messages[-1].content) for messages in model.asked) == len(model.asked) >= 4
    [fact] = await memory.facts(user_id="u1")
    assert fact.value == ODD
    await session.observe("odd.value", {"a": ODD}, authority=Authority.user)
    await session.execution.set("plan", ODD)

    for asking in (session, await memory.session.create("s2", user_id="u1")):
        ctx = await asking.compile_context(
            f"what is {ODD}?", instructions=f"Use {ODD}", injected_context=[ODD], floor=None, store_query=False
        )
        texts = [str(message["content"]) for message in ctx.messages]
        assert texts[0].startswith(f"Use {ODD}\n")
        assert texts[-1] == f"what is {ODD}?"
        seen = {tier for tier, section in ctx.sections.items() if any(ODD in item.text for item in section.items)}
        assert seen >= {"narrative", "semantic", "external"}
        assert all(any(item.text in text for text in texts) for s in ctx.sections.values() for item in s.items)
        model.invoke(ctx.messages)
        assert [message.content for message in model.asked[-1]] == texts
    assert f"- template: {ODD}" in "\n".join(texts)
    assert f"my template is {ODD}" in "\n".join(texts)


async def test_f7_a_call_without_words_is_kept_and_breaks_nothing(make_memory: Maker) -> None:
    embedder = FakeEmbedder()
    model = Scripted(answer=lambda asked: '{"facts": []}' if "[1]" in asked else "Looked for the weather.")
    memory = await make_memory(model=model, embedder=embedder)
    session = await memory.session.create("s1", user_id="u1")
    call = {"id": "c1", "name": "weather", "args": {"city": "Lima"}, "type": "tool_call"}
    await session.add_turn("user", "How is the weather in Lima, and do I need my umbrella there tomorrow?")
    await session.add_turn("assistant", None, tool_calls=[call])
    await session.add_turn("assistant", AIMessage("").content, tool_calls=[{**call, "id": "c2"}])
    for number in ("c1", "c2"):
        await session.add_turn("tool", None, tool_call_id=number)
    assert (await memory.form()).errors == {}
    model.answer = lambda asked: "Looked for the weather."
    report = await session.compact()
    assert (report.error, report.episodes) == (None, 1)
    assert any("(calls weather)" in str(messages[-1].content) for messages in model.asked)
    turns = await session.turns()
    assert [turn.tool_calls for turn in turns[1:3]] == [[call], [{**call, "id": "c2"}]]
    assert all(turn.token_count > 0 for turn in turns[:3])
    assert not any(text.strip() == "" for text in embedder.texts)
    context = await session.compile_context("and now?")
    assert [m["tool_calls"][0]["id"] for m in context.messages if m.get("tool_calls")] == ["c1", "c2"]
    assert [m["tool_call_id"] for m in context.messages if m["role"] == "tool"] == ["c1", "c2"]
