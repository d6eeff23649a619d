"""Real chat engines and agents with a scripted model: what the model is given, and what the store holds."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent, ReActAgent
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.chat_engine import (
    CondensePlusContextChatEngine,
    CondenseQuestionChatEngine,
    ContextChatEngine,
    SimpleChatEngine,
)
from llama_index.core.query_engine import RetrieverQueryEngine

from pgmem_llamaindex import PgMemMemory
from tests.fix_memory import Face
from tests.llamaindex.fix_llamaindex import contents, mixed
from tests.llamaindex.scripted import Handbook, Llama, call, recalled, say, texts

__all__ = ["mixed"]

# LlamaIndex's agents use what pydantic and its own workflows call deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

ROOT = Path(__file__).resolve().parent.parent.parent
WAYS = ["chat", "achat", "stream_chat", "astream_chat"]
TOKEN = "7419-kestrel"
QUESTIONS = ["What is the code of my locker?", "Say my locker code again", "And my code for the locker once more?"]
SYSTEM = "You are the clerk of the lockers."


async def remembering(memory: Face, **options: Any) -> PgMemMemory:
    """A new session's memory; the user said something worth remembering in another."""
    earlier = await memory.session.open("earlier", user_id="ada")
    if not await earlier.turns():
        await earlier.add_turn("user", f"My locker code is {TOKEN}")
        await earlier.add_turn("assistant", "Good to know.")
        await memory.form()
    return PgMemMemory.from_defaults("now", user_id="ada", mem=memory.target, **options)


def systems(messages: list[ChatMessage]) -> list[str | None]:
    return [message.content for message in messages if message.role == MessageRole.SYSTEM]


def simple(llm: Llama, memory: PgMemMemory) -> Any:
    return SimpleChatEngine.from_defaults(llm=llm, memory=memory, system_prompt=SYSTEM)


def context(llm: Llama, memory: PgMemMemory) -> Any:
    return ContextChatEngine.from_defaults(Handbook(), llm=llm, memory=memory, system_prompt=SYSTEM)


def condense_plus_context(llm: Llama, memory: PgMemMemory) -> Any:
    return CondensePlusContextChatEngine.from_defaults(Handbook(), llm=llm, memory=memory, system_prompt=SYSTEM)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("build", [simple, context, condense_plus_context])
async def test_three_turns_of_a_chat_engine(mixed: Face, build: Callable[..., Any], way: str) -> None:
    """F6, F10."""
    memory = await remembering(mixed)
    llm = Llama(replies=["one", "two", "three"])
    engine = build(llm, memory)
    answers = [await say(engine, way, question) for question in QUESTIONS]
    assert answers == ["one", "two", "three"]
    assert contents(await memory.aget_all()) == [
        QUESTIONS[0], "one", QUESTIONS[1], "two", QUESTIONS[2], "three",
    ]  # fmt: skip
    assert len(llm.asked) == 3
    for n, asked in enumerate(llm.asked):
        [system] = systems(asked)
        assert system is not None
        assert system.count(SYSTEM) == 1
        [shown] = recalled(asked)
        assert TOKEN in shown
        # The question last, what is remembered just before it, and everything said before in its order.
        assert texts(asked)[-2:] == [shown, QUESTIONS[n]]
        said = [text for text in texts(asked)[1:] if text != shown]
        assert said == [text for pair in zip(QUESTIONS, answers, strict=True) for text in pair][: 2 * n + 1]
        assert asked[-2].role == MessageRole.USER


@pytest.mark.parametrize("way", WAYS)
async def test_condense_question_reaches_the_condensing_prompt_only(mixed: Face, way: str) -> None:
    memory = await remembering(mixed)

    def answer(messages: list[ChatMessage]) -> str:
        return "condensed" if "standalone question" in texts(messages)[-1] else "answered"

    llm = Llama(answer=answer)
    engine = CondenseQuestionChatEngine.from_defaults(
        RetrieverQueryEngine.from_args(Handbook(), llm=llm, streaming="stream" in way), llm=llm, memory=memory
    )
    for question in QUESTIONS:
        assert await say(engine, way, question) == "answered"
    assert contents(await memory.aget_all()) == [text for question in QUESTIONS for text in (question, "answered")]
    prompts = ["\n".join(texts(asked)) for asked in llm.asked]
    assert [TOKEN in prompt for prompt in prompts] == [True, False] * 3
    assert [prompt.count("<memory recalled ") for prompt in prompts] == [1, 0] * 3


# -- agents ----------------------------------------------------------------------------------------------------


def opening_hours(day: str) -> str:
    """When the lockers can be opened."""
    return f"On {day} from nine to five."


@pytest.mark.parametrize("streaming", [False, True])
async def test_three_turns_of_a_function_agent(mixed: Face, streaming: bool) -> None:
    """F6, F10: an agent asks its memory three times a turn."""
    memory = await remembering(mixed)
    lookup = call("opening_hours", day="Monday")
    llm = Llama(replies=["one", lookup, "two", "three"])
    agent = FunctionAgent(
        llm=llm, tools=[opening_hours], system_prompt=SYSTEM, streaming=streaming, initial_state={"drawer": 3}
    )
    for question in QUESTIONS:
        await agent.run(question, memory=memory)
    stored = await memory.aget_all()
    result = "On Monday from nine to five."
    assert texts(stored) == [QUESTIONS[0], "one", QUESTIONS[1], "", result, "two", QUESTIONS[2], "three"]
    assert [message.role.value for message in stored[2:6]] == ["user", "assistant", "tool", "assistant"]
    assert stored[3].blocks == lookup.blocks
    assert len(llm.asked) == 4
    for asked in llm.asked:
        assert systems(asked) == [SYSTEM]
        [shown] = recalled(asked)
        assert TOKEN in shown
    assert recalled(llm.asked[1]) == recalled(llm.asked[2])  # before the tool and after: the same bytes
    # The agent's state is written into the question it was given, and into nothing that is kept.
    assert "drawer" in texts(llm.asked[0])[-1]
    assert not any("drawer" in text for text in texts(stored))


