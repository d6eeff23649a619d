"""What is in an agent's state and is no turn, what is no turn's usual form, and what happens beside the model call."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import psycopg
import pytest
from langchain.agents.middleware import (
    AgentMiddleware,
    AgentState,
    SummarizationMiddleware,
    before_model,
)
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Command

from pgmem_core import InvalidArgument
from pgmem_langchain import PgMemChatMessageHistory
from pgmem_langchain.convert import NO_RESULT
from tests.fix_memory import Face
from tests.langchain.agents import Scripted, agent_of, call, invoke, learn, recalled, stored, thread


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


# -- what is in the state and is no turn -----------------------------------------------------------------------


async def test_a_summary_is_no_turn_and_removal_deletes_none(memory: Face, face: str) -> None:
    """E6: the first request survives, whatever becomes of the state."""
    summarizer = Scripted(*["SUMMARY of walnut talk"] * 20)
    agent, model = agent_of(
        memory,
        *[call("weather", f"call-{n}", city=f"Town {n}") for n in range(40)],
        "Sunny everywhere",
        tools=[weather],
        checkpointer=True,
        more=[SummarizationMiddleware(summarizer, trigger=("messages", 12), keep=("messages", 6))],
    )
    await learn(memory)
    state = await invoke(
        face, agent, "Check forty towns, and may I eat walnuts there?", {**thread(), "recursion_limit": 500}
    )
    said = await stored(memory)
    assert len(said) == 82
    assert said[0] == ("user", "Check forty towns, and may I eat walnuts there?")
    assert not any("SUMMARY" in text for _, text in said)
    assert len(state["messages"]) < 20
    assert summarizer.requests
    # The human message is gone from the last request; what was recalled for it stands where it stood.
    last = model.requests[-1]
    assert any("SUMMARY" in message.text for message in last)
    assert recalled(last) == recalled(model.requests[0]) != []
    await invoke(face, agent, "Thank you for all that")
    assert len(await stored(memory)) == 84


async def test_removed_messages_stay_stored_and_may_be_recalled(memory: Face, face: str) -> None:
    agent, model = agent_of(memory, "Noted", "The code is K7-quartz", checkpointer=True)
    await invoke(face, agent, "The door code is K7-quartz")
    agent.update_state(thread(), {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES)]})
    await memory.form()
    await invoke(face, agent, "What is the door code?")
    assert "K7-quartz" in recalled(model.requests[-1])[0]
    assert len(await stored(memory)) == 4


async def test_an_orphan_is_repaired_in_the_request_only(memory: Face, face: str) -> None:
    """E4: a call whose result never came, and a result whose call was trimmed away."""
    agent, model = agent_of(memory, "Never mind", checkpointer=True)
    past = [
        ToolMessage("late", tool_call_id="gone", id="m0"),
        HumanMessage("Weather?", id="m1"),
        AIMessage("", tool_calls=[{"name": "weather", "args": {}, "id": "call-x"}], id="m2"),
        HumanMessage("Hello?", id="m3"),
    ]
    state = await invoke(face, agent, past)
    sent = [(message.type, message.text) for message in model.requests[0][1:]]
    assert sent == [("human", "Weather?"), ("ai", ""), ("tool", NO_RESULT), ("human", "Hello?")]
    assert [message.id for message in state["messages"]][:4] == ["m0", "m1", "m2", "m3"]
    assert [role for role, _ in await stored(memory)] == ["tool", "user", "assistant", "user", "assistant"]
    await invoke(face, agent, "And now?")
    assert len(await stored(memory)) == 7


async def test_what_json_cannot_hold_is_stored_without_it(memory: Face, face: str) -> None:
    @tool(response_format="content_and_artifact")
    def chart(city: str) -> tuple[str, object]:
        """A chart."""
        return "a chart", object()

    agent, _ = agent_of(memory, call("chart", city="Ghent"), "Here it is", tools=[chart])
    state = await invoke(face, agent, "Draw me a chart")
    assert isinstance(state["messages"][2].artifact, object)
    assert [text for _, text in await stored(memory)] == ["Draw me a chart", "", "a chart", "Here it is"]


async def test_a_human_message_that_comes_while_the_agent_works(memory: Face, face: str) -> None:
    await learn(memory, "My locker number is Z9-basalt")

    @tool
    def interjection() -> Command[Any]:
        """Somebody says something."""
        said = [ToolMessage("heard", tool_call_id="call-1"), HumanMessage("What is my locker number?")]
        return Command(update={"messages": said})

    agent, model = agent_of(memory, call("interjection"), "Z9-basalt", tools=[interjection], checkpointer=True)
    await invoke(face, agent, "Wait for a moment")
    assert [len(recalled(request)) for request in model.requests] == [0, 1]
    assert [text for _, text in await stored(memory)] == [
        "Wait for a moment", "", "heard", "What is my locker number?", "Z9-basalt",
    ]  # fmt: skip


async def test_system_messages_among_the_messages(memory: Face, face: str) -> None:
    agent, _ = agent_of(memory, "Hi")
    await invoke(face, agent, [SystemMessage("Speak like a pirate"), HumanMessage("Good morning")])
    assert await stored(memory) == [("system", "Speak like a pirate"), ("user", "Good morning"), ("assistant", "Hi")]


async def test_a_reply_without_an_id_and_one_that_another_middleware_makes(memory: Face, face: str) -> None:
    class Canned(AgentMiddleware[Any, Any, Any]):
        def wrap_model_call(self, request: Any, handler: Any) -> AIMessage:
            return AIMessage("Come back tomorrow")

        async def awrap_model_call(self, request: Any, handler: Any) -> AIMessage:
            return AIMessage("Come back tomorrow")

    agent, model = agent_of(memory, more=[Canned()], checkpointer=True)
    for _ in range(2):
        await invoke(face, agent, "Are you open today?")
    assert model.requests == []
    assert await stored(memory) == [("user", "Are you open today?"), ("assistant", "Come back tomorrow")] * 2


async def test_a_run_that_ends_before_the_model(memory: Face, face: str) -> None:
    @before_model(can_jump_to=["end"])
    def closed(state: AgentState[Any], runtime: Any) -> dict[str, Any]:
        return {"jump_to": "end", "messages": [AIMessage("We are closed")]}

    agent, model = agent_of(memory, more=[closed])
    await invoke(face, agent, "Are you open today?")
    assert model.requests == []
    assert await stored(memory) == [("user", "Are you open today?"), ("assistant", "We are closed")]


# -- beside the model call -----------------------------------------------------------------------------------------


async def test_the_model_does_not_wait_for_the_query_to_be_stored(
    memory: Face, face: str, dsn: str, monkeypatch: Any
) -> None:
    rt, waiting = memory.target._rt, []
    plain, during = rt.beside, []

    def beside(work: Any) -> Any:
        if during:
            return plain(work)
        waiting.append(work)
        return Future()

    def reply(messages: Any) -> AIMessage:
        with psycopg.connect(dsn) as conn:
            during.extend(conn.execute("SELECT count(*) FROM pgmem.records").fetchall())
        return AIMessage("It is noon")

    monkeypatch.setattr(rt, "beside", beside)
    agent, _ = agent_of(memory, reply)
    await invoke(face, agent, "What time is it?")
    assert during == [(0,)]
    assert len(waiting) == 1
    assert await stored(memory) == [("user", "What time is it?"), ("assistant", "It is noon")]


async def test_a_run_without_a_reply_ends_with_its_query_stored(memory: Face, face: str, monkeypatch: Any) -> None:
    @before_model(can_jump_to=["end"])
    def closed(state: AgentState[Any], runtime: Any) -> dict[str, Any]:
        return {"jump_to": "end"}

    monkeypatch.setattr(memory.target._rt, "beside", lambda work: Future())  # as after a failure there
    agent, _ = agent_of(memory, more=[closed])
    await invoke(face, agent, "Are you open today?")
    assert await written(memory) == ["Are you open today?"]


async def written(memory: Face) -> list[str]:
    """What is in the database; reading the session's turns would write what is pending."""
    return [str(text) for text in await memory.get_all(user_id="ada")]


async def test_a_message_without_words(memory: Face, face: str) -> None:
    picture = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    agent, _ = agent_of(memory, "Nothing?", "A picture", checkpointer=True)
    await invoke(face, agent, [HumanMessage("")])
    state = await invoke(face, agent, [HumanMessage(picture)])
    assert [text for _, text in await stored(memory)] == ["", "Nothing?", "", "A picture"]
    session = await memory.session.get("t1")
    assert (await session.turns())[2].content == picture
    history = PgMemChatMessageHistory("t1", mem=memory.target, user_id="ada")
    assert await history.aget_messages() == state["messages"]


async def test_a_message_that_cannot_be_stored_does_not_stand_in_the_way(memory: Face, face: str) -> None:
    file = HumanMessage([{"type": "file", "data": b"bytes"}])
    strict, _ = agent_of(memory)
    with pytest.raises(InvalidArgument, match="JSON cannot hold"):
        await invoke(face, strict, [file.model_copy()], thread("strict"))
    agent, model = agent_of(memory, "A file", on_error="degrade")
    await invoke(face, agent, [HumanMessage("Look at this"), file.model_copy()])
    assert model.requests[0][-1].content == file.content
    assert await stored(memory) == [("user", "Look at this"), ("assistant", "A file")]
