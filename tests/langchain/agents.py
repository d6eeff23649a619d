"""Agents for tests: a scripted chat model that keeps what it was sent, agents run blocking or awaited, and what was
stored of it all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from langchain.agents import create_agent
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import PrivateAttr

from pgmem_langchain import PgMemMiddleware
from pgmem_langchain.aligning import SOURCE_KEY
from tests.fix_memory import Face

__all__ = ["Scripted", "agent_of", "call", "invoke", "learn", "recalled", "sent_text", "stored", "thread"]

Reply = AIMessage | str | Exception | Callable[[Sequence[BaseMessage]], AIMessage]


class Scripted(BaseChatModel):
    """Replies in order: texts, messages, errors to raise, or functions of what it is sent; "ok" once they are used up.

    `requests`: what it was sent, call by call, as it was at that moment.
    """

    replies: list[Any] = []  # noqa: RUF012  # pydantic copies it
    _requests: list[list[BaseMessage]] = PrivateAttr(default_factory=list)

    def __init__(self, *replies: Reply, **options: Any) -> None:
        super().__init__(replies=list(replies), **options)

    @property
    def requests(self) -> list[list[BaseMessage]]:
        return self._requests

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **options: Any) -> Scripted:
        return self

    def _next(self, messages: Sequence[BaseMessage]) -> AIMessage:
        self._requests.append([message.model_copy(deep=True) for message in messages])
        reply = self.replies.pop(0) if self.replies else "ok"
        if isinstance(reply, BaseException):
            raise reply
        if callable(reply):
            reply = reply(messages)
        return reply.model_copy(deep=True) if isinstance(reply, AIMessage) else AIMessage(reply)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._next(messages))])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        for chunk in _chunks(self._next(messages)):
            if run_manager is not None:
                run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in _chunks(self._next(messages)):
            if run_manager is not None:
                await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk


def _chunks(message: AIMessage) -> Iterator[ChatGenerationChunk]:
    """The reply word by word, its tool calls with the last."""
    words = str(message.content).split(" ")
    for number, word in enumerate(words):
        last = number == len(words) - 1
        yield ChatGenerationChunk(
            message=AIMessageChunk(
                content=word if last else f"{word} ",
                tool_call_chunks=[
                    {"type": "tool_call_chunk", "name": one["name"], "args": _json(one["args"]), "id": one["id"],
                     "index": place}
                    for place, one in enumerate(message.tool_calls)
                ] if last else [],
                chunk_position="last" if last else None,
            )
        )  # fmt: skip


def _json(arguments: dict[str, Any]) -> str:
    import json

    return json.dumps(arguments)


def agent_of(
    memory: Face,
    *replies: Reply,
    checkpointer: Any = None,
    tools: Sequence[Any] = (),
    more: Sequence[Any] = (),
    **options: Any,
) -> tuple[Any, Scripted]:
    """An agent with memory (of "ada", whose failures raise), and its model. `checkpointer`: one, or True for one in
    memory; `more`: middleware after ours."""
    options.setdefault("user_id", "ada")
    options.setdefault("on_error", "raise")
    model = Scripted(*replies)
    middleware = [PgMemMiddleware(memory.target, **options), *more]
    saver = InMemorySaver() if checkpointer is True else checkpointer
    return create_agent(model, tools, middleware=middleware, system_prompt="Be kind.", checkpointer=saver), model


async def learn(memory: Face, text: str = "I am allergic to walnuts", session_id: str = "earlier") -> None:
    """Have "ada" say something in another session."""
    await memory.add([{"role": "user", "content": text}], user_id="ada", session_id=session_id)
    await memory.form()


def call(name: str, call_id: str = "call-1", **arguments: Any) -> AIMessage:
    """A reply that calls one tool."""
    return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": call_id}])


def thread(thread_id: str = "t1", **more: Any) -> dict[str, Any]:
    """The config of a run in a thread."""
    return {"configurable": {"thread_id": thread_id, **more}}


async def invoke(face: str, agent: Any, given: Any, config: dict[str, Any] | None = None, **options: Any) -> Any:
    """Run an agent in the form of the test; a text is a human message, a list the messages."""
    if isinstance(given, str):
        given = [HumanMessage(given)]
    if isinstance(given, list):
        given = {"messages": given}
    config = thread() if config is None else config
    if face == "sync":
        return agent.invoke(given, config, **options)
    return await agent.ainvoke(given, config, **options)


def recalled(request: Sequence[BaseMessage]) -> list[str]:
    """The recalled blocks of a request."""
    return [str(message.content) for message in request if message.additional_kwargs.get(SOURCE_KEY) == "pgmem"]


def sent_text(request: Sequence[BaseMessage]) -> str:
    """Everything that a request says, whatever its blocks."""
    return "\n".join(str(message.text) for message in request)


async def stored(memory: Face, session_id: str = "t1", **options: Any) -> list[tuple[str, str]]:
    """Role and text of a session's turns, in order."""
    session = await memory.session.get(session_id, **options)
    return [(turn.role, turn.text) for turn in await session.turns()]