@pytest.mark.parametrize("streaming", [False, True])
async def test_three_turns_of_a_react_agent(mixed: Face, streaming: bool) -> None:
    memory = await remembering(mixed)
    replies = [
        "Thought: I know it.\nAnswer: one",
        'Thought: I look it up.\nAction: opening_hours\nAction Input: {"day": "Monday"}',
        "Thought: I know it now.\nAnswer: two",
        "Thought: I know it.\nAnswer: three",
    ]
    llm = Llama(replies=replies, functions=False)
    agent = ReActAgent(llm=llm, tools=[opening_hours], system_prompt=SYSTEM, streaming=streaming)
    for question, answer in zip(QUESTIONS, ["one", "two", "three"], strict=True):
        assert str(await agent.run(question, memory=memory)) == answer
    stored = await memory.aget_all()
    assert texts(stored)[::2] == QUESTIONS
    assert [text.rpartition("Answer: ")[2] for text in texts(stored)[1::2]] == ["one", "two", "three"]
    assert len(llm.asked) == 4
    for asked in llm.asked:
        assert len(systems(asked)) == 1
        [shown] = recalled(asked)
        assert TOKEN in shown
    assert recalled(llm.asked[1]) == recalled(llm.asked[2])


@pytest.mark.parametrize("streaming", [False, True])
async def test_three_turns_of_a_workflow_with_a_hand_off(mixed: Face, streaming: bool) -> None:
    memory = await remembering(mixed)
    llm = Llama(replies=[call("handoff", to_agent="locksmith", reason="a code"), "one", "two", "three"])

    def agent(name: str, other: str) -> FunctionAgent:
        return FunctionAgent(
            name=name, description=f"The {name}.", llm=llm, system_prompt=f"You are the {name}.",
            tools=[opening_hours], can_handoff_to=[other], streaming=streaming,
        )  # fmt: skip

    workflow = AgentWorkflow([agent("clerk", "locksmith"), agent("locksmith", "clerk")], root_agent="clerk")
    for question in QUESTIONS:
        await workflow.run(question, memory=memory)
    stored = await memory.aget_all()
    assert [message.role.value for message in stored] == [
        "user", "assistant", "tool", "assistant", "user", "assistant", "user", "assistant",
    ]  # fmt: skip
    assert [text for text in texts(stored) if text in (*QUESTIONS, "one", "two", "three")] == [
        QUESTIONS[0], "one", QUESTIONS[1], "two", QUESTIONS[2], "three",
    ]  # fmt: skip
    assert [systems(asked) for asked in llm.asked[:2]] == [["You are the clerk."], ["You are the locksmith."]]
    for asked in llm.asked:
        assert len(systems(asked)) == 1
        [shown] = recalled(asked)
        assert TOKEN in shown
    # After the hand-off the question stands before the call; what is remembered stays before the question.
    handed = texts(llm.asked[1])
    assert handed[1:3] == [*recalled(llm.asked[1]), QUESTIONS[0]]
    assert recalled(llm.asked[0]) == recalled(llm.asked[1])


async def test_sync_engines_in_a_running_loop(mixed: Face) -> None:
    """D9: without nest_asyncio, in the loop that the awaited form uses too."""
    memory = await remembering(mixed)
    llm = Llama(replies=["one", "two"])
    engine = simple(llm, memory)
    assert str(engine.chat(QUESTIONS[0])) == "one"
    assert str(await engine.achat(QUESTIONS[1])) == "two"
    assert contents(memory.get_all()) == [QUESTIONS[0], "one", QUESTIONS[1], "two"]
    assert all(TOKEN in recalled(asked)[0] for asked in llm.asked)


async def test_two_engines_on_two_sessions_at_once(mixed: Face) -> None:
    """A9: neither sees what the other was told."""
    engines = [simple(Llama(replies=["ok"]), PgMemMemory.from_defaults(mem=mixed.target)) for _ in range(2)]
    await asyncio.gather(*(engine.achat(f"I am number {n}") for n, engine in enumerate(engines)))
    await asyncio.gather(*(engine.achat("Who am I?") for engine in engines))
    for n, engine in enumerate(engines):
        assert contents(engine.chat_history) == [f"I am number {n}", "ok", "Who am I?", "ok"]
        assert f"number {1 - n}" not in str(engine._llm.asked)


_TEN_LINES = """
import sys

for name in ("langchain", "langchain_core", "langgraph"):
    sys.modules[name] = None  # LlamaIndex and the core alone

from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.llms import MockLLM
from pgmem_llamaindex import PgMemMemory

memory = PgMemMemory.from_defaults(sys.argv[1], user_id="ada", dsn="env:PGMEM_DSN")
engine = SimpleChatEngine.from_defaults(llm=MockLLM(), memory=memory)
print(engine.chat(sys.argv[2]))
"""


async def test_a_new_process_remembers(dsn: str) -> None:
    def run(session: str, text: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", _TEN_LINES, session, text], capture_output=True, text=True, check=False,
            env={**os.environ, "PGMEM_DSN": dsn, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    first = await asyncio.to_thread(run, "monday", f"The code of my locker is {TOKEN}.")
    assert first.count(TOKEN) == 1  # the model answers with what it was given
    assert TOKEN in await asyncio.to_thread(run, "friday", "What is the code of my locker?")
