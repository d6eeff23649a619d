"""Chat stores: `PgMemChatStore` for `ChatMemoryBuffer` and its like, `PgMemAsyncChatStore` for `Memory(chat_store=…)`.

A key is a session id: what is stored is the session's turns, recalled, extracted and shown like any other. What a
store takes away (`set_messages` with another history, every `delete_…`) is *withdrawn*: it is neither shown, nor
recalled, nor read by extraction again, and facts that rest on it stay. To erase, use pgmem itself:
`mem.session.get(key).delete()`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.memory.types import DEFAULT_CHAT_STORE_KEY
from llama_index.core.storage.chat_store.base import BaseChatStore
from llama_index.core.storage.chat_store.base_db import AsyncDBChatStore, MessageStatus
from llama_index.core.storage.chat_store.loading import RECOGNIZED_CHAT_STORES
from pydantic import ConfigDict, Field, PrivateAttr, field_serializer

from pgmem_core import asking, transcript
from pgmem_core.errors import InvalidArgument
from pgmem_core.flows import SessionKey
from pgmem_core.ids import check_id
from pgmem_core.transcript import Status
from pgmem_core.types import Turn
from pgmem_llamaindex.convert import chat_message, turn_arguments
from pgmem_llamaindex.handle import Handle, Memory

__all__ = ["PgMemAsyncChatStore", "PgMemChatStore"]


def _session(key: str, store: PgMemChatStore | PgMemAsyncChatStore) -> SessionKey:
    if key == DEFAULT_CHAT_STORE_KEY:
        raise InvalidArgument(
            f"the key {key!r} is LlamaIndex's default, which all chats would share; pass the session's id:"
            " chat_store_key='…'"
        )
    return asking.session_key(
        check_id(key, "key"), group_id=store.group_id, user_id=store.user_id, agent_id=store.agent_id
    )


def _rows(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    return [turn_arguments(message) for message in messages]


def _messages(turns: Sequence[Turn]) -> list[ChatMessage]:
    return [chat_message(turn) for turn in turns]


def _first(turns: Sequence[Turn]) -> ChatMessage | None:
    return chat_message(turns[0]) if turns else None


class PgMemChatStore(BaseChatStore):
    """LlamaIndex's chat store over pgmem, blocking and awaited: neither is a wrapper of the other.

    `mem`: a PgMem or AsyncPgMem, or `dsn`: see `Handle`. `user_id`: whose sessions the keys are; without it each key is
    a scope of its own, recalled by no other. A key of another user's reads as empty and refuses writes (Conflict).
    """

    model_config = ConfigDict(extra="forbid")

    user_id: str | None = Field(default=None, description="Whose sessions the keys are")
    group_id: str = Field(default="default", description="The group (tenant) of the user")
    agent_id: str | None = Field(default=None, description="The agent that new sessions are filed under")
    reference: dict[str, str] = Field(default_factory=dict, description="Where the memory is found again; no secret")
    _handle: Handle = PrivateAttr()

    @field_serializer("reference")
    def _written(self, _: dict[str, str]) -> dict[str, str]:
        return self._handle.reference  # the client may have been given a name since

    def __init__(self, mem: Memory | None = None, *, dsn: str | None = None, **fields: Any) -> None:
        handle = _handle_of(mem, dsn, fields)
        super().__init__(**fields)
        self._handle = handle
        _check_scope(self)

    @classmethod
    def class_name(cls) -> str:
        return "PgMemChatStore"

    def set_messages(self, key: str, messages: list[ChatMessage]) -> None:
        """Make the messages the session's. What both begin with stays, the rest of the old is withdrawn; the same
        messages again change nothing, and [] clears this session only."""
        self._handle.run(transcript.assign, _session(key, self), _rows(messages))

    def get_messages(self, key: str) -> list[ChatMessage]:
        """Return the session's messages, oldest first, as new objects; [] for a session that is not there."""
        return _messages(self._handle.run(transcript.listing, _session(key, self)))

    def add_message(self, key: str, message: ChatMessage, idx: int | None = None) -> None:
        """Append a message; at `idx`, those after it are withdrawn and said again behind it."""
        if idx is None:
            self._handle.run(transcript.add, _session(key, self), _rows([message]))
        else:
            messages = self.get_messages(key)
            messages.insert(idx, message)
            self.set_messages(key, messages)

    def delete_messages(self, key: str) -> list[ChatMessage] | None:
        """Withdraw all messages of this session and return them; None if there were none."""
        return _messages(self._handle.run(transcript.withdraw, _session(key, self))) or None

    def delete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Withdraw the message at a position (from the end where negative) and return it; None if there is none."""
        return _first(self._handle.run(transcript.withdraw, _session(key, self), place=idx))

    def delete_last_message(self, key: str) -> ChatMessage | None:
        """Withdraw the last message and return it; None if there is none."""
        return self.delete_message(key, -1)

    def get_keys(self) -> list[str]:
        """Return the ids of the user's sessions that hold messages, oldest first."""
        return self._handle.run(transcript.keys, self.group_id, self.user_id)

    async def aset_messages(self, key: str, messages: list[ChatMessage]) -> None:
        await self._handle.arun(transcript.assign, _session(key, self), _rows(messages))

    async def aget_messages(self, key: str) -> list[ChatMessage]:
        return _messages(await self._handle.arun(transcript.listing, _session(key, self)))

    async def async_add_message(self, key: str, message: ChatMessage, idx: int | None = None) -> None:
        if idx is None:
            await self._handle.arun(transcript.add, _session(key, self), _rows([message]))
        else:
            messages = await self.aget_messages(key)
            messages.insert(idx, message)
            await self.aset_messages(key, messages)

    async def adelete_messages(self, key: str) -> list[ChatMessage] | None:
        return _messages(await self._handle.arun(transcript.withdraw, _session(key, self))) or None

    async def adelete_message(self, key: str, idx: int) -> ChatMessage | None:
        return _first(await self._handle.arun(transcript.withdraw, _session(key, self), place=idx))

    async def adelete_last_message(self, key: str) -> ChatMessage | None:
        return await self.adelete_message(key, -1)

    async def aget_keys(self) -> list[str]:
        return await self._handle.arun(transcript.keys, self.group_id, self.user_id)


