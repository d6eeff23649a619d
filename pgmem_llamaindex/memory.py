"""`PgMemMemory`: the memory of LlamaIndex's chat engines and agents, kept in Postgres.

What a model is given is what LlamaIndex makes of `get`: the window of the session, and at most one message with what
pgmem remembers besides. `get` reads, in one round trip and without a call to a model but the embedding of the question;
`put` stores what it is given, never what `get` added.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from llama_index.core.base.llms.types import ChatMessage, MessageRole, TextBlock
from llama_index.core.memory.types import BaseMemory
from llama_index.core.storage.chat_store.base_db import MessageStatus
from pydantic import ConfigDict, Field, PrivateAttr, field_serializer

from pgmem_core import asking, transcript
from pgmem_core.errors import StoreUnavailable
from pgmem_core.flows import SessionKey
from pgmem_core.ids import check_id, new_id
from pgmem_core.tokens import count_tokens
from pgmem_core.types import Turn
from pgmem_core.window import repair
from pgmem_llamaindex.chat_store import kept
from pgmem_llamaindex.convert import chat_message, turn_arguments
from pgmem_llamaindex.handle import Handle, Memory
from pgmem_llamaindex.reading import Input, Memo, Request, Seen, asked_of, listed, read
from pgmem_llamaindex.recalled import own, unbraced

__all__ = ["PgMemMemory"]

log = logging.getLogger(__name__)


class PgMemMemory(BaseMemory):
    """One session's memory for a chat engine, an agent or a workflow. Made with `from_defaults`.

    `get` gives the newest messages within `token_limit`, instructions first, tool calls with their results, and one
    message of the user's role with what is remembered of the user and found for the question: just before the question
    where that is the newest message (SimpleChatEngine, agents), at the end where the engine has not put it yet (Context
    and CondensePlusContext). Nothing is added where nothing is known. It stays the same, byte for byte, until the user
    says something new.

    The object holds no messages: built again with the same session id, in any process, it remembers all. It is always
    true, may be copied, pickled and written out with a workflow's context (see `handle`), and then holds its scope and
    a reference to the database, never a secret.
    """

    model_config = ConfigDict(extra="forbid")

    session_id: str = Field(description="The thread of conversation; minted where none is given")
    user_id: str | None = Field(default=None, description="Whose memory it is; without one the session stands alone")
    group_id: str = Field(default="default", description="The group (tenant) of the user")
    agent_id: str | None = Field(default=None, description="The agent that a new session is filed under")
    token_limit: int = Field(default=30_000, ge=1, description="Most tokens of what `get` gives")
    insert_method: Literal["user", "system", "merge"] = Field(
        default="user",
        description="What is remembered comes as a message of the user's, as one of the system's that stands first, or"
        " merged, as a first block of the user's newest message",
    )
    recall_items: int | None = Field(default=None, ge=0, description="Most recalled items; None: the client's setting")
    recall_tokens: int | None = Field(default=None, ge=0, description="Most tokens of them; None: the client's setting")
    floor: float | Literal["default"] | None = Field(
        default="default", description="Relevance something must reach; None takes whatever comes nearest"
    )
    on_error: Literal["raise", "degrade"] = Field(
        default="raise", description="Where the database cannot be reached: raise, or go on without memory"
    )
    reference: dict[str, str] = Field(default_factory=dict, description="Where the memory is found again; no secret")
    _handle: Handle = PrivateAttr()
    _newest: Turn | None = PrivateAttr(default=None)
    _memo: Memo | None = PrivateAttr(default=None)
    _unsaved: list[dict[str, Any]] = PrivateAttr(default_factory=list)
    _failures: int = PrivateAttr(default=0)

    @field_serializer("reference")
    def _written(self, _: dict[str, str]) -> dict[str, str]:
        return self._handle.reference  # the client may have been given a name since

    def __init__(self, mem: Memory | None = None, *, dsn: str | None = None, **fields: Any) -> None:
        fields.pop("class_name", None)
        reference = fields.pop("reference", None)
        handle = Handle.restored(reference) if reference and mem is None and dsn is None else Handle(mem, dsn)
        if fields.get("session_id") is None:
            fields["session_id"] = str(new_id())
        fields["reference"] = handle.reference
        super().__init__(**fields)
        self._handle = handle
        check_id(self.session_id, "session_id")
        asking.scope_of(self.group_id, self.user_id, self.agent_id, self.session_id)

    @classmethod
    def class_name(cls) -> str:
        return "PgMemMemory"

    @classmethod
    def from_defaults(  # type: ignore[override]  # a mistyped name is refused, not swallowed
        cls,
        session_id: str | None = None,
        chat_history: list[ChatMessage] | None = None,
        *,
        user_id: str | None = None,
        group_id: str = "default",
        agent_id: str | None = None,
        mem: Memory | None = None,
        dsn: str | None = None,
        token_limit: int = 30_000,
        insert_method: Literal["user", "system", "merge"] = "user",
        recall_items: int | None = None,
        recall_tokens: int | None = None,
        floor: float | Literal["default"] | None = "default",
        on_error: Literal["raise", "degrade"] = "raise",
    ) -> PgMemMemory:
        """Return the memory of a session, which need not be there yet; nothing is written, and nothing erased.

        `mem`: a PgMem or AsyncPgMem, which stays yours to close, or `dsn`: a URL, or "env:NAME"; neither: the
        environment's PGMEM_DSN. `session_id`: left out, a new one is minted, shared with nobody. `chat_history`: if
        there is any, `set` at once. The other arguments are the fields. Raises: InvalidArgument, ValidationError.
        """
        memory = cls(
            mem, dsn=dsn, session_id=session_id, user_id=user_id, group_id=group_id, agent_id=agent_id,
            token_limit=token_limit, insert_method=insert_method, recall_items=recall_items,
            recall_tokens=recall_tokens, floor=floor, on_error=on_error,
        )  # fmt: skip
        if chat_history:
            memory.set(chat_history)
        return memory

    @property
    def failures(self) -> int:
        """How often this object went on without the database (`on_error="degrade"`)."""
        return self._failures

    def tokenizer_fn(self, text: str) -> Sequence[int]:
        """Return something as long as text has tokens: SimpleChatEngine counts its system prompt by it."""
        return range(count_tokens(text))

    # -- reading -----------------------------------------------------------------------------------------------

    def get(self, input: Input = None, initial_token_count: int = 0, **_: Any) -> list[ChatMessage]:
        """Return what a model should be given: the window, and what is remembered. New objects each time.

        `input`: the question, as text, message or blocks; left out, it is the user's newest message.
        `initial_token_count`: tokens of `token_limit` that are spent already; the user's newest message is kept however
        little is left. Raises: Conflict (the session is another user's), StoreUnavailable (unless `on_error` says to
        degrade: then what this object knows of the conversation is given, and `failures` counts it).
        """
        try:
            return self._told(self._handle.run(read, self._request(input, initial_token_count)))
        except StoreUnavailable as exc:
            return self._without(exc)

    async def aget(self, input: Input = None, initial_token_count: int = 0, **_: Any) -> list[ChatMessage]:
        try:
            return self._told(await self._handle.arun(read, self._request(input, initial_token_count)))
        except StoreUnavailable as exc:
            return self._without(exc)

    def get_all(self, status: MessageStatus | None = MessageStatus.ACTIVE) -> list[ChatMessage]:
        """Return every message of the session that stands so (None: the archived ones too), oldest first, and nothing
        else."""
        waiting = self._unsaved
        turns = self._handle.run(listed, self._key, kept(status), waiting)
        self._unsaved = self._unsaved[len(waiting) :]
        return [chat_message(turn) for turn in turns]

    async def aget_all(self, status: MessageStatus | None = MessageStatus.ACTIVE) -> list[ChatMessage]:
        waiting = self._unsaved
        turns = await self._handle.arun(listed, self._key, kept(status), waiting)
        self._unsaved = self._unsaved[len(waiting) :]
        return [chat_message(turn) for turn in turns]

    # -- writing -----------------------------------------------------------------------------------------------

    def put(self, message: ChatMessage) -> None:
        """Append a message. What `get` added is left out. Raises: as `put_messages`."""
        self.put_messages([message])

    async def aput(self, message: ChatMessage) -> None:
        await self.aput_messages([message])

    def put_messages(self, messages: Sequence[ChatMessage]) -> None:
        """Append messages in order, in one statement, all or none; [] does nothing.

        Raises: InvalidArgument, Conflict, WriteRefused, StoreUnavailable (unless `on_error` says to degrade: then they
        are kept in this object and written before whatever it reads or writes next).
        """
        if rows := self._rows(messages):
            waiting = self._unsaved
            try:
                self._wrote(self._handle.run(asking.add_turns, self._key, [*waiting, *rows], None), len(waiting))
            except StoreUnavailable as exc:
                self._keep(rows, exc)

    async def aput_messages(self, messages: Sequence[ChatMessage]) -> None:
        if rows := self._rows(messages):
            waiting = self._unsaved
            try:
                self._wrote(await self._handle.arun(asking.add_turns, self._key, [*waiting, *rows], None), len(waiting))
            except StoreUnavailable as exc:
                self._keep(rows, exc)

    def set(self, messages: Sequence[ChatMessage]) -> None:
        """Make these the session's messages: what both begin with stays, the rest of the old is withdrawn (no longer
        shown or recalled) and the rest of the new appended. The same messages again change nothing. Facts that were
        learnt stay."""
        self._handle.run(transcript.assign, self._key, self._rows(messages, identified=False))
        self._forget()

    async def aset(self, messages: Sequence[ChatMessage]) -> None:
        await self._handle.arun(transcript.assign, self._key, self._rows(messages, identified=False))
        self._forget()

    def reset(self, status: MessageStatus | None = MessageStatus.ACTIVE) -> None:
        """Clear this session, and no other: its messages (None: the archived ones too) are withdrawn. What was learnt
        of the user stays; to erase, use `mem.session.get(session_id).delete()` or `mem.forget`."""
        self._handle.run(transcript.withdraw, self._key, status=kept(status))
        if status is not MessageStatus.ARCHIVED:
            self._forget()

    async def areset(self, status: MessageStatus | None = MessageStatus.ACTIVE) -> None:
        await self._handle.arun(transcript.withdraw, self._key, status=kept(status))
        if status is not MessageStatus.ARCHIVED:
            self._forget()

    # -- state -------------------------------------------------------------------------------------------------

    @property
    def _key(self) -> SessionKey:
        return asking.session_key(self.session_id, group_id=self.group_id, user_id=self.user_id, agent_id=self.agent_id)

    def _request(self, input: Input, initial_token_count: int) -> Request:
        return Request(
            key=self._key, asked=asked_of(input), budget=max(0, self.token_limit - max(0, int(initial_token_count))),
            recall_items=self.recall_items, recall_tokens=self.recall_tokens, floor=self.floor, newest=self._newest,
            memo=self._memo, unsaved=tuple(self._unsaved),
        )  # fmt: skip

    def _told(self, seen: Seen) -> list[ChatMessage]:
        self._newest, self._memo = seen.newest, seen.memo
        self._unsaved = self._unsaved[seen.saved :]
        return _messages(seen, self.insert_method)

    def _rows(self, messages: Sequence[ChatMessage], *, identified: bool = True) -> list[dict[str, Any]]:
        rows = [turn_arguments(message) for given in messages if (message := own(given)) is not None]
        # A write whose answer was lost may be repeated: the same id is stored once.
        return [{**row, "id": str(new_id())} for row in rows] if identified else rows

    def _wrote(self, turns: Sequence[Turn], waited: int) -> None:
        self._unsaved = self._unsaved[waited:]
        for turn in turns:
            if turn.role == "user":
                self._newest = turn

    def _forget(self) -> None:
        self._newest, self._memo, self._unsaved = None, None, []

    def _keep(self, rows: Sequence[dict[str, Any]], exc: StoreUnavailable) -> None:
        self._missed(exc, "the messages wait in this process")
        now = datetime.now(UTC)
        self._unsaved = [*self._unsaved, *({**row, "created_at": now} for row in rows)]

    def _without(self, exc: StoreUnavailable) -> list[ChatMessage]:
        self._missed(exc, "the reply is made without memory")
        known = [] if self._newest is None else [chat_message(self._newest)]
        waiting = [chat_message(row) for row in self._unsaved]
        return waiting if any(message.role == MessageRole.USER for message in waiting) else [*known, *waiting]

    def _missed(self, exc: StoreUnavailable, so: str) -> None:
        if self.on_error == "raise":
            raise exc
        self._failures += 1
        log.warning("no memory for session %r, %s: %s", self.session_id, so, exc)


# -- messages --------------------------------------------------------------------------------------------------


def _messages(seen: Seen, insert_method: str) -> list[ChatMessage]:
    told = repair([{**turn.as_message(), "extra": turn.extra} for turn in seen.turns])
    messages = [chat_message(message) for message in told]
    if seen.waiting:  # it becomes part of a template
        for message in messages:
            message.blocks = [_untemplated(block) for block in message.blocks]
    shown = None if seen.memo is None else seen.memo.shown
    if shown is None:
        return messages
    last = next((n for n in reversed(range(len(messages))) if messages[n].role == MessageRole.USER), None)
    if insert_method == "system":
        return [ChatMessage(role=MessageRole.SYSTEM, content=shown), *messages]
    if insert_method == "merge" and last is not None:
        messages[last].blocks = [TextBlock(text=shown), *messages[last].blocks]
        return messages
    at = len(messages) if seen.waiting or last is None else last
    messages.insert(at, ChatMessage(role=MessageRole.USER, content=shown))
    return messages


def _untemplated(block: Any) -> Any:
    return TextBlock(text=unbraced(block.text)) if type(block) is TextBlock else block
