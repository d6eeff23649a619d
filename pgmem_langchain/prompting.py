"""What a model is sent: an agent's request with what is remembered. The request and the state stay as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage

from pgmem_langchain.aligning import SOURCE_KEY, spoken
from pgmem_langchain.convert import repair

if TYPE_CHECKING:
    from langchain.agents.middleware import ModelRequest

    from pgmem_langchain.remembering import Exchange

__all__ = ["human_of", "with_memory"]


def human_of(messages: Sequence[BaseMessage]) -> BaseMessage | None:
    """Return the newest message that a human said; None if there is none."""
    return next((message for message in reversed(spoken(messages)) if message.type == "human"), None)


def with_memory(request: ModelRequest[Any], exchange: Exchange) -> ModelRequest[Any]:
    """Return the request with memory in its places, and with every tool call answered as providers insist."""
    messages: list[Any] = repair(request.messages, cut=True)
    remembered = exchange.remembered
    if remembered is None:
        return request.override(messages=messages)
    if remembered.tail is not None:
        tail = HumanMessage(remembered.tail, additional_kwargs={SOURCE_KEY: "pgmem"})
        messages.insert(_place(messages, exchange.message_id), tail)
    return request.override(messages=messages, system_message=_with_block(request.system_message, remembered.prefix))


def _place(messages: Sequence[BaseMessage], message_id: str | None) -> int:
    """Return where the human message stands; where it has been summarised away, the last of the human role; else 0."""
    humans = [number for number, message in enumerate(messages) if message.type == "human"]
    return next((n for n in humans if messages[n].id == message_id), humans[-1] if humans else 0)


def _with_block(system: SystemMessage | None, text: str) -> SystemMessage:
    if system is None:
        return SystemMessage([{"type": "text", "text": text}])
    own = [{"type": "text", "text": system.content}] if isinstance(system.content, str) else system.content
    # Some clients join the blocks of a system message with nothing between them.
    return system.model_copy(update={"content": [*own, {"type": "text", "text": f"\n\n{text}"}]})
