"""`PgMemChatMessageHistory`: a session of pgmem as LangChain's chat message history."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeVar

from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.messages import BaseMessage

from pgmem_core import asking, transcript
from pgmem_core.context import within
from pgmem_core.effects import Flow, arun, run
from pgmem_core.errors import InvalidArgument
from pgmem_core.ids import check_id
from pgmem_core.storing import check_limit
from pgmem_core.types import Turn
from pgmem_langchain.clients import runtime_of
from pgmem_langchain.convert import as_messages, message_of, repair, turn_of

__all__ = ["PgMemChatMessageHistory"]

T = TypeVar("T")

# The first look back; a window that needs more takes four times as many, and so on.
_PAGE = 64


class PgMemChatMessageHistory(BaseChatMessageHistory):
    """A conversation in Postgres whose messages come back as they were.

    `session_id`: any non-blank string. `mem`: a PgMem or an AsyncPgMem, sync and async methods work on either; or
    `dsn`, for a client that the process shares. Everything sets itself up at first use. `user_id`: whose conversation
    it is; without it the session is a scope of its own and is recalled by no other.

    `limit`, `limit_tokens`: read the newest messages only, at most so many, or so many tokens. A window never starts
    with a tool's result, never parts a call from its results, and always holds the newest human message.

    `repair`: what is read is fit for a provider. A tool call that never got its result, though the conversation went
    on, is followed by a ToolMessage that says so, and a late result moves behind its call. The rows stay as they are;
    `repair=False` shows them.

    What is stored twice: a message with an id that the session holds already is stored once. Messages without ids are
    all stored, with one exception: a batch strictly longer than the stored session that begins with all of it (a
    client that sends its whole conversation each time) stores only the rest.
    """

    def __init__(
        self,
        session_id: str,
        *,
        mem: Any = None,
        dsn: str | None = None,
        user_id: str | None = None,
        group_id: str = "default",
        agent_id: str | None = None,
        limit: int | None = None,
        limit_tokens: int | None = None,
        repair: bool = True,
    ) -> None:
        """Raises: InvalidArgument for a blank or missing session id, or a limit that is no count."""
        self._key = asking.session_key(
            check_id(session_id, "session_id"), group_id=group_id, user_id=user_id, agent_id=agent_id
        )
        self._limit = None if limit is None else check_limit(limit)
        self._limit_tokens = None if limit_tokens is None else check_limit(limit_tokens, "limit_tokens")
        self._repair = repair
        self._rt = runtime_of(mem, dsn)

    @property
    def session_id(self) -> str:
        return self._key.session_id

    @property
    def messages(self) -> list[BaseMessage]:
        """The messages, oldest first. Setting them makes the given ones the conversation, in one transaction."""
        return run(self._read(), self._rt.database)

    @messages.setter
    def messages(self, messages: Sequence[BaseMessage]) -> None:
        run(self._spoken(transcript.assign(self._rt, self._key, self._turns(messages))), self._rt.database)

    def get_messages(self) -> list[BaseMessage]:
        """Return `messages`."""
        return self.messages

    async def aget_messages(self) -> list[BaseMessage]:
        """Return `messages`, awaited."""
        return await arun(self._read(), self._rt.database)

    def add_messages(self, messages: Sequence[BaseMessage], *, connection: Any = None) -> None:
        """Store messages in order, all or none, in one statement.

        Also taken: chunks, and what LangChain reads as a message (dicts, pairs of role and text). `connection`: a
        connection of the application whose transaction the write joins.

        Raises: InvalidArgument for what is no message or holds what JSON cannot, Conflict if the session is another
        user's.
        """
        run(self._add(messages, connection), self._rt.database)

    async def aadd_messages(self, messages: Sequence[BaseMessage], *, connection: Any = None) -> None:
        """The same, awaited."""
        await arun(self._add(messages, connection), self._rt.database)

    def clear(self) -> None:
        """Take all messages back: they are read no more and recalled no more.

        What was learnt from them stays, and so do their rows, as its evidence. To erase a conversation with all that
        came from it: `mem.session.get(session_id, user_id=...).delete()`.
        """
        run(transcript.assign(self._rt, self._key, []), self._rt.database)

    async def aclear(self) -> None:
        """The same, awaited."""
        await arun(transcript.assign(self._rt, self._key, []), self._rt.database)

    def __repr__(self) -> str:
        scope = self._key.scope
        return (
            f"{type(self).__name__}({self.session_id!r}, user_id={asking.shown_user(scope.user_id)!r},"
            f" group_id={scope.tenant_id!r})"
        )

    # -- flows -----------------------------------------------------------------------------------------------

    @staticmethod
    def _turns(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
        return [turn_of(message) for message in as_messages(messages)]

    def _add(self, messages: Sequence[BaseMessage], connection: Any) -> Flow[list[Turn]]:
        turns = self._turns(messages)
        return self._spoken(asking.add_turns(self._rt, self._key, turns, connection, aligned=True))

    @staticmethod
    def _spoken(flow: Flow[T]) -> Flow[T]:
        """Let errors that speak of turns, and of where we keep what, say it in the caller's words."""
        try:
            return (yield from flow)
        except InvalidArgument as exc:
            text = str(exc).replace('turn["lc"]["fields"]', "message").replace("turn[", "message[")
            raise type(exc)(re.sub(r"^turn (?=\d)", "message ", text)) from exc

    def _read(self) -> Flow[list[BaseMessage]]:
        if self._limit is None and self._limit_tokens is None:
            turns = chosen = yield from asking.turns(self._rt, self._key, None, None)
            all_ = True
        else:
            turns, all_ = yield from self._newest()
            chosen = within(turns, self._limit_tokens, len(turns) if self._limit is None else self._limit)
        messages = [message_of(turn) for turn in chosen]
        return repair(messages, cut=not all_ or len(chosen) < len(turns)) if self._repair else messages

    def _newest(self) -> Flow[tuple[list[Turn], bool]]:
        """Return at least the turns that the window may hold (those within the limits, and back to a human one), and
        whether they are all there are."""
        size = _PAGE
        while True:
            turns = yield from asking.turns(self._rt, self._key, size, None)
            if len(turns) < size:
                return turns, True
            enough = (self._limit is not None and len(turns) >= self._limit) or (
                self._limit_tokens is not None and sum(turn.token_count for turn in turns) >= self._limit_tokens
            )
            if enough and any(turn.role == "user" for turn in turns):
                return turns, False
            size *= 4
