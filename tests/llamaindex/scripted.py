"""A LlamaIndex chat model that says what a test tells it to, and remembers what it was given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    LLMMetadata,
    MessageRole,
    TextBlock,
    ToolCallBlock,
)
from llama_index.core.base.response.schema import Response
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from pydantic import Field

from pgmem_llamaindex import PgMemMemory
from pgmem_llamaindex.recalled import is_recalled
from tests.fix_memory import Face

__all__ = ["Both", "Handbook", "Llama", "call", "drained", "recalled", "say", "texts"]

Reply = str | ChatMessage


def call(name: str, **arguments: Any) -> ChatMessage:
    """A reply that calls one tool."""
    block = ToolCallBlock(tool_call_id=f"call-{name}", tool_name=name, tool_kwargs=arguments)
    return ChatMessage(role=MessageRole.ASSISTANT, blocks=[block])


class Llama(FunctionCallingLLM):
    """Gives its replies one after the other, the last one for ever, or what `answer` makes of the messages. `asked`:
    the messages of each call, as they were. `completed`: the prompts that were no chat."""

    replies: list[Any] = Field(default_factory=lambda: ["noted"])
    answer: Callable[[list[ChatMessage]], Reply] | None = None
    asked: list[list[ChatMessage]] = Field(default_factory=list)
    completed: list[str] = Field(default_factory=list)
    functions: bool = True

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(model_name="llama", is_chat_model=True, is_function_calling_model=self.functions)

    def _next(self, messages: Sequence[ChatMessage]) -> ChatResponse:
        self.asked.append([message.model_copy(deep=True) for message in messages])
        if self.answer is not None:
            reply = self.answer(self.asked[-1])
        else:
            reply = self.replies[min(len(self.asked), len(self.replies)) - 1]
        if isinstance(reply, str):
            reply = ChatMessage(role=MessageRole.ASSISTANT, content=reply)
        return ChatResponse(message=reply.model_copy(deep=True), delta=reply.content)

    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return self._next(messages)

    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return self._next(messages)

    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Iterator[ChatResponse]:  # type: ignore[override]
        yield self._next(messages)

    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> AsyncIterator[ChatResponse]:  # type: ignore[override]
        async def stream() -> AsyncIterator[ChatResponse]:
            yield self._next(messages)

        return stream()

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        self.completed.append(prompt)
        return CompletionResponse(text="the standalone question")

    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return self.complete(prompt)

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        yield self.complete(prompt)

    async def astream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        raise NotImplementedError

    def _prepare_chat_with_tools(
        self,
        tools: Any,
        user_msg: Any = None,
        chat_history: list[ChatMessage] | None = None,
        verbose: bool = False,
        allow_parallel_tool_calls: bool = False,
        tool_required: bool = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        return {"messages": [*(chat_history or []), *([user_msg] if user_msg else [])]}

    def get_tool_calls_from_response(
        self, response: ChatResponse, error_on_no_tool_call: bool = True, **kwargs: Any
    ) -> list[ToolSelection]:
        return [
            ToolSelection(tool_id=block.tool_call_id or "", tool_name=block.tool_name, tool_kwargs=block.tool_kwargs)
            for block in response.message.blocks
            if isinstance(block, ToolCallBlock) and isinstance(block.tool_kwargs, dict)
        ]


class Handbook(BaseRetriever):
    """Finds the same passage for every question."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [NodeWithScore(node=TextNode(text="The office opens at nine."), score=1.0)]


def texts(messages: Sequence[ChatMessage]) -> list[str]:
    """The words of each message, all its text blocks."""
    return ["\n".join(block.text for block in message.blocks if isinstance(block, TextBlock)) for message in messages]


def recalled(messages: Sequence[ChatMessage]) -> list[str]:
    """The texts that pgmem added to messages."""
    blocks = [block for message in messages for block in message.blocks]
    return [block.text for block in blocks if isinstance(block, TextBlock) and is_recalled(block.text)]


async def drained(response: Any) -> str:
    """The whole of a streamed answer, once it is in the memory."""
    if response.achat_stream is not None:
        words = [word async for word in response.async_response_gen()]
        if response.awrite_response_to_history_task is not None:
            await response.awrite_response_to_history_task
    else:
        words = list(response.response_gen)
        if response.write_response_to_history_thread is not None:
            response.write_response_to_history_thread.join()
    return "".join(words)


async def say(engine: Any, way: str, text: str) -> str:
    """Say something to a chat engine by `chat`, `achat`, `stream_chat` or `astream_chat`; return its answer."""
    if way == "chat":
        return str(await asyncio.to_thread(engine.chat, text))
    if way == "stream_chat":
        return await asyncio.to_thread(lambda: asyncio.run(drained(engine.stream_chat(text))))
    response: Response = await getattr(engine, way)(text)
    return str(response) if way == "achat" else await drained(response)


class Both:
    """A `PgMemMemory` of which either the blocking methods are called (in a thread) or the awaited ones."""

    def __init__(self, memory: Face, session_id: str | None = "s", **fields: Any) -> None:
        self.target = PgMemMemory.from_defaults(session_id, mem=memory.target, **fields)
        self._face = memory.face

    def __getattr__(self, name: str) -> Any:
        if self._face == "async":
            return getattr(self.target, f"a{name}")
        method = getattr(self.target, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await asyncio.to_thread(method, *args, **kwargs)

        return call
