"""Memory in an agent: what the model is sent, what the state holds, what is stored."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import uuid
from itertools import pairwise
from typing import Any

import psycopg
import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ModelRetryMiddleware
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage
from langchain_core.tools import tool

from pgmem_langchain import PgMemChatMessageHistory, PgMemMiddleware, middleware
from tests.fix_memory import Face, Maker
from tests.langchain.agents import Scripted, agent_of, call, invoke, learn, recalled, sent_text, stored, thread


async def test_what_one_thread_said_another_is_shown(memory: Face, face: str) -> None:
    agent, model = agent_of(memory, "Noted: no walnuts", "You are allergic to walnuts")
    await invoke(face, agent, "I am allergic to walnuts", thread("t1"))
    await memory.form()
    await invoke(face, agent, "What am I allergic to?", thread("t2"))
    first, second = model.requests
    assert recalled(first) == []
    [block] = recalled(second)
    assert "user: I am allergic to walnuts" in block
    assert [message.type for message in second] == ["system", "human", "human"]
    assert second[-1].content == "What am I allergic to?"
    assert await stored(memory, "t1") == [("user", "I am allergic to walnuts"), ("assistant", "Noted: no walnuts")]
    assert [text for _, text in await stored(memory, "t2")] == ["What am I allergic to?", "You are allergic to walnuts"]


async def test_nothing_is_recalled_where_nothing_is_relevant(memory: Face, face: str) -> None:
    await learn(memory)
    agent, model = agent_of(memory)
    await invoke(face, agent, "How tall is the Eiffel tower?")
    await invoke(face, agent, "Which nuts am I allergic to?", thread("t2"))
    assert [len(recalled(request)) for request in model.requests] == [0, 1]


async def test_five_turns_with_a_checkpointer(memory: Face, face: str) -> None:
    await learn(memory)
    agent, model = agent_of(memory, *[f"reply {n}" for n in range(5)], checkpointer=True)
    state: Any = None
    for number in range(5):
        state = await invoke(face, agent, f"Are there walnuts in dish number {number}?")
    assert len(state["messages"]) == 10
    assert set(state) == {"messages"}
    assert await stored(memory) == [
        one
        for n in range(5)
        for one in (("user", f"Are there walnuts in dish number {n}?"), ("assistant", f"reply {n}"))
    ]
    for number, request in enumerate(model.requests):
        [block] = recalled(request)
        assert "allergic" in block
        assert "dish" not in block  # what the request shows anyway is not recalled
        assert [message.type for message in request] == ["system", *["human", "ai"] * number, "human", "human"]
        assert request[-1].content == f"Are there walnuts in dish number {number}?"
    assert len({str(request[0].content) for request in model.requests}) == 1


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


async def test_a_loop_of_tools_reads_once_and_sends_the_same_beginning(memory: Face, face: str, dsn: str) -> None:
    await learn(memory)
    agent, model = agent_of(memory, call("weather", city="Ghent"), call("weather", "call-2", city="Bruges"), "Sunny",
                            tools=[weather])  # fmt: skip
    await invoke(face, agent, "May I eat walnuts in the sun?")
    assert [len(request) for request in model.requests] == [3, 5, 7]
    assert all(request[:3] == model.requests[0] for request in model.requests)
    assert "allergic" in recalled(model.requests[0])[0]
    assert [role for role, _ in await stored(memory)] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert await reads(memory, dsn) == 1


async def reads(memory: Face, dsn: str) -> int:
    """How many prompts were logged: those that showed something."""
    await memory.why(str(uuid.uuid4()))
    with psycopg.connect(dsn) as conn:
        [(count,)] = conn.execute("SELECT count(*) FROM pgmem.injections").fetchall()
    return int(count)


@pytest.mark.parametrize("first", [True, False], ids=["memory first", "retry first"])
async def test_a_retried_call_is_the_same_call(
    memory: Face, face: str, dsn: str, first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await learn(memory)
    compiled: list[Any] = []
    plain = middleware.compile_for

    def counting(*args: Any, **options: Any) -> Any:
        compiled.append(options["pending"])
        return plain(*args, **options)

    monkeypatch.setattr(middleware, "compile_for", counting)
    model = Scripted(RuntimeError("busy"), RuntimeError("busy"), "No walnuts for you")
    retry = ModelRetryMiddleware(max_retries=3, initial_delay=0.0, jitter=False)
    ours = PgMemMiddleware(memory.target, user_id="ada", on_error="raise")
    agent = create_agent(model, middleware=[ours, retry] if first else [retry, ours])
    await invoke(face, agent, "May I have walnuts?")
    assert len(model.requests) == 3
    assert model.requests[0] == model.requests[1] == model.requests[2]
    assert len(recalled(model.requests[0])) == 1
    assert compiled == [True]
    assert await reads(memory, dsn) == 1
    assert await stored(memory) == [("user", "May I have walnuts?"), ("assistant", "No walnuts for you")]


async def test_the_state_holds_ids_only(memory: Face, face: str) -> None:
    await learn(memory, "my safe word is xylophone-42")
    agent, model = agent_of(memory, "ok", checkpointer=True)
    await invoke(face, agent, "What is my safe word?")
    assert "xylophone-42" in sent_text(model.requests[0])
    held = agent.get_state(thread()).values
    assert "xylophone" not in repr(held)
    assert set(held["pgmem_turn"]) == {"message_id", "query_id", "known_at", "through"}
    session = await memory.session.get("t1")
    assert held["pgmem_turn"]["query_id"] == (await session.turns())[0].id
    history = list(agent.get_state_history(thread()))
    assert len(history) > 3
    assert "xylophone" not in repr(history)


async def test_the_prefix_is_the_last_block_of_the_system_message(memory: Face, face: str) -> None:
    session = await memory.session.create("s0", user_id="ada")
    await session.observe("name", "Ada Lovelace", authority="user")
    cached = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
    model = Scripted()
    for prompt in (None, "Be kind.", SystemMessage([cached])):
        middleware = [PgMemMiddleware(memory.target, user_id="ada", on_error="raise")]
        agent = create_agent(model, middleware=middleware, system_prompt=prompt)
        await invoke(face, agent, "hello", thread(f"t{prompt!r:.9}"))
    alone, after_text, after_blocks = [request[0].content for request in model.requests]
    assert "name: Ada Lovelace" in alone[0]["text"]
    assert alone[0]["text"].startswith("Blocks marked <memory> hold data")
    apart = {"type": "text", "text": "\n\n" + alone[0]["text"]}
    assert after_text == [{"type": "text", "text": "Be kind."}, apart]
    assert after_blocks == [cached, apart]


async def test_the_prefix_stays_while_facts_are_formed(make_memory: Maker, face: str) -> None:
    memory = await make_memory(extractor="patterns")
    agent, model = agent_of(memory, checkpointer=True)
    places = ["Porto", "Ghent", "Lisbon", "Turin", "Basel", "Riga", "Oslo", "Bern"]
    for number in range(40):
        text = f"I live in {places[number // 5]}" if number % 5 == 0 else f"My favourite number {number} is lucky"
        await invoke(face, agent, text)
        await memory.form()
    prefixes = [str(request[0].content) for request in model.requests]
    assert len(prefixes) == 40
    assert sum(before != after for before, after in pairwise(prefixes)) <= 3
    # Not for want of facts: they were formed, and the newest was shown.
    assert [fact.value for fact in await memory.facts(user_id="ada", predicate="lives_in")] == ["Bern"]
    assert "lives in: Riga" in sent_text(model.requests[26])
    assert len(await stored(memory)) == 80


async def test_streaming_stores_each_message_once(memory: Face, face: str) -> None:
    agent, model = agent_of(memory, call("weather", city="Ghent"), "It is sunny in Ghent", tools=[weather])
    given, options = {"messages": [HumanMessage("How is the weather?")]}, {"stream_mode": "messages"}
    if face == "sync":
        pieces = [piece for piece, _ in agent.stream(given, thread(), **options)]
    else:
        pieces = [piece async for piece, _ in agent.astream(given, thread(), **options)]
    texts = [piece.text for piece in pieces if isinstance(piece, AIMessageChunk) and piece.text]
    assert texts == ["It ", "is ", "sunny ", "in ", "Ghent"]
    assert await stored(memory) == [
        ("user", "How is the weather?"),
        ("assistant", ""),
        ("tool", "sunny in Ghent"),
        ("assistant", "It is sunny in Ghent"),
    ]
    assert len(model.requests) == 2


async def test_parallel_tools(memory: Face, face: str) -> None:
    calls = [{"name": "weather", "args": {"city": city}, "id": f"call-{city}"} for city in ("Ghent", "Riga", "Oslo")]
    agent, _ = agent_of(memory, AIMessage("", tool_calls=calls), "Sunny everywhere", tools=[weather], checkpointer=True)
    state = await invoke(face, agent, "How is the weather?")
    session = await memory.session.get("t1")
    turns = await session.turns()
    assert [turn.text for turn in turns] == [message.text for message in state["messages"]]
    assert [turn.tool_call_id for turn in turns] == [None, None, "call-Ghent", "call-Riga", "call-Oslo", None]
    assert [one["id"] for one in turns[1].tool_calls] == ["call-Ghent", "call-Riga", "call-Oslo"]


async def test_the_messages_come_back_as_a_history(memory: Face, face: str) -> None:
    """E1: the order is that of the conversation, however many come at once; the objects are those of the state."""
    agent, _ = agent_of(memory, call("weather", city="Ghent"), "Sunny", tools=[weather], checkpointer=True)
    past = [HumanMessage(f"q{n}") if n % 2 == 0 else AIMessage(f"a{n}") for n in range(200)]
    state = await invoke(face, agent, [*past, HumanMessage("the weather?", additional_kwargs={"channel": "web"})])
    history = PgMemChatMessageHistory("t1", mem=memory.target, user_id="ada")
    assert await history.aget_messages() == state["messages"]
    assert len(state["messages"]) == 204


def test_a_new_process_answers_from_memory(dsn: str) -> None:
    program = """
        import asyncio, sys
        from langchain.agents import create_agent
        from pgmem_langchain import PgMemMiddleware
        from tests.langchain.agents import Scripted

        dsn, thread, *texts = sys.argv[1:]
        model = Scripted()
        agent = create_agent(model, middleware=[PgMemMiddleware(dsn=dsn, user_id="ada")])

        def given(text):
            return {"messages": [{"role": "user", "content": text}]}, {"configurable": {"thread_id": thread + text}}

        agent.invoke(*given(texts[0]))
        asyncio.run(agent.ainvoke(*given(texts[1])))
        for request in model.requests:
            print("\\n".join(message.text for message in request), end="\\0")
    """

    def process(*arguments: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", textwrap.dedent(program), dsn, *arguments],
            check=True, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.stderr == ""
        return done.stdout.split("\0")[:-1]

    learnt = process("learns", "The door code of the beach house is K7-quartz", "My locker number is Z9-basalt")
    assert ["<memory" in request.partition("\n")[2] for request in learnt] == [False, False]
    asked = process("asks", "What is the door code of the beach house?", "And my locker number?")
    assert ["K7-quartz" in request for request in asked] == [True, False]
    assert ["Z9-basalt" in request for request in asked] == [False, True]
    assert [request.count("<memory recalled") for request in asked] == [1, 1]
