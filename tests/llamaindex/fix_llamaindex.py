"""Chat stores in both forms, wrapped like everything else of the public face: each method is awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage

from pgmem_core import AsyncPgMem
from pgmem_llamaindex import PgMemChatStore
from tests.fix_memory import Face

__all__ = ["Store", "contents", "mixed"]

_AWAITED = {"add_message": "async_add_message"}


class Store:
    """A `PgMemChatStore` of which either the blocking methods are called (in a thread) or the awaited ones."""

    def __init__(self, memory: Face, **fields: Any) -> None:
        self.target = PgMemChatStore(memory.target, **fields)
        self._face = memory.face

    def __getattr__(self, name: str) -> Any:
        if self._face == "async":
            return getattr(self.target, _AWAITED.get(name, f"a{name}"))
        method = getattr(self.target, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await asyncio.to_thread(method, *args, **kwargs)

        return call


def contents(messages: Sequence[ChatMessage]) -> list[str | None]:
    """The words of messages."""
    return [message.content for message in messages]


@pytest.fixture
async def mixed(dsn: str) -> AsyncIterator[Face]:
    """A memory whose adapters are called in both forms in one loop, as LlamaIndex does; closing it closes both."""
    memory = Face(AsyncPgMem(dsn), "async")
    yield memory
    await memory.close()
