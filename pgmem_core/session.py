"""A session: one thread of conversation, read before the reply and written after it.

`Session` blocks and has the words; `AsyncSession` stands below with the same methods to await.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pgmem_core import asking, believing
from pgmem_core.believing import EvidenceLike
from pgmem_core.compacting import CompactReport, compact, compact_later
from pgmem_core.doing import AsyncExecution, Execution
from pgmem_core.effects import arun, run
from pgmem_core.facts import Fact
from pgmem_core.types import Authority, CompiledContext, ScoredMemory, SessionInfo, SubjectRef, Turn

if TYPE_CHECKING:
    from pgmem_core.flows import SessionKey
    from pgmem_core.runtime import Runtime

__all__ = ["AsyncSession", "Session"]


class _Base:
    def __init__(self, rt: Runtime, key: SessionKey) -> None:
        self._rt = rt
        self._key = key

    @property
    def id(self) -> str:
        """The session's id: the one given, or the UUIDv7 minted for it."""
        return self._key.session_id

    @property
    def group_id(self) -> str:
        return self._key.scope.tenant_id

    @property
    def user_id(self) -> str | None:
        """Whose session it is; None for one without a user, which recalls only itself."""
        return asking.shown_user(self._key.scope.user_id)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r}, user_id={self.user_id!r}, group_id={self.group_id!r})"


