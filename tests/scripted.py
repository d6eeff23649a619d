"""Chat models that say what a test tells them to, and remember what they were asked."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from pydantic import Field

from pgmem_core.facts import Fact
from pgmem_core.types import Authority, SubjectRef, Turn

Reply = str | AIMessage | Exception
DAY = datetime(2024, 2, 28, 10, 0, tzinfo=UTC)


class Scripted(BaseChatModel):
    """Gives its replies one after the other, the last one for ever. `asked`: the messages of each call."""

    replies: list[Any] = Field(default_factory=list)
    answer: Callable[[str], Reply] | None = None
    asked: list[list[BaseMessage]] = Field(default_factory=list)
    awaited: int = 0

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def prompt(self, call: int = -1) -> str:
        """The user message of a call."""
        return str(self.asked[call][-1].content)

    def size(self, call: int) -> int:
        """The characters of all messages of a call."""
        return sum(len(str(message.content)) for message in self.asked[call])

    def _next(self, messages: list[BaseMessage]) -> AIMessage:
        self.asked.append(messages)
        if self.answer is not None:
            reply = self.answer(str(messages[-1].content))
        else:
            reply = self.replies[min(len(self.asked), len(self.replies)) - 1]
        if isinstance(reply, Exception):
            raise reply
        return AIMessage(reply) if isinstance(reply, str) else reply

    def _generate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._next(messages))])

    async def _agenerate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        self.awaited += 1
        return self._generate(messages)

    def _stream(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        message = self._next(messages)
        for word in re.findall(r"\s*\S+|\s+$", str(message.content)):
            yield ChatGenerationChunk(message=AIMessageChunk(content=word))
        end = AIMessageChunk(content="", response_metadata=message.response_metadata, chunk_position="last")
        yield ChatGenerationChunk(message=end)

    async def _astream(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        self.awaited += 1
        for chunk in self._stream(messages):
            yield chunk


class ToolCaller(Scripted):
    """A model that can be bound to tools, so LangChain gives it structured output. `bound`: the names of the tools."""

    bound: list[str] = Field(default_factory=list)

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, Any]:
        self.bound.extend(tool.__name__ for tool in tools)
        return self.bind()


def call(args: dict[str, Any], **metadata: Any) -> AIMessage:
    """A reply that calls the tool of the extraction's schema."""
    return AIMessage(
        content="",
        tool_calls=[{"name": "ExtractionReply", "args": args, "id": "1"}],
        response_metadata=metadata,
    )


def turn(text: str, role: str = "user", *, seq: int = 1, at: datetime = DAY, **fields: Any) -> Turn:
    """A turn as the store gives it."""
    return Turn(
        id=f"t{seq}",
        session_id="s",
        seq=seq,
        role=role,
        content=text,
        text=text,
        created_at=at,
        token_count=1,
        **fields,
    )


def turns(*texts: str) -> list[Turn]:
    """Turns of user and assistant, by turns."""
    return [turn(text, ("user", "assistant")[n % 2], seq=n + 1) for n, text in enumerate(texts)]


def fact(predicate: str, value: Any, *, id: str = "f1", subject: SubjectRef | None = None, **fields: Any) -> Fact:
    """A current fact about the user, or about `subject`."""
    given: dict[str, Any] = {
        "group_id": "g", "authority": Authority.user, "confidence": 0.9, "status": "accepted", "single_valued": True,
        "valid_from": None, "valid_to": None, "recorded_at": DAY, "superseded_at": None, "last_confirmed_at": DAY,
    }  # fmt: skip
    return Fact(
        id=id, subject=subject or SubjectRef("user", "u1"), predicate=predicate, value=value, **{**given, **fields}
    )
