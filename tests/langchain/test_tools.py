"""Memory as tools of an agent: what they do, in whose memory, on whose word."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.tools import BaseTool
from langchain_tests.integration_tests import ToolsIntegrationTests

from pgmem_core import InvalidArgument, PgMem, StoreUnavailable, SubjectRef, WriteRefused
from pgmem_langchain import PgMemMiddleware, memory_tools
from tests.fix_memory import Face, Maker
from tests.langchain.agents import Scripted, agent_of, call, invoke, stored, thread

ADA = SubjectRef("user", "ada")


def tools_of(memory: Face, **options: Any) -> dict[str, BaseTool]:
    return {tool.name: tool for tool in memory_tools(memory.target, **options)}


async def use(face: str, tool: BaseTool, config: Any = None, /, **arguments: Any) -> str:
    """What a tool answers a call of a model."""
    given = {"name": tool.name, "args": arguments, "id": "call-1", "type": "tool_call"}
    message = tool.invoke(given, config) if face == "sync" else await tool.ainvoke(given, config)
    return str(message.content)


async def values(memory: Face, predicate: str, user_id: str = "ada") -> list[tuple[Any, str]]:
    facts = await memory.facts(SubjectRef("user", user_id), predicate)
    return [(fact.value, fact.authority.value) for fact in facts]


# -- what they do ------------------------------------------------------------------------------------------------


async def test_remember_recall_correct_forget(memory: Face, face: str) -> None:
    tools = tools_of(memory, user_id="ada", session_id="s1")
    assert list(tools) == ["remember", "recall", "correct", "forget"]
    assert await use(face, tools["recall"], query="Where does Ada live?") == "Nothing relevant is remembered."
    assert await use(face, tools["remember"], predicate="lives in", value="Lisbon") == "Remembered: lives_in: Lisbon"
    answer = await use(face, tools["correct"], predicate="lives_in", value="Porto", replaces="Lisbon")
    assert answer == "Corrected: lives_in: Porto"
    assert await values(memory, "lives_in") == [("Porto", "agent")]
    await memory.form()
    found = await use(face, tools["recall"], query="Where does Ada live?")
    assert found.startswith("<memory recalled id=")
    assert "lives in: Porto" in found
    assert await use(face, tools["forget"], predicate="lives_in", value="Porto") == "Taken back: lives_in 'Porto'"
    assert await values(memory, "lives_in") == []
    assert await use(face, tools["recall"], query="Where does Ada live?") == "Nothing relevant is remembered."
    answer = await use(face, tools["remember"], predicate="lives_in", value="Porto")
    assert answer.startswith("Not kept: lives_in 'Porto' was rejected before")


async def test_at_most_k_items_and_not_the_question_itself(memory: Face, face: str) -> None:
    session = await memory.session.create("s0", user_id="ada")
    await session.add_turns([{"role": "user", "content": f"walnut cake number {n} was good"} for n in range(20)])
    await memory.form()
    here = await memory.session.create("s1", user_id="ada")
    await here.add_turn("user", "Which walnut cake was good?")
    for k in (0, 1, 3):
        found = await use(
            face, tools_of(memory, user_id="ada", session_id="s1", k=k)["recall"], query="good walnut cake"
        )
        assert found.count("walnut cake number") == k
        assert "Which walnut" not in found


# -- on whose word -------------------------------------------------------------------------------------------------


async def test_what_a_model_states_is_its_own_word(memory: Face, face: str) -> None:
    session = await memory.session.create("s1", user_id="ada")
    await session.observe("lives_in", "Porto", authority="user")
    tools = tools_of(memory, user_id="ada", session_id="s1")
    for name in ("remember", "correct"):
        answer = await use(face, tools[name], predicate="lives_in", value=f"Moscow by {name}")
        assert answer.startswith("Noted as an open question")
    answer = await use(face, tools["forget"], predicate="lives_in", value="Porto")
    assert "agent cannot retract what user said" in answer
    assert await values(memory, "lives_in") == [("Porto", "user")]
    claimed = "the user confirmed: red"
    await use(face, tools["remember"], predicate="favourite_colour", value=claimed, quote=claimed)
    assert await values(memory, "favourite_colour") == [(claimed, "agent")]


async def test_a_quote_of_the_message_being_answered_is_the_users_word(memory: Face, face: str) -> None:
    session = await memory.session.create("s1", user_id="ada")
    await session.observe("lives_in", "Porto", authority="user")
    await session.add_turn("user", "My cat is called Tom")
    await session.add_turn("assistant", "I shall say you live in Moscow")
    turn = await session.add_turn("user", "I have moved: I live in Ghent now")
    tools = tools_of(memory, user_id="ada", session_id="s1")
    attempts = [
        ("Moscow", "I live in Moscow"),  # nobody said it
        ("Moscow", "you live in Moscow"),  # the model did
        ("Moscow", "I live in Ghent now"),  # the quote does not say it
        ("Tom", "My cat is called Tom"),  # not what is being answered
    ]
    for value, quote in attempts:
        await use(face, tools["remember"], predicate="lives_in", value=value, quote=quote)
        assert await values(memory, "lives_in") == [("Porto", "user")]
    answer = await use(face, tools["remember"], predicate="lives_in", value="Ghent", quote="I live in Ghent now")
    assert answer == "Remembered: lives_in: Ghent"
    assert await values(memory, "lives_in") == [("Ghent", "user")]
    [fact] = await memory.facts(ADA, "lives_in")
    assert [(one.turn_id, one.quote) for one in fact.evidence] == [(turn.id, "I live in Ghent now")]
    await session.add_turn("user", "Forget that I live in Ghent, it is nobody's business")
    await use(face, tools["forget"], predicate="lives_in", value="Ghent", quote="Forget that I live in Ghent")
    assert await values(memory, "lives_in") == []


async def test_a_delegated_task_is_no_users_word(memory: Face, face: str) -> None:
    session = await memory.session.create("s1", user_id="ada")
    await session.add_turn("user", "I live in Moscow", metadata={"authority": "agent"})
    tools = tools_of(memory, user_id="ada", session_id="s1")
    await use(face, tools["remember"], predicate="lives_in", value="Moscow", quote="I live in Moscow")
    assert await values(memory, "lives_in") == [("Moscow", "agent")]


# -- in whose memory ---------------------------------------------------------------------------------------------


async def test_a_model_cannot_name_another_user(memory: Face, face: str) -> None:
    await memory.add("The PIN of Bob is 4711", user_id="bob", session_id="b")
    await memory.add("The PIN of Ada is 1234", user_id="ada", session_id="a")
    await memory.form()
    other = {"user_id": "bob", "group_id": "acme", "session_id": "b", "thread_id": "b", "subject": "user:bob",
             "config": {"configurable": {"user_id": "bob"}}, "context": {"user_id": "bob"}}  # fmt: skip
    tools = tools_of(memory)
    for tool in tools.values():
        assert not set(other) & set(tool.args)
        assert not set(other) & set(tool.tool_call_schema.model_json_schema()["properties"])  # type: ignore[union-attr]
    config = thread("t1", user_id="ada")
    found = await use(face, tools["recall"], config, query="What is the PIN?", **other)
    assert "1234" in found
    assert "4711" not in found
    await use(face, tools["remember"], config, predicate="pin", value="9999", **other)
    assert await values(memory, "pin") == [("9999", "agent")]
    assert await values(memory, "pin", "bob") == []
    await use(face, tools["forget"], config, predicate="pin", value="9999", **other)
    assert await values(memory, "pin") == []


async def test_without_scope_they_refuse(memory: Face, face: str) -> None:
    arguments = {"recall": {"query": "PIN"}}
    for name, tool in tools_of(memory).items():
        given = arguments.get(name, {"predicate": "pin", "value": "4711"})
        with pytest.raises(InvalidArgument, match="no thread: pass config"):
            await use(face, tool, **given)
        with pytest.raises(InvalidArgument, match="user_id is ''"):
            await use(face, tool, {"configurable": {"user_id": ""}}, **given)
    assert await memory.session.list() == []
    # A user alone will do, and so will a thread.
    await use(face, tools_of(memory, user_id="ada")["remember"], predicate="pin", value="4711")
    await use(face, tools_of(memory)["remember"], thread("t1"), predicate="pin", value="4712")
    assert await values(memory, "pin") == [("4711", "agent")]


async def test_the_scope_of_a_run_is_injected(memory: Face, face: str) -> None:
    """By the context, beside the middleware or without it."""
    for number, with_memory in enumerate((True, False)):
        middleware = [PgMemMiddleware(memory.target, on_error="raise")] if with_memory else []
        model = Scripted(call("remember", predicate="lives_in", value="Ghent", quote="I live in Ghent"), "Noted")
        agent = create_agent(model, memory_tools(memory.target), middleware=middleware, context_schema=dict[str, str])
        context = {"user_id": f"user {number}", "thread_id": f"t{number}"}
        state = await invoke(face, agent, "I live in Ghent", {}, context=context)
        assert state["messages"][-2].content == "Remembered: lives_in: Ghent"
        # Nobody but the middleware stores what the user said: without it there is nothing to quote.
        wanted = "user" if with_memory else "agent"
        assert await values(memory, "lives_in", f"user {number}") == [("Ghent", wanted)]


async def test_what_a_tool_recalled_is_not_stored_again(memory: Face, face: str) -> None:
    await memory.add("The door code is K7-quartz", user_id="ada", session_id="s0")
    await memory.form()
    tools = memory_tools(memory.target, user_id="ada")
    agent, model = agent_of(memory, call("recall", query="door code"), "It is what it was", tools=tools)
    await invoke(face, agent, "Look up something for me")
    assert "K7-quartz" in model.requests[1][-1].content
    assert [text for _, text in await stored(memory)] == [
        "Look up something for me", "", "(recalled from memory)", "It is what it was",
    ]  # fmt: skip


# -- where it fails ------------------------------------------------------------------------------------------------


async def test_an_error_is_told_to_the_model(make_memory: Maker, face: str, monkeypatch: Any) -> None:
    def policy(text: str, entry: str) -> str:
        if "4711" in text:
            raise WriteRefused("a PIN")
        return text

    memory = await make_memory(policy=policy)
    tools = tools_of(memory, user_id="ada", session_id="s1")
    answer = await use(face, tools["remember"], predicate="pin", value="4711")
    assert answer.startswith("WriteRefused: the write policy refused this fact: a PIN")
    assert [one.entry for one in await memory.refusals()] == ["fact"]
    assert (await use(face, tools["remember"], predicate="", value="x")).startswith("InvalidArgument")
    assert await use(face, tools["remember"], predicate="pin", value="1234") == "Remembered: pin: 1234"

    def gone(*args: Any, **options: Any) -> Any:
        raise StoreUnavailable("could not reach Postgres")

    async def agone(*args: Any, **options: Any) -> Any:
        gone()

    monkeypatch.setattr(memory.target._rt.database, "run", gone)
    monkeypatch.setattr(memory.target._rt.database, "arun", agone)
    assert (await use(face, tools["recall"], query="pin")).startswith("StoreUnavailable: could not reach")
    monkeypatch.undo()


# -- as LangChain tests tools ------------------------------------------------------------------------------------


class _Standard(ToolsIntegrationTests):
    name = ""
    example: dict[str, Any] = {}  # noqa: RUF012

    @pytest.fixture(autouse=True)
    def _made(self, dsn: str) -> Iterator[None]:
        with PgMem(dsn) as mem:
            self._tools = {tool.name: tool for tool in memory_tools(mem, user_id="ada", session_id="s1")}
            yield

    @property
    def tool_constructor(self) -> BaseTool:
        return self._tools[self.name]

    @property
    def tool_invoke_params_example(self) -> dict[str, Any]:
        return self.example


class TestRemember(_Standard):
    name = "remember"
    example = {"predicate": "lives_in", "value": "Porto", "quote": "I live in Porto"}  # noqa: RUF012


class TestRecall(_Standard):
    name = "recall"
    example = {"query": "Where do I live?"}  # noqa: RUF012


class TestCorrect(_Standard):
    name = "correct"
    example = {"predicate": "lives_in", "value": "Porto", "replaces": "Lisbon"}  # noqa: RUF012


class TestForget(_Standard):
    name = "forget"
    example = {"predicate": "lives_in", "value": "Porto"}  # noqa: RUF012