class Session(_Base):
    """One thread of conversation. Made by `mem.session.create`, `open` or `get`."""

    @property
    def execution(self) -> Execution:
        """What the agent is doing right now: keyed, of this session only."""
        return Execution(self._rt, self._key)

    def compile_context(
        self,
        query: object = None,
        *,
        query_id: str | uuid.UUID | None = None,
        injected_context: Sequence[str] = (),
        instructions: str | None = None,
        budget_tokens: int | None = None,
        recall_items: int | None = None,
        recall_tokens: int | None = None,
        kinds: Sequence[str] | None = None,
        filter: Mapping[str, Any] | None = None,
        store_query: bool = True,
        floor: float | str | None = "default",
        valid_at: datetime | None = None,
        known_at: datetime | None = None,
    ) -> CompiledContext:
        """Read memory into a prompt for the user's query: the only work before the reply.

        One query embedding (bounded by the setting `embed_timeout_ms`; past it the read goes by words) and one
        round trip. `query`: str, content blocks, or an object with `.content`; it is the user's turn, and is
        made durable beside the model call (`store_query=False`: not). `injected_context`: texts that others
        own, shown this once and never stored. `instructions`: your system prompt, put first in the stable
        prefix. `filter` and `kinds` bound what is recalled; `floor=None` recalls whatever comes nearest.

        `valid_at`: with the facts that hold then. `known_at` (an aware moment of the past): as memory knew it then;
        nothing is stored or logged, and execution memory, which keeps no past, is left out. With `query_id`, what
        was shown for that turn, byte for byte, by the injection log: pass the same `instructions` and
        `injected_context`, which are not kept (`query` may be left out), and see `notes` for what cannot be the same.

        Raises: NotFound, InvalidArgument, StoreUnavailable.
        """
        return run(asking.compile_context(
            self._rt, self._key, query, query_id=query_id, injected_context=injected_context,
            instructions=instructions, budget_tokens=budget_tokens, recall_items=recall_items,
            recall_tokens=recall_tokens, kinds=kinds, filter=filter, store_query=store_query, floor=floor,
            valid_at=valid_at, known_at=known_at,
        ), self._rt.database)  # fmt: skip

    def add_turn(
        self,
        role: str,
        content: object = None,
        *,
        id: str | uuid.UUID | None = None,
        name: str | None = None,
        tool_calls: Sequence[Mapping[str, Any]] | None = None,
        tool_call_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        created_at: datetime | None = None,
        extra: Mapping[str, Any] | None = None,
        connection: Any = None,
    ) -> Turn:
        """Append one turn and return it, with its place in the session. One statement.

        `role`: system, developer, user, assistant or tool. `content`: str, content blocks, or an object with
        `.content`. `id`: your own, any string; the same id again stores nothing and returns the first.
        `created_at`: when it was said (aware; default now). `extra`: more fields of the message, returned as
        they are. `connection`: joins that transaction. A query that compile_context was given goes before it.

        Raises: InvalidArgument, NotFound, Conflict (the id is another session's), StoreUnavailable.
        """
        turn = {
            "role": role, "content": content, "id": id, "name": name, "tool_calls": tool_calls,
            "tool_call_id": tool_call_id, "metadata": metadata, "created_at": created_at, "extra": extra,
        }  # fmt: skip
        return run(asking.add_turns(self._rt, self._key, [turn], connection), self._rt.database)[0]

    def add_turns(self, turns: Sequence[Mapping[str, Any]], *, connection: Any = None) -> list[Turn]:
        """Append turns in order, in one statement: all of them or, if one is bad, none.

        Each is a mapping with the arguments of `add_turn` as keys.
        """
        return run(asking.add_turns(self._rt, self._key, turns, connection), self._rt.database)

    def observe(
        self,
        predicate: str,
        value: Any,
        *,
        subject: SubjectRef | None = None,
        authority: Authority | str = Authority.agent,
        evidence: Sequence[EvidenceLike] | EvidenceLike = (),
        valid_from: datetime | None = None,
        valid_to: datetime | None = None,
        confidence: float | None = None,
        single_valued: bool | None = None,
        explicit: bool = False,
        ttl_seconds: float | None = None,
        connection: Any = None,
    ) -> Fact | None:
        """Record what is true about a subject (default: this session's user), and return the fact that stands for it.

        A value said again confirms; another value of a single-valued predicate closes the old one's valid time ("it
        was true"), unless a stronger authority said the old one, which leaves the new one contested. `authority`:
        who said so; `evidence`: turns, `Evidence`, or the name of a source. `value`: any JSON value up to 4 kB.
        `explicit`: brings a rejected value back, if the authority is that of the rejection or higher. `ttl_seconds`:
        it holds that long from now on; said again with another, from then on (a fact that had no end keeps having
        none). Returns None if the value stays rejected. Raises: InvalidArgument, NotFound (evidence that is not there).
        """
        return run(believing.observe(
            self._rt, self._key, predicate, value, action="assert", subject=subject, authority=authority,
            evidence=evidence, valid_from=valid_from, valid_to=valid_to, confidence=confidence,
            single_valued=single_valued, explicit=explicit, ttl_seconds=ttl_seconds, given=connection,
        ), self._rt.database)  # fmt: skip

    def correct(
        self,
        predicate: str,
        value: Any,
        *,
        subject: SubjectRef | None = None,
        authority: Authority | str = Authority.agent,
        evidence: Sequence[EvidenceLike] | EvidenceLike = (),
        replaces: Any = None,
        valid_from: datetime | None = None,
        valid_to: datetime | None = None,
        confidence: float | None = None,
        single_valued: bool | None = None,
        connection: Any = None,
    ) -> Fact | None:
        """Say that an earlier value was wrong, and what is right: the old one closes in transaction time ("we should
        never have believed it") and stays dead. `replaces` names it; default: the standing value. Raises as `observe`.
        """
        return run(believing.observe(
            self._rt, self._key, predicate, value, action="correct", subject=subject, authority=authority,
            evidence=evidence, replaces=replaces, valid_from=valid_from, valid_to=valid_to, confidence=confidence,
            single_valued=single_valued, given=connection,
        ), self._rt.database)  # fmt: skip

    def retract(
        self,
        predicate: str,
        value: Any = None,
        *,
        subject: SubjectRef | None = None,
        authority: Authority | str = Authority.agent,
        evidence: Sequence[EvidenceLike] | EvidenceLike = (),
        connection: Any = None,
    ) -> Fact | None:
        """Say that a value was never true, without another: it closes in transaction time and stays dead.

        Returns the closed fact, or None if nobody had claimed it (it is kept dead all the same).
        """
        return run(believing.observe(
            self._rt, self._key, predicate, value, action="retract", subject=subject, authority=authority,
            evidence=evidence, given=connection,
        ), self._rt.database)  # fmt: skip

    def turns(self, limit: int | None = None, *, before_seq: int | None = None) -> list[Turn]:
        """Return the last `limit` turns (all if None), oldest first; before_seq pages backwards."""
        return run(asking.turns(self._rt, self._key, limit, before_seq), self._rt.database)

    def window(self, *, budget_tokens: int | None = None, max_turns: int | None = None) -> list[Turn]:
        """Return the newest turns within a token budget and a count, oldest first.

        A tool call is never parted from its results, and the newest user turn is always there.
        """
        return run(asking.window(self._rt, self._key, budget_tokens, max_turns), self._rt.database)

    def search(
        self,
        query: object,
        *,
        k: int = 8,
        filter: Mapping[str, Any] | None = None,
        floor: float | str | None = None,
    ) -> list[ScoredMemory]:
        """Return the best k memories of this session's user, best first."""
        return run(asking.search(self._rt, self._key.scope, query, k, {"filter": filter}, floor), self._rt.database)

    def compact(self) -> CompactReport:
        """Embed, extract and summarise all of the session now, and bring the user's narrative up to date; return what
        was written.

        Writes an episode for each stretch of the session and the running summary. Without a model the report says
        so; a model that failed is in its `error`, and is asked again by itself. Raises: NotFound.
        """
        return run(compact(self._rt, self._key), self._rt.database)

    def compact_async(self) -> None:
        """Have `compact` done off the turn: returns at once, and what is to be done outlives this process.
        Raises: NotFound."""
        run(compact_later(self._rt, self._key), self._rt.database)

    def info(self) -> SessionInfo:
        """Return the session as stored. Raises: NotFound."""
        return run(asking.session_info(self._rt, self._key), self._rt.database)

    def end(self, *, connection: Any = None) -> SessionInfo:
        """Mark the session ended and return it."""
        return run(asking.end_session(self._rt, self._key, connection), self._rt.database)

    def delete(self, *, connection: Any = None) -> int:
        """Delete the session with its turns, vectors and terms; return how many turns it had."""
        return run(asking.delete_session(self._rt, self._key, connection), self._rt.database)


