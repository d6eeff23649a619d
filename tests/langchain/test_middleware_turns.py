"""Nothing is lost and nothing is stored twice: failures, interrupts, histories that are sent again."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    HumanInTheLoopMiddleware,
)
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from pgmem_langchain import PgMemMiddleware
from pgmem_langchain.aligning import align
from tests.fix_memory import Face, Maker
from tests.langchain.agents import Scripted, agent_of, call, invoke, learn, recalled, sent_text, stored, thread


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


# -- failures --------------------------------------------------------------------------------------------------


async def test_a_raising_model_loses_nothing(memory: Face, face: str) -> None:
    agent, model = agent_of(memory, call("weather", city="Ghent"), RuntimeError("down"), "Sunny", tools=[weather],
                            checkpointer=True)  # fmt: skip
    with pytest.raises(RuntimeError):
        await invoke(face, agent, "How is the weather?")
    so_far = [("user", "How is the weather?"), ("assistant", ""), ("tool", "sunny in Ghent")]
    assert await stored(memory) == so_far
    await invoke(face, agent, {"messages": []})
    assert await stored(memory) == [*so_far, ("assistant", "Sunny")]
    assert len(model.requests) == 3


async def test_a_request_that_is_sent_again_after_a_failure_is_one_turn(memory: Face, face: str) -> None:
    agent, _ = agent_of(memory, RuntimeError("down"), "Hello Ada", "Goodbye")
    with pytest.raises(RuntimeError):
        await invoke(face, agent, "Good morning to you")
    await memory.flush()
    assert await stored(memory) == [("user", "Good morning to you")]
    await invoke(face, agent, "Good morning to you")
    assert await stored(memory) == [("user", "Good morning to you"), ("assistant", "Hello Ada")]
    await invoke(face, agent, "Good morning to you")  # said again after the reply: another turn
    assert len(await stored(memory)) == 4


async def test_a_cancelled_run_loses_nothing(memory: Face) -> None:
    asked = asyncio.Event()

    class Slow(Scripted):
        async def _agenerate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> Any:
            asked.set()
            await asyncio.sleep(60)

    agent = create_agent(Slow(), middleware=[PgMemMiddleware(memory.target, user_id="ada")])
    run = asyncio.create_task(agent.ainvoke({"messages": [HumanMessage("Is anybody there?")]}, thread()))
    await asyncio.wait_for(asked.wait(), 10)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await memory.flush()
    assert await stored(memory) == [("user", "Is anybody there?")]


async def test_a_reply_is_stored_though_its_reader_goes_away(memory: Face, monkeypatch: Any) -> None:
    """Cancelled once the reply is there: the write is under way and goes on."""
    agent, _ = agent_of(memory, "It is noon")
    rt, loop = memory.target._rt, asyncio.get_running_loop()
    works: list[Any] = []

    def beside(work: Any) -> Any:
        works.append(work)
        if len(works) == 1:  # the query's own
            return plain(work)

        def cancelling() -> None:
            loop.call_soon_threadsafe(run.cancel)
            time.sleep(0.1)

        plain(cancelling)
        return plain(work)  # it waits for its turn, and is cancelled meanwhile

    plain = rt.beside
    monkeypatch.setattr(rt, "beside", beside)
    run = asyncio.create_task(agent.ainvoke({"messages": [HumanMessage("What time is it?")]}, thread()))
    with pytest.raises(asyncio.CancelledError):
        await run
    await asyncio.to_thread(lambda: plain(lambda: None).result())
    assert await stored(memory) == [("user", "What time is it?"), ("assistant", "It is noon")]


async def test_a_stream_that_is_left_early(memory: Face, face: str) -> None:
    agent, _ = agent_of(memory, call("weather", city="Ghent"), "Sunny", tools=[weather], checkpointer=True)
    given = {"messages": [HumanMessage("How is the weather?")]}
    if face == "sync":
        for update in agent.stream(given, thread(), stream_mode="updates"):
            if "model" in update:
                break
    else:
        stream = agent.astream(given, thread(), stream_mode="updates")
        async for update in stream:
            if "model" in update:
                break
        await stream.aclose()
    await memory.flush()
    assert await stored(memory) == [("user", "How is the weather?"), ("assistant", "")]
    await invoke(face, agent, "And now?")
    assert [role for role, _ in await stored(memory)] == ["user", "assistant", "user", "assistant"]


# -- interrupts ------------------------------------------------------------------------------------------------


def reviewed(memory: Face, saver: Any, *replies: Any) -> tuple[Any, Scripted]:
    review = HumanInTheLoopMiddleware(interrupt_on={"weather": True})
    return agent_of(memory, *replies, tools=[weather], checkpointer=saver, more=[review])


async def test_a_pending_interrupt_loses_nothing_and_resumes_elsewhere(make_memory: Maker, face: str) -> None:
    """Another process, hours later, memory has changed: what the model is sent begins with the same bytes."""
    memory, saver = await make_memory(), InMemorySaver()
    await learn(memory)
    session = await memory.session.get("earlier", user_id="ada")
    await session.observe("diet", "vegan", authority="user")
    agent, model = reviewed(memory, saver, call("weather", city="Ghent"))
    await invoke(face, agent, "May I eat walnuts in the sun?")
    assert await stored(memory) == [("user", "May I eat walnuts in the sun?"), ("assistant", "")]

    await session.correct("diet", "omnivore", authority="user")
    await learn(memory, "I am no longer allergic to walnuts", "later")
    other = await make_memory()
    agent, second = reviewed(other, saver, "Sunny, no walnuts")
    await invoke(face, agent, Command(resume={"decisions": [{"type": "approve"}]}))
    [before], [after] = model.requests, second.requests
    assert "diet: vegan" in sent_text(before)
    assert "allergic to walnuts" in recalled(before)[0]
    assert after[:3] == before
    assert await stored(memory) == [
        ("user", "May I eat walnuts in the sun?"),
        ("assistant", ""),
        ("tool", "sunny in Ghent"),
        ("assistant", "Sunny, no walnuts"),
    ]
    await invoke(face, agent, "And now?")  # a new turn sees what is true now
    assert "diet: omnivore" in sent_text(second.requests[-1])


async def test_what_was_forgotten_is_not_shown_on_resuming(make_memory: Maker, face: str) -> None:
    memory, saver = await make_memory(), InMemorySaver()
    await learn(memory)
    agent, model = reviewed(memory, saver, call("weather", city="Ghent"))
    await invoke(face, agent, "May I eat walnuts in the sun?")
    assert len(recalled(model.requests[0])) == 1
    await memory.forget(session_id="earlier")
    agent, second = reviewed(await make_memory(), saver, "Sunny")
    await invoke(face, agent, Command(resume={"decisions": [{"type": "approve"}]}))
    assert recalled(second.requests[0]) == []
    assert "allergic" not in sent_text(second.requests[0])
    assert [role for role, _ in await stored(memory)] == ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize(
    ("decision", "result"),
    [
        ({"type": "edit", "edited_action": {"name": "weather", "args": {"city": "Riga"}}}, "sunny in Riga"),
        ({"type": "reject", "message": "not today"}, "not today"),
    ],
    ids=["edit", "reject"],
)
async def test_a_humans_decision(memory: Face, face: str, decision: Any, result: str) -> None:
    agent, _ = reviewed(memory, True, call("weather", city="Ghent"), "Done")
    await invoke(face, agent, "How is the weather?")
    state = await invoke(face, agent, Command(resume={"decisions": [decision]}))
    said = await stored(memory)
    assert said == [(_ROLES[message.type], message.text) for message in state["messages"]]
    assert result in said[2][1]
    await invoke(face, agent, "Thanks for that")
    assert len(await stored(memory)) == 6


_ROLES = {"human": "user", "ai": "assistant", "tool": "tool"}


# -- a client that sends its history again -----------------------------------------------------------------------


async def test_a_resent_history_is_stored_once(memory: Face, face: str) -> None:
    await learn(memory)
    replies = [f"reply {n}" for n in range(5)]
    agent, model = agent_of(memory, *replies)
    history: list[dict[str, str]] = []
    for number in range(5):
        history.append({"role": "user", "content": "ok" if number % 2 else f"Are walnuts in dish {number}?"})
        state = await invoke(face, agent, {"messages": list(history)})
        history.append({"role": "assistant", "content": state["messages"][-1].text})
    assert await stored(memory) == [(one["role"], one["content"]) for one in history]
    assert len(history) == 10
    assert [len(recalled(request)) for request in model.requests] == [1, 0, 1, 0, 1]
    assert not any("dish" in block for request in model.requests for block in recalled(request))


async def test_a_resent_history_without_its_tool_steps_or_its_beginning(memory: Face, face: str) -> None:
    agent, _ = agent_of(memory, call("weather", city="Ghent"), "Sunny", "Warm", "Dry", tools=[weather])
    await invoke(face, agent, "How is the weather?")
    said = [HumanMessage("How is the weather?"), AIMessage("Sunny"), HumanMessage("And how warm?")]
    await invoke(face, agent, list(said))
    said += [AIMessage("Warm"), HumanMessage("Any rain?")]
    await invoke(face, agent, said[-3:])
    assert [text for _, text in await stored(memory)] == [
        "How is the weather?", "", "sunny in Ghent", "Sunny", "And how warm?", "Warm", "Any rain?", "Dry",
    ]  # fmt: skip


async def test_what_was_erased_does_not_come_back_with_the_history(memory: Face, face: str) -> None:
    agent, _ = agent_of(memory, "Noted", "Blue it is", "Yes")
    said: list[Any] = []
    for text in ("My PIN is 4711", "My favourite colour is blue", "Is that right?"):
        if len(said) == 4:
            session = await memory.session.get("t1")
            await memory.forget(turn_id=(await session.turns())[0].id)
        said.append({"role": "user", "content": text})
        state = await invoke(face, agent, {"messages": list(said)})
        said.append({"role": "assistant", "content": state["messages"][-1].text})
    texts = [text for _, text in await stored(memory)]
    assert texts == ["Noted", "My favourite colour is blue", "Blue it is", "Is that right?", "Yes"]


async def test_a_deleted_conversation_does_not_come_back_with_the_state(memory: Face, face: str) -> None:
    agent, _ = agent_of(memory, "Noted", "Hello", checkpointer=True)
    await invoke(face, agent, "My PIN is 4711")
    await memory.forget(session_id="t1")
    await invoke(face, agent, "Good morning")
    assert await stored(memory) == [("user", "Good morning"), ("assistant", "Hello")]


async def test_a_thread_that_memory_joins_late(memory: Face, face: str) -> None:
    saver = InMemorySaver()
    before = create_agent(Scripted("Hello Ada"), checkpointer=saver)
    await invoke(face, before, "I am Ada")
    agent, model = agent_of(memory, "Still Ada", checkpointer=saver)
    await invoke(face, agent, "Who am I?")
    assert [text for _, text in await stored(memory)] == ["I am Ada", "Hello Ada", "Who am I?", "Still Ada"]
    assert recalled(model.requests[0]) == []


async def test_what_is_the_same_conversation(memory: Face, face: str) -> None:
    h, a = HumanMessage, AIMessage
    session = await memory.session.create("s1")
    await session.add_turns(
        [{"role": role, "content": text} for role, text in
         [("user", "ok"), ("assistant", "done"), ("user", "ok"), ("assistant", "done"), ("user", "more")]]
    )  # fmt: skip
    turns = await session.turns()
    cases: list[tuple[list[BaseMessage], list[Any], int]] = [
        ([h("ok")], turns[:4], 0),  # said again
        ([h("more")], turns, 1),  # not answered yet: sent again
        ([h("ok"), a("done"), h("ok")], turns[:2], 2),
        ([h("ok"), a("done"), h("ok")], turns[:4], 2),  # the window of a client that keeps two
        ([h("ok"), a("done"), h("ok"), a("done"), h("more")], turns, 5),
        ([h("ok"), a("done"), h("other")], turns[:4], 2),
        ([h("ok"), a("done"), h("more")], [*turns[:2], turns[4], turns[3]], 3),  # the reply was never seen
        ([h("something"), h("else")], turns, 0),
        ([], turns, 0),
        ([h("ok")], [], 0),
        ([h([{"type": "text", "text": "ok"}]), a("done"), h("x")], turns[:2], 2),
    ]
    assert [align(messages, stored).settled for messages, stored, _ in cases] == [wanted for *_, wanted in cases]
