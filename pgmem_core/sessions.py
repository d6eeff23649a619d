"""`mem.session`: create, open (get or create), get, list, end. `Sessions` blocks, `AsyncSessions` is awaited."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pgmem_core import asking
from pgmem_core.effects import arun, run
from pgmem_core.runtime import Runtime
from pgmem_core.session import AsyncSession, Session
from pgmem_core.types import SessionInfo

__all__ = ["AsyncSessions", "Sessions"]


class Sessions:
    """`mem.session`: create, open (get or create), get, list."""

    def __init__(self, rt: Runtime) -> None:
        self._rt = rt

    def create(
        self,
        session_id: str | None = None,
        *,
        user_id: str | None = None,
        group_id: str = "default",
        agent_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        connection: Any = None,
    ) -> Session:
        """Create a session and return it; an id is minted (UUIDv7) if none is given.

        Without user_id the session is a scope of its own: it recalls itself only. Raises: Conflict if it exists.
        """
        key = asking.session_key(session_id, group_id=group_id, user_id=user_id, agent_id=agent_id)
        return Session(
            self._rt,
            run(asking.open_session(self._rt, key, metadata, create_only=True, given=connection), self._rt.database),
        )

    def open(
        self,
        session_id: str,
        *,
        user_id: str | None = None,
        group_id: str = "default",
        agent_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        connection: Any = None,
    ) -> Session:
        """Get the session, or create it. Raises: Conflict if it is another user's."""
        key = asking.session_key(asking.check_id(session_id, "session_id"), group_id=group_id, user_id=user_id,
                                 agent_id=agent_id)  # fmt: skip
        return Session(
            self._rt,
            run(asking.open_session(self._rt, key, metadata, create_only=False, given=connection), self._rt.database),
        )

    def get(self, session_id: str, *, group_id: str = "default", user_id: str | None = None) -> Session:
        """Get a stored session. Raises: NotFound, also where user_id is given and it is another user's."""
        return Session(
            self._rt,
            run(
                asking.get_session(self._rt, session_id, group_id=group_id, user_id=user_id),
                self._rt.database,
            ),
        )

    def list(
        self, *, user_id: str | None = None, group_id: str = "default", limit: int = 100, offset: int = 0
    ) -> list[SessionInfo]:
        """Return sessions of a user (or of the whole group), newest first."""
        return run(
            asking.list_sessions(self._rt, group_id=group_id, user_id=user_id, limit=limit, offset=offset),
            self._rt.database,
        )

    def end(self, session_id: str, *, group_id: str = "default") -> SessionInfo:
        """Mark a session ended. Raises: NotFound."""
        return self.get(session_id, group_id=group_id).end()


class AsyncSessions:
    """`Sessions` to await; see there."""

    def __init__(self, rt: Runtime) -> None:
        self._rt = rt

    async def create(
        self,
        session_id: str | None = None,
        *,
        user_id: str | None = None,
        group_id: str = "default",
        agent_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        connection: Any = None,
    ) -> AsyncSession:
        key = asking.session_key(session_id, group_id=group_id, user_id=user_id, agent_id=agent_id)
        return AsyncSession(
            self._rt,
            await arun(
                asking.open_session(self._rt, key, metadata, create_only=True, given=connection), self._rt.database
            ),
        )

    async def open(
        self,
        session_id: str,
        *,
        user_id: str | None = None,
        group_id: str = "default",
        agent_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        connection: Any = None,
    ) -> AsyncSession:
        key = asking.session_key(asking.check_id(session_id, "session_id"), group_id=group_id, user_id=user_id,
                                 agent_id=agent_id)  # fmt: skip
        return AsyncSession(
            self._rt,
            await arun(
                asking.open_session(self._rt, key, metadata, create_only=False, given=connection), self._rt.database
            ),
        )

    async def get(self, session_id: str, *, group_id: str = "default", user_id: str | None = None) -> AsyncSession:
        return AsyncSession(
            self._rt,
            await arun(
                asking.get_session(self._rt, session_id, group_id=group_id, user_id=user_id),
                self._rt.database,
            ),
        )

    async def list(
        self, *, user_id: str | None = None, group_id: str = "default", limit: int = 100, offset: int = 0
    ) -> list[SessionInfo]:
        return await arun(
            asking.list_sessions(self._rt, group_id=group_id, user_id=user_id, limit=limit, offset=offset),
            self._rt.database,
        )

    async def end(self, session_id: str, *, group_id: str = "default") -> SessionInfo:
        return await (await self.get(session_id, group_id=group_id)).end()
