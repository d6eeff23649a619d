"""What is asked of a memory outside a session, as `PgMem` and `AsyncPgMem` inherit it: mem0's verbs, which everyone
knows, and the questions about facts."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, overload

from pgmem_core import asking, believing
from pgmem_core.effects import arun, run
from pgmem_core.facts import Fact
from pgmem_core.runtime import Runtime
from pgmem_core.types import MemoryText, ScoredMemory, SubjectRef, Turn

__all__ = ["AsyncVerbs", "Verbs"]


class Verbs:
    """The blocking form; it has the words."""

    _rt: Runtime

    def add(
        self,
        messages: object,
        *,
        user_id: str,
        group_id: str = "default",
        agent_id: str | None = None,
        session_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        connection: Any = None,
    ) -> list[Turn]:
        """Remember a text, a message or a list of messages, as turns of a session (a new one if none is named)."""
        scope = asking.scope_of(group_id, user_id, agent_id, None)
        return run(
            asking.add_messages(
                self._rt, messages, scope=scope, session_id=session_id, metadata=metadata, given=connection
            ),
            self._rt.database,
        )

    def search(
        self,
        query: object,
        *,
        user_id: str,
        top_k: int = 10,
        group_id: str = "default",
        agent_id: str | None = None,
        session_id: str | None = None,
        kind: str | Sequence[str] | None = None,
        after: datetime | None = None,
        before: datetime | None = None,
        filter: Mapping[str, Any] | None = None,
        floor: float | str | None = None,
        valid_at: datetime | None = None,
        known_at: datetime | None = None,
    ) -> list[ScoredMemory]:
        """Return a user's best memories for a query, best first, with the parts of their scores; [] if blank.

        `valid_at`, `known_at`: as of then, see `facts`.
        """
        return run(asking.search(
            self._rt, asking.scope_of(group_id, user_id, None, None), query, top_k,
            {"session_id": session_id, "agent_id": agent_id, "kind": kind, "after": after, "before": before,
             "filter": filter}, floor, valid_at=valid_at, known_at=known_at,
        ), self._rt.database)  # fmt: skip

    def get_all(
        self,
        *,
        user_id: str,
        group_id: str = "default",
        session_id: str | None = None,
        kind: str | Sequence[str] | None = None,
        filter: Mapping[str, Any] | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[MemoryText]:
        """Return a user's memories, newest first."""
        return run(asking.get_all(
            self._rt, asking.scope_of(group_id, user_id, None, None), limit=limit, offset=offset,
            conditions={"session_id": session_id, "kind": kind, "filter": filter},
        ), self._rt.database)  # fmt: skip

    def update(
        self,
        memory_id: str | uuid.UUID,
        content: object,
        *,
        group_id: str = "default",
        user_id: str | None = None,
        connection: Any = None,
    ) -> MemoryText:
        """Replace a memory's text; what it was stays in `history`. Raises: NotFound, also where user_id is given and
        it is another user's."""
        return run(asking.update(self._rt, group_id, memory_id, content, user_id, connection), self._rt.database)

    def delete(
        self,
        memory_id: str | uuid.UUID,
        *,
        group_id: str = "default",
        user_id: str | None = None,
        connection: Any = None,
    ) -> bool:
        """Delete one memory with its vector, terms and earlier texts; False if there is none."""
        return run(asking.delete(self._rt, group_id, memory_id, user_id, connection), self._rt.database)

    def delete_all(self, *, user_id: str, group_id: str = "default", connection: Any = None) -> int:
        """Delete everything of one user; returns how many memories that were. An empty user_id is refused."""
        return run(
            asking.delete_all(self._rt, asking.scope_of(group_id, user_id, None, None), connection), self._rt.database
        )

    def facts(
        self,
        subject: SubjectRef | None = None,
        predicate: str | None = None,
        *,
        user_id: str | None = None,
        group_id: str = "default",
        valid_at: datetime | None = None,
        known_at: datetime | None = None,
    ) -> list[Fact]:
        """Return the facts about a subject, or in a user's memory, that hold.

        `valid_at`: that held then; `known_at`: as they were believed then (aware datetimes; default now). The two
        clocks are independent: what was true in May, as we knew it in June.
        """
        return run(believing.facts(
            self._rt, group_id, subject=subject, user_id=user_id, predicate=predicate, valid_at=valid_at,
            known_at=known_at,
        ), self._rt.database)  # fmt: skip

    @overload
    def history(
        self, target: str | uuid.UUID, *, group_id: str = "default", user_id: str | None = None
    ) -> list[dict[str, Any]]: ...

    @overload
    def history(
        self,
        target: SubjectRef,
        predicate: str | None = None,
        *,
        group_id: str = "default",
        user_id: str | None = None,
    ) -> list[Fact]: ...

    def history(
        self,
        target: str | uuid.UUID | SubjectRef,
        predicate: str | None = None,
        *,
        group_id: str = "default",
        user_id: str | None = None,
    ) -> list[dict[str, Any]] | list[Fact]:
        """Return what happened to a memory (its id), or everything ever believed about a subject, oldest first.

        With user_id what that user's memory believed, also of whom the user alone has spoken of.
        """
        if isinstance(target, SubjectRef):
            return run(believing.history(self._rt, group_id, target, predicate, user_id), self._rt.database)
        return run(asking.history(self._rt, group_id, target, user_id), self._rt.database)