class AsyncSession(_Base):
    """`Session` to await; see there."""

    @property
    def execution(self) -> AsyncExecution:
        return AsyncExecution(self._rt, self._key)

    async def compile_context(
        self,
        query: object = None,
        *,
        query_id: str | uuid.UUID | None = None,
        injected_context: Sequence[str] = (),
        instructions: str | None = None,
        budget_tokens: int | None = None,
        recall_items: int | None = None,
        recall_tokens: int | None = None,
        kinds: Sequence[str] | None = None,
        filter: Mapping[str, Any] | None = None,
        store_query: bool = True,
        floor: float | str | None = "default",
        valid_at: datetime | None = None,
        known_at: datetime | None = None,
    ) -> CompiledContext:
        return await arun(asking.compile_context(
            self._rt, self._key, query, query_id=query_id, injected_context=injected_context,
            instructions=instructions, budget_tokens=budget_tokens, recall_items=recall_items,
            recall_tokens=recall_tokens, kinds=kinds, filter=filter, store_query=store_query, floor=floor,
            valid_at=valid_at, known_at=known_at,
        ), self._rt.database)  # fmt: skip

    async def add_turn(
        self,
        role: str,
        content: object = None,
        *,
        id: str | uuid.UUID | None = None,
        name: str | None = None,
        tool_calls: Sequence[Mapping[str, Any]] | None = None,
        tool_call_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        created_at: datetime | None = None,
        extra: Mapping[str, Any] | None = None,
        connection: Any = None,
    ) -> Turn:
        turn = {
            "role": role, "content": content, "id": id, "name": name, "tool_calls": tool_calls,
            "tool_call_id": tool_call_id, "metadata": metadata, "created_at": created_at, "extra": extra,
        }  # fmt: skip
        return (await arun(asking.add_turns(self._rt, self._key, [turn], connection), self._rt.database))[0]

    async def add_turns(self, turns: Sequence[Mapping[str, Any]], *, connection: Any = None) -> list[Turn]:
        return await arun(asking.add_turns(self._rt, self._key, turns, connection), self._rt.database)

    async def observe(
        self,
        predicate: str,
        value: Any,
        *,
        subject: SubjectRef | None = None,
        authority: Authority | str = Authority.agent,
        evidence: Sequence[EvidenceLike] | EvidenceLike = (),
        valid_from: datetime | None = None,
        valid_to: datetime | None = None,
        confidence: float | None = None,
        single_valued: bool | None = None,
        explicit: bool = False,
        ttl_seconds: float | None = None,
        connection: Any = None,
    ) -> Fact | None:
        return await arun(believing.observe(
            self._rt, self._key, predicate, value, action="assert", subject=subject, authority=authority,
            evidence=evidence, valid_from=valid_from, valid_to=valid_to, confidence=confidence,
            single_valued=single_valued, explicit=explicit, ttl_seconds=ttl_seconds, given=connection,
        ), self._rt.database)  # fmt: skip

    async def correct(
        self,
        predicate: str,
        value: Any,
        *,
        subject: SubjectRef | None = None,
        authority: Authority | str = Authority.agent,
        evidence: Sequence[EvidenceLike] | EvidenceLike = (),
        replaces: Any = None,
        valid_from: datetime | None = None,
        valid_to: datetime | None = None,
        confidence: float | None = None,
        single_valued: bool | None = None,
        connection: Any = None,
    ) -> Fact | None:
        return await arun(believing.observe(
            self._rt, self._key, predicate, value, action="correct", subject=subject, authority=authority,
            evidence=evidence, replaces=replaces, valid_from=valid_from, valid_to=valid_to, confidence=confidence,
            single_valued=single_valued, given=connection,
        ), self._rt.database)  # fmt: skip

    async def retract(
        self,
        predicate: str,
        value: Any = None,
        *,
        subject: SubjectRef | None = None,
        authority: Authority | str = Authority.agent,
        evidence: Sequence[EvidenceLike] | EvidenceLike = (),
        connection: Any = None,
    ) -> Fact | None:
        return await arun(believing.observe(
            self._rt, self._key, predicate, value, action="retract", subject=subject, authority=authority,
            evidence=evidence, given=connection,
        ), self._rt.database)  # fmt: skip

    async def turns(self, limit: int | None = None, *, before_seq: int | None = None) -> list[Turn]:
        return await arun(asking.turns(self._rt, self._key, limit, before_seq), self._rt.database)

    async def window(self, *, budget_tokens: int | None = None, max_turns: int | None = None) -> list[Turn]:
        return await arun(asking.window(self._rt, self._key, budget_tokens, max_turns), self._rt.database)

    async def search(
        self,
        query: object,
        *,
        k: int = 8,
        filter: Mapping[str, Any] | None = None,
        floor: float | str | None = None,
    ) -> list[ScoredMemory]:
        return await arun(
            asking.search(self._rt, self._key.scope, query, k, {"filter": filter}, floor), self._rt.database
        )

    async def compact(self) -> CompactReport:
        return await arun(compact(self._rt, self._key), self._rt.database)

    async def compact_async(self) -> None:
        await arun(compact_later(self._rt, self._key), self._rt.database)

    async def info(self) -> SessionInfo:
        return await arun(asking.session_info(self._rt, self._key), self._rt.database)

    async def end(self, *, connection: Any = None) -> SessionInfo:
        return await arun(asking.end_session(self._rt, self._key, connection), self._rt.database)

    async def delete(self, *, connection: Any = None) -> int:
        return await arun(asking.delete_session(self._rt, self._key, connection), self._rt.database)