class PgMemAsyncChatStore(AsyncDBChatStore):
    """The store behind `Memory(chat_store=…)`: `Memory` keeps its turns in pgmem. Constructed as `PgMemChatStore`.

    What `Memory` flushes to its blocks is *archived*: out of its queue, `status=MessageStatus.ARCHIVED` shows it, and
    pgmem recalls it and learns from it as from any turn of the past.
    """

    model_config = ConfigDict(extra="forbid")

    user_id: str | None = Field(default=None, description="Whose sessions the keys are")
    group_id: str = Field(default="default", description="The group (tenant) of the user")
    agent_id: str | None = Field(default=None, description="The agent that new sessions are filed under")
    reference: dict[str, str] = Field(default_factory=dict, description="Where the memory is found again; no secret")
    _handle: Handle = PrivateAttr()

    @field_serializer("reference")
    def _written(self, _: dict[str, str]) -> dict[str, str]:
        return self._handle.reference  # the client may have been given a name since

    def __init__(self, mem: Memory | None = None, *, dsn: str | None = None, **fields: Any) -> None:
        handle = _handle_of(mem, dsn, fields)
        super().__init__(**fields)
        self._handle = handle
        _check_scope(self)

    @classmethod
    def class_name(cls) -> str:
        return "PgMemAsyncChatStore"

    async def get_messages(
        self,
        key: str,
        status: MessageStatus | None = MessageStatus.ACTIVE,
        limit: int | None = None,
        offset: int | None = None,
    ) -> list[ChatMessage]:
        """Return the session's messages of a status (None: of both), oldest first, as new objects."""
        turns = await self._handle.arun(
            transcript.listing, _session(key, self), status=kept(status), limit=limit, offset=offset or 0
        )
        return _messages(turns)

    async def count_messages(self, key: str, status: MessageStatus | None = MessageStatus.ACTIVE) -> int:
        """Return how many messages `get_messages` would give."""
        return await self._handle.arun(transcript.count, _session(key, self), status=kept(status))

    async def add_message(self, key: str, message: ChatMessage, status: MessageStatus = MessageStatus.ACTIVE) -> None:
        """Append a message."""
        await self.add_messages(key, [message], status)

    async def add_messages(
        self, key: str, messages: list[ChatMessage], status: MessageStatus = MessageStatus.ACTIVE
    ) -> None:
        """Append messages in order, all or none; [] does nothing."""
        archived = kept(status) == "archived"
        await self._handle.arun(transcript.add, _session(key, self), _rows(messages), archived=archived)

    async def set_messages(
        self, key: str, messages: list[ChatMessage], status: MessageStatus = MessageStatus.ACTIVE
    ) -> None:
        """Make the messages the session's of this status; see `PgMemChatStore.set_messages`. Those of the other status
        stay."""
        archived = kept(status) == "archived"
        await self._handle.arun(transcript.assign, _session(key, self), _rows(messages), archived=archived)

    async def delete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Withdraw the active message at a position (from the end where negative) and return it, if there is one."""
        return _first(await self._handle.arun(transcript.withdraw, _session(key, self), place=idx))

    async def delete_messages(self, key: str, status: MessageStatus | None = None) -> None:
        """Withdraw the session's messages of a status (None: of both)."""
        await self._handle.arun(transcript.withdraw, _session(key, self), status=kept(status))

    async def delete_oldest_messages(self, key: str, n: int) -> list[ChatMessage]:
        """Withdraw the oldest n active messages and return them."""
        return _messages(await self._handle.arun(transcript.withdraw, _session(key, self), limit=n))

    async def archive_oldest_messages(self, key: str, n: int) -> list[ChatMessage]:
        """Archive the oldest n active messages and return them."""
        return _messages(await self._handle.arun(transcript.archive_oldest, _session(key, self), n))

    async def get_keys(self) -> list[str]:
        """Return the ids of the user's sessions that hold messages, oldest first."""
        return await self._handle.arun(transcript.keys, self.group_id, self.user_id)


def kept(status: MessageStatus | None) -> Status | None:
    """Return LlamaIndex's status of messages as pgmem calls it."""
    if status is None:
        return None
    return "archived" if MessageStatus(status) is MessageStatus.ARCHIVED else "active"


def _handle_of(mem: Memory | None, dsn: str | None, fields: dict[str, Any]) -> Handle:
    """Return the handle, and leave its reference among the fields: what is read back brings nothing but that."""
    fields.pop("class_name", None)
    reference = fields.pop("reference", None)
    handle = Handle.restored(reference) if reference and mem is None and dsn is None else Handle(mem, dsn)
    fields["reference"] = handle.reference
    return handle


def _check_scope(store: PgMemChatStore | PgMemAsyncChatStore) -> None:
    asking.scope_of(store.group_id, store.user_id, store.agent_id, "any")


# `ChatMemoryBuffer.from_dict` and its like look a store up by its name.
cast("dict[str, Any]", RECOGNIZED_CHAT_STORES).setdefault(PgMemChatStore.class_name(), PgMemChatStore)