class AsyncVerbs:
    """`Verbs` to await; see there."""

    _rt: Runtime

    async def add(
        self,
        messages: object,
        *,
        user_id: str,
        group_id: str = "default",
        agent_id: str | None = None,
        session_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        connection: Any = None,
    ) -> list[Turn]:
        scope = asking.scope_of(group_id, user_id, agent_id, None)
        return await arun(
            asking.add_messages(
                self._rt, messages, scope=scope, session_id=session_id, metadata=metadata, given=connection
            ),
            self._rt.database,
        )

    async def search(
        self,
        query: object,
        *,
        user_id: str,
        top_k: int = 10,
        group_id: str = "default",
        agent_id: str | None = None,
        session_id: str | None = None,
        kind: str | Sequence[str] | None = None,
        after: datetime | None = None,
        before: datetime | None = None,
        filter: Mapping[str, Any] | None = None,
        floor: float | str | None = None,
        valid_at: datetime | None = None,
        known_at: datetime | None = None,
    ) -> list[ScoredMemory]:
        return await arun(asking.search(
            self._rt, asking.scope_of(group_id, user_id, None, None), query, top_k,
            {"session_id": session_id, "agent_id": agent_id, "kind": kind, "after": after, "before": before,
             "filter": filter}, floor, valid_at=valid_at, known_at=known_at,
        ), self._rt.database)  # fmt: skip

    async def get_all(
        self,
        *,
        user_id: str,
        group_id: str = "default",
        session_id: str | None = None,
        kind: str | Sequence[str] | None = None,
        filter: Mapping[str, Any] | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[MemoryText]:
        return await arun(asking.get_all(
            self._rt, asking.scope_of(group_id, user_id, None, None), limit=limit, offset=offset,
            conditions={"session_id": session_id, "kind": kind, "filter": filter},
        ), self._rt.database)  # fmt: skip

    async def update(
        self,
        memory_id: str | uuid.UUID,
        content: object,
        *,
        group_id: str = "default",
        user_id: str | None = None,
        connection: Any = None,
    ) -> MemoryText:
        return await arun(asking.update(self._rt, group_id, memory_id, content, user_id, connection), self._rt.database)

    async def delete(
        self,
        memory_id: str | uuid.UUID,
        *,
        group_id: str = "default",
        user_id: str | None = None,
        connection: Any = None,
    ) -> bool:
        return await arun(asking.delete(self._rt, group_id, memory_id, user_id, connection), self._rt.database)

    async def delete_all(self, *, user_id: str, group_id: str = "default", connection: Any = None) -> int:
        return await arun(
            asking.delete_all(self._rt, asking.scope_of(group_id, user_id, None, None), connection), self._rt.database
        )

    async def facts(
        self,
        subject: SubjectRef | None = None,
        predicate: str | None = None,
        *,
        user_id: str | None = None,
        group_id: str = "default",
        valid_at: datetime | None = None,
        known_at: datetime | None = None,
    ) -> list[Fact]:
        return await arun(believing.facts(
            self._rt, group_id, subject=subject, user_id=user_id, predicate=predicate, valid_at=valid_at,
            known_at=known_at,
        ), self._rt.database)  # fmt: skip

    @overload
    async def history(
        self, target: str | uuid.UUID, *, group_id: str = "default", user_id: str | None = None
    ) -> list[dict[str, Any]]: ...

    @overload
    async def history(
        self,
        target: SubjectRef,
        predicate: str | None = None,
        *,
        group_id: str = "default",
        user_id: str | None = None,
    ) -> list[Fact]: ...

    async def history(
        self,
        target: str | uuid.UUID | SubjectRef,
        predicate: str | None = None,
        *,
        group_id: str = "default",
        user_id: str | None = None,
    ) -> list[dict[str, Any]] | list[Fact]:
        if isinstance(target, SubjectRef):
            return await arun(believing.history(self._rt, group_id, target, predicate, user_id), self._rt.database)
        return await arun(asking.history(self._rt, group_id, target, user_id), self._rt.database)
